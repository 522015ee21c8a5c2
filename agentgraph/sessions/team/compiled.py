"""The compiled team: a graph with one node per participant, and the team's lookup of speakers."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command, StateSnapshot

from agentgraph.errors import ConfigurationError
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph
from agentgraph.graphs.public_graph import publish
from agentgraph.graphs.run_context import context_faults
from agentgraph.guards import Guards
from agentgraph.guards.nodes.foreign.graph import guarded_copy
from agentgraph.outcomes import NOTES, Note, NotesState, collect_notes
from agentgraph.participant import (
    Graph,
    HasMemory,
    HasOutcome,
    HasTeamGraph,
    Participant,
    SharesEffects,
    store_of,
)
from agentgraph.participant import Membership as MembershipProtocol
from agentgraph.patching import patched, wrap_node
from agentgraph.sessions.envelopes.packet import interrupt_requests
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.rounds.questions import Judges, judge_of, model_of
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.views import FullTranscript, WindowedSummary
from agentgraph.sessions.team.checks import faults_of, warn_of_rules
from agentgraph.sessions.team.graph import TeamGraph, TeamState
from agentgraph.sessions.team.membership import Membership
from agentgraph.sessions.team.nested import TeamSpeaker
from agentgraph.sessions.team.opening import new_record
from agentgraph.sessions.team.private_sessions import PrivateSessions
from agentgraph.sessions.team.speaker import Speaker
from agentgraph.sessions.team.spec import TeamSpec
from agentgraph.telling import AGENT_TAG, FOREIGN_TAG

_STEPS = 1_000
"""The step limit of a foreign graph's turn; the limit of the team's own graph is far too high."""


@dataclass(frozen=True, eq=False, repr=False)
class CompiledTeam(TeamSpec):
    """A checked team and its graph, compiled on first use: a hub drives its sessions.

    Raises `ConfigurationError` with every fault of the fields. One object may be compiled for any
    number of stores and serve any number of sessions at a time.
    """

    def __post_init__(self) -> None:
        for field in ("agents", "humans"):
            value = getattr(self, field)
            if isinstance(value, Iterable) and not isinstance(value, str | bytes):
                object.__setattr__(self, field, tuple(value))
        faults = faults_of(self)
        if faults:
            raise ConfigurationError(dict.fromkeys(faults))
        if not self.name:
            object.__setattr__(self, "name", "-".join(self.names)[:52])
        warn_of_rules(self)

    @property
    def default_ttl(self) -> str | None:
        """After which time a session expires, if its opener does not say."""
        return "2h"

    def serves_same(self, other_team: CompiledTeam) -> bool:
        """Tell whether another team's sessions are those of this one."""
        return other_team is self

    @property
    def graph(self) -> AnyCompiledGraph:
        """The graph, for LangGraph's own tools and as a node; it keeps its sessions in memory.

        It has no saver: whoever runs it brings one, which a team that asks a human needs.
        """
        return self._graph

    def compile(
        self, saver: BaseCheckpointSaver[Any] | None = None, store: BaseStore | None = None
    ) -> AnyCompiledGraph:
        """Compile the graph for a saver; `store` is for a team without a store of its own."""
        shown = ["messages"]
        store = store if self._own_store is None else self._own_store
        return publish(self._builder, shown, shown, saver, store=store, name=self.name)

    def add_to(self, graph: AnyGraph) -> AnyGraph:
        """Add the team's nodes to a graph that has its state."""
        agents = [agent for agent in self.participants if agent.name in self.names]
        speakers = [self._speaker(agent) for agent in agents]
        sessions = PrivateSessions(self, self._counts_in_outer)
        guards = self.active_guards
        fan_out = None if guards is None else guards.fan_out
        # Rules give the floor, so nobody is refused it: at least one speaks at a time.
        most_at_once = None if fan_out is None else max(fan_out.children, 1)
        return TeamGraph(speakers, sessions, most_at_once).add_to(graph)

    @cached_property
    def supervisor_speaker(self) -> Speaker | None:
        """The supervisor as a speaker, None if the team has none; it runs beside the others."""
        agent = self.supervising_agent
        return None if agent is None else self._speaker(agent, supervises=True)

    def supervisor_with(self, store: BaseStore | None) -> Speaker | None:
        """Return the supervisor, whose graph runs by itself, with the store that its tools get.

        `store` is for a team without a store of its own.
        """
        speaker = self.supervisor_speaker
        if speaker is None or not isinstance(speaker.graph, CompiledStateGraph):
            return speaker
        candidates = (self.store, store_of(self.supervising_agent), self._own_store, store)
        graph = copy.copy(speaker.graph)
        graph.store = next((candidate for candidate in candidates if candidate is not None), None)
        return replace(speaker, graph=graph)

    def record(self, session_id: str, **fields: Any) -> SessionRecord:
        """Return the record of a new session; takes the parameters of `new_record`.

        Compiles the supervisor now, so that its faults show here and not in a round. Raises
        `ConfigurationError` if an agent would not get the context of runs that it declares.
        """
        supervisor = self.supervisor_speaker
        for name, model in self.rules.models.items():
            self._judge(name, model)
        record = new_record(self, session_id, **fields)
        if record.run_context is not None:
            graphs = [self.graph, *([] if supervisor is None else [supervisor.graph])]
            faults = chain(*(context_faults(graph, record.run_context) for graph in graphs))
            if misfits := list(dict.fromkeys(faults)):
                raise ConfigurationError(misfits, code="context")
        return record

    def questions_in(self, snapshot: StateSnapshot, round: int) -> list[Mapping[str, Any]]:
        """Return the open questions of a suspended run, for the envelopes that ask them."""
        return interrupt_requests(snapshot, round)

    async def remains_of(
        self, session: OwnedSession, snapshot: StateSnapshot | None, *, is_over: bool
    ) -> Mapping[str, Any]:
        """Return what the run around this code leaves to later ones, for an envelope's data.

        Of a team it is nothing: its rounds leave packets, and what waits has its checkpoint.
        `snapshot` is the state of the team's graph, None where no checkpoint has it. `is_over`
        tells whether the run will not go on.
        """
        return {}

    def load_output(self, speaker: str, output: Mapping[str, Any], path: str | None) -> object:
        """Return the object of a stored answer; as JSON where its speaker knows no such form."""
        member = next((agent for agent in self.participants if agent.name == speaker), None)
        if not isinstance(member, HasMemory | HasOutcome):
            return output.get("value")
        try:
            return member.load_output(output, path)
        except (ValueError, TypeError, KeyError):  # the form has changed since
            return output.get("value")

    @cached_property
    def _own_store(self) -> BaseStore | None:
        return store_of(self)

    @cached_property
    def _graph(self) -> AnyCompiledGraph:
        # Apart from `graph`: type checkers do not take this decorator for `Participant.graph`.
        return self.compile()

    @cached_property
    def _builder(self) -> AnyGraph:
        return self.add_to(StateGraph(TeamState))

    def _speaker(self, participant: Participant, *, supervises: bool = False) -> Speaker:
        """Compile a participant for this team: a team, an agent of ours, or a foreign graph."""
        guards = self.active_guards
        view = FullTranscript() if supervises and self.view is None else self.view
        fields: Any = {
            "name": participant.name,
            "deadline_s": _longest_turn_s(participant, guards),
            "view": view or WindowedSummary(),
            "sees_all": supervises,
            "audit": None if supervises or guards is None else guards.audit,
            "summarize": self.summarize,
        }
        if isinstance(participant, CompiledTeam):
            team = participant.under_guards(guards, participant.name)
            fields |= {"graph": team.graph, "team": team, "guards": guards}
            self.effects.update(team.effects_at(participant.name))
            # Each inner round has a deadline; the inner team as a whole has none.
            return TeamSpeaker(takes_history=False, **{**fields, "deadline_s": None})
        if isinstance(participant, HasTeamGraph):
            graph = participant.graph_in_team(
                self._membership(participant.name, supervises), guards
            )
            return Speaker(graph=graph, takes_history=True, **fields)
        foreign = self._foreign(participant, guards)
        return Speaker(graph=foreign, takes_history=False, **fields)

    def _foreign(self, participant: Participant, guards: Guards | None) -> Graph:
        """Return the graph of a participant that is no agent of ours, under the team's guards."""
        return foreign_graph(participant.name, self._graph_in_place(participant, guards), guards)

    def _graph_in_place(self, participant: Participant, guards: Guards | None) -> Graph:
        if guards is None or not isinstance(participant, SharesEffects):
            return participant.graph
        return participant.in_place(guards, participant.name, self.effects)

    @cached_property
    def asker(self) -> Judges:
        """Asks the models that the rules name, under the team's guards."""
        about = {participant.name: participant.description for participant in self.participants}
        return Judges(lambda question: self._judge(question.model, question.model_object), about)

    @cached_property
    def _judge_graphs(self) -> dict[tuple[str, int], tuple[Graph, object]]:
        return {}

    def _judge(self, name: str, model: object) -> Graph:
        """Return the graph that asks a model of the rules, under the team's guards."""
        model = model_of(name, model)
        key = name, id(model)
        if key not in self._judge_graphs:
            agent: Any = judge_of(model)
            membership = Membership(agent.name, {}, self.policy, offers_handoff=False)
            graph = agent.graph_in_team(membership, self.active_guards)
            self._judge_graphs[key] = graph, model  # with the model, so that its id is not reused
        return self._judge_graphs[key][0]

    def _membership(self, name: str, supervises: bool) -> MembershipProtocol:
        """Return the membership of a participant: its handoff targets, tools and prompt."""
        peers = {
            participant.name: participant.description
            for participant in self.participants
            if participant.name not in (name, self.supervisor_name)
        }
        peers |= dict.fromkeys(self.humans, "a human")
        return Membership(name, peers, self.policy, self.offers_handoff, supervises, self.effects)


