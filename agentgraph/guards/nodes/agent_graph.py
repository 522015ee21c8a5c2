"""Guards in the graph of an agent: wrappers around its nodes carry out what guards decide.

Only the wrapper of the model's node acts on decisions: it asks the model, ends the run, or goes to
the node that asks a human. The wrapper of the tools' node guards their calls. Two nodes are added:
`await_human` does nothing before it waits, and `compensate` undoes one action in each super-step.
Only this module, `foreign/graph` and `foreign/wrappers` import LangGraph.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, TypeAlias

from langgraph.channels import EphemeralValue
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.graph import END
from langgraph.types import Command
from typing_extensions import TypedDict

from agentgraph.errors import ConfigurationError, GuardStopped
from agentgraph.graphs.compiled import AnyGraph, add_state
from agentgraph.graphs.routes import AfterNode, Destinations, Route, change_route
from agentgraph.graphs.task import has_parent
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.effects import Effect, effect_of
from agentgraph.guards.nodes.foreign.watch import watched_by
from agentgraph.guards.nodes.human import HumanState, ask_human, question
from agentgraph.guards.nodes.interceptor import (
    NodeInterceptor,
    interceptor_of,
)
from agentgraph.guards.nodes.judgement import AnswerWithheld
from agentgraph.guards.nodes.site import close, inside_stage
from agentgraph.guards.nodes.tool_call import RegisterFirst
from agentgraph.guards.nodes.undo import undo_last
from agentgraph.guards.nodes.user_code import NodeCode
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pauses import catch_up, note_pause
from agentgraph.guards.records.registry import GuardedState
from agentgraph.interception import code_guarded_by, intercepted_by
from agentgraph.participant import last_word
from agentgraph.patching import Patcher, updates_of, wrap_node
from agentgraph.running import current_run, history

AWAIT_HUMAN = "await_human"
COMPENSATE = "compensate"

State: TypeAlias = Mapping[str, Any]
Call: TypeAlias = Callable[[Any], Awaitable[Any]]

MODELS = ("call_model", "model", "agent")
TOOLS = ("call_tools", "tools")
_CALL_NODES = ("call_tools", "settle_calls")
"""The nodes of an agent's graph that answer calls."""
_CHANNELS = ("turn", "guarded", "human")
GUARD_CHANNELS = ("guarded", "human", "must_undo")
"""The channels that guards add to the graph of an agent."""


def agent_patcher(
    policy: Policy,
    place: Place,
    sub_agents: tuple[str, ...] = (),
    code_nodes: Collection[str] = (),
    effects: MutableMapping[str, Effect] | None = None,
) -> Patcher:
    """Return the patcher that guards one agent; `policy` is that of the whole tree.

    `code_nodes` run code of the user, such as a prompt function, and are no model's or tools' node.
    The agent's tools with an effect are added to `effects`, which all agents that are compiled
    together share. `effects` is not part of the policy: the policy may guard other trees too, with
    agents of the same names.
    """
    all_effects = {} if effects is None else effects

    def patch(graph: AnyGraph) -> AnyGraph:
        model = node_of(graph, MODELS, "a model")
        refuse_guarded(graph)
        all_effects.update(_effects_at(place))
        if "guarded" not in graph.channels:
            add_state(graph, GuardedState)
        add_state(graph, HumanState)
        add_state(graph, RouteState)
        channels = tuple(name for name in _CHANNELS if name in graph.channels)
        wrappers = NodeWrappers(policy, place, channels, all_effects)
        graph = wrap_node(model, wrappers.around_model(model))(graph)
        change_route(graph, model, _with_questions, (AWAIT_HUMAN, COMPENSATE))
        for node in _CALL_NODES:
            graph = wrap_node(node, wrappers.around_tools())(graph)
            change_route(graph, node, _with_undo, (COMPENSATE,))
        for name in code_nodes:
            graph = wrap_node(name, wrappers.around_code())(graph)
        for name in sub_agents:
            graph = wrap_node(name, wrappers.around_stage(name))(graph)
        state = graph.state_schema
        back = (model, COMPENSATE, END)
        await_human: Any = wrappers.await_human(model)
        graph.add_node(AWAIT_HUMAN, await_human, destinations=back, input_schema=state)
        graph.add_node(
            COMPENSATE, wrappers.compensate, destinations=(COMPENSATE, END), input_schema=state
        )
        return graph

    return Patcher(patch, state=GuardedState)


