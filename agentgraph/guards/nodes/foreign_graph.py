"""Guards for a graph that agentgraph did not build, as far as its nodes show what they do.

The node of its model is run in the model's place, and that of its tools is seen by its answers.
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
    warn_of_no_guards,
    warn_of_unheard,
)
from agentgraph.guards.decision import Decision
from agentgraph.guards.nodes.agent_graph import (
    AWAIT_HUMAN,
    MODELS,
    TOOLS,
    Call,
    Post,
    State,
    also_to,
    found,
    refuse_guarded,
    said,
    with_update,
)
from agentgraph.guards.nodes.foreign_calls import (
    FORM,
    Asked,
    ForeignState,
    Instead,
    Uses,
    last_said,
)
from agentgraph.guards.nodes.human import HumanState
from agentgraph.guards.nodes.judgement import Held
from agentgraph.guards.nodes.site import watch_at
from agentgraph.guards.nodes.watch import Watch
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.accounts import account_of
from agentgraph.guards.records.pending_writes import side_notes
from agentgraph.interception import current_ledger, posted
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
_SAID = "guard_said"
_KEPT = ("messages", "guarded", "human", _SAID)


def guarded_copy(graph: Graph, policy: Guards, path: str) -> Graph:
    """Return a guarded copy of somebody else's graph, if it is one of a model."""
    if not isinstance(graph, CompiledStateGraph) or not _is_agent(graph.builder):
        return graph
    if not _takes_state(graph.builder):
        warn_of_no_guards(path)
        return graph
    return patched(graph, guarding_foreign(policy, Place(path)))


def faults_in(graph: object, policy: Guards, path: str) -> Iterator[str]:
    """Yield what is wrong with a policy that is to hold in somebody else's graph."""
    if not isinstance(graph, CompiledStateGraph):
        return
    if _is_agent(graph.builder) and _takes_state(graph.builder):
        yield from unseen_price_faults(policy, path)


def _takes_state(graph: AnyGraph) -> bool:
    """Tell whether guards can keep their own in its state."""
    return all(map(is_typeddict, (graph.state_schema, graph.input_schema, graph.output_schema)))


def _is_agent(graph: AnyGraph) -> bool:
    has_tools = any(name in graph.nodes for name in TOOLS)
    # Without tools an "agent" may be any work, which is not to be done again as a call may be.
    names = MODELS if has_tools else _SURELY_MODELS
    model = next((graph.nodes[name] for name in names if name in graph.nodes), None)
    if model is None or "messages" not in graph.channels or AWAIT_HUMAN in graph.nodes:
        return False
    if isinstance(graph.channels["messages"], UntrackedValue):
        return False  # a team, one of whose speakers has the name of such a node
    return not isinstance(model.runnable, CompiledStateGraph)


def guarding_foreign(policy: Guards, place: Place, *, is_whole: bool = False) -> Patcher:
    """Guard a graph of others, which is all that the policy is for or has agents beside it."""

    def patch(graph: AnyGraph) -> AnyGraph:
        model = found(graph, MODELS, "a model")
        refuse_guarded(graph)
        known = {name: _tools_of(graph, name) for name in TOOLS if name in graph.nodes}
        all_tools = {name: tool for own in known.values() for name, tool in own.items()}
        faults = [*unseen_price_faults(policy, place.path)]
        if is_whole:
            faults += stage_faults(policy, ())
            faults += schema_faults(gated_at(policy, place.path, lambda: all_tools))
        if faults:
            raise ConfigurationError(faults)
        for extra in (ForeignState, HumanState):
            add_state(graph, extra)
        kept = (*_KEPT, FORM) if FORM in graph.channels else _KEPT
        post = _ForeignPost(policy, place, kept)
        graph = wrap_node(model, post.around_model(model))(graph)
        for tools, by_name in known.items():
            at_tools = replace(post, tools=by_name)
            graph = wrap_node(tools, at_tools.around_tools(tools))(graph)
        _let_end(graph, model, post)
        warn_of_unheard(policy, place.path, all_tools)
        return graph

    return Patcher(patch, state=ForeignState)


def _let_end(graph: AnyGraph, model: str, post: _ForeignPost) -> None:
    """Have the node of the model end the run, or hand it to a human, where its guards say so."""
    hold_edges(graph, model, _HOLDS)
    spec = graph.nodes[model]
    graph.nodes[model] = replace(spec, ends=also_to(spec.ends, AWAIT_HUMAN, END))
    asks: Any = post.await_human(model)
    graph.add_node(AWAIT_HUMAN, asks, destinations=(model, END))


def _tools_of(graph: AnyGraph, node: str) -> Mapping[str, Any]:
    known: Mapping[str, Any] = getattr(graph.nodes[node].runnable, "tools_by_name", {})
    return known


