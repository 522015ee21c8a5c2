"""Participants: anything named that is, or has, a LangGraph graph over messages.

The protocols say what else a participant may know of itself; whoever builds a tree or a team asks
for them one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from inspect import getattr_static
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from langchain_core.tools import BaseTool
from langgraph.pregel.protocol import PregelProtocol

from agentgraph.outcomes import Handoff

Graph: TypeAlias = PregelProtocol[Any, Any, Any, Any]
"""A compiled LangGraph graph of any state, a remote one included."""


HANDOFF_TOOL = "handoff_conversation"
SILENCE_TOOL = "stay_silent"
TEAM_TOOLS = (HANDOFF_TOOL, SILENCE_TOOL)
"""The tools that may come with membership in a team."""

_ATTRIBUTES = ("name", "description", "graph")


class Participant(Protocol):
    """Anything named that can be given the floor: an agent, a team, a compiled graph."""

    @property
    def name(self) -> str:
        """Return the name others call it by."""
        ...

    @property
    def description(self) -> str:
        """Say what it is good for."""
        ...

    @property
    def graph(self) -> Graph:
        """Return the graph that runs it."""
        ...


class Verdict(NamedTuple):
    """What a team says to a handoff: the text for the model, and what is carried out, if any."""

    text: str
    accepted: Handoff | None
    is_hop: bool = False
    """Whether it leads to a peer: a human can be asked however often others were."""


class Membership(Protocol):
    """What a participant gets with its place in a team."""

    @property
    def peers(self) -> Collection[str]:
        """Return the names to which a `Handoff` may lead from here."""
        ...

    @property
    def tools(self) -> Sequence[BaseTool]:
        """Return the tools that come with the place."""
        ...

    @property
    def prompt(self) -> str:
        """Return what its model reads about the team and its own place there."""
        ...

    @property
    def effects(self) -> MutableMapping[str, Any]:
        """Return how the actions of all in the team are undone, by path and tool: add to it."""
        ...

    def judge(self, handoff: Handoff) -> Verdict:
        """Accept a handoff to a peer, or say why not."""
        ...

    def refuse(self, guard: str, reason: str) -> Verdict:
        """Refuse a handoff that a guard does not let through."""
        ...


@runtime_checkable
class HasTeamGraph(Protocol):
    """A participant that reads the team's history from the run, and does not store it."""

    def graph_in_team(self, membership: Membership, guards: Any) -> Graph:
        """Return its graph for a place in a team, under the team's guards."""
        ...


@runtime_checkable
class HasAgents(Protocol):
    """A participant that consists of agents, and can check them against a policy."""

    @property
    def agent_names(self) -> Sequence[str]:
        """Return the names of all who work in it, its own among them."""
        ...

    def faults_under(self, guards: Any) -> list[str]:
        """Return what is wrong with them where these guards hold."""
        ...


@runtime_checkable
class HasGates(Protocol):
    """A participant that knows which tools it has, for gates that look at them by name."""

    def gates_under(self, guards: Any) -> list[Any]:
        """Return each such gate where these guards hold, with the tools of those under it."""
        ...


@runtime_checkable
class HasGuards(Protocol):
    """A participant with guards of its own, which may tighten those around it."""

    def under_guards(self, guards: Any, path: str) -> GuardedGraph:
        """Return it for a place at this path, under these guards."""
        ...


class GuardedGraph(Protocol):
    """A participant in its place, under the guards around it."""

    @property
    def graph(self) -> Graph:
        """Return the graph that runs it."""
        ...

    def effects_at(self, path: str) -> Mapping[str, Any]:
        """Return how the actions of all in it are undone, by path and tool.

        Complete only once its graph is compiled.
        """
        ...


class ForeignGraph:
    """Take part with a compiled graph that agentgraph did not build."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.name: str = getattr(graph, "name", "") or ""
        self.description: str = getattr(graph, "description", "") or ""


def as_participant(candidate: object) -> Participant | None:
    """Return a participant for an agent, a team or a compiled graph, None for anything else."""
    if isinstance(candidate, PregelProtocol):
        return ForeignGraph(candidate)
    # Looked at without evaluating: `graph` compiles on first use.
    if all(getattr_static(candidate, name, None) is not None for name in _ATTRIBUTES):
        return cast(Participant, candidate)
    return None
