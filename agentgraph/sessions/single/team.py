"""The team of one: an agent, or a compiled graph, that answers whoever speaks in its session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from agentgraph.errors import ConfigurationError
from agentgraph.graphs.compiled import functional_fault
from agentgraph.graphs.memory import LastingChannels, NestedMemories, take_whole_state
from agentgraph.guards import Effect, Guards
from agentgraph.guards.nodes.foreign.parts import is_guarded
from agentgraph.outcomes import NOTES, Handoff
from agentgraph.participant import (
    ForeignGraph,
    Graph,
    HasMemory,
    HasOutcome,
    HasPrivateChannels,
    Membership,
    Participant,
    SharesEffects,
    Verdict,
    as_participant,
)
from agentgraph.patching import patched
from agentgraph.routing import (
    AgentTarget,
    Finding,
    FromSpeaker,
    HumanTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.routing.values import short
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.single.speaker import SingleSpeaker
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.views import FullTranscript
from agentgraph.sessions.team.compiled import CompiledTeam, foreign_graph
from agentgraph.sessions.team.speaker import Speaker

Served: TypeAlias = CompiledTeam | Participant | Graph
"""A team, an agent, or a compiled graph that has a name and `messages`."""


@dataclass(frozen=True, eq=False, repr=False)
class SingleTeam(CompiledTeam):
    """A team whose only participant answers each input, and then waits for the next one.

    `SingleTeam.of(agent)` makes it. Its sessions keep what a thread of the agent would keep.
    """

    served: object = field(default=None, kw_only=True)
    """The agent or graph, as it was given."""

    @classmethod
    def of(cls, served: object) -> SingleTeam:
        """Return the team of one agent or graph; `ConfigurationError` for anything else."""
        participant = as_participant(served)
        if participant is None:
            raise ConfigurationError(
                f"{served!r} cannot be served: give an Agent, a Team or a compiled graph",
                code="served",
            )
        name = participant.name
        # Of others: the graph of an agent of ours is compiled at its first use.
        graph = participant.graph if isinstance(participant, ForeignGraph) else None
        if fault := functional_fault(graph, name):
            raise ConfigurationError(fault, code="served")
        if isinstance(graph, CompiledStateGraph) and "messages" not in graph.builder.channels:
            raise ConfigurationError(
                f"the graph {name!r} has no channel `messages`, which who speaks to it sends",
                code="served",
            )
        rules = [Transition(FromSpeaker(name), HumanTarget())]
        return cls(
            [participant],
            TransitionGraph(name, rules, default_target=AgentTarget(name)),
            name=name,
            description=participant.description,
            guards=_policy_of(participant),
            expectations=(),
            durability="step" if getattr(participant, "durability", "") == "sync" else "round",
            view=FullTranscript(),
            served=served,
        )

    def __repr__(self) -> str:
        return f"SingleTeam({self.name!r})"

    @property
    def default_ttl(self) -> str | None:
        """After which time a session expires, if its opener does not say: never."""
        return None

    def serves_same(self, other_team: CompiledTeam) -> bool:
        """Tell whether another team is of the same agent or graph."""
        return isinstance(other_team, SingleTeam) and other_team.served is self.served

    @property
    def participant(self) -> Participant:
        """The agent or graph as a participant."""
        return self.participants[0]

    def check_rules(self, people: Sequence[str], *, is_limited: bool) -> tuple[Finding, ...]:
        """Return no findings: the rules are the same for every agent, whoever takes part."""
        return ()

    def record(self, session_id: str, **fields: Any) -> SessionRecord:
        """Return the record of a new session; takes the parameters of `new_record`."""
        if fields.get("creator") == self.name:
            raise ConfigurationError(
                f"creator={self.name!r} is the agent itself, which answers whoever speaks: give "
                "the name of the person or the program that speaks to it",
                code="session",
            )
        return replace(super().record(session_id, **fields), is_single=True)

    async def remains_of(
        self, session: OwnedSession, snapshot: StateSnapshot | None, *, is_over: bool
    ) -> Mapping[str, Any]:
        """Return what the run around this code leaves to later ones, for an envelope's data."""
        state = None if snapshot is None else self._state_in(snapshot)
        return await self._own_speaker.remains(session, state, is_over=is_over)

    def left_by(self, snapshot: StateSnapshot) -> Draft:
        """Return what a thread of the agent has left, for `Session.begin`."""
        return self._own_speaker.left_by(snapshot)

    def questions_in(self, snapshot: StateSnapshot, round: int) -> list[Mapping[str, Any]]:
        """Return the open questions of a suspended run, each with the path of its agent."""
        member, state = self.participant, self._state_in(snapshot)
        askers: Mapping[str, str] = {}
        if isinstance(member, HasMemory) and state is not None:
            askers = member.remains_of(state, {}, is_over=False).askers
        # In the order of the calls: LangGraph has them in that in which they were asked.
        places = {key: place for place, key in enumerate(askers)}
        questions = super().questions_in(snapshot, round)
        questions.sort(key=lambda data: places.get(data["id"], len(places)))
        return [{**data, "agent": askers.get(data["id"], self.name)} for data in questions]

    def _state_in(self, snapshot: StateSnapshot) -> StateSnapshot | None:
        """Return the state of the agent's own graph in that of the session's graph."""
        states = (task.state for task in snapshot.tasks if task.name == self.name)
        return next((state for state in states if isinstance(state, StateSnapshot)), None)

    @cached_property
    def _own_speaker(self) -> SingleSpeaker:
        speaker = self._speaker(self.participant)
        assert isinstance(speaker, SingleSpeaker)
        return speaker

    def _speaker(self, participant: Participant, *, supervises: bool = False) -> Speaker:
        speaker = super()._speaker(participant, supervises=supervises)
        own = participant if isinstance(participant, HasMemory) else None
        graph = speaker.graph
        channels = nested_memories = None
        member: object = participant
        if isinstance(graph, CompiledStateGraph):
            private = {NOTES}
            if isinstance(member, HasPrivateChannels):
                private |= {*member.private_channels}
            channels = LastingChannels(graph, private)
            nested_memories = NestedMemories(graph)
        return SingleSpeaker(
            name=speaker.name,
            graph=graph,
            view=speaker.view,
            takes_history=own is not None,
            # What we have built keeps its own deadlines, which do not count a reader's time.
            deadline_s=None if isinstance(member, HasMemory | HasOutcome) else speaker.deadline_s,
            audit=speaker.audit,
            participant=participant,
            channels=channels,
            nested_memories=nested_memories,
            sizes=own.history_sizes if own is not None else None,
        )

    def _membership(self, name: str, supervises: bool) -> Membership:
        return SingleMembership(self.effects)

    def _foreign(self, participant: Participant, guards: Guards | None) -> Graph:
        graph = self._graph_in_place(participant, guards)
        if not isinstance(graph, CompiledStateGraph):
            return graph
        return foreign_graph(self.name, patched(graph, take_whole_state), guards)


