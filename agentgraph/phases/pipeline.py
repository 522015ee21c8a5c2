"""Pipelines: stages that follow each other, each with an agent; they compile to a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from agentgraph.errors import ConfigurationError
from agentgraph.phases.router import ConversationRouter, RoutingConditions, RoutingRule
from agentgraph.phases.state import ConversationState
from agentgraph.routing import (
    AgentTarget,
    AnyOf,
    FromSpeaker,
    InPhase,
    PhaseTarget,
    StayTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.routing.values import as_tuple, short

_MAX_TURNS = 100


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A phase and its agent.

        PipelineStage("intake", "greeter", next="handling", can_return_to={"intake"})

    `next` is the phase that follows; None ends the conversation. A handoff may also lead to the
    phases in `can_return_to`.
    """

    phase: str
    agent_id: str
    next: str | None = None
    can_return_to: Collection[str] = ()

    def __post_init__(self) -> None:
        faults = [
            f"{name}={short(value)}: give a string"
            for name, value in (("phase", self.phase), ("agent_id", self.agent_id))
            if not isinstance(value, str)
        ]
        if not isinstance(self.next, str | None):
            faults.append(f"next={short(self.next)}: give a phase, or None")
        if isinstance(self.can_return_to, str) or not isinstance(self.can_return_to, Collection):
            faults.append(f"can_return_to={short(self.can_return_to)}: give a set of phases")
        if faults:
            raise ConfigurationError(faults)