@dataclass(frozen=True, slots=True)
class _ForeignPost(Post):
    """The guards' post at a graph of others."""

    tools: Mapping[str, Any] = field(default_factory=dict)

    def around_model(self, node: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have the node asked under guard, as if it were its model."""

        async def wrapped(state: State, call: Call) -> Any:
            if not isinstance(state, Mapping):  # it was sent something of its own
                return await call(state)
            watch = self._watch(state)
            if _ends_with(state, _said(watch).get("id")):  # it waits for an answer in a form
                return Command(goto=END, update={**self._dumped(watch), _HOLDS: True})
            decision = await watch.opening()
            if not decision.allows:
                return self._act(watch, decision, "")
            return await self._ask(watch, Asked(state, call, updates_of))

        return wrapped

    def around_tools(
        self, node: str, model: str | None = None
    ) -> Callable[[Any, Call], Awaitable[Any]]:
        """Have the tools run that may, and see what they answered."""

        async def wrapped(state: Any, call: Call) -> Any:
            watch = self._watch(state)
            uses = Uses(state, read_state(get_config(), ("messages",)).get("messages") or ())
            for one in uses.calls:
                if (why_not := await watch.using.refusal(uses.use(one, self.tools))) is not None:
                    uses.refuse(one, why_not)
            left = uses.left()
            with posted(None):
                result = await call(left) if left is not None else []
            for one, answer in uses.answered(updates_of(result)):
                await watch.using.seen(uses.use(one, self.tools), answer)
            results = result if isinstance(result, list) else [result]
            told: Any = Command(update={**self._dumped(watch), "messages": uses.refused})
            return [*results, told]

        return wrapped

    async def _ask(self, watch: Watch, asked: Asked) -> Any:
        watch.place = replace(watch.place, form=asked.text_of)
        held = _said(watch).get("form") if watch.kept.get("human") else None
        try:
            with posted(None):
                message = await watch.model(asked.of(self._model_name(watch)))
        except GuardStopped as stop:
            if not isinstance(stop.decision, Decision):
                raise
            text = stop.text if isinstance(stop, Held) else ""
            acted = self._act(watch, stop.decision, text)
            form = held if asked.message is None else asked.form
            return with_update(acted, {_SAID: {"form": form}})
        update = {**self._dumped(watch), **said(watch)}
        return with_update(asked.result_for(message, held), update)

    def _model_name(self, watch: Watch) -> str:
        """Return by what name its model is priced, if it was guarded before it had its place."""
        here, given = watch.place.path, self.place.path
        prices = watch.policy.prices
        return given if here not in prices and given in prices else here

    def _act(self, watch: Watch, decision: Decision, text: str) -> Any:
        stopped = {_STOPPED_BY: decision.reason, _HOLDS: True}
        return with_update(Post._act(self, watch, decision, text), stopped)

    def _close(self, watch: Watch) -> Any:
        update: dict[str, Any] = {_STOPPED_BY: watch.account.closed, _HOLDS: True}
        if watch.kept.get(FORM) is not None:
            update[FORM] = None  # what answered an input before is no answer to this one
        return with_update(Post._close(self, watch), update)

    def _onward(self, watch: Watch, result: Any) -> Any:
        return result  # nobody has registered what its tools do

    def _watch(self, state: State) -> Watch:
        config, ledger, run = get_config(), current_ledger(), current_run()
        kept = read_state(config, self.kept)
        input_id, home = _input_of(kept, config), None if run is None else run.owner
        if ledger is not None:
            input_id, home = ledger.input_id, ledger.home
        elif run is not None and isinstance(run.account, Account):
            input_id = run.account.input_id
        account = account_of(self.policy, input_id, kept.get("guarded"), ledger, home)
        if run is not None:
            run.account = account
        path = (config.get("metadata") or {}).get(AGENT_TAG)
        place = replace(self.place, path=path) if path else self.place
        notes = side_notes(config) if ledger is None else None
        return watch_at(self.policy, place, account, kept, config, ledger, notes)

    def _dumped(self, watch: Watch) -> dict[str, Any]:
        return {"guarded": watch.account.dump(), _STOPPED_BY: None, _HOLDS: False}


def _said(watch: Watch) -> Instead:
    known: Instead | None = watch.kept.get(_SAID)
    return known or {}


def _ends_with(state: State, message_id: str | None) -> bool:
    messages = state.get("messages") or ()
    return bool(message_id and messages and getattr(messages[-1], "id", None) == message_id)


def _input_of(kept: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Name the input: a message may be given to several runs, on one thread or on none."""
    thread = config.get("configurable", {}).get("thread_id") or ""
    prefix = f"{thread}/{last_said(kept.get('messages') or ())}/"
    known = str((kept.get("guarded") or {}).get("input") or "")
    return known if known.startswith(prefix) else prefix + new_id()
