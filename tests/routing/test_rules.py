from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.routing import (
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    Not,
    ParallelTarget,
    PhaseTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionDecision,
    TransitionGraph,
)
from tests.routing.samples import NAMES, ByPhase, Envelope, Raises, State, packet
from tests.routing.strategies import envelopes, graphs, hostile_envelopes, hostile_states, states


def kleene(when: Any, state: State, envelope: Envelope) -> bool | None:
    """Three values: a condition that fails is unknown."""
    match when:
        case Not(condition):
            inner = kleene(condition, state, envelope)
            return None if inner is None else not inner
        case AllOf(conditions) | AnyOf(conditions):
            found = [kleene(part, state, envelope) for part in conditions]
            decisive = isinstance(when, AnyOf)
            if decisive in found:
                return decisive
            return None if None in found else not decisive
    try:
        found_one = when.evaluate(state, envelope)
    except Exception:
        return None
    return found_one if isinstance(found_one, bool) else None


def follow(target: Any, rule: Any, state: State, envelope: Envelope) -> TransitionDecision | None:
    """What a target decides, if that is one of the decisions there are."""
    try:
        led = target.resolve(state, envelope)
    except Exception:
        return None
    if not isinstance(led, TransitionDecision) or not isinstance(led.speakers, tuple):
        return None
    known = all(name in (*state.participant_order, state.creator_id) for name in led.speakers)
    several = len(led.speakers) == len(set(led.speakers)) > 0
    right = {"speak": several, "wait": len(led.speakers) == 1, "close": not led.speakers}
    typed = isinstance(led.close_reason, str) and isinstance(led.phase, str | None)
    return replace(led, rule=rule) if known and typed and right.get(led.action) else None


def said(state: State, envelope: Envelope) -> TransitionDecision | None:
    routing = envelope.event_data.get("routing", {})
    if routing.get("kind") == "finish":
        reason = routing.get("reason") or "finished"
        return TransitionDecision("close", close_reason=reason, rule="finish")
    target = routing.get("target")
    if routing.get("kind") != "handoff" or target in (None, envelope.sender_id):
        return None
    phase = routing.get("next_phase")
    if target == "human":
        return TransitionDecision("wait", (state.creator_id,), phase, rule="handoff")
    if target in (*state.participant_order, state.creator_id):
        return TransitionDecision("speak", (target,), phase, rule="handoff")
    return None


def reference(graph: TransitionGraph, state: State, envelope: Envelope) -> TransitionDecision:
    """What the design says, word by word, without an index."""
    creator, first = state.creator_id, graph.initial_speaker
    opens = envelope.sender_id == creator and state.last_speaker_id is None
    if opens and first not in (creator, "human"):
        return TransitionDecision("speak", (first,), rule="initial")
    decision = said(state, envelope)
    rules = sorted(enumerate(graph.transitions), key=lambda one: one[1].priority)
    for index, rule in rules:
        if decision is None and kleene(rule.when, state, envelope) is True:
            decision = follow(rule.then, index, state, envelope)
    default = follow(graph.default_target, "default", state, envelope)
    closed = TransitionDecision("close", close_reason="no_speaker", rule="default")
    decision = decision or default or closed
    if graph.max_turns is None or decision.action == "close":
        return decision
    if state.turn_count + len(decision.speakers) <= graph.max_turns:
        return decision
    if default is not None and default.action == "close":
        return default
    return TransitionDecision("close", close_reason="max_turns", rule="max_turns")


@settings(max_examples=400)
@given(graphs(), states, envelopes)
def test_decision_is_what_the_design_says(
    graph: TransitionGraph, state: State, envelope: Envelope
) -> None:
    assert graph.resolve(state, envelope) == reference(graph, state, envelope)


def is_lawful(decision: TransitionDecision, state: State) -> bool:
    known = (*state.participant_order, state.creator_id)
    match decision.action:
        case "speak":
            return bool(decision.speakers) and all(name in known for name in decision.speakers)
        case "wait":
            return decision.next_speaker in known
    return decision.speakers == () and decision.close_reason != ""


@settings(max_examples=400)
@given(graphs(), hostile_states, hostile_envelopes)
def test_every_decision_is_of_participants_or_a_wait_or_a_close(
    graph: TransitionGraph, state: State, envelope: Envelope
) -> None:
    decision = graph.resolve(state, envelope)
    joined = graph.join(decision, state, envelope) if isinstance(decision.rule, int) else decision

    assert is_lawful(decision, state)
    assert is_lawful(joined, state)


