from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentgraph import Handoff
from agentgraph.errors import ConfigurationError
from agentgraph.phases import ConversationRouter, RoutingConditions, RoutingRule
from agentgraph.routing import (
    Always,
    ContextEquals,
    FromSpeaker,
    RoutingEnvelope,
    TransitionGraph,
)
from tests.routing.samples import Answers, Envelope, Raises, State
from tests.routing.strategies import hostile_envelopes, hostile_states, metadata, states

AGENTS = ("a", "b", "c")


def state(**changes: Any) -> State:
    return State(**{"participant_order": (*AGENTS, "watch"), **changes})


def said(sender: str = "user", **metadata: Any) -> Envelope:
    return Envelope(sender, {}, metadata)


def rule(agent: str, priority: int = 0, **conditions: Any) -> RoutingRule:
    return RoutingRule(agent, RoutingConditions(**conditions), priority)


router = ConversationRouter(
    [
        rule("c", 10),
        rule("a", 0, phases={"work"}, intents={"buy"}),
        rule("b", 0, channel_types={"sms"}),
    ],
    default_agent_id="a",
    supervisor_id="watch",
)


@pytest.mark.parametrize("sender", ["a", "b", "c"])
def test_what_an_agent_said_is_never_routed(sender: str) -> None:
    spoken = said(sender, addressed_to="b")

    assert router.select_agent(state(active_agent="b"), spoken) is None
    assert router.to_graph().resolve(state(active_agent="b"), spoken).action == "wait"


def test_what_the_supervisor_said_is_never_routed_and_its_name_is_not_in_the_graph() -> None:
    assert router.select_agent(state(active_agent="b"), said("watch", addressed_to="b")) is None
    found = router.to_graph().check(["a", "b", "c"])
    assert not [one for one in found if one.severity == "error"]


@pytest.mark.parametrize("addressed", [None, "a"])
def test_what_the_active_agent_said_is_not_routed_in_any_phase(addressed: str | None) -> None:
    bound = ConversationRouter([], "a", affinity_phases={"work"})
    spoken = said("x", addressed_to=addressed)
    there = state(active_agent="x", phase="intake")

    assert bound.select_agent(there, spoken) is None
    assert bound.to_graph().resolve(there, spoken).action == "wait"


@pytest.mark.parametrize("wrong", [{"agent_id": None}, {"conditions": None}, {"priority": "high"}])
def test_rule_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RoutingRule(**{"agent_id": "a", **wrong})


def test_who_has_the_conversation_is_an_agent_whom_the_rules_need_not_name() -> None:
    only = ConversationRouter([], default_agent_id="a")

    assert only.select_agent(state(active_agent="b"), said("b")) is None
    assert only.to_graph().resolve(state(active_agent="b"), said("b")).action == "wait"


@pytest.mark.parametrize(
    ("envelope", "active", "phase", "agent"),
    [
        (said(addressed_to="c"), "b", "work", "c"),
        (said(addressed_to=["nobody", "c"]), "b", "work", "c"),
        (said(addressed_to="nobody"), "b", "work", None),
        (said(addressed_to=[]), "b", "work", None),
        (said(intent="buy"), "b", "work", "b"),
        (said(intent="buy"), "gone", "work", "a"),
        (said(intent="buy"), None, "work", "a"),
        (said(intent="buy", channel_type="sms"), None, "work", "a"),
        (said(intent="buy", channel_type="sms"), None, "intake", "b"),
        (said(), None, "intake", "c"),
    ],
)
def test_address_then_affinity_then_rules_in_their_order(
    envelope: Envelope, active: str | None, phase: str, agent: str | None
) -> None:
    asked = state(active_agent=active, phase=phase)

    decision = router.to_graph().resolve(asked, envelope)

    assert router.select_agent(asked, envelope) == agent
    assert (decision.next_speaker if decision.action == "speak" else None) == agent


def test_default_answers_where_no_rule_does() -> None:
    phased = ConversationRouter([rule("b", phases={"work"})], "a")

    assert phased.select_agent(state(), said()) == "a"
    assert phased.select_agent(state(participant_order=("b",)), said()) is None
    assert ConversationRouter().select_agent(state(), said()) is None
    assert ConversationRouter().to_graph().resolve(state(), said()).action == "wait"


def test_agent_of_a_rule_must_be_there() -> None:
    gone = state(participant_order=("a", "b"))

    assert router.select_agent(gone, said()) == "a"
    assert router.to_graph().resolve(gone, said()).next_speaker == "a"


def test_affinity_can_be_bound_to_phases() -> None:
    bound = replace(router, affinity_phases={"work"})

    assert bound.select_agent(state(active_agent="b", phase="work"), said()) == "b"
    assert bound.select_agent(state(active_agent="b"), said()) == "c"


def test_source_is_the_sender_or_what_metadata_says() -> None:
    web = ConversationRouter([rule("b", source_channel_ids={"web", "user"})], "a")

    assert web.select_agent(state(), said()) == "b"
    assert web.select_agent(state(), said(source="web")) == "b"
    assert web.select_agent(state(), said(source="mail")) == "a"


def test_empty_set_matches_nothing_and_no_conditions_everything() -> None:
    assert ConversationRouter([rule("b", phases=set())], "a").select_agent(state(), said()) == "a"
    assert ConversationRouter([RoutingRule("b")], "a").select_agent(state(), said()) == "b"


