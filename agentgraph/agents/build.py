"""From a specification to a graph: the nodes, the edges, and what patchers make of them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph

from agentgraph.agents.nodes.call_model import after_model, call_model
from agentgraph.agents.nodes.call_tools import call_tools
from agentgraph.agents.nodes.level import Level, Tree
from agentgraph.agents.nodes.middleware import Middleware, hook_node
from agentgraph.agents.nodes.prompt import render_system_prompt
from agentgraph.agents.nodes.router import router
from agentgraph.agents.nodes.run_tool import ToolRunner
from agentgraph.agents.nodes.state import AgentState
from agentgraph.agents.nodes.sub_agent import foreign_agent, sub_agent
from agentgraph.agents.spec.default_tools import default_tools
from agentgraph.agents.spec.output import OutputFormat
from agentgraph.agents.spec.toolset import (
    Toolset,
    as_base_tool,
    help_tool,
    transfer_tool,
    transfer_tool_name,
)
from agentgraph.guards import DEFAULT, Effect, GuardedState, Guards, Place
from agentgraph.guards.nodes.agent_graph import agent_patcher
from agentgraph.guards.nodes.foreign_graph import guarded_copy
from agentgraph.models import attempting_once, resolve_model
from agentgraph.outcomes import NotesState
from agentgraph.participant import Graph, Holdable, Participant, Seat
from agentgraph.patching import AnyCompiledGraph, AnyGraph, apply_patchers, merge_states, states_of
from agentgraph.telling import AGENT_TAG, FOREIGN_TAG

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from agentgraph.agents.spec.agent import Agent


NODES = ("render_system_prompt", "router", "continue_conversation", "call_model", "call_tools")


def compile_root(agent: Agent, saver: BaseCheckpointSaver[str]) -> AnyCompiledGraph:
    """Compile an agent as the root of its tree."""
    guards = Guards.interactive() if agent.guards is DEFAULT else agent.guards
    shared = _shared(guards)
    graph = _build(agent, agent.name, None, guards, _tree(agent), shared, {})
    # LangGraph gives nested graphs the root's store and no other.
    store = next(iter(stores_of(agent)), None)
    compiled = graph.compile(saver, store=store, name=agent.name)
    if guards is not None:
        compiled = compiled.with_config(recursion_limit=guards.recursion_limit(_size(compiled)))
    return compiled


def compile_seated(agent: Agent, seat: Seat, guards: Guards | None) -> AnyCompiledGraph:
    """Compile an agent for its place in a team, whose saver and history it works with."""
    own = agent.guards
    inside = own.within(guards, agent.name) if isinstance(own, Guards) else guards
    shared = (NotesState, *_shared(inside))
    effects = seat.effects
    graph = _build(agent, agent.name, None, inside, _tree(agent), shared, effects, seat)
    compiled = graph.compile(name=agent.name)
    if inside is not None:
        compiled = compiled.with_config(recursion_limit=inside.recursion_limit(_size(compiled)))
    return compiled


def _build(
    agent: Agent,
    path: str,
    supervisor: str | None,
    guards: Guards | None,
    tree: Tree | None,
    shared: tuple[type, ...],
    effects: MutableMapping[str, Effect],
    seat: Seat | None = None,
) -> AnyGraph:
    middleware = Middleware(agent.middleware)
    brought = [*middleware.tools, *(seat.tools if seat is not None and tree is not None else ())]
    hooks = {moment: middleware.hooks(moment) for moment in _MOMENTS}
    level = Level(
        agent=agent,
        path=path,
        supervisor=supervisor,
        guards=guards,
        toolset=toolset_of(agent, supervisor, brought),
        tree=tree,
        seat=seat,
        entry=next(iter(hooks["before_model"]), "call_model"),
        exits=tuple(hooks["after_model"]),
        end=next(iter(hooks["after_agent"]), "__end__"),
        effects=effects,
    )
    shared = (*shared, *states_of(agent.patchers))
    state = merge_states("AgentState", AgentState, *shared, *middleware.states)
    graph: AnyGraph = StateGraph(state, context_schema=agent.context_schema)
    # A patcher's node may say `state: MessagesState`, whose own channel would clash with ours.
    graph.schemas[MessagesState] = {"messages": graph.channels["messages"]}
    _add_own_nodes(graph, level, middleware, state)
    _add_sub_agents(graph, level, shared, state)
    _add_hooks(graph, level, hooks, state)
    graph = apply_patchers(graph, agent.patchers)
    if guards is not None:
        members = (*agent.sub_agents, *(tool.agent for tool in agent.agent_tools))
        output = level.toolset.output
        place = Place(path, level.toolset.ordinary)
        if output is not None:
            place = replace(place, form=output.text_of, fits=output.fits)
        graph = agent_patcher(guards, place, tuple(one.name for one in members), effects)(graph)
    level.nodes.update(graph.nodes)
    return graph


def _shared(guards: Guards | None) -> tuple[type, ...]:
    return () if guards is None else (GuardedState,)


_MOMENTS = ("before_agent", "before_model", "after_model", "after_agent")


def _add_own_nodes(graph: AnyGraph, level: Level, middleware: Middleware, state: type) -> None:
    agent = level.agent
    model = _model_of(level)
    conversational = [p.name for p in agent.sub_agents]
    errands = [tool.name for tool in agent.agent_tools]
    nodes: dict[str, Any] = {
        "render_system_prompt": render_system_prompt(level),
        "router": router(level),
        "continue_conversation": _pass_through,
        "call_model": call_model(level, model, middleware),
        "call_tools": call_tools(level, ToolRunner(level, middleware)),
    }
    # Only drawn: the nodes go where their Commands say.
    ends: dict[str, Sequence[str]] = {
        "router": ["continue_conversation", *conversational, "call_tools", "__end__"],
        "call_model": [*(level.exits[:1] or ["call_tools", level.end]), "__end__"],
        "call_tools": [*conversational, *errands, level.entry, level.end, "__end__"],
    }
    for name, node in nodes.items():
        destinations = tuple(dict.fromkeys(ends[name])) if name in ends else None
        graph.add_node(name, node, destinations=destinations, input_schema=state)
    graph.add_edge(START, "render_system_prompt")
    graph.add_edge("render_system_prompt", "router")


def _model_of(level: Level) -> BaseChatModel:
    model = resolve_model(level.agent.model)
    guards = level.guards.at(level.path) if level.guards is not None else None
    # One layer tries again; two would multiply.
    held = None if guards is None else guards.breaker
    if held is not None and isinstance(held.fallback, str):
        resolve_model(held.fallback)  # where it is no model, better now than when it is needed
    return model if guards is None or guards.retry is None else attempting_once(model)


def _add_sub_agents(graph: AnyGraph, level: Level, shared: tuple[type, ...], state: type) -> None:
    keys = [key for part in shared for key in part.__annotations__]
    ends = ("continue_conversation", "call_tools", "__end__")
    for participant in (*level.agent.sub_agents, *(tool.agent for tool in level.agent.agent_tools)):
        node = _node_of(level, participant, shared, keys)
        graph.add_node(participant.name, node, destinations=ends, input_schema=state)


def _node_of(
    level: Level, participant: Participant, shared: tuple[type, ...], keys: Sequence[str]
) -> Any:
    from agentgraph.agents.spec.agent import Agent

    name = participant.name
    path = f"{level.path}/{name}"
    if not isinstance(participant, Agent):
        theirs = _held(level, participant, path)
        tagged = theirs.with_config(metadata={AGENT_TAG: path, FOREIGN_TAG: True})
        is_team = isinstance(participant, Holdable)
        keeps_time = is_team and level.guards is not None
        return foreign_agent(level, name, tagged, is_team=is_team, keeps_time=keeps_time)
    inside = _inside(level, participant, path)
    above, effects = level.agent.name, level.effects
    nested = _build(participant, path, above, inside, None, shared, effects, level.seat)
    return sub_agent(level, name, nested.compile(name=name), keys)


def _held(level: Level, participant: Participant, path: str) -> Graph:
    """Return the graph of one that is no agent, under the guards of the level that it is at."""
    if level.guards is None:
        return participant.graph
    if not isinstance(participant, Holdable):
        return guarded_copy(participant.graph, level.guards, path)
    held = participant.held_to(level.guards, path)
    graph = held.graph  # compiled first: only then is it known what there is to undo
    level.effects.update(held.effects_at(path))
    return graph


def _inside(level: Level, agent: Agent, path: str) -> Guards | None:
    """Return what holds for a sub-agent: its supervisor's policy, which its own may tighten."""
    own = agent.guards
    return own.within(level.guards, path) if isinstance(own, Guards) else level.guards


