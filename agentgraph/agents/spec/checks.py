"""The checks of a tree of agents: every fault at once, each with what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import get_args

from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.intents import Intent, IntentKind
from agentgraph.agents.spec.toolset import Toolset, native_name, toolset_of
from agentgraph.agents.spec.tree import Tree, cycle_in, names_of, stores_of
from agentgraph.errors import suggestion
from agentgraph.guards import Guards
from agentgraph.guards.checks import (
    GateAt,
    gated_at,
    price_faults,
    schema_faults,
    stage_faults,
    unused_fallback_faults,
)
from agentgraph.guards.nodes.foreign.graph import faults_in
from agentgraph.participant import (
    LEGAL_NAME,
    TEAM_TOOLS,
    ForeignGraph,
    HasAgents,
    HasGates,
    naming_fault,
)


def faults_of(agent: AgentSpec) -> list[str]:
    """Return every fault of a tree: of names, tools, intents, stores, and under its guards."""
    if cycle := cycle_in(agent):
        return [f"the tree has a cycle: {' → '.join(cycle)}: an agent cannot be below itself"]
    faults = [*_name_faults(agent), *_duplicates(agent), *_own_faults(agent)]
    if isinstance(agent.guards, Guards):
        faults += stage_faults(agent.guards, names_of(agent))
        faults += faults_under(agent, agent.guards)
        faults += schema_faults(gates_under(agent, agent.guards))
    if len(stores_of(agent)) > 1:
        faults.append("the agents of this tree have different stores: give one store, to the root")
    return faults


def faults_under(agent: AgentSpec, guards: Guards, path: str = "") -> Iterator[str]:
    """Yield the faults of a tree's agents under a policy from above.

    Limits in dollars need the price of each model, and some foreign graphs cannot be guarded.
    """
    path = path or agent.name
    yield from unused_fallback_faults(guards, path)
    yield from price_faults(guards, path, agent.model)
    for child in agent.children:
        below = f"{path}/{child.name}"
        if isinstance(child, ForeignGraph):
            yield from faults_in(child.graph, guards, below)
        if isinstance(child, AgentSpec):
            yield from faults_under(child, child.guards_within(guards, below), below)
        elif isinstance(child, HasAgents):
            yield from child.faults_under(guards)


def gates_under(agent: AgentSpec, guards: Guards, path: str = "") -> Iterator[GateAt]:
    """Yield the gates of a tree that have schemas by tool, with the tools of each agent."""
    path = path or agent.name
    yield from gated_at(guards, path, lambda: _tool_names(agent))
    for child in agent.children:
        below = f"{path}/{child.name}"
        if isinstance(child, AgentSpec):
            yield from gates_under(child, child.guards_within(guards, below), below)
        elif isinstance(child, HasGates):
            yield from child.gates_under(guards)
        else:
            yield from gated_at(guards, below, lambda: None)


def _tool_names(agent: AgentSpec) -> list[str] | None:
    """Return the tool names of an agent in any place; None if its middleware may add tools."""
    if agent.middleware:
        return None
    return [*toolset_of(agent, _ANY_SUPERVISOR).ordinary, *TEAM_TOOLS]


_ANY_SUPERVISOR = "supervisor"
_NODES = ("render_system_prompt", "router", "continue_conversation", "call_model", "call_tools")

_RESERVED_NAMES = {*_NODES, "__start__", "__end__"}
"""The nodes of every agent's graph: a sub-agent becomes a node beside them."""


def _name_faults(agent: AgentSpec) -> Iterator[str]:
    faults = {child: naming_fault(child) for child in agent.children}
    yield from (fault for fault in faults.values() if fault)
    children = [str(child.name) for child, fault in faults.items() if not fault]
    for name in [agent.name, *children]:
        if not LEGAL_NAME.fullmatch(name):
            yield f"the name {name!r} is not legal: use 1 to 52 of a-z, A-Z, 0-9, _ and -"
    for name in children:
        if name in _RESERVED_NAMES:
            yield f"a sub-agent cannot be called {name!r}: that is a node of its supervisor's graph"


def _duplicates(agent: AgentSpec) -> Iterator[str]:
    # Regardless of case: a mention finds an agent by its lower-cased name.
    names: set[str] = set()
    for name in _all_names(agent):
        if name.lower() in names:
            yield (
                f"two agents of the tree are called {name!r} (case does not count): rename one, "
                "with agent.replace(name=...) where the same agent stands in two places"
            )
        names.add(name.lower())


def _all_names(agent: AgentSpec) -> Iterator[str]:
    yield agent.name
    for child in agent.children:
        if isinstance(child, AgentSpec):
            yield from _all_names(child)
        else:
            yield str(child.name)


def _own_faults(agent: AgentSpec) -> Iterator[str]:
    """Yield what is wrong with the tools and intents of one agent."""
    # As if it had a supervisor: `request_help` must not clash in any place of a tree.
    toolset = toolset_of(agent, _ANY_SUPERVISOR)
    names = [*(tool.name for tool in agent.own_tools), *_implied_names(agent, toolset)]
    for name in _duplicate_names(names):
        yield f"the tool name {name!r} is taken twice in agent {agent.name!r}: rename one"
    reachable, tree = set(toolset.transfers.values()), Tree.of(agent)
    for name in sorted(reachable & toolset.ordinary.keys()):
        yield f"a sub-agent cannot be called {name!r}: that is a tool of its supervisor"
    for intent in agent.intents:
        fault = _intent_fault(intent, toolset, tree)
        if fault:
            yield f"the intent {intent.phrase!r} of agent {agent.name!r} {fault}"


def _intent_fault(intent: Intent, toolset: Toolset, tree: Tree) -> str | None:
    """Return the fault of an intent, as the end of a sentence that begins with its phrase."""
    if intent.kind not in get_args(IntentKind):
        return f"has the kind {intent.kind!r}: use agent, tool or raw"
    if intent.kind == "agent" and tree.find(intent.target) is None:
        return (
            f"names {intent.target!r}, which is no agent of its tree: {_advice(intent, tree.names)}"
        )
    tools = [*toolset.ordinary, *toolset.agents]
    if intent.kind == "tool" and intent.target not in tools:
        return f"names {intent.target!r}, which is none of its tools: {_advice(intent, tools)}"
    return None


def _advice(intent: Intent, names: Collection[str]) -> str:
    return suggestion(intent.target, names)


def _implied_names(agent: AgentSpec, toolset: Toolset) -> Iterator[str]:
    """Yield the names of all tools of an agent that are not its own tools."""
    # Each once: two agents of one name are a fault of their own.
    yield from {tool.name for tool in toolset.signals}
    yield from map(native_name, toolset.native)
    if toolset.output is not None:
        yield from toolset.output.names
    yield from toolset.ordinary.keys() - {tool.name for tool in agent.own_tools}


def _duplicate_names(names: Iterable[str]) -> list[str]:
    names = list(names)
    return sorted({name for name in names if names.count(name) > 1})
