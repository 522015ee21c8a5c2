"""Guards in a foreign graph, which agentgraph did not build: they see no more than its nodes show.

Guards run the whole node of its model to ask the model, and observe its tools by their answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.channels import UntrackedValue
from langgraph.config import get_config
from langgraph.graph import END
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from typing_extensions import is_typeddict

from agentgraph.clock import new_id
from agentgraph.errors import ConfigurationError, GuardStopped
from agentgraph.guards.checks import (
    gated_at,
    schema_faults,
    stage_faults,
    unseen_price_faults,
    warn_of_ineffective_guards,
    warn_of_no_guards,
)
from agentgraph.guards.decision import Decision
from agentgraph.guards.nodes.agent_graph import (
    AWAIT_HUMAN,
    MODELS,
    TOOLS,
    Call,
    NodeWrappers,
    State,
    also_to,
    answer_used,
    node_of,
    refuse_guarded,
    with_update,
)
from agentgraph.guards.nodes.foreign_calls import (
    FORM,
    ForeignState,
    ModelNode,
    Replacement,
    ToolsNode,
    input_message_id,
)
from agentgraph.guards.nodes.human import HumanState
from agentgraph.guards.nodes.interceptor import NodeInterceptor, durable_writes, site_at
from agentgraph.guards.nodes.judgement import AnswerWithheld
from agentgraph.guards.nodes.tool_call import observe_answer, refusal
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.registry import account_of
from agentgraph.interception import current_ledger, intercepted_by
from agentgraph.participant import Graph
from agentgraph.patching import (
    AnyGraph,
    Patcher,
    add_state,
    hold_edges,
    patched,
    read_state,
    updates_of,
    wrap_node,
)
from agentgraph.running import current_run
from agentgraph.telling import AGENT_TAG

_SURELY_MODELS = ("call_model", "model")
_STOPPED_BY = "stopped_by"
_HOLDS = "guard_holds"
_REPLACEMENT = "guard_said"
_CHANNELS = ("messages", "guarded", "human", _REPLACEMENT)


def guarded_copy(graph: Graph, policy: Policy, path: str) -> Graph:
    """Return a guarded copy of a foreign graph, or the graph itself if it has no model node."""
    if not isinstance(graph, CompiledStateGraph) or not _is_agent(graph.builder):
        return graph
    if not _takes_state(graph.builder):
        warn_of_no_guards(path)
        return graph
    return patched(graph, foreign_patcher(policy, Place(path)))


def faults_in(graph: object, policy: Policy, path: str) -> Iterator[str]:
    """Yield what is wrong with a policy for a foreign graph."""
    if not isinstance(graph, CompiledStateGraph):
        return
    if _is_agent(graph.builder) and _takes_state(graph.builder):
        yield from unseen_price_faults(policy, path)


def _takes_state(graph: AnyGraph) -> bool:
    """Tell whether guards can add their channels to the state of a graph."""
    return all(map(is_typeddict, (graph.state_schema, graph.input_schema, graph.output_schema)))


def _is_agent(graph: AnyGraph) -> bool:
    """Tell whether a graph has a model node that can be guarded."""
    has_tools = any(name in graph.nodes for name in TOOLS)
    # Without a tools node, a node named "agent" may do any work: it must not be retried.
    names = MODELS if has_tools else _SURELY_MODELS
    model = next((graph.nodes[name] for name in names if name in graph.nodes), None)
    if model is None or "messages" not in graph.channels or AWAIT_HUMAN in graph.nodes:
        return False
    if isinstance(graph.channels["messages"], UntrackedValue):
        return False  # a team with a speaker of that name
    return not isinstance(model.runnable, CompiledStateGraph)


def foreign_patcher(policy: Policy, place: Place, *, is_whole: bool = False) -> Patcher:
    """Return the patcher of a foreign graph; with `is_whole` the policy guards no other graph."""

    def patch(graph: AnyGraph) -> AnyGraph:
        model = node_of(graph, MODELS, "a model")
        refuse_guarded(graph)
        by_node = {name: _tools_of(graph, name) for name in TOOLS if name in graph.nodes}
        tools = {name: tool for own in by_node.values() for name, tool in own.items()}
        faults = [*unseen_price_faults(policy, place.path)]
        if is_whole:
            faults += stage_faults(policy, ())
            faults += schema_faults(gated_at(policy, place.path, lambda: tools))
        if faults:
            raise ConfigurationError(faults)
        for extra in (ForeignState, HumanState):
            add_state(graph, extra)
        channels = (*_CHANNELS, FORM) if FORM in graph.channels else _CHANNELS
        wrappers = _ForeignWrappers(policy, place, channels)
        graph = wrap_node(model, wrappers.around_model(model))(graph)
        for node, own_tools in by_node.items():
            around_tools = replace(wrappers, tools=own_tools).around_tools()
            graph = wrap_node(node, around_tools)(graph)
        _let_end(graph, model, wrappers)
        warn_of_ineffective_guards(policy, place.path, tools)
        return graph

    return Patcher(patch, state=ForeignState)


def _let_end(graph: AnyGraph, model: str, wrappers: _ForeignWrappers) -> None:
    """Let the model's node lead to the end and to a human, as its guards may decide."""
    hold_edges(graph, model, _HOLDS)
    spec = graph.nodes[model]
    graph.nodes[model] = replace(spec, ends=also_to(spec.ends, AWAIT_HUMAN, END))
    await_human: Any = wrappers.await_human(model)
    graph.add_node(AWAIT_HUMAN, await_human, destinations=(model, END))