def _size(graph: AnyCompiledGraph) -> int:
    """Return how many nodes the largest level of a tree has."""
    nested = [below for _, below in graph.get_subgraphs(recurse=True)]
    return max(len(getattr(level, "nodes", ())) for level in (graph, *nested))


def _add_hooks(
    graph: AnyGraph, level: Level, hooks: Mapping[str, Mapping[str, Any]], state: type
) -> None:
    """Chain the middleware's hooks; without any, continue straight to the model."""
    jumps = {"end": level.end, "model": level.entry, "tools": "call_tools"}

    def add(moment: str, last: Any, ends: tuple[str, ...]) -> None:
        names = list(hooks[moment])
        for name, following in zip(names, [*names[1:], None], strict=False):
            goes_on = last if following is None else (lambda _, to=following: to)
            destinations = (following,) if following else ends
            node: Any = hook_node(
                hooks[moment][name], level.history, goes_on, jumps, inherits=level.inherits
            )
            graph.add_node(
                name,
                node,
                destinations=tuple(dict.fromkeys((*destinations, *jumps.values()))),
                input_schema=state,
            )

    add("before_agent", lambda _: level.entry, (level.entry,))
    add("before_model", lambda _: "call_model", ("call_model",))
    add("after_model", lambda m: _consequence(level, m), ("call_tools", level.end))
    add("after_agent", lambda _: "__end__", ("__end__",))
    first = next(iter(hooks["before_agent"]), level.entry)
    graph.add_edge("continue_conversation", first)