@dataclass(frozen=True)
class ConversationPipeline:
    """Stages that follow each other, beginning in `default_phase`, or in the first of them.

        stages = [PipelineStage("intake", "greeter", "work"), PipelineStage("work", "clerk")]
        team = Team([greeter, clerk], ConversationPipeline(stages))

    `ConfigurationError` names all faults at once: a phase or an agent that occurs twice, an unknown
    phase, a pipeline from which no final stage can be reached.

    If the stages follow each other in a circle, only a handoff leaves it: the conversation then
    ends after 100 turns, unless `max_turns` says otherwise.
    """

    stages: Sequence[PipelineStage]
    supervisor_id: str | None = None
    default_phase: str | None = None
    _: KW_ONLY
    max_turns: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", as_tuple("stages", self.stages))
        faults = [*self._faults()]
        if faults:
            raise ConfigurationError(faults, code="pipeline")

    @cached_property
    def first(self) -> PipelineStage:
        """The stage in which a conversation begins."""
        phase = self.default_phase
        return self.stages[0] if phase is None else self._by_phase[phase]

    def initial_state(self) -> ConversationState:
        """Return the state in which a conversation begins."""
        return ConversationState(phase=self.first.phase)

    def to_router(self) -> ConversationRouter:
        """Return the router: each phase's agent answers; in unknown phases the first stage's."""
        rules = [
            RoutingRule(stage.agent_id, RoutingConditions(phases={stage.phase}), priority=number)
            for number, stage in enumerate(self.stages)
        ]
        return ConversationRouter(rules, self.first.agent_id, self.supervisor_id)

    def to_graph(self) -> TransitionGraph:
        """Return the graph: the stages' agents speak in turn; the router routes outside inputs."""
        stage_rules = [self._rule_after(stage) for stage in self.stages]
        end = TerminateTarget("pipeline_complete")
        rules = (*stage_rules, *self._rules_out_of_phase(), *self.to_router().outside())
        turns = self._turn_limit if self.max_turns is None else self.max_turns
        return TransitionGraph(self.first.agent_id, rules, end, turns, self.first.phase)

    def get_phase_map(self) -> dict[str, str]:
        """Return each agent's phase, as a `HandoffPolicy` takes it."""
        return {stage.agent_id: stage.phase for stage in self.stages}

    def get_allowed_transitions(self) -> dict[str, set[str]]:
        """Return the phases that a handoff may enter, by phase, as a `HandoffPolicy` takes them."""
        return {
            stage.phase: {*stage.can_return_to, *({stage.next} if stage.next else ())}
            for stage in self.stages
        }

    @property
    def _turn_limit(self) -> int | None:
        """Return the turn limit for stages in a circle; None if every stage leads to an end."""
        successors = {stage.phase: stage.next for stage in self.stages}
        leading_to_end: set[str | None] = {None}
        for _ in successors:
            leading_to_end |= {
                phase for phase, successor in successors.items() if successor in leading_to_end
            }
        return None if leading_to_end.issuperset(successors) else _MAX_TURNS

    @cached_property
    def _by_phase(self) -> Mapping[str, PipelineStage]:
        return {stage.phase: stage for stage in self.stages}

    def _rule_after(self, stage: PipelineStage) -> Transition:
        when = FromSpeaker(stage.agent_id) & InPhase((stage.phase,))
        if stage.next is None:
            return Transition(when, TerminateTarget("pipeline_complete"))
        if stage.next == stage.phase:
            return Transition(when, PhaseTarget(stage.phase, StayTarget()))
        successor = AgentTarget(self._by_phase[stage.next].agent_id)
        return Transition(when, PhaseTarget(stage.next, successor))

    def _rules_out_of_phase(self) -> Iterator[Transition]:
        """Yield the rules for an agent that spoke outside its phase: the phase's agent is next."""
        conditions = {stage.phase: FromSpeaker(stage.agent_id) for stage in self.stages}
        for stage in self.stages:
            from_outside = tuple(
                condition for phase, condition in conditions.items() if phase != stage.phase
            )
            if from_outside:
                when = AnyOf(from_outside) & InPhase((stage.phase,))
                yield Transition(when, AgentTarget(stage.agent_id))
        yield Transition(AnyOf(tuple(conditions.values())), AgentTarget(self.first.agent_id))

    def _faults(self) -> Iterator[str]:
        strange = [stage for stage in self.stages if not isinstance(stage, PipelineStage)]
        yield from (f"{stage!r} is no PipelineStage" for stage in strange)
        if strange or not self.stages:
            yield from () if strange else ("a pipeline has at least one stage",)
            return
        phases = [stage.phase for stage in self.stages]
        agents = [stage.agent_id for stage in self.stages]
        yield from (f"the phase {name!r} is there {n} times" for name, n in _duplicates(phases))
        yield from (
            f"{name!r} has {n} stages: by its phase nobody could tell them apart"
            for name, n in _duplicates(agents)
        )
        phase_faults = [*self._unknown_phases(phases)]
        yield from phase_faults
        if self.supervisor_id in agents:
            yield f"the supervisor {self.supervisor_id!r} is the agent of a stage"
        if not phase_faults and not self._can_end():
            yield (
                f"from {self.first.phase!r} no stage is reached that ends: leave out `next` of the "
                "last one"
            )

    def _unknown_phases(self, phases: Sequence[str]) -> Iterator[str]:
        hint = f"there are {', '.join(phases)}"
        for stage in self.stages:
            if stage.next is not None and stage.next not in phases:
                yield f"{stage.phase!r}: next={stage.next!r} is no phase: {hint}"
            for name in stage.can_return_to:
                if name not in phases:
                    yield f"{stage.phase!r}: can_return_to has {name!r}, which is no phase: {hint}"
        if self.default_phase is not None and self.default_phase not in phases:
            yield f"default_phase={self.default_phase!r} is no phase: {hint}"

    def _can_end(self) -> bool:
        """Tell whether a final stage can be reached from the first one, also by handoffs."""
        transitions = self.get_allowed_transitions()
        visited_phases, stack = set(), [self.first.phase]
        while stack:
            phase = stack.pop()
            if phase not in visited_phases:
                visited_phases.add(phase)
                stack += transitions[phase]
        return any(self._by_phase[phase].next is None for phase in visited_phases)


def _duplicates(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, count) for name, count in Counter(names).items() if count > 1]
