"""Participants: anything named that is, or has, a LangGraph graph over messages.

The further protocols are optional: the builder of a tree or a team checks a participant for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from langgraph.store.base import BaseStore
from langgraph.types import StateSnapshot

from agentgraph.errors import ConfigurationError
from agentgraph.outcomes import Handoff
from agentgraph.remote import RemoteMember, is_remote

Graph: TypeAlias = PregelProtocol[Any, Any, Any, Any]
"""A compiled LangGraph graph of any state, a remote one included."""


HANDOFF_TOOL = "handoff_conversation"
SILENCE_TOOL = "stay_silent"
TEAM_TOOLS = (HANDOFF_TOOL, SILENCE_TOOL)
"""The tools that may come with membership in a team."""

LEGAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,52}")
"""Providers limit the names of tools to 64, and `transfer_to_` takes 12."""

_ATTRIBUTES = ("name", "description", "graph")


class Participant(Protocol):
    """Anything with a name that can take part: an agent, a team, a compiled graph."""

    @property
    def name(self) -> str:
        """Return its name, which others use to address it."""
        ...

    @property
    def description(self) -> str:
        """Return what it can do, as a text for models."""
        ...

    @property
    def graph(self) -> Graph:
        """Return the graph that runs it."""
        ...


AgentFactory: TypeAlias = Callable[[str, Any, str], Participant]
"""Makes an agent without tools of a name, a model and a system prompt."""

_agent_factories: list[AgentFactory] = []


def provide_agents(factory: AgentFactory) -> None:
    """Say how agents are made, to packages that cannot import the one that makes them."""
    _agent_factories[:] = [factory]


def plain_agent(name: str, model: object, system_prompt: str) -> Participant:
    """Return an agent without tools; raise `ConfigurationError` for what cannot be a model."""
    if not _agent_factories:
        raise ConfigurationError("no package has provided agents: import agentgraph")
    return _agent_factories[0](name, model, system_prompt)


class Verdict(NamedTuple):
    """A team's verdict on a handoff: the text for the model, and the accepted handoff, if any."""

    text: str
    accepted: Handoff | None
    is_hop: bool = False
    """Whether the target is a peer, so that it counts as a hop; a handoff to a human does not."""


class Membership(Protocol):
    """What a team gives to a participant."""

    @property
    def peers(self) -> Collection[str]:
        """Return the names of the allowed targets of a `Handoff` from here."""
        ...

    @property
    def tools(self) -> Sequence[BaseTool]:
        """Return the tools that the team adds."""
        ...

    @property
    def prompt(self) -> str:
        """Return the part of the system prompt about the team and the participant's place in it."""
        ...

    @property
    def is_alone(self) -> bool:
        """Return whether it is the only participant: its state has the whole conversation."""
        ...

    @property
    def effects(self) -> MutableMapping[str, Any]:
        """Return the team's effects, by path and tool: a participant adds those of its tools."""
        ...

    def judge(self, handoff: Handoff) -> Verdict:
        """Accept or refuse a handoff to a peer."""
        ...

    def refuse(self, guard: str, reason: str) -> Verdict:
        """Return the verdict on a handoff that a guard refuses."""
        ...


@runtime_checkable
class HasTeamGraph(Protocol):
    """A participant that reads the team's history from the run, and does not store it."""

    def graph_in_team(self, membership: Membership, guards: Any) -> Graph:
        """Return its graph for a place in a team, under the team's guards."""
        ...


@dataclass(frozen=True, slots=True)
class Remains:
    """What a run that has not come to its end leaves to later ones."""

    messages: Sequence[AnyMessage] = ()
    """The conversation with all that the run has added to it."""
    active: str | None = None
    """The path of the agent that has the conversation."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The channels of its graph."""
    askers: Mapping[str, str] = field(default_factory=dict)
    """The paths of the agents that ask, by the ids of their open questions."""


@runtime_checkable
class HasPrivateChannels(Protocol):
    """A participant whose graph has channels that a session of one does not keep."""

    @property
    def private_channels(self) -> Collection[str]:
        """Return the channels of its graph that last no longer than a turn, or are kept apart."""
        ...


