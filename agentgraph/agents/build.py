"""Build the graph of a specification: its nodes, its edges, and the changes of its patchers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from agentgraph.agents.nodes.attempt import run_users_code
from agentgraph.agents.nodes.call_model import call_model
from agentgraph.agents.nodes.call_tools import call_tools
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.middleware import Middleware, hook_node
from agentgraph.agents.nodes.render_system_prompt import render_system_prompt
from agentgraph.agents.nodes.router import continue_conversation, router
from agentgraph.agents.nodes.routes import (
    SETTLE_CALLS,
    after_calls,
    after_hook,
    after_model,
    after_router,
    after_sub_agent,
)
from agentgraph.agents.nodes.run_tool import ToolRunner
from agentgraph.agents.nodes.settle_calls import settle_calls
from agentgraph.agents.nodes.state import AgentState
from agentgraph.agents.nodes.sub_agent import foreign_agent, sub_agent
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.intents import same_words
from agentgraph.agents.spec.toolset import toolset_of
from agentgraph.agents.spec.tree import Tree, stores_of
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph, merge_states
from agentgraph.graphs.public_graph import publish
from agentgraph.graphs.routes import Route, add_route
from agentgraph.graphs.state_types import declare_types
from agentgraph.guards import Effect, GuardedState, Guards, Place
from agentgraph.guards.nodes.agent_graph import GUARD_CHANNELS, agent_patcher
from agentgraph.guards.nodes.foreign.graph import guarded_copy
from agentgraph.models import attempting_once, resolve_model
from agentgraph.outcomes import NotesState
from agentgraph.participant import Graph, HasGuards, Membership, Participant, store_of
from agentgraph.patching import apply_patchers, states_of
from agentgraph.telling import AGENT_TAG, FOREIGN_TAG

PRIVATE_CHANNELS = frozenset(
    {*AgentState.__annotations__, *NotesState.__annotations__, *GUARD_CHANNELS}
)
"""The channels of an agent's graph that neither patchers nor middleware declare."""
_CALLS = ("call_tools", END)
_MOMENTS = ("before_agent", "before_model", "after_model", "after_agent")
"""The moments at which middleware has hooks."""


def compile_root(
    agent: AgentSpec, saver: BaseCheckpointSaver[str] | None, effects: MutableMapping[str, Effect]
) -> AnyCompiledGraph:
    """Compile an agent as the root of its tree, with its own guards or the default ones.

    The effects of the tree's tools are added to `effects`.
    """
    guards = agent.policy
    states = _states_of(guards)
    graph = _build(agent, agent.name, None, guards, Tree.of(agent), states, effects)
    # LangGraph gives nested graphs the root's store and no other.
    store = next(iter(stores_of(agent)), None)
    store = store_of(agent) if store is None else store
    inputs, outputs = _surface(agent, states)
    outputs = ["messages", "current_active_agent", *outputs[1:]]
    compiled_graph = publish(graph, inputs, outputs, saver, store=store, name=agent.name)
    return _with_recursion_limit(compiled_graph, guards)


def compile_in_team(
    agent: AgentSpec, membership: Membership, guards: Guards | None
) -> AnyCompiledGraph:
    """Compile an agent for its place in a team.

    It has no saver of its own and reads the history from the run. `guards` are the team's, which
    the agent's own may tighten. The effects of its tools are added to `membership.effects`.
    """
    guards = agent.guards_within(guards, agent.name)
    states = (NotesState, *_states_of(guards))
    tree, effects = Tree.of(agent), membership.effects
    graph = _build(agent, agent.name, None, guards, tree, states, effects, membership)
    compiled_graph = publish(graph, *_surface(agent, states), name=agent.name)
    return _with_recursion_limit(compiled_graph, guards)


