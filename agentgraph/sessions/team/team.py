"""A team: who may speak, and the rules by which they take turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

from agentgraph.contexts import run_sync
from agentgraph.display import code, escaped, panel, prose, row, shortened
from agentgraph.errors import ConfigurationError, Quarantined
from agentgraph.guards import DEFAULT, Default, Effect, Guards
from agentgraph.guards.checks import GateAt, gated_at
from agentgraph.guards.nodes.foreign_graph import faults_in
from agentgraph.participant import (
    HANDOFF_TOOL,
    ForeignGraph,
    Graph,
    HasAgents,
    HasGates,
    HasTeamGraph,
    Participant,
    as_participant,
)
from agentgraph.patching import AnyCompiledGraph, AnyGraph
from agentgraph.phases import ConversationPipeline, ConversationRouter, HandoffPolicy
from agentgraph.routing import TransitionGraph
from agentgraph.sessions.hub.opening import new_record
from agentgraph.sessions.hub.watching import stream_until_settled
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.expectations import DEFAULT_EXPECTATIONS, Expectation
from agentgraph.sessions.state.payload import canonical
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rules import Rules
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.views import FullTranscript, View, WindowedSummary
from agentgraph.sessions.team.checks import Durability, Routing, faults_of
from agentgraph.sessions.team.foreign import seated_foreign
from agentgraph.sessions.team.graph import TeamState, take_turns
from agentgraph.sessions.team.member import TeamSeat
from agentgraph.sessions.team.nested import TeamSpeaker
from agentgraph.sessions.team.private_session import PrivateTable
from agentgraph.sessions.team.speaker import Speaker
from agentgraph.sessions.team.summary import Summarize
from agentgraph.stream import Event
from agentgraph.usage import Usage

if TYPE_CHECKING:
    from agentgraph.sessions.hub.escalation import Escalate
    from agentgraph.sessions.hub.hub import Hub
    from agentgraph.sessions.hub.session import Session


@dataclass(frozen=True, slots=True)
class TeamResult:
    """What a run of a team came to."""

    text: str
    close_reason: str | None
    envelopes: tuple[Envelope, ...]
    state: SessionState
    usage: Usage = field(default_factory=Usage)

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], state: SessionState) -> TeamResult:
        """Sum up a session."""
        said = [one.text for one in envelopes if one.sender_id not in state.humans and one.text]
        used = [one.event_data.get("usage") or {} for one in envelopes]
        reason = state.pending_close_reason if state.is_ended else None
        text = said[-1] if said else ""
        return cls(text, reason, tuple(envelopes), state, Usage.of_records(used))

    def _repr_html_(self) -> str:
        said = [one.sender_id for one in self.envelopes if one.is_substantive]
        shown = [prose(self.text)] if self.text else []
        shown.append(row("spoke", escaped(shortened(" → ".join(said)))))
        if self.close_reason is not None:
            shown.append(row("closed", code(self.close_reason)))
        else:
            shown += self.state.open_questions_html()
        if self.usage.total_tokens:
            shown.append(row("used", escaped(self.usage.summary())))
        return panel(self.state.last_speaker_id or "nobody", *shown)


@dataclass(frozen=True, eq=False, repr=False)
class Team:
    """Participants, and rules that say who of them speaks next.

    `durability="round"` runs a round that broke off again from its start, `"step"` from its last
    step. After a round that failed for good `failure_target` goes on, an agent or `"human"`;
    without one the session closes. `escalations` has a function for each `channel_escalation` of a
    handoff beside `same`.
    """

    agents: Sequence[Participant | Graph]
    routing: Routing
    _: KW_ONLY
    name: str = ""
    description: str = ""
    humans: Sequence[str] = ()
    supervisor: Participant | Graph | str | None = None
    aliases: Mapping[str, str] | None = None
    phase_map: Mapping[str, str] | None = None
    view: View | None = None
    guards: Guards | Default | None = DEFAULT
    expectations: Sequence[Expectation | Mapping[str, Any]] | Default = DEFAULT
    durability: Durability = "round"
    summarize: Summarize | None = None
    failure_target: str | None = None
    escalations: Mapping[str, Escalate] = field(default_factory=dict)
    _is_part: bool = field(default=False, init=False)
    """Whether it is held to the guards of what it is a part of."""

    def __post_init__(self) -> None:
        for name in ("agents", "humans"):
            given = getattr(self, name)
            object.__setattr__(self, name, given if isinstance(given, str) else tuple(given))
        faults = faults_of(self)
        if faults:
            raise ConfigurationError(dict.fromkeys(faults))
        if not self.name:
            object.__setattr__(self, "name", "-".join(self.names)[:52])

    def __repr__(self) -> str:
        return f"Team([{', '.join(self.names)}])"

    def __deepcopy__(self, memo: dict[int, object]) -> Team:
        return self  # immutable; what it has compiled holds locks that cannot be copied

    async def arun(
        self, input: str, *, creator: str = "user", context: Mapping[str, Any] | None = None
    ) -> TeamResult:
        """Hold one session in memory, until it closes or waits for somebody."""
        from agentgraph.sessions.hub.hub import Hub

        async with await Hub.open(teams=[self]) as hub:
            session = await self._begun(hub, creator, context)
            await session.send(creator, input)
            await session.settled()
            return TeamResult.of(await session.history(), session.state)

    async def astream(
        self, input: str, *, creator: str = "user", context: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Envelope | Event, None]:
        """Hold one session in memory and yield all that happens in it."""
        from agentgraph.sessions.hub.hub import Hub

        async with await Hub.open(teams=[self]) as hub:
            session = await self._begun(hub, creator, context)
            async for one in stream_until_settled(session, creator, input):
                yield one

    async def _begun(self, hub: Hub, creator: str, context: Mapping[str, Any] | None) -> Session:
        session = await hub.session(self, creator=creator, context=context, ttl=None)
        for name in session.record.invited:
            await session.join(name)  # nobody else is there to answer for them
        return session

    def run(
        self, input: str, *, creator: str = "user", context: Mapping[str, Any] | None = None
    ) -> TeamResult:
        """Hold one session; works in a notebook as well as in a script."""
        return run_sync(self.arun(input, creator=creator, context=context))

    @cached_property
    def graph(self) -> AnyCompiledGraph:
        """The graph, for LangGraph's own tools and as a node; its sessions are in memory."""
        return self.compiled(InMemorySaver())

    def compiled(self, saver: BaseCheckpointSaver[Any]) -> AnyCompiledGraph:
        """Compile the graph for a store."""
        return self._builder.compile(saver, store=self._store, name=self.name)

    def mermaid(self) -> str:
        """Draw the rules, as Mermaid text."""
        return self.rules.mermaid()

    def svg(self) -> str:
        """Draw the rules, as an SVG picture that stands by itself."""
        return self.rules.svg()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "text/plain": repr(self),
            "text/vnd.mermaid": self.mermaid(),
            "image/svg+xml": self.svg(),
        }

    @cached_property
    def rules(self) -> TransitionGraph:
        """The rules, as one graph."""
        if isinstance(self.routing, TransitionGraph):
            return self.routing
        if isinstance(self.routing, ConversationRouter):
            return self.routing.to_graph(self.names)
        return self.routing.to_graph()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of those who may be given the floor, the humans aside."""
        return tuple(one.name for one in self.participants if one.name != self.supervisor_name)

    @cached_property
    def participants(self) -> tuple[Participant, ...]:
        """All agents, a supervisor among them if it was given so."""
        found = [as_participant(agent) for agent in self.agents]
        return tuple(one for one in found if one is not None)

    @cached_property
    def teams(self) -> tuple[str, ...]:
        """The names of those who are teams themselves."""
        return tuple(one.name for one in self.participants if isinstance(one, Team))

    @cached_property
    def supervisor_name(self) -> str | None:
        """The name of whoever watches."""
        if isinstance(self.supervisor, str):
            return self.supervisor
        if self.supervisor is not None:
            given = as_participant(self.supervisor)
            return given.name if given is not None else None
        return None if isinstance(self.routing, TransitionGraph) else self.routing.supervisor_id

    @cached_property
    def watcher(self) -> Speaker | None:
        """The supervisor, in its place."""
        known = {one.name: one for one in self.participants}
        given = known.get(self.supervisor_name or "")
        if given is None and not isinstance(self.supervisor, str | None):
            given = as_participant(self.supervisor)
        return None if given is None else self._speaker(given, watches=True)

    @cached_property
    def policy(self) -> HandoffPolicy:
        """What holds for handoffs."""
        pipeline = self.routing if isinstance(self.routing, ConversationPipeline) else None
        phases = pipeline.get_phase_map() if pipeline is not None else {}
        return HandoffPolicy(
            self.names,
            aliases=self.aliases or {},
            phase_map=self.phase_map if self.phase_map is not None else phases,
            allowed_transitions=pipeline.get_allowed_transitions() if pipeline else None,
            escalations=tuple(self.escalations),
        )

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The names of all who work in it."""
        known = (one.agent_names if isinstance(one, HasAgents) else [one.name] for one in self._all)
        return tuple(dict.fromkeys([*(one.name for one in self._all), *chain(*known)]))

    def faults_under(self, guards: Guards) -> list[str]:
        """Return what is wrong with the team where another one's guards hold for it."""
        inside = self._under(guards)
        known = (one.faults_under(inside) for one in self._all if isinstance(one, HasAgents))
        foreign = (one for one in self._all if isinstance(one, ForeignGraph))
        theirs = (faults_in(one.graph, inside, one.name) for one in foreign)
        return list(chain(*known, *theirs))

    def under_guards(self, guards: Guards | None, path: str) -> Team:
        """Return the team for a place in something else, whose guards its own may tighten."""
        if guards is None:
            return self
        own = self.guards
        inside = own.within(guards, path) if isinstance(own, Guards) else guards
        held = replace(self, guards=inside)
        object.__setattr__(held, "_is_part", True)
        return held

    def gates_under(self, guards: Guards) -> list[GateAt]:
        """Return the gates that look at tools by name where another team's guards hold for it."""
        inside = self._under(guards)
        known = (
            one.gates_under(inside)
            if isinstance(one, HasGates)
            else gated_at(inside, one.name, lambda: None)
            for one in self._all
        )
        return list(chain(*known))

    def _under(self, guards: Guards) -> Guards:
        own = self.guards
        return own.within(guards, self.name) if isinstance(own, Guards) else guards

    @property
    def _all(self) -> list[Participant]:
        watcher = None if isinstance(self.supervisor, str) else as_participant(self.supervisor)
        return [*self.participants, *([] if watcher is None else [watcher])]

    def record(self, session_id: str, *, expectations: Any = None, **given: Any) -> SessionRecord:
        """Return what is stored of a new session."""
        expected = self._expected if expectations is None else expectations
        return new_record(self, session_id, expectations=expected, **given)

    def rules_of(self, record: SessionRecord) -> Rules:
        """Return the rules that a session was begun with; `Quarantined` if they need lost code."""
        missing = [name for name in record.agents if name not in self.names]
        if missing:
            told = ", ".join(map(repr, missing))
            raise Quarantined(
                f"session {record.session_id!r} needs {told}, who is no longer in the team "
                f"{self.name!r}: give the team back its agents"
            )
        if record.graph == self._stored_rules:
            graph = self.rules
        else:
            try:
                graph = TransitionGraph.from_dict(record.graph)
            except ConfigurationError as error:
                faults = "; ".join(error.faults)
                raise Quarantined(
                    f"the rules of session {record.session_id!r} cannot be read: {faults}"
                ) from error
        return Rules(graph, record.supervisor, self.failure_target)

    @cached_property
    def _stored_rules(self) -> Mapping[str, Any]:
        return canonical(self.rules.to_dict(), "the graph")

    @cached_property
    def in_force(self) -> Guards | None:
        """The guards that hold for all of it."""
        return Guards.interactive() if self.guards is DEFAULT else self.guards

    @cached_property
    def effects(self) -> MutableMapping[str, Effect]:
        """How the actions of its agents are undone, by path and tool, once it is compiled."""
        return {}

    def effects_at(self, path: str) -> dict[str, Effect]:
        """Return the same for a place in something else."""
        return {f"{path}/{name}": known for name, known in self.effects.items()}

    @property
    def _expected(self) -> Sequence[Expectation | Mapping[str, Any]]:
        return DEFAULT_EXPECTATIONS if isinstance(self.expectations, Default) else self.expectations

    @cached_property
    def _store(self) -> Any:
        stores = (getattr(one, "store", None) for one in self.participants)
        return next((store for store in stores if store is not None), None)

    @cached_property
    def _builder(self) -> AnyGraph:
        return self.taking_turns(StateGraph(TeamState))

    def taking_turns(self, graph: AnyGraph) -> AnyGraph:
        """Add the team to a graph that has its state."""
        own = [one for one in self.participants if one.name in self.names]
        speakers = [self._speaker(participant) for participant in own]
        return take_turns(speakers, PrivateTable(self, self._is_part))(graph)

    def _speaker(self, participant: Participant, *, watches: bool = False) -> Speaker:
        view = FullTranscript() if watches and self.view is None else self.view
        common: Any = {
            "name": participant.name,
            "deadline_s": _longest_turn(participant, self.in_force),
            "view": view or WindowedSummary(),
            "sees_all": watches,
            "audit": None if watches or self.in_force is None else self.in_force.audit,
            "summarize": self.summarize,
        }
        if isinstance(participant, Team):
            # Its own rounds have deadlines; all of them together have none.
            inner = participant.under_guards(self.in_force, participant.name)
            common |= {"graph": inner.graph, "team": inner, "guards": self.in_force}
            self.effects.update(inner.effects_at(participant.name))
            return TeamSpeaker(is_seated=False, **{**common, "deadline_s": None})
        if isinstance(participant, HasTeamGraph):
            graph = participant.graph_in_team(self._seat(participant.name, watches), self.in_force)
            return Speaker(graph=graph, is_seated=True, **common)
        foreign = seated_foreign(participant.name, participant.graph, self.in_force)
        return Speaker(graph=foreign, is_seated=False, **common)

    def _seat(self, name: str, watches: bool) -> TeamSeat:
        others = {
            one.name: one.description
            for one in self.participants
            if one.name not in (name, self.supervisor_name)
        }
        others |= dict.fromkeys(self.humans, "a human")
        offers = not isinstance(self.routing, TransitionGraph) or bool(
            self.aliases or self.phase_map or HANDOFF_TOOL in self.rules.routing_tools
        )
        return TeamSeat(name, others, self.policy, offers, watches, self.effects)


def _longest_turn(participant: Participant, guards: Guards | None) -> float | None:
    """Return how long a turn may take, by the team's guards and by a participant's own."""
    own = getattr(participant, "guards", None)
    inside = own.within(guards) if isinstance(own, Guards) else guards
    if inside is None:
        return None
    limits = inside.at(participant.name).deadlines
    known = (limits.stage_s, limits.workflow_s)
    return min((seconds for seconds in known if seconds is not None), default=None)
