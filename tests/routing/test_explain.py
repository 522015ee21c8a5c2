from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from agentgraph.routing import (
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromChannelType,
    FromSource,
    FromSpeaker,
    HasActiveAgent,
    HumanTarget,
    InPhase,
    IntentIn,
    IsAddressed,
    ParallelTarget,
    PhaseTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnIs,
)
from agentgraph.routing.composites import judge
from agentgraph.routing.rules import in_order
from tests.routing.samples import Answers, Envelope, Raises, State, packet
from tests.routing.strategies import envelopes, graphs, hostile_envelopes, hostile_states, states

A, B, C = (FromSpeaker(name) for name in "abc")


def graph(*rules: tuple[Any, Any], **options: Any) -> TransitionGraph:
    return TransitionGraph("a", [Transition(*rule) for rule in rules], **options)


@settings(max_examples=300)
@given(graphs(), states, envelopes)
def test_explanation_decides_as_resolve_does_and_its_verdicts_are_right(
    explained: TransitionGraph, state: State, envelope: Envelope
) -> None:
    found = explained.explain(state, envelope)
    decision = explained.resolve(state, envelope)
    fired = [verdict.rule for verdict in found.verdicts if verdict.fired]

    assert (found.decision, found.decision.trace) == (decision, decision.trace)
    assert fired == [decision.rule]
    assert found.verdicts[-1].fired
    assert all(verdict.why for verdict in found.verdicts if not verdict.fired)
    tried = [verdict for verdict in found.verdicts if isinstance(verdict.rule, int)]
    order = [index for index, _ in in_order(explained.transitions)]
    assert [verdict.rule for verdict in tried] == order[: len(tried)]
    for verdict in tried:
        index = verdict.rule
        assert isinstance(index, int)
        holds = judge(explained.transitions[index].when, state, envelope, []) is True
        assert holds == (verdict.fired or verdict.why.startswith("it fires, but"))


@given(graphs(), hostile_states, hostile_envelopes)
def test_anything_can_be_explained(
    explained: TransitionGraph, state: State, envelope: Envelope
) -> None:
    assert str(explained.explain(state, envelope))


def why(condition: Any, envelope: Any = None, **state: Any) -> str:
    explained = graph((condition, "b")).explain(State(**state), envelope or Envelope())
    return explained.verdicts[0].why


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (B, "'a' has spoken"),
        (ToolCalled("t"), "no routing tool was called"),
        (ContextEquals("k", 1), "'k' is True"),
        (ContextIn("l", [1]), "'l' is not set"),
        (ContextThreshold("k", 1), "'k' is True"),
        (InPhase(["work"]), "the phase is 'intake'"),
        (IntentIn(["buy"]), "the intent is None"),
        (FromSource(["web"]), "the source is 'a'"),
        (FromChannelType(["sms"]), "the channel type is None"),
        (HasActiveAgent(), "the active agent is None"),
        (IsAddressed(), "nobody is addressed"),
        (TurnIs(3), "it is turn 1"),
        (A & B & C, "'a' has spoken"),
        (A & (B | InPhase(["x"])), "'a' has spoken, and the phase is 'intake'"),
        (AnyOf(()), "it names nothing that could be the case"),
        (~A, "from_speaker('a') is the case"),
        (Raises("no"), "raises failed: LookupError: no"),
        (A & ~Answers(3), "answers answered 3, which is no bool"),
        (Answers(False), "answers(False) is not the case"),
    ],
)
def test_verdict_says_why_a_rule_did_not_fire(condition: Any, told: str) -> None:
    assert why(condition, context_vars={"k": True}) == told


def test_verdict_names_the_tool_that_was_called() -> None:
    assert why(ToolCalled("t"), packet(tool="u")) == "the tool was 'u'"


@pytest.mark.parametrize(
    ("envelope", "told"),
    [
        (
            packet(kind="handoff", target="c"),
            "→ handoff: the turn handed the floor over itself, which outranks the rules\n"
            "= c speaks",
        ),
        (
            packet(kind="finish", reason="r"),
            "→ finish: the turn ended the session itself, which outranks the rules\n= closes: r",
        ),
        (
            packet(kind="handoff", tool="t", target="x"),
            "  1: if from_speaker('a') then agent('x'): it fires, but rule 1 leads to 'x', who is "
            "no participant\n"
            "→ 0: if tool_called('t') then phase('work') then human(None)\n"
            "= waits for user, in phase 'work'\n"
            "the handoff leads to 'x', who is no participant\n"
            "rule 1 leads to 'x', who is no participant",
        ),
        (
            Envelope("b"),
            "  1: if from_speaker('a') then agent('x'): 'b' has spoken\n"
            "  0: if tool_called('t') then phase('work') then human(None): no routing tool was "
            "called\n"
            "→ default: otherwise terminate('done')\n"
            "= closes: done",
        ),
    ],
)
def test_explanation_reads_as_a_text(envelope: Envelope, told: str) -> None:
    rules = [
        Transition(ToolCalled("t"), PhaseTarget("work", HumanTarget())),
        Transition(A, "x", priority=-1),
    ]

    explained = TransitionGraph("a", rules, TerminateTarget("done"))

    assert str(explained.explain(State(), envelope)) == told


def test_opening_is_explained_by_its_own_verdict() -> None:
    opening = graph((Always(), "b")).explain(
        State(last_speaker_id=None, turn_count=0), Envelope("user")
    )

    assert [verdict.rule for verdict in opening.verdicts] == ["initial"]


@pytest.mark.parametrize(
    ("default", "envelope", "verdicts"),
    [
        (TerminateTarget(), Envelope(), [0, "default"]),
        ("b", Envelope(), [0, "default", "max_turns"]),
        ("b", packet(kind="handoff", target="c"), ["handoff", "default", "max_turns"]),
        ("b", Envelope("b"), ["default", "max_turns"]),
    ],
)
def test_at_the_cap_what_would_have_decided_is_told_and_nothing_after_it(
    default: Any, envelope: Envelope, verdicts: list[Any]
) -> None:
    capped = graph((A, "b"), (A, "c"), default_target=default, max_turns=1)

    found = capped.explain(State(), envelope).verdicts

    assert [verdict.rule for verdict in found if verdict.rule != 1 or verdict.fired] == (
        verdicts if envelope.sender_id == "a" else [0, *verdicts]
    )
    if envelope.sender_id == "a":
        assert found[0].why == "it fires, but the turns are used up"


def test_several_speakers_are_told() -> None:
    both = graph((A, ParallelTarget(["b", "c"], StayTarget())))

    assert str(both.explain(State(), Envelope())).splitlines() == [
        "→ 0: if from_speaker('a') then parallel(b, c) then stay()",
        "= b, c speak",
    ]
