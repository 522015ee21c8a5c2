"""What is wrong with a specification: all of it at once, each with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, get_args

from agentgraph.agents.build import NODES, stores_of, toolset_of
from agentgraph.agents.spec.default_tools import ALWAYS, WITH_OTHERS
from agentgraph.agents.spec.intents import Intent, IntentKind
from agentgraph.agents.spec.toolset import Toolset, needs_arguments
from agentgraph.guards import Guards
from agentgraph.guards.checks import (
    GateAt,
    gated_at,
    price_faults,
    schema_faults,
    stage_faults,
)
from agentgraph.guards.nodes.foreign_graph import faults_in
from agentgraph.participant import SEAT_TOOLS, ForeignGraph, Gated, Guarded

if TYPE_CHECKING:
    from agentgraph.agents.spec.agent import Agent


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,52}")
_RESERVED = {*NODES, "__start__", "__end__"}


def faults_of(agent: Agent) -> list[str]:
    """Return every fault of a tree."""
    cycle = _cycle(agent, ())
    if cycle:
        return [f"the tree has a cycle: {' → '.join(cycle)}: an agent cannot be below itself"]
    faults = [*_name_faults(agent), *_duplicates(agent), *_own_faults(agent)]
    if isinstance(agent.guards, Guards):
        faults += stage_faults(agent.guards, names_of(agent))
        faults += faults_under(agent, agent.guards)
        faults += schema_faults(gated_under(agent, agent.guards))
    if len(stores_of(agent)) > 1:
        faults.append("agents of the tree have different stores: a tree has one, give it the root")
    return faults


def faults_under(agent: Agent, guards: Guards, path: str = "") -> Iterator[str]:
    """Yield what is wrong with a tree's agents under a policy that is not their own."""
    from agentgraph.agents.spec.agent import Agent

    path = path or agent.name
    yield from price_faults(guards, path, agent.model)
    for child in _children(agent):
        if isinstance(child, ForeignGraph):
            yield from faults_in(child.graph, guards, f"{path}/{child.name}")
        if isinstance(child, Agent):
            below = f"{path}/{child.name}"
            own = child.guards
            inside = own.within(guards, below) if isinstance(own, Guards) else guards
            yield from faults_under(child, inside, below)
        elif isinstance(child, Guarded):
            yield from child.faults_under(guards)


def gated_under(agent: Agent, guards: Guards, path: str = "") -> Iterator[GateAt]:
    """Yield the gates of a tree that look at tools by name, with the tools of each agent there."""
    from agentgraph.agents.spec.agent import Agent

    path = path or agent.name
    yield from gated_at(guards, path, lambda: _tools_of(agent))
    for child in _children(agent):
        below = f"{path}/{getattr(child, 'name', '')}"
        if isinstance(child, Agent):
            own = child.guards
            inside = own.within(guards, below) if isinstance(own, Guards) else guards
            yield from gated_under(child, inside, below)
        elif isinstance(child, Gated):
            yield from child.gated_under(guards)
        else:
            yield from gated_at(guards, below, lambda: None)


def _tools_of(agent: Agent) -> list[str] | None:
    """Return what may run at an agent, wherever it is; None where its middleware may bring more."""
    if agent.middleware:
        return None
    return [*toolset_of(agent, "somebody").ordinary, *SEAT_TOOLS]


def names_of(agent: Agent) -> tuple[str, ...]:
    """Return the names of all who work in a tree, those of its teams among them."""
    from agentgraph.agents.spec.agent import Agent

    known = [agent.name]
    for child in _children(agent):
        if isinstance(child, Agent):
            known += names_of(child)
        else:
            known.append(str(getattr(child, "name", "")))
            known += child.agent_names if isinstance(child, Guarded) else ()
    return tuple(dict.fromkeys(known))


def _cycle(agent: Agent, above: tuple[Agent, ...]) -> list[str]:
    from agentgraph.agents.spec.agent import Agent

    if any(agent is other for other in above):
        return [other.name for other in (*above, agent)]
    for participant in _children(agent):
        if isinstance(participant, Agent):
            found = _cycle(participant, (*above, agent))
            if found:
                return found
    return []


def _children(agent: Agent) -> list[object]:
    return [*agent.sub_agents, *(tool.agent for tool in agent.agent_tools)]


def _name_faults(agent: Agent) -> Iterator[str]:
    children = [str(getattr(child, "name", "")) for child in _children(agent)]
    for name in [agent.name, *children]:
        if not _NAME.fullmatch(name):
            yield f"the name {name!r} is not legal: use 1 to 52 of a-z, A-Z, 0-9, _ and -"
    for name in children:
        if name in _RESERVED:
            yield f"a sub-agent cannot be called {name!r}: that is a node of its supervisor's graph"


def _duplicates(agent: Agent) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in _names(agent):
        if name.lower() in seen:
            yield f"two agents of the tree are called {name!r} (case does not count): rename one"
        seen[name.lower()] = name


def _names(agent: Agent) -> Iterator[str]:
    from agentgraph.agents.spec.agent import Agent

    yield agent.name
    for child in _children(agent):
        if isinstance(child, Agent):
            yield from _names(child)
        else:
            yield str(getattr(child, "name", ""))


def _own_faults(agent: Agent) -> Iterator[str]:
    toolset = toolset_of(agent, "somebody")
    for name in _repeated([*(tool.name for tool in agent.own_tools), *_implied(agent, toolset)]):
        yield f"the tool name {name!r} is taken twice in agent {agent.name!r}: rename one"
    reachable = set(toolset.transfers.values())
    for name in sorted(reachable & toolset.ordinary.keys()):
        yield f"a sub-agent cannot be called {name!r}: that is a tool of its supervisor"
    for intent in agent.intents:
        fault = _intent_fault(intent, toolset)
        if fault:
            yield f"the intent {intent.phrase!r} of agent {agent.name!r} {fault}"


def _intent_fault(intent: Intent, toolset: Toolset) -> str | None:
    if intent.kind not in get_args(IntentKind):
        return f"has the kind {intent.kind!r}: use agent, tool or raw"
    if intent.kind == "agent" and intent.target not in toolset.transfers.values():
        return f"names {intent.target!r}, which is none of its sub-agents"
    if intent.kind == "tool" and intent.target not in toolset.ordinary:
        return f"names {intent.target!r}, which is none of its tools"
    if intent.kind == "tool" and needs_arguments(toolset.ordinary[intent.target]):
        return f"calls {intent.target!r}, which needs arguments that only a model fills"
    return None


def _implied(agent: Agent, toolset: Toolset) -> Iterator[str]:
    """Yield the names that come from something other than the agent's own tools."""
    yield from {tool.name for tool in toolset.signals}  # two agents of one name are told as such
    for native in toolset.native:
        yield str(native.get("name") or native.get("function", {}).get("name") or native)
    if toolset.output is not None:
        yield toolset.output.name
    if agent.default_tools:
        yield from (*ALWAYS, *WITH_OTHERS)


def _repeated(names: Iterable[str]) -> list[str]:
    names = list(names)
    return sorted({name for name in names if names.count(name) > 1})