def _consequence(level: Level, messages: Sequence[Any]) -> str:
    from langchain_core.messages import AIMessage

    spoken = [m for m in messages if isinstance(m, AIMessage)]
    return after_model(level, spoken[-1]) if spoken else level.end


async def _pass_through(state: AgentState) -> AgentState:
    return {}


def toolset_of(agent: Agent, supervisor: str | None, brought: Sequence[Any] = ()) -> Toolset:
    """Sort what a model of this agent may call."""
    own = [as_base_tool(tool) for tool in (*agent.own_tools, *brought)]
    transfers = {transfer_tool_name(p.name): p.name for p in agent.sub_agents}
    signals: list[BaseTool] = [transfer_tool(p.name, p.description) for p in agent.sub_agents]
    if agent.default_tools:
        own += default_tools(
            name=agent.name,
            supervisor=supervisor,
            tools=[(tool.name, tool.description) for tool in own],
            agents=[
                *((p.name, p.description) for p in agent.sub_agents),
                *((tool.name, tool.description) for tool in agent.agent_tools),
            ],
            intents=agent.intents,
        )
        if supervisor is not None:
            signals.append(help_tool(supervisor))
    return Toolset(
        ordinary={tool.name: tool for tool in own},
        native=agent.native_tools,
        transfers=transfers,
        errands={tool.name: tool.name for tool in agent.agent_tools},
        signals=[*signals, *agent.agent_tools],
        output=OutputFormat(agent.response_format) if agent.response_format is not None else None,
    )


def stores_of(agent: Agent) -> list[BaseStore]:
    """Return the stores that a tree's agents name, each once."""
    from agentgraph.agents.spec.agent import Agent

    children = (*agent.sub_agents, *(tool.agent for tool in agent.agent_tools))
    below = [store for child in children if isinstance(child, Agent) for store in stores_of(child)]
    own = [] if agent.store is None else [agent.store]
    return list({id(store): store for store in (*own, *below)}.values())


def _tree(root: Agent) -> Tree:
    from agentgraph.agents.spec.agent import Agent

    paths = {root.name.lower(): ""}

    def walk(agent: Agent, path: str) -> None:
        for participant in agent.sub_agents:
            below = f"{path}/{participant.name}" if path else participant.name
            paths[participant.name.lower()] = below
            if isinstance(participant, Agent):
                walk(participant, below)

    walk(root, "")
    return Tree(root.name, paths)