speakers = st.sampled_from(NAMES)
spoken = st.builds(FromSpeaker, speakers) | st.builds(
    lambda one, key, other: AllOf((ContextEquals("x", key), FromSpeaker(one), other)),
    speakers,
    st.booleans(),
    st.sampled_from([Always(), FromSpeaker("a"), ToolCalled("t")]),
)


@given(graphs(spoken | st.just(Always()), size=12), states, envelopes)
def test_index_by_speaker_keeps_the_order(
    graph: TransitionGraph, state: State, envelope: Envelope
) -> None:
    hidden = [replace(rule, when=Not(Not(rule.when))) for rule in graph.transitions]

    assert graph.resolve(state, envelope) == replace(graph, transitions=hidden).resolve(
        state, envelope
    )


def test_lower_priority_is_tried_first_then_the_order_of_the_list() -> None:
    rules = [
        Transition(Always(), "a", priority=1),
        Transition(Always(), "b"),
        Transition(Always(), "c"),
        Transition(ToolCalled("t"), "a", priority=-1),
    ]
    graph = TransitionGraph("a", rules)

    assert graph.resolve(State(), packet()).rule == 1
    assert graph.resolve(State(), packet(tool="t")).rule == 3


def test_opening_words_go_to_the_initial_speaker_without_a_rule() -> None:
    graph = TransitionGraph("b", [Transition(Always(), "c")], max_turns=1)
    before = State(last_speaker_id=None, turn_count=0)

    assert graph.resolve(before, Envelope("user")).rule == "initial"
    assert graph.resolve(State(last_speaker_id="b"), Envelope("user")).rule != "initial"
    assert graph.resolve(before, Envelope("a")).rule != "initial"


@pytest.mark.parametrize("first", ["user", "human"])
def test_creator_who_speaks_first_has_the_first_turn(first: str) -> None:
    graph = TransitionGraph(first, [Transition(FromSpeaker(first), "c")])
    state = State(last_speaker_id="user", turn_count=1)

    assert graph.resolve(state, Envelope("user")) == TransitionDecision("speak", ("c",), rule=0)


def test_handoff_outranks_the_rule_of_its_tool() -> None:
    graph = TransitionGraph("a", [Transition(ToolCalled("t"), "b")])
    handoff = packet(kind="handoff", tool="t", target="c", next_phase="work")

    assert graph.resolve(State(), handoff) == TransitionDecision(
        "speak", ("c",), "work", rule="handoff"
    )


@pytest.mark.parametrize("target", ["nobody", "a", None, 3, ["b"]])
def test_handoff_that_leads_nowhere_leaves_it_to_the_rules(target: Any) -> None:
    graph = TransitionGraph("a", [Transition(ToolCalled("t"), "b")])

    decision = graph.resolve(State(), packet(kind="handoff", tool="t", target=target))

    assert decision.rule == 0
    assert len(decision.trace) == isinstance(target, str)


def test_handoff_to_the_human_waits_for_whoever_opened_the_session() -> None:
    graph = TransitionGraph("a")

    decision = graph.resolve(State(creator_id="maria"), packet(kind="handoff", target="human"))

    assert decision == TransitionDecision("wait", ("maria",), rule="handoff")


@pytest.mark.parametrize(("reason", "closed"), [("enough", "enough"), ("", "finished"), (3, None)])
def test_finish_closes_with_its_reason(reason: Any, closed: str | None) -> None:
    graph = TransitionGraph("a", [Transition(Always(), "b")])

    decision = graph.resolve(State(), packet(kind="finish", reason=reason))

    assert decision == TransitionDecision("close", close_reason=closed or "finished", rule="finish")


def capped(rule: Any, default: Any, turns: int = 3, **routing: Any) -> TransitionDecision:
    graph = TransitionGraph("a", [Transition(Always(), rule)], default, max_turns=3)
    return graph.resolve(State(turn_count=turns), packet(**routing))


@pytest.mark.parametrize(
    ("rule", "default", "reason", "by"),
    [
        (TerminateTarget("r"), TerminateTarget("d"), "r", 0),
        ("b", TerminateTarget("d"), "d", "default"),
        ("b", PhaseTarget("work", TerminateTarget("d")), "d", "default"),
        ("b", TerminateTarget("no_speaker"), "no_speaker", "default"),
        ("b", "c", "max_turns", "max_turns"),
        ("b", "nobody", "max_turns", "max_turns"),
        (HumanTarget(), HumanTarget(), "max_turns", "max_turns"),
        ("nobody", "c", "max_turns", "max_turns"),
    ],
)
def test_at_the_cap_a_terminate_wins_then_the_default_then_the_cap(
    rule: Any, default: Any, reason: str, by: Any
) -> None:
    decision = capped(rule, default)

    assert (decision.action, decision.close_reason, decision.rule) == ("close", reason, by)


