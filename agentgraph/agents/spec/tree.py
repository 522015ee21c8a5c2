"""The tree below an agent: its agents with their paths, and the store that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from langgraph.store.base import BaseStore

from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.participant import ForeignGraph, HasAgents
from agentgraph.remote import RemoteMember


@dataclass(frozen=True, slots=True)
class Tree:
    """The conversational agents below a root, by their paths."""

    root: str
    paths: Mapping[str, str]
    """Lower-cased name to path below the root; the root's own path is empty."""

    @classmethod
    def of(cls, root: AgentSpec) -> Tree:
        """Read the tree below a root."""
        paths = {root.name.lower(): ""}

        def walk(agent: AgentSpec, path: str) -> None:
            for participant in agent.sub_agents:
                below = f"{path}/{participant.name}" if path else participant.name
                paths[participant.name.lower()] = below
                if isinstance(participant, AgentSpec):
                    walk(participant, below)

        walk(root, "")
        return cls(root.name, paths)

    def find(self, name: str) -> str | None:
        """Return the path of an agent by its name or by the end of its path, regardless of case.

        `root/mid/leaf`, `mid/leaf` and `leaf` name the same agent.
        """
        name = name.lower()
        path = self.paths.get(name.rpartition("/")[2])
        if path is None or not f"/{self.root}/{path}".lower().rstrip("/").endswith(f"/{name}"):
            return None
        return path

    @property
    def names(self) -> list[str]:
        """Return the names of all agents of the tree."""
        return [name_at(path) or self.root for path in self.paths.values()]

    def nearest(self, path: str) -> str:
        """Return the longest beginning of a path that exists in this tree."""
        paths = set(self.paths.values())
        while path and path not in paths:
            path = path.rpartition("/")[0]
        return path


def name_at(path: str) -> str:
    """Return the name of the agent at the end of a path."""
    return path.rpartition("/")[2]


def names_of(agent: AgentSpec) -> tuple[str, ...]:
    """Return the names of all agents in a tree, including those in its teams."""
    names = [agent.name]
    for child in agent.children:
        if isinstance(child, AgentSpec):
            names += names_of(child)
        else:
            names.append(child.name)
            names += child.agent_names if isinstance(child, HasAgents) else ()
    return tuple(dict.fromkeys(names))


def history_sizes_of(agent: AgentSpec) -> frozenset[int] | None:
    """Return the `history=` of all agents to which a conversation with this one may move.

    None where one of them needs the whole: without a number, or as it is no `Agent`.
    """
    if not isinstance(agent.history, int):
        return None
    sizes = {agent.history}
    for member in agent.sub_agents:
        below = history_sizes_of(member) if isinstance(member, AgentSpec) else None
        if below is None:
            return None
        sizes |= below
    return frozenset(sizes)


def remote_members(agent: AgentSpec, path: str) -> dict[str, RemoteMember]:
    """Return the agents of a tree that run on other servers, by their paths."""
    members: dict[str, RemoteMember] = {}
    for child in agent.children:
        below = f"{path}/{child.name}"
        if isinstance(child, AgentSpec):
            members |= remote_members(child, below)
        elif isinstance(child, ForeignGraph) and isinstance(child.graph, RemoteMember):
            members[below] = child.graph
    return members


def stores_of(agent: AgentSpec) -> list[BaseStore]:
    """Return the stores that a tree's agents name, each once."""
    agents = [child for child in agent.children if isinstance(child, AgentSpec)]
    below = [store for child in agents for store in stores_of(child)]
    own = [] if agent.store is None else [agent.store]
    return list({id(store): store for store in (*own, *below)}.values())


def cycle_in(agent: AgentSpec, above: tuple[AgentSpec, ...] = ()) -> list[str]:
    """Return the names along a cycle of the tree, none where there is no cycle.

    Agents are frozen, so a cycle can only be forced; every other walk of the tree would not end.
    """
    if any(agent is ancestor for ancestor in above):
        return [ancestor.name for ancestor in (*above, agent)]
    for child in agent.children:
        if isinstance(child, AgentSpec) and (cycle := cycle_in(child, (*above, agent))):
            return cycle
    return []