def _longest_turn_s(participant: Participant, guards: Guards | None) -> float | None:
    """Return the longest time that a turn may take, by the team's and the participant's guards."""
    own = getattr(participant, "guards", None)
    policy = own.within(guards) if isinstance(own, Guards) else guards
    if policy is None:
        return None
    deadlines = policy.at(participant.name).deadlines
    limits = (deadlines.stage_s, deadlines.workflow_s)
    return min((seconds for seconds in limits if seconds is not None), default=None)


def foreign_graph(name: str, graph: Graph, guards: Guards | None) -> Graph:
    """Return a copy of a graph that collects notes, and names itself in its model calls."""
    limit = (getattr(graph, "config", None) or {}).get("recursion_limit", _STEPS)
    graph = graph if guards is None else guarded_copy(graph, guards, name)
    if isinstance(graph, CompiledStateGraph):
        nodes = [node for node in graph.builder.nodes if not node.startswith("__")]
        graph = patched(graph, *(wrap_node(node, _with_notes, state=NotesState) for node in nodes))
    tags = {AGENT_TAG: name, FOREIGN_TAG: True}
    return graph.with_config(metadata=tags, recursion_limit=limit)


async def _with_notes(state: Any, call: Callable[[Any], Awaitable[Any]]) -> Any:
    """Store the notes of the graph's tools in its state, as our own graphs do."""
    notes: list[Note] = []
    with collect_notes(notes):
        result = await call(state)
    if not notes:
        return result
    update = {NOTES: [{**note, "call_id": note.get("call_id", "")} for note in notes]}
    return [*(result if isinstance(result, list) else [result]), Command(update=update)]
