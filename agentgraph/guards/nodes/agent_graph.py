"""Guards in the graph of an agent: what they decide becomes what the graph does.

The node of the model is wrapped, and it alone acts: it asks the model, ends the run, or hands it to
a human. The node of the tools is wrapped so that its calls are guarded. Two nodes are added:
`await_human` does nothing before it waits, and `compensate` undoes one action in each super-step.
Only this module and `foreign_graph` know of graphs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.graph import END
from langgraph.types import Command

from agentgraph.errors import ConfigurationError, GuardStopped
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.effects import Effect, effect_of
from agentgraph.guards.nodes.human import HumanState, ask_human, question
from agentgraph.guards.nodes.interceptor import (
    NodeInterceptor,
    interceptor_of,
)
from agentgraph.guards.nodes.judgement import AnswerWithheld
from agentgraph.guards.nodes.site import inside_stage
from agentgraph.guards.nodes.tool_call import RegisterFirst
from agentgraph.guards.nodes.undo import undo_last
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pauses import catch_up, note_pause
from agentgraph.guards.records.registry import GuardedState
from agentgraph.interception import intercepted_by
from agentgraph.patching import (
    AnyGraph,
    Patcher,
    add_state,
    updates_of,
    wrap_node,
)
from agentgraph.running import current_run

AWAIT_HUMAN = "await_human"
COMPENSATE = "compensate"

State: TypeAlias = Mapping[str, Any]
Call: TypeAlias = Callable[[Any], Awaitable[Any]]

MODELS = ("call_model", "model", "agent")
TOOLS = ("call_tools", "tools")
_CHANNELS = ("turn", "guarded", "human")


def agent_patcher(
    policy: Policy,
    place: Place,
    sub_agents: tuple[str, ...] = (),
    effects: MutableMapping[str, Effect] | None = None,
) -> Patcher:
    """Guard the graph of one agent; `policy` is the whole tree's, of which its stage's holds.

    `effects` has the actions of all that are compiled with it, and is given those of this agent:
    the policy may hold elsewhere too, for others of the same names.
    """
    all_effects = {} if effects is None else effects

    def patch(graph: AnyGraph) -> AnyGraph:
        model = node_of(graph, MODELS, "a model")
        refuse_guarded(graph)
        all_effects.update(_effects_at(place))
        tools = next((name for name in TOOLS if name in graph.nodes), None)
        for channel, extra in (("guarded", GuardedState), ("human", HumanState)):
            if channel not in graph.channels:
                add_state(graph, extra)
        channels = tuple(name for name in _CHANNELS if name in graph.channels)
        wrappers = NodeWrappers(policy, place, channels, all_effects)
        graph = wrap_node(model, wrappers.around_model(model))(graph)
        if tools is not None:
            graph = wrap_node(tools, wrappers.around_tools(tools, model))(graph)
        for name in sub_agents:
            graph = wrap_node(name, wrappers.around_stage(name))(graph)
        state = graph.state_schema
        back = (model, COMPENSATE, END)
        spec = graph.nodes[model]
        graph.nodes[model] = replace(spec, ends=also_to(spec.ends, AWAIT_HUMAN, COMPENSATE))
        await_human: Any = wrappers.await_human(model)
        graph.add_node(AWAIT_HUMAN, await_human, destinations=back, input_schema=state)
        graph.add_node(
            COMPENSATE, wrappers.compensate, destinations=(COMPENSATE, END), input_schema=state
        )
        return graph

    return Patcher(patch, state=GuardedState)


@dataclass(frozen=True, slots=True)
class NodeWrappers:
    """The wrappers of one agent's nodes, and the nodes that its guards add."""

    policy: Policy
    place: Place
    channels: tuple[str, ...] = _CHANNELS
    """The channels of its graph that guards read."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """How actions are undone, of all agents of its tree or team, by path and tool."""

    def around_model(self, node: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have the model asked under guard, and act on what its guards decide."""

        async def node_call(state: State, call: Call) -> Any:
            interceptor = self._interceptor(state, reuses=True)
            account = interceptor.account
            if account.may_ask:
                await _catch_up(interceptor)
            if interceptor.turn.get("closed") or account.is_undoing:
                return self._close(interceptor)
            decision = await interceptor.open_model_call()
            if not decision.allows:
                return self._act(interceptor, decision, "")
            try:
                with intercepted_by(interceptor):
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

    def around_tools(
        self, node: str, model: str | None = None
    ) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have tools run under guard; what is decided on them, the next node of the model acts on.

        Where that node comes next, it also stores what tools have only taught the detectors.
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
                # Not by a `Send`: the calls beside it come back here too, and this one is open.
                return Command(goto=node, update=self._account_update(account))
            except GuardStopped as stop:
                return self._stop(interceptor, stop, node)
            if model is not None and interceptor.stores_later and _leads_to(model, result):
                return result
            return self._undo_first(account, with_update(result, self._account_update(account)))

        return node_call

    def around_stage(self, name: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Hold a sub-agent to its deadline, however often it is entered."""
        inner = self.policy.at(f"{self.place.path}/{name}")

        async def node_call(state: State, call: Call) -> Any:
            interceptor = self._interceptor(state)
            account = interceptor.account
            if account.may_ask:
                await _catch_up(interceptor)
            try:
                with inside_stage(inner.deadlines.stage()), intercepted_by(interceptor):
                    result = await call(state)
            except GuardStopped as stop:
                return self._stop(interceptor, stop, END)
            # A team in here has an account of its own, and may have been ended by that.
            account.closed_by = account.closed_by or _closed_in(result)
            if account.closed_by:  # while parallel nodes may wait for a human
                await _note_pause(interceptor)
            return self._undo_first(account, with_update(result, self._account_update(account)))

        return node_call

    def await_human(self, model: str) -> Callable[[Any], Awaitable[Any]]:
        """Make the node that asks a human, and does nothing before."""

        async def ask(state: State) -> Any:
            interceptor = self._interceptor(state)
            answer = await ask_human(interceptor.site, interceptor.values["human"])
            if answer is None:
                return self._close(interceptor)
            account = interceptor.account
            human = {"human": {**answer, "input": account.input_id}}
            return Command(goto=model, update={**self._account_update(account), **human})

        return ask

    async def compensate(self, state: State) -> Any:
        """Undo one action, the last that was begun, and come back for the others."""
        interceptor = self._interceptor(state)
        account = interceptor.account
        async with account.undo_lock:  # of speakers side by side, one after the other
            is_left = await undo_last(interceptor.site, self.effects)
        return Command(goto=COMPENSATE if is_left else END, update=self._account_update(account))

    def _act(self, interceptor: NodeInterceptor, decision: Decision, text: str) -> Any:
        """Ask a human, or end the run, as a decision says that does not let the model be asked."""
        account = interceptor.account
        if decision.action == "escalate":
            account.may_ask = True
            human = {"human": question(interceptor.site, decision, text)}
            return Command(goto=AWAIT_HUMAN, update={**self._account_update(account), **human})
        account.closed_by = decision.reason
        return self._close(interceptor)

    def _stop(self, interceptor: NodeInterceptor, stop: GuardStopped, goto: str) -> Any:
        """End the run where no model's node can: the node of the tools answers what is open."""
        if not isinstance(stop.decision, Decision):
            raise stop
        interceptor.account.closed_by = stop.decision.guard
        command = self._close(interceptor)
        return replace(command, goto=goto) if interceptor.turn else command

    def _close(self, interceptor: NodeInterceptor) -> Any:
        """End the run of this agent, and with it that of all above."""
        account = interceptor.account
        update = {**self._account_update(account), **answer_used(interceptor)}
        if interceptor.turn:
            update["turn"] = {**interceptor.turn, "closed": account.ended_by}
        return self._undo_first(account, Command(goto=END, update=update))

    def _undo_first(self, account: Account, result: Any) -> Any:
        """Undo what was done before a closed run ends: at the root, where all branches meet."""
        saga = account.saga
        if self.place.depth > 1 or not account.ended_by or saga is None or not saga.plan():
            return result
        if isinstance(result, list):
            return [self._undo_first(account, part) for part in result]
        if isinstance(result, Command) and result.goto == END:
            return replace(result, goto=COMPENSATE)
        return result

    def _interceptor(self, state: State, *, reuses: bool = False) -> NodeInterceptor:
        place, channels, config = self.place, self.channels, get_config()
        return interceptor_of(self.policy, place, channels, state, config, reuses=reuses)

    def _account_update(self, account: Account) -> dict[str, Any]:
        """Return the update that stores an account."""
        return {"guarded": account.dump()}


async def _catch_up(interceptor: NodeInterceptor) -> None:
    if interceptor.site.ledger is None:  # a session has pauses in its log
        await catch_up(interceptor.account, get_config())


async def _note_pause(interceptor: NodeInterceptor) -> None:
    if interceptor.site.ledger is None:
        await note_pause(interceptor.account, get_config())


def _leads_to(node: str, result: Any) -> bool:
    """Tell whether a node comes next, and no other."""
    parts = result if isinstance(result, list) else [result]
    return [part.goto for part in parts if isinstance(part, Command) and part.goto] == [node]


def _closed_in(result: object) -> str:
    """Name the guard that has ended the run, as a node's update tells; "" where none has."""
    turns = (update.get("turn") or {} for update in updates_of(result))
    return next((turn["closed"] for turn in turns if turn.get("closed")), "")


def answer_used(interceptor: NodeInterceptor) -> dict[str, Any]:
    """Return the update that forgets what a human was asked, or has answered."""
    return {"human": {}} if interceptor.values.get("human") else {}


def refuse_guarded(graph: AnyGraph) -> None:
    """Raise where a graph has guards already: two of them would count and retry the same calls."""
    if AWAIT_HUMAN in graph.nodes:
        raise ConfigurationError("the graph is guarded already: patch the one that it was before")


def also_to(ends: Any, *more: str) -> Any:
    """Return a node's declared ends with more of them, in the form that LangGraph has them in."""
    return (
        {**ends, **dict(zip(more, more, strict=True))} if isinstance(ends, dict) else (*ends, *more)
    )


def _effects_at(place: Place) -> dict[str, Effect]:
    effects = ((f"{place.path}:{name}", effect_of(tool)) for name, tool in place.tools.items())
    return {name: effect for name, effect in effects if effect is not None}


def with_update(result: Any, update: Mapping[str, Any]) -> Any:
    """Add an update to what a node returns, whichever of LangGraph's forms that has."""
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
        # In the last Command and not in one more: LangGraph writes each of them by itself.
        last_parts = with_update(last, update)
        return [*parts, *(last_parts if isinstance(last_parts, list) else [last_parts])]
    return {**(result or {}), **update}


def node_of(graph: AnyGraph, names: tuple[str, ...], purpose: str) -> str:
    """Return the node of a graph that has one of these names."""
    name = next((name for name in names if name in graph.nodes), None)
    if name is None:
        raise ConfigurationError(
            f"there is no node of {purpose} to guard: name it one of {', '.join(names)}; "
            f"the nodes are {', '.join(graph.nodes)}"
        )
    return name