def test_at_the_cap_a_finish_wins_and_a_handoff_does_not() -> None:
    assert capped("b", "c", kind="finish", reason="r").close_reason == "r"
    assert capped("b", "c", kind="handoff", target="c").rule == "max_turns"


def test_below_the_cap_nothing_changes() -> None:
    assert capped("b", "c", turns=2).next_speaker == "b"


def test_several_speak_only_where_turns_are_left_for_all() -> None:
    both = ParallelTarget(["b", "c"], "a")

    assert capped(both, "c", turns=1).speakers == ("b", "c")
    assert capped(both, "c", turns=2).rule == "max_turns"


def test_fault_of_the_default_is_told_once() -> None:
    assert len(capped(StayTarget(), "nobody").trace) == 1
    assert len(capped("nobody", "nobody").trace) == 2


def test_join_says_who_goes_on_after_several() -> None:
    both_speak = PhaseTarget("x", PhaseTarget("y", ParallelTarget(["b", "c"], "a")))
    rules = [Transition(FromSpeaker("a"), both_speak)]
    graph = TransitionGraph("a", rules, max_turns=4)

    both = graph.resolve(State(turn_count=1), Envelope("a"))
    after = graph.join(both, State(turn_count=3), Envelope("c"))
    last = graph.join(both, State(turn_count=4), Envelope("c"))

    assert (both.speakers, both.phase) == (("b", "c"), "x")
    assert after == TransitionDecision("speak", ("a",), rule=0)
    assert (last.action, last.close_reason) == ("close", "terminated")


def test_join_is_found_inside_of_a_target_of_one_s_own() -> None:
    inner = ByPhase("work", ParallelTarget(["a", "c"], "a"), ParallelTarget(["b", "c"], "b"))
    graph = TransitionGraph("a", [Transition(FromSpeaker("a"), PhaseTarget("x", inner))])

    both = graph.resolve(State(), Envelope("a"))

    assert both.speakers == ("b", "c")
    assert graph.join(both, State(), Envelope("c")).next_speaker == "b"


def test_join_of_the_default_and_of_one_that_leads_nowhere() -> None:
    default = TransitionGraph("a", default_target=ParallelTarget(["b", "c"], StayTarget()))
    nowhere = TransitionGraph("a", [Transition(Always(), ParallelTarget(["b"], "nobody"))])

    both = default.resolve(State(), Envelope("a"))
    lost = nowhere.join(nowhere.resolve(State(), Envelope("a")), State(), Envelope("b"))

    assert default.join(both, State(), Envelope("c")).next_speaker == "c"
    assert (lost.close_reason, lost.trace) == (
        "terminated",
        ("rule 0 leads to 'nobody', who is no participant",),
    )


def test_creator_who_is_no_participant_can_speak() -> None:
    graph = TransitionGraph("a", [Transition(Always(), "maria")])

    assert graph.resolve(State(creator_id="maria"), Envelope()).next_speaker == "maria"
    assert graph.resolve(State(creator_id="otto"), Envelope()).rule == "default"


def test_trace_is_no_part_of_a_decision_s_equality_nor_of_its_document() -> None:
    graph = TransitionGraph("a", [Transition(Raises() | Always(), PhaseTarget("work", "b"))])

    decision = graph.resolve(State(), Envelope())

    assert decision.trace
    assert decision == replace(decision, trace=())
    assert TransitionDecision.from_dict(decision.to_dict()) == decision
    assert decision.to_dict() == {
        "action": "speak",
        "speakers": ["b"],
        "rule": 0,
        "phase": "work",
        "close_reason": "",
    }


def test_routing_tools_are_found_wherever_they_stand() -> None:
    rules = [
        Transition(ToolCalled("t"), "a"),
        Transition(~(FromSpeaker("a") & (ToolCalled("u") | ToolCalled("v"))), "a"),
        Transition(FromSpeaker("a"), AgentTarget("b")),
    ]

    assert TransitionGraph("a", rules).routing_tools == {"t", "u", "v"}
    assert TransitionGraph("a", [], RoundRobinTarget()).routing_tools == frozenset()
