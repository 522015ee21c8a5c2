"""The specification of a team, as data: participants, rules, and what follows from these alone.

`compiled` has the graph that a team compiles to; `sessions.hub.team` has the `Team` that users
write, which can also run itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Any, Literal, Self, TypeAlias

from langgraph.store.base import BaseStore

from agentgraph.errors import ConfigurationError, Quarantined
from agentgraph.guards import DEFAULT, Default, Effect, Guards
from agentgraph.guards.checks import GateAt, gated_at
from agentgraph.guards.nodes.foreign.graph import faults_in
from agentgraph.participant import (
    HANDOFF_TOOL,
    TEAM_TOOLS,
    ForeignGraph,
    Graph,
    HasAgents,
    HasGates,
    HasTools,
    Participant,
    ToolNames,
    as_participant,
)
from agentgraph.phases import ConversationPipeline, ConversationRouter, HandoffPolicy
from agentgraph.routing import Finding, TransitionGraph
from agentgraph.sessions.envelopes.payload import canonical
from agentgraph.sessions.rounds.questions import judge_of, model_of
from agentgraph.sessions.state.expectations import Expectation
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rules import Asker, Rules
from agentgraph.sessions.state.views import View
from agentgraph.sessions.team.summary import Summarize

Routing: TypeAlias = TransitionGraph | ConversationRouter | ConversationPipeline
Durability: TypeAlias = Literal["round", "step"]
Escalate: TypeAlias = Callable[..., Awaitable[None] | None]
"""Called with the `Session` and the envelope of a handoff, after that envelope is in the log."""


@dataclass(frozen=True, eq=False, repr=False)
class TeamSpec:
    """The fields of a `Team`, unchecked, and values that are derived without compiling."""

    agents: Sequence[Participant | Graph]
    """The participants that may have the floor: agents, teams, compiled graphs."""
    routing: Routing
    """The rules that decide who speaks next."""
    _: KW_ONLY
    name: str = ""
    description: str = ""
    humans: Sequence[str] = ()
    """The people who are invited to each session, besides its creator."""
    supervisor: Participant | Graph | str | None = None
    """A participant that sees every envelope and may intervene; a name means one of the agents."""
    aliases: Mapping[str, str] | None = None
    """Other names for handoff targets."""
    phase_map: Mapping[str, str] | None = None
    """By agent, the phase that a handoff to this agent enters."""
    view: View | None = None
    """How much of the session a speaker's model is shown."""
    guards: Guards | Default | None = DEFAULT
    expectations: Sequence[Expectation | Mapping[str, Any]] | Default = DEFAULT
    durability: Durability = "round"
    summarize: Summarize | None = None
    """Summarises the envelopes that a window does not show any more."""
    store: BaseStore | None = None
    """LangGraph's store for the tools of all members; None means the first one that a member has,
    and else the hub's."""
    failure_target: str | None = None
    escalations: Mapping[str, Escalate] = field(default_factory=dict)
    _counts_in_outer: bool = field(default=False, init=False)
    """Whether an outer team's guards count this team's work with the rest of their input."""

    def __repr__(self) -> str:
        return f"Team([{', '.join(self.names)}])"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self  # immutable; the compiled graphs hold locks that cannot be copied

    @cached_property
    def rules(self) -> TransitionGraph:
        """The routing as one graph of transitions."""
        if isinstance(self.routing, TransitionGraph):
            return self.routing
        if isinstance(self.routing, ConversationRouter):
            return self.routing.to_graph(self.names)
        return self.routing.to_graph()

    def check_rules(self, people: Sequence[str], *, is_limited: bool) -> tuple[Finding, ...]:
        """Check the rules for a session with these people, with what is known of the agents.

        `is_limited` says that a time limit ends the session.
        """
        tools = self.tools_by_member
        tool_sets = [names.own | names.default for names in tools.values() if names is not None]
        # A supervisor, and the handoff tool, may give the floor to anyone at any time.
        is_movable = self.supervisor_name is not None or self.offers_handoff
        return self.rules.check(
            tuple(dict.fromkeys((*self.names, *people))),
            people=[name for name in people if name not in self.names],
            tools=frozenset(TEAM_TOOLS).union(*tool_sets) if len(tool_sets) == len(tools) else None,
            deciders=[name for name in self.names if is_movable or _may_decide(tools[name])],
            starts=() if self.failure_target is None else (self.failure_target,),
            is_limited=is_limited,
        )

    @cached_property
    def participants(self) -> tuple[Participant, ...]:
        """All agents, including a supervisor that is given as an agent."""
        agents = [as_participant(agent) for agent in self.agents]
        return tuple(agent for agent in agents if agent is not None)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the agents that may have the floor: no humans, and no supervisor."""
        names = (participant.name for participant in self.participants)
        return tuple(name for name in names if name != self.supervisor_name)

    @cached_property
    def inner_teams(self) -> tuple[str, ...]:
        """The names of the participants that are teams."""
        return tuple(member.name for member in self.participants if isinstance(member, TeamSpec))

    @cached_property
    def supervisor_name(self) -> str | None:
        """The name of the supervisor, even if only the routing names one."""
        if isinstance(self.supervisor, str):
            return self.supervisor
        if self.supervisor is not None:
            supervisor = as_participant(self.supervisor)
            return supervisor.name if supervisor is not None else None
        return None if isinstance(self.routing, TransitionGraph) else self.routing.supervisor_id

    @cached_property
    def supervising_agent(self) -> Participant | None:
        """The participant that supervises; None if the supervisor is no agent of this team."""
        by_name = {participant.name: participant for participant in self.participants}
        supervisor = by_name.get(self.supervisor_name or "")
        if supervisor is None and not isinstance(self.supervisor, str | None):
            supervisor = as_participant(self.supervisor)
        return supervisor

    @cached_property
    def policy(self) -> HandoffPolicy:
        """The policy for handoffs within the team."""
        pipeline = self.routing if isinstance(self.routing, ConversationPipeline) else None
        phases = pipeline.get_phase_map() if pipeline is not None else {}
        return HandoffPolicy(
            self.names,
            aliases=self.aliases or {},
            phase_map=self.phase_map if self.phase_map is not None else phases,
            allowed_transitions=pipeline.get_allowed_transitions() if pipeline else None,
            escalations=tuple(self.escalations),
        )

    def rules_of(self, record: SessionRecord) -> Rules:
        """Return the rules of a session's record; `Quarantined` if they need missing code."""
        lost_names = [name for name in record.agents if name not in self.names]
        if lost_names:
            names = ", ".join(map(repr, lost_names))
            raise Quarantined(
                f"session {record.session_id!r} needs {names}, who is no longer in the team "
                f"{self.name!r}: give the team back its agents"
            )
        if record.graph == self.stored_rules:
            graph = self.rules
        else:
            try:
                graph = TransitionGraph.from_dict(record.graph)
            except ConfigurationError as error:
                faults = "; ".join(error.faults)
                raise Quarantined(
                    f"the rules of session {record.session_id!r} cannot be read: {faults}"
                ) from error
            _check_models(record, graph)
        asker = self.asker if graph.models else None
        return Rules(graph, record.supervisor, self.failure_target, asker)

    @property
    def asker(self) -> Asker | None:
        """Who asks the models that the rules name; a specification alone cannot ask."""
        return None

    @cached_property
    def stored_rules(self) -> Mapping[str, Any]:
        """The rules as a session's record stores them."""
        return canonical(self.rules.to_dict(), "the graph")

    @cached_property
    def active_guards(self) -> Guards | None:
        """The team's guards, None if none are active; `max_turns` comes before their step limit."""
        guards = Guards.default() if isinstance(self.guards, Default) else self.guards
        turns = self.rules.max_turns
        return guards if guards is None or turns is None else guards.for_turns(turns)

    @cached_property
    def effects(self) -> MutableMapping[str, Effect]:
        """How the agents' actions are undone, by path and tool; compiling fills the mapping."""
        return {}

    def effects_at(self, path: str) -> dict[str, Effect]:
        """Return the team's effects with their paths prefixed by `path`."""
        return {f"{path}/{name}": effect for name, effect in self.effects.items()}

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The names of all agents in the team, including those inside its participants."""
        members = self.children
        within = (
            member.agent_names if isinstance(member, HasAgents) else [member.name]
            for member in members
        )
        return tuple(dict.fromkeys([*(member.name for member in members), *chain(*within)]))

    @property
    def tools_by_member(self) -> Mapping[str, ToolNames | None]:
        """The tools of each member, by its name; None where they are not all known."""
        return {
            member.name: member.tool_names if isinstance(member, HasTools) else None
            for member in self.children
        }

    @cached_property
    def offers_handoff(self) -> bool:
        """Whether the agents get the tool that hands the conversation over."""
        return not isinstance(self.routing, TransitionGraph) or bool(
            self.aliases or self.phase_map or HANDOFF_TOOL in self.rules.routing_tools
        )

    def faults_under(self, guards: Guards) -> list[str]:
        """Return what is wrong with the team if it runs under another team's guards."""
        policy = self._guards_within(guards)
        members = self.children
        own = (member.faults_under(policy) for member in members if isinstance(member, HasAgents))
        foreign = (member for member in members if isinstance(member, ForeignGraph))
        theirs = (faults_in(member.graph, policy, member.name) for member in foreign)
        return list(chain(*own, *theirs))

    def gates_under(self, guards: Guards) -> list[GateAt]:
        """Return the gates that name tools, if the team runs under another team's guards."""
        policy = self._guards_within(guards)
        gates = (
            member.gates_under(policy)
            if isinstance(member, HasGates)
            else gated_at(policy, member.name, lambda: None)
            for member in self.children
        )
        return list(chain(*gates))

    def under_guards(self, guards: Guards | None, path: str) -> Self:
        """Return the team under an outer graph's guards, which the team's own may tighten."""
        if guards is None:
            return self
        own = self.guards
        changes = {
            "guards": own.within(guards, path) if isinstance(own, Guards) else guards,
            "_counts_in_outer": True,
        }
        # Not by `replace`: the team has been checked, and would give its warnings again.
        team = object.__new__(type(self))
        for item in fields(self):
            value = changes.get(item.name, getattr(self, item.name))
            object.__setattr__(team, item.name, value)
        return team

    def _guards_within(self, guards: Guards) -> Guards:
        own = self.guards
        return own.within(guards, self.name) if isinstance(own, Guards) else guards

    @property
    def children(self) -> list[Participant]:
        """The participants, and a supervisor that is not among them."""
        supervisor = None if isinstance(self.supervisor, str) else as_participant(self.supervisor)
        return [*self.participants, *([] if supervisor is None else [supervisor])]


def _check_models(record: SessionRecord, graph: TransitionGraph) -> None:
    """Raise `Quarantined` if stored rules ask a model that this process does not have."""
    for name in graph.models:
        try:
            judge_of(model_of(name))
        except ConfigurationError as error:
            faults = "; ".join(error.faults)
            raise Quarantined(
                f"the rules of session {record.session_id!r} ask a model that is missing: {faults}"
            ) from error


def _may_decide(tools: ToolNames | None) -> bool:
    """Tell whether one of these tools may hand over, finish or set a context value."""
    return tools is None or bool(tools.own)