def _tools_of(graph: AnyGraph, node: str) -> Mapping[str, Any]:
    """Return the tools of a `ToolNode` by name, {} for any other node."""
    tools: Mapping[str, Any] = getattr(graph.nodes[node].runnable, "tools_by_name", {})
    return tools


@dataclass(frozen=True, slots=True)
class _ForeignWrappers(NodeWrappers):
    """The wrappers of a foreign graph's nodes.

    Guards cannot change the graph's edges. `guard_holds` in its state says that they must not be
    followed, and `stopped_by` names the guard: without it the caller would take the last message
    for an answer.
    """

    tools: Mapping[str, Any] = field(default_factory=dict)

    def around_model(self, node: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper that guards the model's node as if it were a model."""

        async def node_call(state: State, call: Call) -> Any:
            if not isinstance(state, Mapping):  # a `Send` passed something else
                return await call(state)
            interceptor = self._interceptor(state)
            replacement = _replacement_in(interceptor)
            if _ends_with(state, replacement.get("id")):  # it waits for an answer in a form
                return Command(
                    goto=END, update={**self._account_update(interceptor.account), _HOLDS: True}
                )
            decision = await interceptor.open_model_call()
            if not decision.allows:
                return self._act(interceptor, decision, "")
            return await self._ask(interceptor, ModelNode(state, call, updates_of))

        return node_call

    def around_tools(self) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper that runs the calls that may run, and observes their answers."""

        async def node_call(state: Any, call: Call) -> Any:
            interceptor = self._interceptor(state)
            site = interceptor.site
            messages = read_state(get_config(), ("messages",)).get("messages") or ()
            tools_node = ToolsNode(state, messages)
            for tool_call in tools_node.calls:
                answer = await refusal(site, tools_node.use(tool_call, self.tools))
                if answer is not None:
                    tools_node.refuse(tool_call, answer)
            node_input = tools_node.remaining_input()
            with intercepted_by(None):
                result = await call(node_input) if node_input is not None else []
            for tool_call, answer in tools_node.answers(updates_of(result)):
                await observe_answer(site, tools_node.use(tool_call, self.tools), answer)
            results = result if isinstance(result, list) else [result]
            update = {**self._account_update(interceptor.account), "messages": tools_node.refusals}
            update_: Any = Command(update=update)
            return [*results, update_]

        return node_call

    async def _ask(self, interceptor: NodeInterceptor, node: ModelNode) -> Any:
        """Ask the model's node under guard; return its result, or the one that replaces it."""
        site = interceptor.site
        site = replace(site, place=replace(site.place, form=node.text_of))
        interceptor.site = site
        has_human = interceptor.values.get("human")
        withheld = _replacement_in(interceptor).get("form") if has_human else None
        try:
            with intercepted_by(None):
                model_name = self._model_name(interceptor)
                message = await interceptor.ask_model(node.model_call(model_name))
        except GuardStopped as stop:
            if not isinstance(stop.decision, Decision):
                raise
            text = stop.text if isinstance(stop, AnswerWithheld) else ""
            command = self._act(interceptor, stop.decision, text)
            form = withheld if node.message is None else node.form
            return with_update(command, {_REPLACEMENT: {"form": form}})
        update = {**self._account_update(interceptor.account), **answer_used(interceptor)}
        return with_update(node.result_for(message, withheld), update)

    def _model_name(self, interceptor: NodeInterceptor) -> str:
        """Return the name that prices have for the model: the graph's, or the one at patching."""
        path, first_path = interceptor.site.place.path, self.place.path
        prices = interceptor.site.policy.prices
        return first_path if path not in prices and first_path in prices else path

    def _act(self, interceptor: NodeInterceptor, decision: Decision, text: str) -> Any:
        update = NodeWrappers._act(self, interceptor, decision, text)
        goto = AWAIT_HUMAN if decision.action == "escalate" else END
        stop = {_STOPPED_BY: decision.reason, _HOLDS: True}
        return Command(goto=goto, update={**update, **stop})

    def _closing_update(self, interceptor: NodeInterceptor) -> dict[str, Any]:
        update = NodeWrappers._closing_update(self, interceptor)
        update |= {_STOPPED_BY: interceptor.account.closed_by, _HOLDS: True}
        if interceptor.values.get(FORM) is not None:
            update[FORM] = None  # an earlier input's answer is none to this one
        return update

    def _must_undo(self, account: Account) -> bool:
        return False  # no saga has its tools' actions

    def _interceptor(self, state: State, *, reuses: bool = False) -> NodeInterceptor:
        config, ledger, run = get_config(), current_ledger(), current_run()
        values = read_state(config, self.channels)
        input_id, scope = _input_id(values, config), None if run is None else run.owner
        if ledger is not None:
            input_id, scope = ledger.input_id, ledger.id_scope
        elif run is not None and isinstance(run.account, Account):
            input_id = run.account.input_id
        account = account_of(self.policy, input_id, values.get("guarded"), ledger, scope)
        if run is not None:
            run.account = account
        path = (config.get("metadata") or {}).get(AGENT_TAG)
        place = replace(self.place, path=path) if path else self.place
        pending_writes = durable_writes(config, ledger)
        site = site_at(self.policy, place, account, config, ledger, pending_writes)
        return NodeInterceptor(site, values)

    def _account_update(self, account: Account) -> dict[str, Any]:
        return {"guarded": account.dump(), _STOPPED_BY: None, _HOLDS: False}


def _replacement_in(interceptor: NodeInterceptor) -> Replacement:
    replacement: Replacement | None = interceptor.values.get(_REPLACEMENT)
    return replacement or {}


def _ends_with(state: State, message_id: str | None) -> bool:
    """Tell whether a message is still the last one: the graph led back without a new message."""
    messages = state.get("messages") or ()
    return bool(message_id and messages and getattr(messages[-1], "id", None) == message_id)


def _input_id(values: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return an id for the input; one message may begin several runs, on one thread or on none."""
    thread = config.get("configurable", {}).get("thread_id") or ""
    prefix = f"{thread}/{input_message_id(values.get('messages') or ())}/"
    update_ = str((values.get("guarded") or {}).get("input") or "")
    return update_ if update_.startswith(prefix) else prefix + new_id()