def _build(
    agent: AgentSpec,
    path: str,
    above: Level | None,
    guards: Guards | None,
    tree: Tree | None,
    states: tuple[type, ...],
    effects: MutableMapping[str, Effect],
    membership: Membership | None = None,
) -> AnyGraph:
    """Build the graph of one level, and with it those of all levels below.

    `states` declare the channels that all levels share: those of the guards, of the team, and of
    the patchers above.
    """
    middleware = Middleware(agent.middleware)
    supervisor = None if above is None else above.agent.name
    team_tools = membership.tools if membership is not None and tree is not None else ()
    hooks = {moment: middleware.hooks(moment) for moment in _MOMENTS}
    level = Level(
        agent=agent,
        path=path,
        above=above,
        guards=guards,
        toolset=toolset_of(agent, supervisor, [*middleware.tools, *team_tools]),
        tree=tree,
        membership=membership,
        entry=next(iter(hooks["before_model"]), "call_model"),
        exits=tuple(hooks["after_model"]),
        end=next(iter(hooks["after_agent"]), "__end__"),
        effects=effects,
    )
    states = (*states, *states_of(agent.patchers))
    state = merge_states("AgentState", AgentState, *states, *middleware.states)
    graph: AnyGraph = StateGraph(state, context_schema=agent.context_schema)
    # A patcher's node may declare `state: MessagesState`, whose channel would clash with ours.
    graph.schemas[MessagesState] = {"messages": graph.channels["messages"]}
    _add_own_nodes(graph, level, middleware, state)
    _add_sub_agents(graph, level, states, state)
    _add_hooks(graph, level, hooks, state)
    graph = apply_patchers(graph, agent.patchers)
    if guards is not None:
        hook_nodes = [name for moment in _MOMENTS for name in hooks[moment]]
        graph = _with_guards(graph, level, guards, [*_code_nodes(agent), *hook_nodes])
    level.nodes.update(graph.nodes)
    declare_types(graph, PRIVATE_CHANNELS)
    return graph


def _surface(agent: AgentSpec, states: tuple[type, ...]) -> tuple[list[str], list[str]]:
    """Return the channels of a level that others write, and those that they see.

    These are the messages, and what patchers and middleware declare.
    """
    states = (*states, *states_of(agent.patchers))
    state = merge_states("Declared", *(s for s in states if s not in (GuardedState, NotesState)))
    keys = [key for key in state.__annotations__ if key not in AgentState.__annotations__]
    middleware = Middleware(agent.middleware)
    inputs = ["messages", *keys, *middleware.public_keys("input")]
    outputs = ["messages", *keys, *middleware.public_keys("output")]
    return list(dict.fromkeys(inputs)), list(dict.fromkeys(outputs))


def _code_nodes(agent: AgentSpec) -> Iterator[str]:
    """Yield the nodes of an agent that run functions of the user, besides models and tools."""
    if callable(agent.system_prompt):
        yield "render_system_prompt"
    if any(intent.matcher is not same_words for intent in agent.intents):
        yield "router"


def _with_guards(
    graph: AnyGraph, level: Level, guards: Guards, code_nodes: Collection[str]
) -> AnyGraph:
    """Put guards around the nodes, after the patchers, so that the guards see patched nodes too."""
    place = Place(level.path, level.toolset.ordinary)
    output = level.toolset.output
    if output is not None:
        place = replace(place, form=output.text_of, fits=output.fits)
    names = tuple(child.name for child in level.agent.children)
    return agent_patcher(guards, place, names, code_nodes, level.effects)(graph)


def _states_of(guards: Guards | None) -> tuple[type, ...]:
    return () if guards is None else (GuardedState,)


def _with_recursion_limit(graph: AnyCompiledGraph, guards: Guards | None) -> AnyCompiledGraph:
    """Raise LangGraph's recursion limit, so that a run meets the guards' step limit first.

    LangGraph counts steps per graph, so the limit follows from the largest level.
    """
    if guards is None:
        return graph
    levels = [graph, *(below for _, below in graph.get_subgraphs(recurse=True))]
    size = max(len(getattr(level, "nodes", ())) for level in levels)
    return graph.with_config(recursion_limit=guards.recursion_limit(size))