@runtime_checkable
class HasMemory(HasPrivateChannels, Protocol):
    """A participant whose sessions of one keep what a thread of it would keep."""

    @property
    def policy(self) -> Any:
        """Return the guards in force where it is alone, None without any."""
        ...

    @property
    def history_sizes(self) -> Collection[int] | None:
        """Return how many messages its agents look back; None where one needs all of them."""
        ...

    def load_output(self, answer: Mapping[str, Any], path: str | None) -> object:
        """Return the object of a stored answer, in the form of the agent at a path below it."""
        ...

    def remains_of(
        self,
        snapshot: StateSnapshot,
        journal: Mapping[str | None, Sequence[AnyMessage]],
        *,
        is_over: bool,
        answers: Mapping[str, ToolMessage] = MappingProxyType({}),
    ) -> Remains:
        """Return what an unfinished run leaves, from the state of its graph and its journal.

        Of a run that is over, all open calls are answered: with those of the `answers` by the ids
        of the calls, else that their outcome is unknown.
        """
        ...


class RunEnd(NamedTuple):
    """The end of a run: the object that it gave, as it is stored, or why there is none."""

    output: Mapping[str, Any] | None
    reason: str | None


@runtime_checkable
class HasOutcome(Protocol):
    """A participant whose graph says in its state how a run has ended."""

    @property
    def end_channels(self) -> Sequence[str]:
        """Return the channels that say it."""
        ...

    def end_in(self, values: Mapping[str, Any]) -> RunEnd:
        """Return how the run has ended that has left these values."""
        ...

    def load_output(self, answer: Mapping[str, Any], path: str | None) -> object:
        """Return the object of a stored answer."""
        ...


@runtime_checkable
class HasChildren(Protocol):
    """A participant with others below it."""

    @property
    def children(self) -> Sequence[Participant]:
        """Return the participants directly below."""
        ...


@runtime_checkable
class HasAgents(Protocol):
    """A participant that consists of agents, and can check them against a policy."""

    @property
    def agent_names(self) -> Sequence[str]:
        """Return the names of all agents in it, including its own name."""
        ...

    def faults_under(self, guards: Any) -> list[str]:
        """Return the faults of its agents under these guards."""
        ...


@runtime_checkable
class HasGates(Protocol):
    """A participant that knows its tools, for the checks of gates with schemas by tool."""

    def gates_under(self, guards: Any) -> list[Any]:
        """Return each such gate under these guards, with the tools of its agent."""
        ...


class ToolNames(NamedTuple):
    """The tools that the agents of a participant may call, by name."""

    own: frozenset[str]
    """Those that its author gave: they may hand over, finish, or set context values."""
    default: frozenset[str]
    """Those that come with every agent, which do none of that."""


@runtime_checkable
class HasTools(Protocol):
    """A participant that knows its tools, for the check of the rules of its team."""

    @property
    def tool_names(self) -> ToolNames | None:
        """Return the tools of all agents in it, None if they are not all known."""
        ...


@runtime_checkable
class HasGuards(Protocol):
    """A participant with guards of its own, which may tighten those around it."""

    def under_guards(self, guards: Any, path: str) -> GuardedGraph:
        """Return this participant for a place at `path`, under these outer guards."""
        ...


@runtime_checkable
class SharesEffects(Protocol):
    """A participant whose graph undoes what is done around it, as agents' graphs do."""

    @property
    def policy(self) -> Any:
        """Return its guards where it runs by itself, None without any."""
        ...

    def in_place(self, guards: Any, path: str, effects: MutableMapping[str, Any]) -> Graph:
        """Return its graph for a place at `path`; its effects are added to `effects`."""
        ...


class GuardedGraph(Protocol):
    """A participant in its place, under the guards around it."""

    @property
    def graph(self) -> Graph:
        """Return the graph that runs it."""
        ...

    def effects_at(self, path: str) -> Mapping[str, Any]:
        """Return the effects of all tools in it, by path and tool.

        Complete only once its graph is compiled.
        """
        ...


