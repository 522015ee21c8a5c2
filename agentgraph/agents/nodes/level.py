"""A level: one agent in its place in a tree, as its nodes know it beside the state."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AnyMessage

from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.toolset import Toolset
from agentgraph.agents.spec.tree import Tree
from agentgraph.guards import Effect, Guards
from agentgraph.participant import Membership
from agentgraph.running import history
from agentgraph.stream import RoutingEvent, RoutingKind


@dataclass(frozen=True, slots=True)
class Level:
    """One agent in its place.

    Made once for each place when a tree is compiled, and shared by all runs: nothing of a run may
    be kept here.
    """

    agent: AgentSpec
    path: str
    """The names from the root to this agent, as events and guards know it: `support/billing`."""
    supervisor: str | None
    guards: Guards | None
    toolset: Toolset
    tree: Tree | None
    """Only the root has it: mentions and stale paths are read there and nowhere else."""
    entry: str = "call_model"
    """The node of the next model call: the first hook before it, where there is one."""
    exits: Sequence[str] = ()
    """The hooks between a model call and what follows from it."""
    end: str = "__end__"
    """The node of a finished turn: the first hook after it, where there is one."""
    nodes: set[str] = field(default_factory=set)
    """The names of all nodes; filled once the patchers have run."""
    membership: Membership | None = None
    """Its place in a team, or its root's."""
    effects: MutableMapping[str, Effect] = field(default_factory=dict)
    """How the actions of all agents of its tree, or of its team, are undone."""

    @property
    def inherits(self) -> bool:
        """Whether the conversation before this entry is handed over with the run."""
        return self.tree is None or self.membership is not None

    def history(self, state: Mapping[str, Any]) -> list[AnyMessage]:
        """Return the whole conversation as this level sees it."""
        return history(state) if self.inherits else list(state.get("messages") or ())

    def routing_event(self, kind: RoutingKind, target: str, reason: str = "") -> RoutingEvent:
        """Return the event that the conversation moves from here to `target`."""
        return RoutingEvent(
            agent=self.path, kind=kind, source=self.agent.name, target=target, reason=reason
        )
