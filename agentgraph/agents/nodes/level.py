"""A level: one agent in its place in a tree, with all that its nodes need beside the state."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.graph import END
from langgraph.types import Command

from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.toolset import Toolset
from agentgraph.agents.spec.tree import Tree
from agentgraph.errors import RoutingError
from agentgraph.graphs.task import has_parent
from agentgraph.guards import Effect, Guards
from agentgraph.participant import Membership
from agentgraph.running import history
from agentgraph.stream import RoutingEvent, RoutingKind

M = TypeVar("M", AIMessage, ToolMessage)

ACTIVE_PATHS = "agentgraph"
"""The key in a message's `response_metadata` of the active path, by the root of its tree.

A root that is a node of a graph of others stands there with its place in it: `support@desk`. Roots
of one name that the function of one node calls share it: nothing in a later run tells them apart,
as LangGraph numbers calls and not graphs.
"""


@dataclass(frozen=True, slots=True)
class Level:
    """One agent in its place.

    It is made once for each place when a tree is compiled, and all runs share it: it must not
    contain anything of a run.
    """

    agent: AgentSpec
    path: str
    """The names from the root to this agent, used in events and by guards: `support/billing`."""
    above: Level | None
    """The agent above this one, None at the root of a tree."""
    guards: Guards | None
    toolset: Toolset
    tree: Tree | None
    """Only the root has it, because mentions and stale paths are handled only there."""
    entry: str = "call_model"
    """The node to enter for a model call: the first hook before it, or the model's node."""
    exits: Sequence[str] = ()
    """The hooks after a model call."""
    end: str = "__end__"
    """The node to enter when a turn is finished: the first hook after it, or the end."""
    nodes: set[str] = field(default_factory=set)
    """The names of all nodes; filled once the patchers have run."""
    membership: Membership | None = None
    """The membership of this agent, or of its root, in a team."""
    effects: MutableMapping[str, Effect] = field(default_factory=dict)
    """How the actions of all agents of the tree, or of the team, are undone."""

    @property
    def supervisor(self) -> str | None:
        """The name of the agent above this one."""
        return None if self.above is None else self.above.agent.name

    @property
    def inherits(self) -> bool:
        """Whether the run hands the earlier conversation over to this level."""
        if self.tree is not None:
            return self.membership is not None and not self.membership.is_alone
        return True

    def history(self, state: Mapping[str, Any]) -> list[AnyMessage]:
        """Return the whole conversation as this level sees it."""
        return history(state) if self.inherits else list(state.get("messages") or ())

    def marked(self, message: M, path: str | None = None) -> M:
        """Return a message that says who is active after it: this agent, or the one at `path`.

        A graph of others may keep nothing but the messages.
        """
        alone = self.tree is not None and len(self.tree.paths) == 1
        if alone or self.membership is not None:
            return message
        active = (path or self.path).partition("/")[2]
        metadata = message.response_metadata
        marks = metadata.get(ACTIVE_PATHS)
        marks = {**(marks if isinstance(marks, dict) else {}), self._mark: active}
        update = {"response_metadata": {**metadata, ACTIVE_PATHS: marks}}
        return message.model_copy(update=update)

    def active_path(self, state: Mapping[str, Any]) -> str:
        """Return the path of the active agent below this level, "" where it is this one.

        A root that has no state of its own, as a node of a graph of others, reads the messages.
        """
        if self.tree is None or self.membership is not None or "current_active_agent" in state:
            return state.get("current_active_agent") or ""
        if len(self.tree.paths) > 1:
            # Without a place are the marks of a run by itself, and those of earlier versions.
            for key in dict.fromkeys((self._mark, self.tree.root)):
                for message in reversed(state.get("messages") or ()):
                    marks = message.response_metadata.get(ACTIVE_PATHS)
                    if isinstance(marks, dict) and isinstance(marks.get(key), str):
                        return str(marks[key])
        return ""

    @property
    def _mark(self) -> str:
        """The key of the active path: two nodes of one graph may be trees of the same name.

        The place is the names of the nodes around the root: they are the same in every run.
        """
        config = var_child_runnable_config.get() or {}
        namespace = str(config.get("configurable", {}).get("checkpoint_ns") or "")
        nodes = [part.partition(":")[0] for part in namespace.split("|") if not part.isdigit()]
        root, *below = self.path.split("/")
        place = "/".join(nodes[: -1 - len(below)])
        return f"{root}@{place}" if place else root

    def routing_event(self, kind: RoutingKind, target: str, reason: str = "") -> RoutingEvent:
        """Return the event that the conversation moves from here to `target`."""
        return RoutingEvent(
            agent=self.path, kind=kind, source=self.agent.name, target=target, reason=reason
        )


def targets_of(command: Command[Any]) -> list[Any]:
    """Return the nodes and the `Send`s that a command leads to."""
    goto = command.goto
    return [*goto] if isinstance(goto, list | tuple) else [goto] if goto else []


def check_leaving(
    level: Level, tool: str, command: Command[Any], targets: Sequence[Any], config: RunnableConfig
) -> None:
    """Raise `RoutingError` where a tool's command to another graph cannot be followed."""
    if command.graph != Command.PARENT:
        raise RoutingError(
            f"the tool {tool!r} sent a Command to the graph {command.graph!r}: only "
            "Command.PARENT, the graph around this one, can be reached"
        )
    if level.above is not None:
        check_targets(level.above, tool, targets, "; Command.PARENT leads to the agent above")
    elif level.membership is not None and not level.membership.is_alone:
        raise RoutingError(
            f"the tool {tool!r} sent a Command to another graph, the team's, whose rules decide "
            "who speaks: return a Handoff"
        )
    elif level.membership is not None or not has_parent(config):
        raise RoutingError(
            f"the tool {tool!r} sent a Command to another graph, but {level.agent.name!r} has no "
            "parent graph: return a Handoff, or make the agent's graph a node of another"
        )


def check_targets(level: Level, tool: str, targets: Sequence[Any], remark: str = "") -> None:
    """Raise `RoutingError` for a target of a tool that is no node of a level's graph."""
    for target in targets:
        node = getattr(target, "node", target)
        if node not in level.nodes and node != END:
            raise RoutingError(
                f"the tool {tool!r} goes to {node!r}, which is no node of {level.agent.name!r}: "
                f"there are {', '.join(sorted(level.nodes))}{remark}"
            )
