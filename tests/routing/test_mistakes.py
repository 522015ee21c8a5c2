"""Mistakes in the code that builds a graph: told where they are made, not turns later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.outcomes import Finish, Handoff
from agentgraph.phases import ConversationPipeline, ConversationState, PipelineStage
from agentgraph.routing import (
    AgentTarget,
    AllOf,
    Always,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
    HumanTarget,
    InPhase,
    IntentIn,
    ParallelTarget,
    PhaseTarget,
    RoundRobinTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnIs,
    round_robin,
    sequence,
)


class Phase(str, Enum):  # noqa: UP042 - the kind that says "Phase.WORK" of itself
    WORK = "work"


@pytest.mark.parametrize("kind", [Always, FromSpeaker, AllOf, AgentTarget, HumanTarget])
def test_built_in_class_cannot_be_derived_from(kind: type) -> None:
    with pytest.raises(ConfigurationError, match="final"):
        type("Mine", (kind,), {"name": "mine"})


def test_members_of_an_enumeration_are_their_values() -> None:
    assert InPhase([Phase.WORK]).phases == ("work",)
    assert IntentIn([Phase.WORK]).intents == ("work",)
    assert ConversationState().transition(Phase.WORK).phase == "work"


@pytest.mark.parametrize(
    "build",
    [
        lambda: ContextEquals(3, 1),  # type: ignore[arg-type]
        lambda: ContextIn(None, [1]),  # type: ignore[arg-type]
        lambda: ContextThreshold(["k"], 1),  # type: ignore[arg-type]
        lambda: TurnIs("1"),  # type: ignore[arg-type]
        lambda: TurnIs(True),
        lambda: TransitionGraph.loads(None),  # type: ignore[arg-type]
        lambda: FromSpeaker(["a", "b"]),  # type: ignore[arg-type]
        lambda: ToolCalled(["t"]),  # type: ignore[arg-type]
        lambda: AgentTarget(None),  # type: ignore[arg-type]
        lambda: TerminateTarget(5),  # type: ignore[arg-type]
        lambda: HumanTarget(5),  # type: ignore[arg-type]
        lambda: PhaseTarget(5, "a"),  # type: ignore[arg-type]
        lambda: Transition(Always(), "a", priority=10**5000),
        lambda: TransitionGraph("a", max_turns=10**5000),
        lambda: TransitionGraph("a", initial_phase=5),  # type: ignore[arg-type]
        lambda: ConversationState().transition(None),  # type: ignore[arg-type]
        lambda: ConversationState().transition("x", 3),  # type: ignore[arg-type]
        lambda: ConversationPipeline(None),  # type: ignore[arg-type]
        lambda: PipelineStage("p", "a", can_return_to="coding"),
        lambda: PipelineStage("p", "a", next=5),  # type: ignore[arg-type]
        lambda: round_robin({"a", "b"}),  # type: ignore[arg-type]
        lambda: sequence("ab"),
        lambda: TransitionGraph("a").simulate({"a": "hello"}, participants=["a"]),
    ],
)
def test_wrong_argument_is_refused_where_it_is_given(build: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        build()


@pytest.mark.parametrize("one", [ContextEquals("k", True), ContextIn("k", [True])])
def test_conditions_are_equal_as_json_is(one: Any) -> None:
    same, other = replace(one), type(one)("k", [1] if isinstance(one, ContextIn) else 1)

    assert one == same and hash(one) == hash(same)
    assert one != other
    assert TransitionGraph("a", [Transition(one, "b")]) != TransitionGraph(
        "a", [Transition(other, "b")]
    )
    assert one != Always()


def test_names_may_come_one_by_one() -> None:
    assert sequence(iter("abc")) == sequence(["a", "b", "c"])  # type: ignore[arg-type]


def test_ring_of_many_names_is_read_at_once() -> None:
    names = [f"p{number}" for number in range(60_000)]

    assert RoundRobinTarget(names).agents == tuple(names)


def test_condition_of_ones_own_that_does_not_compose_itself_composes_with_one_that_does() -> None:
    class Plain:
        name: ClassVar[str] = "plain"

        def evaluate(self, state: object, envelope: object) -> bool:
            return True

    plain: Any = Plain()
    assert plain & FromSpeaker("a") == AllOf((plain, FromSpeaker("a")))
    assert (plain | FromSpeaker("a")).conditions[0] is plain


@pytest.mark.parametrize(
    ("outcome", "ending"),
    [(Finish(reason="solved"), "solved"), (Handoff("d"), "terminated")],
)
def test_last_of_those_who_speak_at_once_may_decide_what_follows(
    outcome: Finish | Handoff, ending: str
) -> None:
    graph = TransitionGraph(
        "a", [Transition(FromSpeaker("a"), ParallelTarget(["b", "c"], "a"))], max_turns=10
    )

    played = graph.simulate({"c": [outcome]}, participants=["a", "b", "c", "d"])

    assert played.close_reason == ending
    assert played.speakers[:3] == ("a", "b", "c")
    assert played.speakers[3:] == (() if isinstance(outcome, Finish) else ("d",))


def test_first_of_those_who_speak_at_once_may_end_it_when_all_have_spoken() -> None:
    graph = TransitionGraph(
        "a", [Transition(FromSpeaker("a"), ParallelTarget(["b", "c"], "a"))], max_turns=10
    )

    played = graph.simulate({"b": [Finish(reason="solved")]}, participants=["a", "b", "c"])

    assert (played.speakers, played.close_reason) == (("a", "b", "c"), "solved")


def test_rule_of_the_speaker_that_closes_on_the_value_frees_it_of_the_trap() -> None:
    at_security = ContextEquals("route", "security")
    graph = TransitionGraph(
        "triage",
        [
            Transition(FromSpeaker("security") & at_security, TerminateTarget("done")),
            Transition(at_security, "security"),
        ],
    )

    assert graph.check(["triage", "security"]) == ()


def test_pipeline_enters_its_first_phase_with_the_opening_words() -> None:
    stages = [
        PipelineStage("analysis", "analyst", next="coding"),
        PipelineStage("coding", "coder", next="intake"),
        PipelineStage("intake", "clerk"),
    ]
    graph = ConversationPipeline(stages).to_graph()

    played = graph.simulate({}, participants=["analyst", "coder", "clerk"])

    assert played.speakers == ("analyst", "coder", "clerk")
    assert played.close_reason == "pipeline_complete"
    assert TransitionGraph.loads(graph.dumps()) == graph
