from __future__ import annotations

from typing import Any

import pytest

from agentgraph import Finish, Handoff
from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    ActiveAgentTarget,
    Always,
    ContextEquals,
    FromSpeaker,
    HasActiveAgent,
    HumanTarget,
    InPhase,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    SimulatedTurn,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    round_robin,
)
from tests.routing.samples import cyclic

A, B, C = (FromSpeaker(name) for name in "abc")


def graph(*rules: tuple[Any, Any], first: str = "a", **options: Any) -> TransitionGraph:
    return TransitionGraph(first, [Transition(*rule) for rule in rules], **options)


def play(played: TransitionGraph, script: Any = (), **options: Any) -> Any:
    return played.simulate(script, participants=["a", "b", "c"], **options)


def test_opening_words_are_no_turn() -> None:
    played = play(graph((A, "b")), ["one", "two"])

    assert played.speakers == ("a", "b")
    assert played.state.turn_count == 2
    assert played.close_reason == "terminated"


@pytest.mark.parametrize(("first", "creator"), [("a", "a"), ("human", "user"), ("human", "c")])
def test_creator_who_speaks_first_has_the_first_turn(first: str, creator: str) -> None:
    played = play(graph((FromSpeaker("human"), "b"), first=first), creator=creator)

    assert played.speakers == (creator, "b")


def test_script_is_one_list_or_a_list_for_each() -> None:
    both = graph((A, "b"), (B, "a"), max_turns=4)

    one = play(both, ["1", "2", "3"])
    each = play(both, {"b": ["2"], "a": ["1", "3"]})

    assert [step.text for step in one.steps] == ["1", "2", "3", ""]
    assert [step.text for step in each.steps] == ["1", "2", "3", ""]


def test_turn_calls_a_tool_sets_and_deletes() -> None:
    rules = graph(
        (A & ToolCalled("t"), "b"),
        (ContextEquals("x", 1), "c"),
        (C & ContextEquals("x", None), TerminateTarget("gone")),
    )

    played = play(
        rules,
        [SimulatedTurn(tool="t"), SimulatedTurn(set={"x": 1}), SimulatedTurn(delete=["x"])],
    )

    assert played.speakers == ("a", "b", "c")
    assert (played.close_reason, played.state.context_vars) == ("gone", {})


def test_deletion_comes_before_what_is_set() -> None:
    played = play(graph(), [SimulatedTurn(set={"x": 1}, delete=["x"])])

    assert played.state.context_vars == {"x": 1}


def test_metadata_of_a_turn_is_seen() -> None:
    played = play(graph((A, HumanTarget())), [SimulatedTurn(metadata={"intent": "buy"})])

    assert played.waiting_for == "user"


def test_handoff_and_finish_outrank_the_rules() -> None:
    played = play(graph((Always(), "b")), [Handoff("c", "why"), Finish("text", "enough")])

    assert played.speakers == ("a", "c")
    assert played.close_reason == "enough"
    assert played.state.active_agent == "c"


def test_handoff_enters_a_phase_and_gives_the_conversation_away() -> None:
    rules = graph((InPhase(["work"]) & HasActiveAgent() & B, TerminateTarget("worked")))

    assert play(rules, [Handoff("b", next_phase="work")]).close_reason == "worked"
    assert play(graph((Always(), "b")), [Handoff("b"), Handoff("human")]).state.active_agent is None


def test_handoff_of_a_tool_to_nobody_leaves_it_to_the_tool_s_rule() -> None:
    turn = SimulatedTurn(tool="t", outcome=Handoff("nobody"))

    assert play(graph((ToolCalled("t"), "b")), [turn]).speakers == ("a", "b")


def test_wait_ends_where_the_human_has_nothing_to_say() -> None:
    rules = graph((A, HumanTarget()), (FromSpeaker("human"), "b"))

    assert play(rules, {"a": ["?"]}).waiting_for == "user"
    assert play(rules, {"user": ["!"]}, creator="user").speakers == ("a", "user", "b")


def test_creator_is_asked_again_where_it_reverts_to_them() -> None:
    played = play(graph((A, RevertToInitiatorTarget())), creator="maria")

    assert played.speakers == ("a", "maria")


def test_several_speak_before_the_join_decides() -> None:
    rules = graph((A, ParallelTarget(["b", "c"], StayTarget())), (C & ToolCalled("t"), "a"))

    played = play(rules, {"c": ["1", SimulatedTurn(tool="t")], "a": ["", Finish()]})

    assert played.speakers == ("a", "b", "c", "c", "a")
    assert [step.decision.speakers for step in played.steps] == [
        ("b", "c"),
        ("b", "c"),
        ("c",),
        ("a",),
        (),
    ]


def test_phase_is_entered_and_kept() -> None:
    rules = graph((A & InPhase(["intake"]), PhaseTarget("work", "b")), (InPhase(["work"]), "c"))

    played = play(rules, turns=3)

    assert played.speakers == ("a", "b", "c")
    assert played.state.phase == "work"
    assert play(rules, phase="other").speakers == ("a",)


def test_active_agent_does_not_answer_itself() -> None:
    rules = graph((HasActiveAgent(), ActiveAgentTarget()), (A, HumanTarget()))

    played = play(rules, [Handoff("b"), "done", "and now?", "there"])

    assert played.speakers == ("a", "b", "user", "b")
    assert played.waiting_for == "user"


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("creator", ["user", "a"])
def test_turns_bound_a_simulation(turns: int, creator: str) -> None:
    played = play(graph((Always(), StayTarget())), turns=turns, creator=creator)

    assert played.speakers == ("a",) * turns
    assert (played.close_reason, played.waiting_for) == (None, None)


@pytest.mark.parametrize(("turns", "spoken"), [(1, 1), (3, 1), (4, 4), (7, 5), (8, 8)])
def test_several_speak_at_once_only_where_all_their_turns_are_left(turns: int, spoken: int) -> None:
    at_once = graph((Always(), ParallelTarget([*"abc"], StayTarget())))

    played = play(at_once, turns=turns)

    assert len(played.steps) == spoken
    assert (played.close_reason, played.waiting_for) == (None, None)


def test_transcript_says_who_spoke_and_how_it_ended() -> None:
    closes = play(graph((A, "b")), ["hello", ""])
    waits = play(graph((A, HumanTarget())), ["hello"])
    goes_on = play(round_robin(["a", "b"]), turns=1)

    assert str(closes) == "1. a: hello\n2. b\nclosed: terminated"
    assert str(waits) == "1. a: hello\nwaits for user"
    assert str(goes_on) == "1. a\ngoes on"


@pytest.mark.parametrize("script", ["text", 3, None, [3], {"a": [None]}])
def test_what_is_no_script_is_refused(script: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a script is|is no turn"):
        play(graph(), script)


def test_what_a_turn_sets_is_json() -> None:
    with pytest.raises(ConfigurationError, match="what a turn sets"):
        play(graph(), [SimulatedTurn(set={"x": cyclic()})])
