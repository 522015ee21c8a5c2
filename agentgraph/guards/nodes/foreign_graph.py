"""Guards in a foreign graph, one that agentgraph did not build, as far as its nodes show.

The node of its model is run in the model's place, and that of its tools is observed by its answers.
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
    """Return a guarded copy of somebody else's graph, if it is one of a model."""
    if not isinstance(graph, CompiledStateGraph) or not _is_agent(graph.builder):
        return graph
    if not _takes_state(graph.builder):
        warn_of_no_guards(path)
        return graph
    return patched(graph, foreign_patcher(policy, Place(path)))


def faults_in(graph: object, policy: Policy, path: str) -> Iterator[str]:
    """Yield what is wrong with a policy that is to hold in somebody else's graph."""
    if not isinstance(graph, CompiledStateGraph):
        return
    if _is_agent(graph.builder) and _takes_state(graph.builder):
        yield from unseen_price_faults(policy, path)


def _takes_state(graph: AnyGraph) -> bool:
    """Tell whether guards can keep their own in its state."""
    return all(map(is_typeddict, (graph.state_schema, graph.input_schema, graph.output_schema)))


def _is_agent(graph: AnyGraph) -> bool:
    """Tell whether a graph has a node of a model that can be guarded."""
    has_tools = any(name in graph.nodes for name in TOOLS)
    # Without tools an "agent" may be any work, which is not to be done again as a call may be.
    names = MODELS if has_tools else _SURELY_MODELS
    model = next((graph.nodes[name] for name in names if name in graph.nodes), None)
    if model is None or "messages" not in graph.channels or AWAIT_HUMAN in graph.nodes:
        return False
    if isinstance(graph.channels["messages"], UntrackedValue):
        return False  # a team, one of whose speakers has the name of such a node
    return not isinstance(model.runnable, CompiledStateGraph)


def foreign_patcher(policy: Policy, place: Place, *, is_whole: bool = False) -> Patcher:
    """Guard a graph of others, which is all that the policy is for or has agents beside it."""

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
            around_tools = replace(wrappers, tools=own_tools).around_tools(node)
            graph = wrap_node(node, around_tools)(graph)
        _let_end(graph, model, wrappers)
        warn_of_ineffective_guards(policy, place.path, tools)
        return graph

    return Patcher(patch, state=ForeignState)


def _let_end(graph: AnyGraph, model: str, wrappers: _ForeignWrappers) -> None:
    """Have the node of the model end the run, or hand it to a human, where its guards say so."""
    hold_edges(graph, model, _HOLDS)
    spec = graph.nodes[model]
    graph.nodes[model] = replace(spec, ends=also_to(spec.ends, AWAIT_HUMAN, END))
    await_human: Any = wrappers.await_human(model)
    graph.add_node(AWAIT_HUMAN, await_human, destinations=(model, END))


def _tools_of(graph: AnyGraph, node: str) -> Mapping[str, Any]:
    """Return the tools of a `ToolNode` by name, none of any other node."""
    tools: Mapping[str, Any] = getattr(graph.nodes[node].runnable, "tools_by_name", {})
    return tools


@dataclass(frozen=True, slots=True)
class _ForeignWrappers(NodeWrappers):
    """The wrappers of a foreign graph's nodes.

    Its edges are its own, so `guard_holds` is set in its state where they must not be followed, and
    `stopped_by` says why: nobody outside would know otherwise that its answer is none.
    """

    tools: Mapping[str, Any] = field(default_factory=dict)

    def around_model(self, node: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have the node asked under guard, as if it were its model."""

        async def node_call(state: State, call: Call) -> Any:
            if not isinstance(state, Mapping):  # it was sent something of its own
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

    def around_tools(
        self, node: str, model: str | None = None
    ) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have the tools run that may, and observe what they answered."""

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
        """Ask the node under guard, and return its result or what replaces that."""
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
        """Return by what name its model is priced, if it was guarded before it had its place."""
        path, first_path = interceptor.site.place.path, self.place.path
        prices = interceptor.site.policy.prices
        return first_path if path not in prices and first_path in prices else path

    def _act(self, interceptor: NodeInterceptor, decision: Decision, text: str) -> Any:
        update = {_STOPPED_BY: decision.reason, _HOLDS: True}
        return with_update(NodeWrappers._act(self, interceptor, decision, text), update)

    def _close(self, interceptor: NodeInterceptor) -> Any:
        update: dict[str, Any] = {_STOPPED_BY: interceptor.account.closed_by, _HOLDS: True}
        if interceptor.values.get(FORM) is not None:
            update[FORM] = None  # what answered an input before is no answer to this one
        return with_update(NodeWrappers._close(self, interceptor), update)

    def _undo_first(self, account: Account, result: Any) -> Any:
        return result  # nobody has registered what its tools do

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
    """Tell whether a message is the last one: the graph has come back without a new one."""
    messages = state.get("messages") or ()
    return bool(message_id and messages and getattr(messages[-1], "id", None) == message_id)


def _input_id(values: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Name the input: a message may be given to several runs, on one thread or on none."""
    thread = config.get("configurable", {}).get("thread_id") or ""
    prefix = f"{thread}/{input_message_id(values.get('messages') or ())}/"
    update_ = str((values.get("guarded") or {}).get("input") or "")
    return update_ if update_.startswith(prefix) else prefix + new_id()