class RouteState(TypedDict, total=False):
    """The channel by which a node tells the route behind it what its guards know."""

    must_undo: Annotated[bool, EphemeralValue(bool, guard=False)]
    """Whether there are actions to undo, should the run end after this node."""


@dataclass(frozen=True, slots=True)
class NodeWrappers:
    """The wrappers around one agent's nodes, and the nodes that its guards add."""

    policy: Policy
    place: Place
    channels: tuple[str, ...] = _CHANNELS
    """The channels of the agent's graph that guards read."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """How the actions of all agents of the tree or team are undone, by path and tool."""

    def around_model(self, node: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper that guards the model's calls and acts on decisions."""

        async def node_call(state: State, call: Call) -> Any:
            interceptor = self._interceptor(state, reuses=True)
            account = interceptor.account
            if account.may_ask:
                await _catch_up(interceptor)
            if interceptor.turn.get("closed") or account.is_undoing:
                return self._closing_update(interceptor)
            decision = await interceptor.open_model_call(partial(history, state))
            if not decision.allows:
                return self._act(interceptor, decision, "")
            # A watch over the tool in which this run began must not count its calls once more.
            counting = nullcontext() if account.enclosure is None else watched_by(None)
            try:
                with intercepted_by(interceptor), counting:
                    result = await call(state)
            except GuardStopped as stop:
                if not isinstance(stop.decision, Decision):
                    raise
                text = stop.text if isinstance(stop, AnswerWithheld) else ""
                return self._act(interceptor, stop.decision, text)
            except GraphInterrupt:
                await _note_pause(interceptor)
                raise
            if interceptor.may_defer and interceptor.site.resumption is None:
                run = current_run()
                if run is not None:
                    run.interceptor = interceptor
            return with_update(
                result, {**self._account_update(account), **answer_used(interceptor)}
            )

        return node_call

    def around_tools(self) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper that guards tool calls; the model's next node acts on decisions.

        That node also stores the account, if the tools have changed nothing in it but the memory of
        detectors.
        """

        async def node_call(state: State, call: Call) -> Any:
            interceptor = self._interceptor(state, reuses=True)
            account = interceptor.account
            if account.may_ask:
                await _catch_up(interceptor)
            try:
                with intercepted_by(interceptor):
                    result = await call(state)
            except RegisterFirst:
                return self._account_update(account)  # the route finds the call still open
            except GuardStopped as stop:
                return self._stop_update(interceptor, stop)
            if interceptor.turn.get("closed"):  # all calls have answers now
                return self._with_last_word(
                    interceptor, with_update(result, self._last_update(account))
                )
            if interceptor.stores_later:
                return result
            return with_update(result, self._last_update(account))

        return node_call

    def around_code(self) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper of a node that runs code of the user; the model's next node acts."""

        async def node_call(state: State, call: Call) -> Any:
            async def open_site(turn: State | None) -> NodeInterceptor:
                begun = {} if turn is None else {"guarded": {}, **state, "turn": turn}
                interceptor = self._interceptor(begun or state)
                if interceptor.account.may_ask:
                    await _catch_up(interceptor)
                return interceptor

            code = NodeCode(open_site)
            try:
                with code_guarded_by(code):
                    result = await call(state)
            except GuardStopped as stop:
                if stop is not code.stop:
                    raise
                result = {}
            if code.interceptor is None:
                return result
            return with_update(result, self._account_update(code.interceptor.site.account))

        return node_call

    def around_stage(self, name: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper that cuts a sub-agent off at the deadline of its stage."""
        inner = self.policy.at(f"{self.place.path}/{name}")

        async def node_call(state: State, call: Call) -> Any:
            interceptor = self._interceptor(state)
            account = interceptor.account
            if account.may_ask:
                await _catch_up(interceptor)
            if inner.extra_guards:
                await interceptor.site.note("stage", tool=name)
            try:
                with inside_stage(inner.deadlines.stage()), intercepted_by(interceptor):
                    result = await call(state)
            except GuardStopped as stop:
                end = self._end_command(account, self._stop_update(interceptor, stop))
                return self._with_last_word(interceptor, end) if state.get("sent") is None else end
            # A team has an account of its own, and one of its guards may have ended the input.
            account.closed_by = account.closed_by or _closed_in(result)
            if account.closed_by:  # parallel nodes may wait for a human meanwhile
                await _note_pause(interceptor)
            result = self._undo_first(account, with_update(result, self._account_update(account)))
            # After delegations, the node that all of them lead to has the last word.
            is_last = account.closed_by and state.get("sent") is None
            return self._with_last_word(interceptor, result) if is_last else result

        return node_call

    def await_human(self, model: str) -> Callable[[Any], Awaitable[Any]]:
        """Return the node that asks a human; it does nothing else before the interrupt."""

        async def ask(state: State) -> Any:
            interceptor = self._interceptor(state)
            answer = await ask_human(interceptor.site, interceptor.values["human"])
            account = interceptor.account
            if answer is None:
                update = {**self._closing_update(interceptor), **self._last_word(interceptor)}
                return self._end_command(account, update)
            human = {"human": {**answer, "input": account.input_id}}
            return Command(goto=model, update={**self._account_update(account), **human})

        return ask

    async def compensate(self, state: State) -> Any:
        """Undo one action, the one that began last, and lead back to this node for the others."""
        interceptor = self._interceptor(state)
        account = interceptor.account
        await _catch_up(interceptor)
        async with account.undo_lock:  # parallel speakers undo one after the other
            is_left = await undo_last(interceptor.site, self.effects)
        return Command(goto=COMPENSATE if is_left else END, update=self._account_update(account))

    def _act(self, interceptor: NodeInterceptor, decision: Decision, text: str) -> Any:
        """Carry out a decision that forbids the model call: ask a human, or end the run."""
        account = interceptor.account
        if decision.action == "escalate":
            account.may_ask = True
            human = {"human": question(interceptor.site, decision, text)}
            return {**self._account_update(account), **human}
        close(account, decision.reason, decision.cause, decision.failure_class)
        update = {**self._closing_update(interceptor), **self._last_word(interceptor)}
        if interceptor.notices:
            update["messages"] = [*interceptor.notices, *update.get("messages", ())]
        return update

    def _stop_update(self, interceptor: NodeInterceptor, stop: GuardStopped) -> dict[str, Any]:
        """Return the update by which a node that is not the model's ends the run.

        The tools' node answers the open calls first.
        """
        if not isinstance(stop.decision, Decision):
            raise stop
        end = stop.decision
        close(interceptor.account, end.guard, end.cause, end.failure_class)
        return self._closing_update(interceptor)

    def _closing_update(self, interceptor: NodeInterceptor) -> dict[str, Any]:
        """Return the update that ends the run of this agent, and so the runs of all above."""
        account = interceptor.account
        update = {**self._last_update(account), **answer_used(interceptor)}
        if "turn" in self.channels:
            update["turn"] = {**interceptor.turn, "closed": account.ended_by}
        return update

    def _last_word(self, interceptor: NodeInterceptor) -> dict[str, Any]:
        """Return the update by which a graph that ran without its agent says why it has ended.

        Whoever runs it gets messages only. The agent's own runs give a `Reply`.
        """
        account = interceptor.account
        is_own_run = current_run() is not None and not has_parent(get_config())
        if self.place.depth > 1 or interceptor.site.ledger or is_own_run:
            return {}
        message_id = f"stop_{account.input_id}"  # parallel branches may end the same run
        return {"messages": [last_word(account.ended_by, account.closed_because, message_id)]}

    def _with_last_word(self, interceptor: NodeInterceptor, result: Any) -> Any:
        if not (word := self._last_word(interceptor)):
            return result
        return [*(result if isinstance(result, list) else [result]), Command(update=word)]

    def _last_update(self, account: Account) -> dict[str, Any]:
        """Return the update of a node after which the run may end."""
        flag = {"must_undo": True} if self._must_undo(account) else {}
        return {**self._account_update(account), **flag}

    def _end_command(self, account: Account, update: Mapping[str, Any]) -> Command[str]:
        """Return the command that ends the run of this agent, from a node without a route."""
        return Command(goto=COMPENSATE if self._must_undo(account) else END, update=update)

    def _must_undo(self, account: Account) -> bool:
        """Tell whether a closed run must be undone here: at the root, where all branches meet."""
        saga = account.saga
        is_root = self.place.depth <= 1
        return is_root and bool(account.ended_by) and saga is not None and bool(saga.plan())

    def _undo_first(self, account: Account, result: Any) -> Any:
        """Lead to `compensate` where a sub-agent's node would end a run that must be undone."""
        if isinstance(result, list):
            return [self._undo_first(account, part) for part in result]
        if isinstance(result, Command) and result.goto == END and self._must_undo(account):
            return replace(result, goto=COMPENSATE)
        return result

    def _interceptor(self, state: State, *, reuses: bool = False) -> NodeInterceptor:
        place, channels, config = self.place, self.channels, get_config()
        interceptor = interceptor_of(self.policy, place, channels, state, config, reuses=reuses)
        if self.effects and interceptor.account.effect_log is None:
            interceptor.log_effects_of(config)
        return interceptor

    def _account_update(self, account: Account) -> dict[str, Any]:
        """Return the update that stores an account."""
        return {"guarded": account.dump()}


async def _catch_up(interceptor: NodeInterceptor) -> None:
    if interceptor.site.ledger is None:  # a session has pauses in its log
        await catch_up(interceptor.account, get_config())


async def _note_pause(interceptor: NodeInterceptor) -> None:
    if interceptor.site.ledger is None:
        await note_pause(interceptor.account, get_config())


def _with_questions(inner: Route) -> Route:
    """Change the route after the model: a question to a human comes first."""
    with_undo = _with_undo(inner)

    def route(after: AfterNode) -> Destinations:
        human = after.read("human").get("human") or {}
        return AWAIT_HUMAN if human.get("request") else with_undo(after)

    return route


def _with_undo(inner: Route) -> Route:
    """Change a route: actions are undone before a run ends that a guard has closed."""

    def route(after: AfterNode) -> Destinations:
        target = inner(after)
        is_end = target == END and any(key == "must_undo" for key, _ in after.writes)
        return COMPENSATE if is_end else target

    return route


def _closed_in(result: object) -> str:
    """Return the guard that has ended the run according to a node's update, else ""."""
    turns = (update.get("turn") or {} for update in updates_of(result))
    return next((turn["closed"] for turn in turns if turn.get("closed")), "")


def answer_used(interceptor: NodeInterceptor) -> dict[str, Any]:
    """Return the update that removes a human's used answer, or the question, from the state."""
    return {"human": {}} if interceptor.values.get("human") else {}


def refuse_guarded(graph: AnyGraph) -> None:
    """Raise where a graph is guarded already: two policies would count and retry the same calls."""
    if AWAIT_HUMAN in graph.nodes:
        raise ConfigurationError("the graph is guarded already: patch the one that it was before")


def is_agent_graph(graph: AnyGraph) -> bool:
    """Tell whether a graph is an agent's: it answers the open calls of a turn that is closed."""
    return "turn" in graph.channels and all(name in graph.nodes for name in _CALL_NODES)


def also_to(ends: Any, *more: str) -> Any:
    """Add destinations to a node's declared ends, in the form that LangGraph keeps them in."""
    return (
        {**ends, **dict(zip(more, more, strict=True))} if isinstance(ends, dict) else (*ends, *more)
    )


def _effects_at(place: Place) -> dict[str, Effect]:
    effects = ((f"{place.path}:{name}", effect_of(tool)) for name, tool in place.tools.items())
    return {name: effect for name, effect in effects if effect is not None}


def with_update(result: Any, update: Mapping[str, Any]) -> Any:
    """Add an update to the result of a node, whichever of LangGraph's forms the result has."""
    if isinstance(result, Command) and result.graph is not None:
        return [result, Command(update=update)]  # another graph's update is not this one's
    if isinstance(result, Command):
        own = result.update or {}
        if isinstance(own, dict):
            return Command(
                graph=result.graph,
                goto=result.goto,
                resume=result.resume,
                update={**own, **update},
            )
        return [result, Command(update=update)]
    if isinstance(result, list):
        *parts, last = result or [Command()]
        if not isinstance(last, Command) or last.graph is not None:
            return [*result, Command(update=update)]
        # In the last Command and not in one more: LangGraph writes each Command by itself.
        last_parts = with_update(last, update)
        return [*parts, *(last_parts if isinstance(last_parts, list) else [last_parts])]
    return {**(result or {}), **update}


def node_of(graph: AnyGraph, names: tuple[str, ...], purpose: str) -> str:
    """Return the node of a graph that has one of these names; raise where there is none."""
    name = next((name for name in names if name in graph.nodes), None)
    if name is None:
        raise ConfigurationError(
            f"there is no node of {purpose} to guard: name it one of {', '.join(names)}; "
            f"the nodes are {', '.join(graph.nodes)}"
        )
    return name
