"""Where an agent stands in a tree: all that its nodes know beside the state."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AnyMessage

from agentgraph.agents.spec.toolset import Toolset
from agentgraph.guards import Guards
from agentgraph.participant import Seat
from agentgraph.running import history
from agentgraph.stream import RoutingEvent, RoutingKind

if TYPE_CHECKING:
    from agentgraph.agents.spec.agent import Agent


@dataclass(frozen=True, slots=True)
class Tree:
    """The conversational agents below a root, by their paths."""

    root: str
    paths: Mapping[str, str]
    """Lower-cased name to path below the root; the root's own path is empty."""

    def find(self, name: str) -> str | None:
        """Return the path of a named agent, whatever its case."""
        return self.paths.get(name.lower())

    def nearest(self, path: str) -> str:
        """Return the longest beginning of a path that still exists."""
        known = set(self.paths.values())
        while path and path not in known:
            path = path.rpartition("/")[0]
        return path


@dataclass(frozen=True, slots=True)
class Level:
    """One agent in its place."""

    agent: Agent
    path: str
    supervisor: str | None
    guards: Guards | None
    toolset: Toolset
    tree: Tree | None
    """Only the root has it: mentions and stale paths are read there and nowhere else."""
    entry: str = "call_model"
    """Where a loop goes for the next model call."""
    exits: Sequence[str] = ()
    """What stands between a model call and its consequences."""
    end: str = "__end__"
    """Where a finished turn goes."""
    nodes: set[str] = field(default_factory=set)
    """All nodes, known once the patchers have run."""
    seat: Seat | None = None
    """Its place in a team, or its supervisor's."""
    effects: MutableMapping[str, Any] = field(default_factory=dict)
    """How the actions of all agents of its tree, or of its team, are undone."""

    @property
    def inherits(self) -> bool:
        """Whether the conversation before this entry is handed over with the run."""
        return self.tree is None or self.seat is not None

    def history(self, state: Mapping[str, Any]) -> list[AnyMessage]:
        """Return the whole conversation as this level sees it."""
        return history(state) if self.inherits else list(state.get("messages") or ())

    def routed(self, kind: RoutingKind, target: str, reason: str = "") -> RoutingEvent:
        """Say that the conversation moves from here."""
        return RoutingEvent(
            agent=self.path, kind=kind, source=self.agent.name, target=target, reason=reason
        )