class ForeignGraph:
    """A participant made of a compiled graph that agentgraph did not build."""

    def __init__(self, graph: Graph) -> None:
        # A remote graph is no Pregel here, but runs as one.
        self.graph: Graph = cast(Any, RemoteMember(graph) if is_remote(graph) else graph)
        self.name: str = getattr(graph, "name", "") or ""
        self.description: str = getattr(graph, "description", "") or ""


_UNNAMED = "LangGraph"
"""The name that LangGraph gives to a graph that was compiled without one."""


def naming_fault(participant: Participant) -> str | None:
    """Return what is wrong with the name of a graph that was compiled elsewhere, if anything is."""
    if not isinstance(participant, ForeignGraph):
        return None
    name = participant.name
    if name and name != _UNNAMED and LEGAL_NAME.fullmatch(name):
        return None
    is_named = name and name != _UNNAMED
    fault = f"the name {name!r} is not legal" if is_named else "a compiled graph has no name"
    return (
        f"{fault}: give the graph one of 1 to 52 of a-z, A-Z, 0-9, _ and -, with "
        'compile(name="billing") or graph.name = "billing"'
    )


def static_interrupts_faults(participant: Participant) -> Iterator[str]:
    """Yield what is wrong with the graphs in a participant that wait before or after nodes.

    In a session nobody could tell them to go on: a question has an id and is decided.
    """
    if isinstance(participant, HasChildren):
        for child in participant.children:
            yield from static_interrupts_faults(child)
    if not isinstance(participant, ForeignGraph):
        return
    graphs = [participant.graph]
    if isinstance(participant.graph, Pregel):
        graphs += [graph for _, graph in participant.graph.get_subgraphs(recurse=True)]
    if any(map(_has_static_interrupts, graphs)):
        yield (
            f"the graph {participant.name!r} is compiled with interrupt_before or interrupt_after: "
            "in a session nobody could tell it to go on; call interrupt(…) in a node instead"
        )


def _has_static_interrupts(graph: object) -> bool:
    names = ("interrupt_before_nodes", "interrupt_after_nodes")
    return any(getattr(graph, name, None) for name in names)


def last_word(guard: str, cause: str, message_id: str) -> AIMessage:
    """Return the message with which a guard ends a run: it says why, and names the guard."""
    text = f"Stopped by {guard}: {cause.rstrip('.')}." if cause else f"Stopped by {guard}."
    about = {"agentgraph": {"stopped_by": guard}}
    return AIMessage(text, id=message_id, response_metadata=about)


def sentence_of_stop(guard: str, cause: str) -> str:
    """Return a sentence for people: which guard has ended a run, and why, where that is known."""
    why = f": {cause.rstrip('.')}" if cause else ""
    return f"The run was ended by the guard {guard}{why}."


def split_stop(messages: Sequence[BaseMessage]) -> tuple[list[Any], str | None]:
    """Split a foreign graph's messages from the one with which a guard has ended its run.

    Returns the others, and the name of that guard, None where none has ended it.
    """
    guards = [_stop_in(message) for message in messages]
    answers = [message for message, guard in zip(messages, guards, strict=True) if not guard]
    return answers, next((guard for guard in reversed(guards) if guard), None)


def _stop_in(message: BaseMessage) -> str | None:
    about = message.response_metadata.get("agentgraph")
    return about.get("stopped_by") if isinstance(about, Mapping) else None


def store_of(participant: object) -> BaseStore | None:
    """Return a participant's store; without one of its own, the first of those inside of it.

    LangGraph gives nested graphs the store of the graph around them and no other.
    """
    owner = participant.graph if isinstance(participant, ForeignGraph) else participant
    store = getattr(owner, "store", None)
    if isinstance(store, BaseStore):
        return store
    children = getattr(participant, "children", ())
    stores = map(store_of, children if isinstance(children, Sequence) else ())
    return next((store for store in stores if store is not None), None)


def as_participant(candidate: object) -> Participant | None:
    """Return a participant for an agent, a team or a compiled graph, None for anything else."""
    if isinstance(candidate, PregelProtocol):
        return ForeignGraph(candidate)
    # The attributes are found without evaluation: `graph` compiles on first use.
    if all(getattr_static(candidate, name, None) is not None for name in _ATTRIBUTES):
        return cast(Participant, candidate)
    return None