def test_custom_predicate_is_asked_after_all_else() -> None:
    def must_not(*_: object) -> bool:
        raise AssertionError

    def is_user(_: object, envelope: RoutingEnvelope) -> bool:
        return envelope.sender_id == "user"

    guarded = ConversationRouter([rule("b", phases={"work"}, custom=must_not)], "a")
    calling = ConversationRouter([rule("b", custom=is_user)], "a")

    assert guarded.select_agent(state(), said()) == "a"
    assert calling.select_agent(state(), said()) == "b"
    assert calling.select_agent(state(), said("guest")) == "a"


@pytest.mark.parametrize(
    "custom", [Raises(), Answers(1), Answers("yes"), lambda s, e: 1, lambda s: True]
)
def test_custom_condition_that_fails_does_not_hold(custom: Any) -> None:
    assert ConversationRouter([rule("b", custom=custom)], "a").select_agent(state(), said()) == "a"


def test_predicate_cannot_be_stored_with_a_graph() -> None:
    named = ConversationRouter([rule("b", custom=lambda s, e: True), rule("c", custom=print)], "a")

    with pytest.raises(ConfigurationError) as caught:
        named.to_graph()

    assert len(caught.value.faults) == 2
    assert caught.value.faults[0].startswith("the rule for 'b': custom=<function")
    assert "register it with register_condition" in caught.value.faults[0]


@pytest.mark.parametrize("wrong", ["work", 3, [("b", {})], None, {"b": 1}])
def test_rules_are_a_list_of_rules(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no RoutingRule"):
        ConversationRouter(wrong)


def test_all_faults_of_a_router_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConversationRouter([3], 4, ["x"], affinity_phases="work")  # type: ignore[list-item,arg-type]

    assert caught.value.faults == (
        "rules: 3 is no RoutingRule",
        "default_agent_id=4: give a name, or None",
        "supervisor_id=['x']: give a name, or None",
        "affinity_phases='work': give a set of strings",
    )


@pytest.mark.parametrize("wrong", [{1, "work"}, {None}, {"work": 1}, b"work"])
def test_conditions_name_strings(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a set of strings"):
        RoutingConditions(phases=wrong)


def test_all_faults_of_conditions_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RoutingConditions("work", 3, intents={"x"}, custom="x")  # type: ignore[arg-type]

    assert caught.value.faults == (
        "phases='work': give a set of strings",
        "channel_types=3: give a set of strings",
        "custom='x' is no condition, and cannot be called",
    )


def test_graph_of_a_router_is_clean_and_comes_back() -> None:
    graph = replace(router, rules=router.rules[1:]).to_graph()

    assert graph.check([*AGENTS, "watch"]) == ()
    assert TransitionGraph.loads(graph.dumps()) == graph


def test_conversation_waits_for_the_human_after_each_answer() -> None:
    played = router.to_graph().simulate(
        {"user": ["hello", "more", "thanks"], "c": ["hi", Handoff("b")]},
        participants=[*AGENTS, "watch"],
    )

    assert played.speakers == ("user", "c", "user", "c", "b", "user", "b")
    assert played.waiting_for == "user"


@given(hostile_states, hostile_envelopes)
def test_router_picks_somebody_who_is_there_or_nobody_whatever_is_said(
    asked: State, envelope: Envelope
) -> None:
    picked = router.select_agent(asked, envelope)
    decision = router.to_graph().resolve(asked, envelope)

    assume(decision.rule not in ("finish", "handoff"))  # those are an agent's, and not routed
    assert picked is None or picked in asked.participant_order
    assert decision.action == ("wait" if picked is None else "speak")


conditions = st.builds(
    RoutingConditions,
    phases=st.none() | st.sets(st.sampled_from(["intake", "work"]), max_size=2),
    channel_types=st.none() | st.just({"sms"}),
    intents=st.none() | st.sets(st.sampled_from(["buy", "sell"]), max_size=2),
    source_channel_ids=st.none() | st.sets(st.sampled_from(["web", "user"]), max_size=2),
    custom=st.sampled_from([None, Raises(), Answers(1), ContextEquals("x", True), Always()])
    | st.just(~Raises() | FromSpeaker("user")),
)
routers = st.builds(
    ConversationRouter,
    st.lists(
        st.builds(RoutingRule, st.sampled_from(["a", "b", "gone"]), conditions, st.integers(-1, 1)),
        max_size=4,
    ),
    st.sampled_from([None, "a", "gone"]),
    st.sampled_from([None, "c"]),
    affinity_phases=st.none() | st.just({"work"}),
)
outside = st.builds(Envelope, st.sampled_from(["user", "guest"]), st.just({}), metadata)


@settings(max_examples=500)
@given(routers, states, outside)
def test_graph_decides_as_the_router_does(
    random_router: ConversationRouter, random_state: State, envelope: Envelope
) -> None:
    asked = replace(random_state, creator_id="user")

    decision = random_router.to_graph().resolve(asked, envelope)

    picked = random_router.select_agent(asked, envelope)
    assert decision.action == ("wait" if picked is None else "speak")
    assert decision.next_speaker == (picked or "user")
