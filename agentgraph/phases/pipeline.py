"""Stages in their order, each an agent's: sugar for a graph, or for a router."""

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

_TURNS = 100


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A phase and its agent; `next` follows it, None ends; a handoff may go back to some."""

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
    """Stages that follow each other; it begins in `default_phase`, else in the first.

    Where stages follow each other in a circle, nothing but a handoff leaves it: then it ends after
    100 turns, unless `max_turns` says otherwise.
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
        """Return the router: each phase's agent, and the first stage's where the phase is none."""
        rules = [
            RoutingRule(stage.agent_id, RoutingConditions(phases={stage.phase}), priority=number)
            for number, stage in enumerate(self.stages)
        ]
        return ConversationRouter(rules, self.first.agent_id, self.supervisor_id)

    def to_graph(self) -> TransitionGraph:
        """Return the graph: a stage's agent speaks, then the next stage's; inputs as routed."""
        flow = [self._after(stage) for stage in self.stages]
        done = TerminateTarget("pipeline_complete")
        rules = (*flow, *self._back(), *self.to_router().outside())
        turns = self._bound if self.max_turns is None else self.max_turns
        return TransitionGraph(self.first.agent_id, rules, done, turns, self.first.phase)

    def get_phase_map(self) -> dict[str, str]:
        """Return each agent's phase."""
        return {stage.agent_id: stage.phase for stage in self.stages}

    def get_allowed_transitions(self) -> dict[str, set[str]]:
        """Return where a handoff may lead from each phase."""
        return {
            stage.phase: {*stage.can_return_to, *({stage.next} if stage.next else ())}
            for stage in self.stages
        }

    @property
    def _bound(self) -> int | None:
        follows = {stage.phase: stage.next for stage in self.stages}
        ending: set[str | None] = {None}
        for _ in follows:
            ending |= {phase for phase, following in follows.items() if following in ending}
        return None if ending.issuperset(follows) else _TURNS

    @cached_property
    def _by_phase(self) -> Mapping[str, PipelineStage]:
        return {stage.phase: stage for stage in self.stages}

    def _after(self, stage: PipelineStage) -> Transition:
        when = FromSpeaker(stage.agent_id) & InPhase((stage.phase,))
        if stage.next is None:
            return Transition(when, TerminateTarget("pipeline_complete"))
        if stage.next == stage.phase:
            return Transition(when, PhaseTarget(stage.phase, StayTarget()))
        following = AgentTarget(self._by_phase[stage.next].agent_id)
        return Transition(when, PhaseTarget(stage.next, following))

    def _back(self) -> Iterator[Transition]:
        """Yield the rules for an agent who spoke outside its phase: the phase's agent goes on."""
        spoken = {stage.phase: FromSpeaker(stage.agent_id) for stage in self.stages}
        for stage in self.stages:
            others = tuple(said for phase, said in spoken.items() if phase != stage.phase)
            if others:
                when = AnyOf(others) & InPhase((stage.phase,))
                yield Transition(when, AgentTarget(stage.agent_id))
        yield Transition(AnyOf(tuple(spoken.values())), AgentTarget(self.first.agent_id))

    def _faults(self) -> Iterator[str]:
        strange = [stage for stage in self.stages if not isinstance(stage, PipelineStage)]
        yield from (f"{stage!r} is no PipelineStage" for stage in strange)
        if strange or not self.stages:
            yield from () if strange else ("a pipeline has at least one stage",)
            return
        phases = [stage.phase for stage in self.stages]
        agents = [stage.agent_id for stage in self.stages]
        yield from (f"the phase {name!r} is there {n} times" for name, n in _repeated(phases))
        yield from (
            f"{name!r} has {n} stages: by its phase nobody could tell them apart"
            for name, n in _repeated(agents)
        )
        unknown = [*self._unknown_phases(phases)]
        yield from unknown
        if self.supervisor_id in agents:
            yield f"the supervisor {self.supervisor_id!r} is the agent of a stage"
        if not unknown and not self._ends():
            yield (
                f"from {self.first.phase!r} no stage is reached that ends: leave out `next` of the "
                "last one"
            )

    def _unknown_phases(self, phases: Sequence[str]) -> Iterator[str]:
        known = f"there are {', '.join(phases)}"
        for stage in self.stages:
            if stage.next is not None and stage.next not in phases:
                yield f"{stage.phase!r}: next={stage.next!r} is no phase: {known}"
            for name in stage.can_return_to:
                if name not in phases:
                    yield f"{stage.phase!r}: can_return_to has {name!r}, which is no phase: {known}"
        if self.default_phase is not None and self.default_phase not in phases:
            yield f"default_phase={self.default_phase!r} is no phase: {known}"

    def _ends(self) -> bool:
        allowed = self.get_allowed_transitions()
        reached, waiting = set(), [self.first.phase]
        while waiting:
            phase = waiting.pop()
            if phase not in reached:
                reached.add(phase)
                waiting += allowed[phase]
        return any(self._by_phase[phase].next is None for phase in reached)


def _repeated(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, count) for name, count in Counter(names).items() if count > 1]