@dataclass(frozen=True)
class SingleMembership:
    """The membership of an agent that is alone: nobody is there to hand over to."""

    effects: MutableMapping[str, Effect]
    peers: frozenset[str] = frozenset()
    tools: Sequence[BaseTool] = ()
    prompt: str = ""
    is_alone: bool = True

    def judge(self, handoff: Handoff) -> Verdict:
        """Refuse a handoff: a plain agent's goes to one of its sub-agents."""
        return Verdict(f"Not transferred: there is nobody called {handoff.target!r} here.", None)

    def refuse(self, guard: str, reason: str) -> Verdict:
        """Return the verdict for a handoff that a guard refuses."""
        return Verdict(f"Not transferred: {reason}", None)


def team_of(served: object) -> CompiledTeam:
    """Return the team that holds the sessions of a value; `ConfigurationError` if none can."""
    return served if isinstance(served, CompiledTeam) else SingleTeam.of(served)


def teams_of(values: object) -> list[CompiledTeam]:
    """Return the teams that hold the sessions of values, or raise with all that have none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(f"serve={short(values)}: give a list", code="served")
    teams: list[CompiledTeam] = []
    faults: list[str] = []
    for value in values:
        try:
            teams.append(team_of(value))
        except ConfigurationError as error:
            faults += error.faults
    if faults:
        raise ConfigurationError(faults, code="served")
    return teams


def _policy_of(participant: Participant) -> Guards | None:
    """Return an agent's own policy; a graph of others is guarded by default, as in a team."""
    if isinstance(participant, HasMemory | SharesEffects):
        policy: Guards | None = participant.policy
        return policy
    graph = participant.graph
    # One that was patched has guards of its own, and its time limits.
    has_own = isinstance(graph, CompiledStateGraph) and is_guarded(graph.builder)
    return None if has_own else Guards.interactive()