def _add_own_nodes(graph: AnyGraph, level: Level, middleware: Middleware, state: type) -> None:
    """Add the five nodes of every agent, and the edges up to the router."""
    agent = level.agent
    model = _model_of(level)
    nodes: dict[str, Any] = {
        "render_system_prompt": render_system_prompt(level),
        "router": router(level),
        "continue_conversation": continue_conversation,
        "call_model": call_model(level, model, middleware),
        "call_tools": call_tools(level, ToolRunner(level, middleware)),
        SETTLE_CALLS: settle_calls(level),
    }
    for name, node in nodes.items():
        graph.add_node(name, node, input_schema=state)
    graph.add_edge(START, "render_system_prompt")
    graph.add_edge("render_system_prompt", "router")
    children = [child.name for child in agent.children]
    calls = [SETTLE_CALLS, "call_tools", *children, level.entry, level.end, END]
    conversational = [p.name for p in agent.sub_agents]
    _route(graph, "router", after_router(level), ["continue_conversation", *conversational], _CALLS)
    exits = level.exits[:1] or [level.entry, level.end]
    _route(graph, "call_model", after_model(level), exits, _CALLS)
    for node in ("call_tools", SETTLE_CALLS):
        _route(graph, node, after_calls(level), calls)


def _route(graph: AnyGraph, node: str, route: Route, *ends: Sequence[str]) -> None:
    """Add the route behind a node; `ends` are all nodes that it may lead to."""
    add_route(graph, node, route, list(dict.fromkeys(end for part in ends for end in part)))


def _model_of(level: Level) -> BaseChatModel:
    """Return the model of a level; its client sends one request per call where guards retry."""
    model = resolve_model(level.agent.model)
    guards = level.guards.at(level.path) if level.guards is not None else None
    breaker = None if guards is None else guards.breaker
    if breaker is not None and isinstance(breaker.fallback, str):
        resolve_model(breaker.fallback)  # a wrong name must fail here and not when it is needed
    # Only one layer retries: the attempts of two layers would multiply.
    return model if guards is None or guards.retry is None else attempting_once(model)


def _add_sub_agents(graph: AnyGraph, level: Level, states: tuple[type, ...], state: type) -> None:
    """Add a node for each child; its graph shares the channels of guards, team and patchers."""
    channels = [key for part in states for key in part.__annotations__]
    ends = ("continue_conversation", SETTLE_CALLS, END)
    for child in level.agent.children:
        node: Any = _sub_agent_node(level, child, states, channels)
        graph.add_node(child.name, node, input_schema=state)
        _route(graph, child.name, after_sub_agent(level), ends)


def _sub_agent_node(
    level: Level, child: Participant, states: tuple[type, ...], channels: Sequence[str]
) -> Any:
    name = child.name
    path = f"{level.path}/{name}"
    if not isinstance(child, AgentSpec):
        tags = {AGENT_TAG: path, FOREIGN_TAG: True}
        is_team = isinstance(child, HasGuards)
        keeps_time = is_team and level.guards is not None
        foreign = _foreign_graph(level, child, path).with_config(metadata=tags)
        return foreign_agent(level, name, foreign, is_team=is_team, keeps_time=keeps_time)
    guards = child.guards_within(level.guards, path)
    effects, membership = level.effects, level.membership
    graph = _build(child, path, level, guards, None, states, effects, membership)
    compiled_graph = publish(graph, *_surface(child, states), name=name)
    return sub_agent(level, name, compiled_graph, channels)


def _foreign_graph(level: Level, participant: Participant, path: str) -> Graph:
    """Return the graph of a participant that is no `Agent`, under the guards of this level."""
    if level.guards is None:
        return participant.graph
    if not isinstance(participant, HasGuards):
        return guarded_copy(participant.graph, level.guards, path)
    inner = participant.under_guards(level.guards, path)
    graph = inner.graph  # compiles, and only then are its effects complete
    level.effects.update(inner.effects_at(path))
    return graph


def _add_hooks(
    graph: AnyGraph, level: Level, hooks: Mapping[str, Mapping[str, Any]], state: type
) -> None:
    """Chain the middleware's hooks; without any, continue straight to the model."""
    jumps = (level.end, level.entry, "call_tools")

    def add(moment: str, last: str | None) -> None:
        names = list(hooks[moment])
        for name, successor in zip(names, [*names[1:], last], strict=False):
            hook = partial(run_users_code, level.path, name, hooks[moment][name])
            node: Any = hook_node(hook, level.history, inherits=level.inherits)
            graph.add_node(name, node, input_schema=state)
            _route(graph, name, after_hook(level, successor), jumps, [successor or END])

    add("before_agent", level.entry)
    add("before_model", "call_model")
    add("after_model", None)
    add("after_agent", END)
    first = next(iter(hooks["before_agent"]), level.entry)
    graph.add_edge("continue_conversation", first)
