"""What guards decide becomes what a graph does: this and `foreign_patcher` alone know of graphs.

The node of the model is wrapped, and it alone acts: it asks, ends the run, or hands it to a human.
The node of the tools is wrapped so that what its calls do is seen. Two nodes are added:
`await_human` does nothing before it waits, and `compensate` undoes one action in each super-step.
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
from agentgraph.guards.nodes.human import Humans, HumanState
from agentgraph.guards.nodes.judgement import Held
from agentgraph.guards.nodes.site import watch_before, watch_of
from agentgraph.guards.nodes.stage import inside_stage
from agentgraph.guards.nodes.tool_call import RegisterFirst
from agentgraph.guards.nodes.undo import undo_last
from agentgraph.guards.nodes.watch import Watch
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.channel import GuardedState
from agentgraph.guards.records.pauses import catch_up, note_pause
from agentgraph.interception import posted
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
_KEPT = ("turn", "guarded", "human")


def guarding(
    policy: Guards,
    place: Place,
    sub_agents: tuple[str, ...] = (),
    effects: MutableMapping[str, Effect] | None = None,
) -> Patcher:
    """Guard the graph of one agent; `policy` is the whole tree's, of which its stage's holds.

    `effects` has the actions of all that are compiled with it, and is given those of this agent:
    the policy may hold elsewhere too, for others of the same names.
    """
    known = {} if effects is None else effects

    def patch(graph: AnyGraph) -> AnyGraph:
        model = found(graph, MODELS, "a model")
        refuse_guarded(graph)
        known.update(_effects(place))
        tools = next((name for name in TOOLS if name in graph.nodes), None)
        for channel, extra in (("guarded", GuardedState), ("human", HumanState)):
            if channel not in graph.channels:
                add_state(graph, extra)
        kept = tuple(name for name in _KEPT if name in graph.channels)
        post = Post(policy, place, kept, known)
        graph = wrap_node(model, post.around_model(model))(graph)
        if tools is not None:
            graph = wrap_node(tools, post.around_tools(tools, model))(graph)
        for name in sub_agents:
            graph = wrap_node(name, post.around_stage(name))(graph)
        state = graph.state_schema
        back = (model, COMPENSATE, END)
        spec = graph.nodes[model]
        graph.nodes[model] = replace(spec, ends=also_to(spec.ends, AWAIT_HUMAN, COMPENSATE))
        asks: Any = post.await_human(model)
        graph.add_node(AWAIT_HUMAN, asks, destinations=back, input_schema=state)
        graph.add_node(
            COMPENSATE, post.compensate, destinations=(COMPENSATE, END), input_schema=state
        )
        return graph

    return Patcher(patch, state=GuardedState)


@dataclass(frozen=True, slots=True)
class Post:
    """The guards' post at one agent's graph."""

    policy: Guards
    place: Place
    kept: tuple[str, ...] = _KEPT
    """The channels of its graph that guards read."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """How actions are undone, of all agents of its tree or team, by path and tool."""

    def around_model(self, node: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have the model asked under guard, and act on what its guards say."""

        async def wrapped(state: State, call: Call) -> Any:
            watch = watch_before(self.place, state) or self._watch(state)
            if watch.account.may_ask:
                await catch_up(watch, get_config())
            if watch.turn.get("closed") or watch.account.is_undoing:
                return self._close(watch)
            decision = await watch.opening()
            if not decision.allows:
                return self._act(watch, decision, "")
            try:
                with posted(watch):
                    result = await call(state)
            except GuardStopped as stop:
                if not isinstance(stop.decision, Decision):
                    raise
                text = stop.text if isinstance(stop, Held) else ""
                return self._act(watch, stop.decision, text)
            except GraphInterrupt:
                await note_pause(watch, get_config())
                raise
            update = {**self._dumped(watch), **said(watch)}
            if watch.is_noted and watch.resumption is None and (run := current_run()) is not None:
                run.watch = watch
            return with_update(result, update)

        return wrapped

    def around_tools(
        self, node: str, model: str | None = None
    ) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have tools run under guard; what is decided on them, the next model's node acts on.

        Where that comes next, it writes down what tools have only taught the detectors.
        """

        async def wrapped(state: State, call: Call) -> Any:
            watch = watch_before(self.place, state) or self._watch(state)
            if watch.account.may_ask:
                await catch_up(watch, get_config())
            try:
                with posted(watch):
                    result = await call(state)
            except RegisterFirst:
                # Not by a `Send`: the calls beside it come back here too, and this one is open.
                return Command(goto=node, update=self._dumped(watch))
            except GuardStopped as stop:
                return self._stopped(watch, stop, node)
            if model is not None and watch.may_wait and _leads_to(model, result):
                return result
            return self._onward(watch, with_update(result, self._dumped(watch)))

        return wrapped

    def around_stage(self, name: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Hold a sub-agent to its deadline, however often it is entered."""
        inner = self.policy.at(f"{self.place.path}/{name}")

        async def wrapped(state: State, call: Call) -> Any:
            watch = self._watch(state)
            if watch.account.may_ask:
                await catch_up(watch, get_config())
            try:
                with inside_stage(inner.deadlines.stage()), posted(watch):
                    result = await call(state)
            except GuardStopped as stop:
                return self._stopped(watch, stop, END)
            # A team in here has an account of its own, and may have been ended by that.
            watch.account.closed = watch.account.closed or _closed_in(result)
            if watch.account.closed:  # while others beside it may wait for a human
                await note_pause(watch, get_config())
            return self._onward(watch, with_update(result, self._dumped(watch)))

        return wrapped

    def await_human(self, model: str) -> Callable[[Any], Awaitable[Any]]:
        """Make the node that asks a human, and does nothing before."""

        async def ask(state: State) -> Any:
            watch = self._watch(state)
            humans = Humans(watch.policy, watch.place, watch.account, watch.recorder)
            given = await humans.decide(watch.kept["human"])
            if given is None:
                return self._close(watch)
            said = {"human": {**given, "input": watch.account.input_id}}
            return Command(goto=model, update={**self._dumped(watch), **said})

        return ask

    async def compensate(self, state: State) -> Any:
        """Undo one action, the last that was begun, and come back for the others."""
        watch = self._watch(state)
        async with watch.account.undoing:  # of speakers side by side, one after the other
            left = await undo_last(watch.account, self.effects, watch.recorder)
        goto = COMPENSATE if left else END
        return Command(goto=goto, update=self._dumped(watch))

    def _act(self, watch: Watch, decision: Decision, text: str) -> Any:
        if decision.action == "escalate":
            watch.account.may_ask = True
            humans = Humans(watch.policy, watch.place, watch.account, watch.recorder)
            asked = {"human": humans.ask(decision, text)}
            return Command(goto=AWAIT_HUMAN, update={**self._dumped(watch), **asked})
        watch.account.closed = decision.reason
        return self._close(watch)

    def _stopped(self, watch: Watch, stop: GuardStopped, goto: str) -> Any:
        """End the run where no model's node can: the node of the tools answers what is open."""
        if not isinstance(stop.decision, Decision):
            raise stop
        watch.account.closed = stop.decision.guard
        closed = self._close(watch)
        return replace(closed, goto=goto) if watch.turn else closed

    def _close(self, watch: Watch) -> Any:
        """End the run of this agent, and with it that of all above."""
        update = {**self._dumped(watch), **said(watch)}
        if watch.turn:
            update["turn"] = {**watch.turn, "closed": watch.account.ended_by}
        return self._onward(watch, Command(goto=END, update=update))

    def _onward(self, watch: Watch, result: Any) -> Any:
        """Undo what was done before a run ends that was closed: the root does, where all meet."""
        saga = watch.account.saga
        if self.place.depth > 1 or not watch.account.ended_by or saga is None or not saga.plan():
            return result
        if isinstance(result, list):
            return [self._onward(watch, one) for one in result]
        if isinstance(result, Command) and result.goto == END:
            return replace(result, goto=COMPENSATE)
        return result

    def _watch(self, state: State) -> Watch:
        return watch_of(self.policy, self.place, self.kept, state, get_config())

    def _dumped(self, watch: Watch) -> dict[str, Any]:
        return {"guarded": watch.account.dump()}


