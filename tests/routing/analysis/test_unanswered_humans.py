"""Humans who get the floor, and after whose words no agent speaks: always, or under conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentgraph.phases import ConversationRouter, RoutingConditions, RoutingRule
from agentgraph.routing import (
    ActiveAgentTarget,
    AddressedTarget,
    Always,
    ContextBelow,
    ContextEquals,
    ContextThreshold,
    Finding,
    FromSpeaker,
    HasActiveAgent,
    HumanTarget,
    InPhase,
    IntentIn,
    IsAddressed,
    ModelChoice,
    ModelCondition,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    SimulatedTurn,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from tests.routing.samples import NAMES

A, B, C = (FromSpeaker(name) for name in NAMES)
HUMAN, USER, ANN = FromSpeaker("human"), FromSpeaker("user"), FromSpeaker("ann")
PAID, OPEN = ContextEquals("state", "paid"), ContextEquals("state", "open")
ANGRY = ModelCondition("openai:gpt-5-mini", "Is the customer angry?")
ASKS, ASKS_ANN = HumanTarget(), HumanTarget("ann")
END = TerminateTarget("done")

Rules = Sequence[tuple[Any, Any]]


def graph(*rules: tuple[Any, Any], default: Any = END, initial: str = "a") -> TransitionGraph:
    return TransitionGraph(initial, [Transition(*rule) for rule in rules], default)


def humans(checked: TransitionGraph, people: Sequence[str] | None = ("user",)) -> list[Finding]:
    """Return what is found of humans, in a team with these people."""
    found = checked.check((*NAMES, *(people or ())), people=people)
    return [item for item in found if item.code in ("unanswered", "conditional_answer")]


def codes(checked: TransitionGraph, people: Sequence[str] | None = ("user",)) -> list[str]:
    return [item.code for item in humans(checked, people)]


@pytest.mark.parametrize(
    ("rules", "default", "indices"),
    [
        ([(A, ASKS)], ASKS, (0,)),
        ([(A, RevertToInitiatorTarget())], StayTarget(), (0,)),
        ([(A, ASKS), (HUMAN, StayTarget())], END, (0, 1)),
        ([(A, ASKS), (HUMAN & PAID, ASKS)], ASKS, (0, 1)),
        ([(A, ASKS), (HUMAN & PAID & OPEN, "b")], ASKS, (0,)),
    ],
)
@pytest.mark.parametrize("people", [None, ["user"]])
def test_a_human_after_whose_words_the_session_only_waits_is_found(
    rules: Rules, default: Any, indices: tuple[int, ...], people: Any
) -> None:
    (finding,) = humans(graph(*rules, default=default), people)
    assert (finding.code, finding.severity, finding.rules) == ("unanswered", "warning", indices)
    assert finding.message == (
        "nobody answers the creator of the session, for whom the session waits: after their words "
        "the session waits again; add a rule from 'human' to an agent"
    )


@pytest.mark.parametrize(
    "asks",
    [
        ASKS,
        "human",
        HumanTarget("human"),
        RevertToInitiatorTarget(),
        PhaseTarget("review", PhaseTarget("approval", ASKS)),
        ParallelTarget(["b", "c"], ASKS),
        ParallelTarget(["b", "c"], PhaseTarget("review", ASKS)),
    ],
)
@pytest.mark.parametrize("default", [END, PhaseTarget("over", END), TerminateTarget()])
def test_a_human_whose_words_only_close_the_session_is_found(asks: Any, default: Any) -> None:
    (finding,) = humans(graph((A, asks), default=default))
    assert (finding.code, finding.severity, finding.rules) == ("unanswered", "warning", (0,))
    assert finding.message == (
        "nobody answers the creator of the session, for whom the session waits: after their words "
        "default_target closes the session; add a rule from 'human' to an agent, or to "
        "TerminateTarget if that is meant"
    )


def test_what_is_found_is_what_happens() -> None:
    script = ["I have looked at it.", "And now?"]
    played = graph((A, ASKS)).simulate(script, participants=["a"])
    assert (played.speakers, played.close_reason) == (("a", "user"), "done")


@pytest.mark.parametrize(
    "rules",
    [
        [(A, ASKS), (USER, ASKS)],
        [(A, ASKS), (USER & PAID, TerminateTarget("paid")), (USER, ASKS)],
        [(A, ASKS), (USER & IntentIn(["bye"]), TerminateTarget("bye"))],
        [(A, HumanTarget("user")), (USER, StayTarget())],
        [(A, HumanTarget("user")), (USER, RoundRobinTarget(["user"]))],
        [(A, "user"), (USER, "user")],
        [(A, ActiveAgentTarget())],
        [(A, AddressedTarget())],
    ],
)
def test_a_human_who_gets_the_floor_in_another_way_is_found(rules: Rules) -> None:
    assert codes(graph(*rules)) == ["unanswered"]


@pytest.mark.parametrize(("initial", "default"), [("human", ASKS), ("human", END), ("user", END)])
def test_a_human_who_begins_and_whom_nobody_answers_is_found(initial: str, default: Any) -> None:
    assert "unanswered" in codes(graph(initial=initial, default=default))


@pytest.mark.parametrize("default", [ASKS_ANN, END])
def test_a_human_of_the_team_whom_nobody_answers_is_found(default: Any) -> None:
    checked = graph((A, ASKS_ANN), default=default)
    for people in (["ann"], ["ann", "user"]):
        (finding,) = humans(checked, people)
        assert finding.message.startswith("nobody answers 'ann', for whom")
    (finding,) = [f for f in checked.check([*NAMES, "ann"]) if f.code == "unanswered"]
    assert "add a rule from 'ann' to an agent" in finding.message


def test_a_rule_from_the_creator_does_not_answer_another_human() -> None:
    checked = graph((A, ASKS_ANN), (HUMAN, "a"))
    (finding,) = humans(checked, ["ann", "user"])
    assert finding.code == "conditional_answer"
    assert "add a rule from 'ann' to an agent without a condition" in finding.message
    assert codes(checked, ["ann"]) == []
    assert codes(graph((A, ASKS_ANN), (HUMAN | ANN, "a")), ["ann", "user"]) == []


def test_a_human_to_whom_only_humans_pass_the_floor_back_is_found() -> None:
    relay = [(A, ASKS), (USER, ASKS_ANN)]
    assert codes(graph(*relay, (ANN, "b")), ["ann", "user"]) == []
    assert codes(graph(*relay, (ANN, HumanTarget("user"))), ["ann", "user"]) == ["unanswered"] * 2
    (finding,) = humans(graph(*relay), ["ann", "user"])
    assert "nobody answers 'ann'" in finding.message


@pytest.mark.parametrize(
    "passes_on",
    [
        RoundRobinTarget(),
        RoundRobinTarget(["ann", "bob"]),
        "bob",
        PhaseTarget("review", "bob"),
        ModelChoice("openai:gpt-5-mini", ["bob"], "Who is next?"),
        HumanTarget("bob"),
    ],
)
def test_humans_who_get_the_floor_from_one_another_in_turn_are_found(passes_on: Any) -> None:
    asks_bob = ParallelTarget(["b", "c"], HumanTarget("bob"))
    rules = [Transition(Always(), ASKS_ANN, 1), Transition(ANN, passes_on)]
    rules.append(Transition(ContextEquals("x", None), asks_bob))
    checked = TransitionGraph("a", rules, AddressedTarget())

    found = checked.check((*NAMES, "ann", "bob"), people=["user"])

    assert [item.code for item in found] == ["conditional_answer"] * 2
    played = checked.simulate(
        {
            "a": [SimulatedTurn(set={"x": 1})],
            "ann": [SimulatedTurn(answers={"Who is next?": "bob"})] * 2,
            "bob": ["Well?"] * 2,
        },
        participants=(*NAMES, "ann", "bob"),
    )
    assert played.speakers[:4] == ("a", "ann", "bob", "ann")


@pytest.mark.parametrize("asks", [ASKS, AddressedTarget()])
def test_a_human_to_whom_the_creator_passes_the_floor_is_found(asks: Any) -> None:
    checked = graph((A, asks), (HUMAN, ASKS_ANN))
    found = checked.check((*NAMES, "ann"), people=["user"])
    assert "unanswered" in [item.code for item in found if "'ann'" in item.message]
    script = {"a": ["Who will see to it?"], "user": ["Ann."], "ann": ["Here I am."]}
    played = checked.simulate(script, participants=(*NAMES, "ann"))
    assert (played.speakers, played.close_reason) == (("a", "user", "ann"), "done")


@pytest.mark.parametrize("ring", [["ann", "a", "bob"], ["ann", "bob", "b"], ["ann", "bob"]])
def test_humans_who_speak_one_after_the_other_are_not_found_where_an_agent_answers(
    ring: list[str],
) -> None:
    relay = [(A, ASKS_ANN), (C, HumanTarget("bob")), (ANN, RoundRobinTarget(ring))]
    found = graph(*relay, default="c").check((*NAMES, "ann", "bob"), people=["user"])
    assert not {"unanswered", "conditional_answer"} & {item.code for item in found}


@pytest.mark.parametrize(
    "when",
    [
        PAID,
        PAID | OPEN,
        PAID & ~OPEN,
        ~PAID,
        ContextThreshold("count", 3) | ContextBelow("count", 3),
        ToolCalled("pressed"),
        ANGRY,
        ANGRY | PAID,
        IntentIn(["buy"]) & PAID,
    ],
)
@pytest.mark.parametrize("default", [ASKS, END])
@pytest.mark.parametrize("user", [HUMAN, USER])
def test_an_answer_under_a_condition_that_need_not_hold_is_found(
    when: Any, default: Any, user: Any
) -> None:
    (finding,) = humans(graph((A, ASKS), (user & when, "b"), default=default))
    assert (finding.code, finding.severity, finding.rules) == (
        "conditional_answer",
        "warning",
        (0, 1),
    )
    then = "default_target closes the session" if default is END else "the session waits again"
    assert f"only under conditions: where none of them holds, {then}; add a" in finding.message
    assert "from 'human' to an agent without a condition" in finding.message


@pytest.mark.parametrize(
    ("rules", "default"),
    [
        ([(A, ASKS), (HUMAN, "a")], ASKS),
        ([(A, ASKS), (HUMAN, "a")], END),
        ([(A, ASKS), (USER, "a")], END),
        ([(A, ASKS)], "a"),
        ([(A, ASKS), (HUMAN & PAID, "b")], "a"),
        ([(A, ASKS), (HUMAN & PAID, "b"), (HUMAN, "a")], ASKS),
        ([(A, ASKS), (HUMAN & PAID, "b"), (HUMAN & ~PAID, "a")], ASKS),
        ([(A, ASKS), (HUMAN & ~PAID, "b"), (HUMAN & ~OPEN, "a")], ASKS),
        ([(A, ASKS), (HUMAN & ~(PAID | OPEN), "b"), (PAID, "a"), (OPEN, "c")], ASKS),
        ([(A, ASKS), (HUMAN & ANGRY, "b"), (HUMAN & ~ANGRY, "a")], END),
        ([(A, ASKS), (HUMAN, ModelChoice("openai:gpt-5-mini", ["a", "b"]))], ASKS),
        ([(A, ASKS), (HUMAN, ParallelTarget(["b", "c"], ASKS))], END),
        ([(A, ASKS), (HUMAN, TerminateTarget("thanks"))], ASKS),
        ([(A, ASKS), (USER, TerminateTarget("thanks"))], ASKS),
        ([(A, HumanTarget("user")), (HUMAN, TerminateTarget("thanks"))], ASKS),
        ([(A, ASKS), (HUMAN & PAID, TerminateTarget("thanks"))], "a"),
        ([(A, ASKS), (HUMAN, PhaseTarget("work", "a"))], END),
        ([(A, ASKS), (~A & ~B & ~C, "a")], ASKS),
        ([(A, RevertToInitiatorTarget()), (HUMAN, RoundRobinTarget(["a", "b"]))], END),
        ([(A, HumanTarget("user")), (USER, "a")], END),
        # What the message carries is known to those who write the rules.
        ([(A, ASKS), (HUMAN & IntentIn(["buy"]), "b")], ASKS),
        ([(A, ASKS), (IsAddressed(), AddressedTarget())], ASKS),
        ([(A, ASKS), (HUMAN & HasActiveAgent(), ActiveAgentTarget())], ASKS),
        ([(A, ASKS), (HUMAN & InPhase(["work"]), "b")], END),
        # Nobody gives the human the floor.
        ([(A, "b")], END),
        ([(A, "b"), (C, ASKS)], END),
    ],
)
def test_a_human_who_is_answered_or_sent_off_on_purpose_is_not(rules: Rules, default: Any) -> None:
    assert codes(graph(*rules, default=default)) == []


def test_a_rule_that_gives_the_floor_back_to_the_human_comes_before_the_default() -> None:
    assert codes(graph((A, ASKS), (USER, ASKS), default="a")) == ["unanswered"]
    assert codes(graph((A, ASKS), (HUMAN, ASKS), default="a"), ["ann", "user"]) == ["unanswered"]


@pytest.mark.parametrize("people", [None, ["user"], ["ann", "user"]])
def test_a_rule_that_closes_the_session_after_the_creators_words_is_meant(people: Any) -> None:
    checked = graph((A, ASKS), (USER, TerminateTarget("thanks")), default=ASKS)
    found = checked.check([*NAMES, "ann", "user"], people=people)
    assert not {"unanswered", "conditional_answer"} & {item.code for item in found}


def test_a_human_is_found_where_the_people_are_not_known() -> None:
    (finding,) = graph((A, ASKS)).check(["a"])
    assert finding.code == "unanswered"
    assert codes(graph((A, ASKS), (HUMAN & PAID, "a")), None) == ["conditional_answer"]


def test_a_creator_who_may_be_a_participant_counts_as_answered_by_that_rule() -> None:
    checked = graph((USER, "a"), (A, ASKS), initial="user")
    assert [f.code for f in checked.check(["user", "a"])] == []
    assert [f.code for f in checked.check(["user", "a"], people=["user"])] == []


def test_a_router_without_a_default_agent_is_as_its_author_wants_it() -> None:
    rule = RoutingRule("a", RoutingConditions(intents={"buy"}))
    checked = ConversationRouter([rule]).to_graph(NAMES)
    assert codes(checked) == codes(checked, None) == []


def test_many_conditions_are_followed_in_time() -> None:
    keys = [f"k{number}" for number in range(400)]
    pairs = [ContextEquals(key, 1) & ContextEquals(f"{key}x", 1) for key in keys]
    checked = graph((A, ASKS), *((HUMAN & when, "b") for when in pairs))
    assert codes(checked) == ["conditional_answer"]
    assert codes(graph((A, ASKS), *((HUMAN & when, "b") for when in pairs), default="a")) == []