def _leads_to(node: str, result: Any) -> bool:
    """Tell whether a node comes next, and no other."""
    parts = result if isinstance(result, list) else [result]
    return [one.goto for one in parts if isinstance(one, Command) and one.goto] == [node]


def _closed_in(result: object) -> str:
    """Name the guard that has ended the run, as a node's update tells; "" where none has."""
    turns = (update.get("turn") or {} for update in updates_of(result))
    return next((turn["closed"] for turn in turns if turn.get("closed")), "")


def said(watch: Watch) -> dict[str, Any]:
    """Forget what a human was asked, or has given an agent to say."""
    return {"human": {}} if watch.kept.get("human") else {}


def refuse_guarded(graph: AnyGraph) -> None:
    """Say what to do where a graph has guards: with two of them none would know what happens."""
    if AWAIT_HUMAN in graph.nodes:
        raise ConfigurationError("the graph is guarded already: patch the one that it was before")


def also_to(ends: Any, *more: str) -> Any:
    """Draw where a node may go beside the ends that it declares."""
    return (
        {**ends, **dict(zip(more, more, strict=True))} if isinstance(ends, dict) else (*ends, *more)
    )


def _effects(place: Place) -> dict[str, Effect]:
    found = ((f"{place.path}:{name}", effect_of(tool)) for name, tool in place.tools.items())
    return {name: known for name, known in found if known is not None}


def with_update(result: Any, update: Mapping[str, Any]) -> Any:
    """Add an update to what a node returns, whichever of LangGraph's forms that has."""
    if isinstance(result, Command):
        given = result.update or {}
        if isinstance(given, dict):
            return Command(
                graph=result.graph,
                goto=result.goto,
                resume=result.resume,
                update={**given, **update},
            )
        return [result, Command(update=update)]
    if isinstance(result, list):
        *others, last = result or [Command()]
        if not isinstance(last, Command) or last.graph is not None:
            return [*result, Command(update=update)]
        added = with_update(last, update)  # one Command less for LangGraph to write
        return [*others, *(added if isinstance(added, list) else [added])]
    return {**(result or {}), **update}


def found(graph: AnyGraph, names: tuple[str, ...], what: str) -> str:
    """Return the node of a graph that has one of these names."""
    name = next((name for name in names if name in graph.nodes), None)
    if name is None:
        raise ConfigurationError(
            f"there is no node of {what} to guard: name it one of {', '.join(names)}; "
            f"the nodes are {', '.join(graph.nodes)}"
        )
    return name
