"""The wrappers of a foreign graph's nodes: guards see no more of it than its nodes show.

Guards run the whole node of its model to ask the model, and observe its tools by their answers, in
the graph and in all graphs within it. What they store stands in channels that no schema has, and
what its nodes return stays as it is, so that the graph does what it does without them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.graph import END
from langgraph.types import Command

from agentgraph.clock import new_id
from agentgraph.errors import GuardStopped
from agentgraph.graphs.routes import Halt
from agentgraph.graphs.run_value import read_run_value, write_run_value
from agentgraph.graphs.silence import without_tokens
from agentgraph.graphs.task import read_state
from agentgraph.guards.checks import (
    warn_of_unseen_calls,
)
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.escalation import Answer
from agentgraph.guards.nodes.approval import (
    add_notice,
    approve_call,
    args_of,
    needs_approval,
)
from agentgraph.guards.nodes.foreign.answers import (
    WatchedNode,
    new_answers,
    with_allowed_calls,
    with_passing_texts,
)
from agentgraph.guards.nodes.foreign.calls import (
    FORM,
    ModelNode,
    ToolsNode,
    has_tool_answers,
    input_message_id,
    last_message_id,
    messages_of,
)
from agentgraph.guards.nodes.foreign.watch import Forbidden, Watch, watched_by
from agentgraph.guards.nodes.human import ask_human, question
from agentgraph.guards.nodes.interceptor import NodeInterceptor, durable_writes, site_at
from agentgraph.guards.nodes.judgement import AnswerWithheld
from agentgraph.guards.nodes.site import Overdue, Site, close
from agentgraph.guards.nodes.tool_call import (
    cut_off,
    is_cut_off,
    observe_answer,
    observe_reports,
    refusal,
)
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.registry import account_of
from agentgraph.interception import (
    collected_reports,
    current_ledger,
    inside_tool,
    intercepted_by,
)
from agentgraph.participant import last_word
from agentgraph.patching import updates_of
from agentgraph.running import current_run
from agentgraph.telling import AGENT_TAG

Call: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class _Level:
    """A level above the graph at work: the account that all levels share."""

    account: Account
    last_word: AIMessage | None = None
    """The message with which a guard has ended the input on a level below."""


class _LazySite:
    """The interceptor of a node, made when it is first needed."""

    def __init__(self, make: Callable[[], NodeInterceptor]) -> None:
        self._make = make
        self._interceptor: NodeInterceptor | None = None

    @property
    def is_open(self) -> bool:
        return self._interceptor is not None

    @property
    def interceptor(self) -> NodeInterceptor:
        if self._interceptor is None:
            self._interceptor = self._make()
        return self._interceptor

    def site(self) -> Site:
        return self.interceptor.site


_above: ContextVar[_Level | None] = ContextVar("agentgraph_foreign_level", default=None)


@dataclass(frozen=True, slots=True)
class ForeignWrappers:
    """The wrappers of one level's nodes: a node's result passes, unless a guard ends the run."""

    policy: Policy
    place: Place
    suffix: str
    await_human: str
    has_form: bool
    has_messages: bool
    sees_models: bool
    has_tools: bool
    """Whether it has nodes that are known to run tools."""
    is_agent: bool
    """Whether it is the graph of an agent without guards: it ends its turn once that is closed."""
    named_models: tuple[str, ...] = ()
    """The nodes that their user has named as those of models."""
    tools: Mapping[str, Any] = field(default_factory=dict)

    def around_model(self, node: str) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper that guards the model's node as if it were a model."""

        async def node_call(state: Any, call: Call) -> Any:
            if (end := await self._refuse_input(state)) is not None:
                return end
            interceptor = self._interceptor()
            replacement = interceptor.values.get("replacement") or {}
            if _ends_with(state, replacement.get("id")):  # it waits for an answer in a form
                self._store(interceptor)
                return Halt(goto=END)
            decision = await interceptor.open_model_call()
            if not decision.allows:
                return self._act(interceptor, decision, "", node)
            return await self._ask(interceptor, state, call, node)

        return node_call

    async def _ask(self, interceptor: NodeInterceptor, state: Any, call: Call, name: str) -> Any:
        """Ask the model's node under guard; return its result, or the one that replaces it."""
        site = interceptor.site
        watch = partial(Watch, site, is_model=True, priced_as=self._priced_name)
        run = WatchedNode(call, watch, judges=site.policy.judges)
        in_texts = name in self.named_models or not self.has_messages
        node = ModelNode(state, run.run, updates_of, run.message, in_texts)
        interceptor.site = site = replace(site, place=replace(site.place, read=node.text_of))
        has_human = interceptor.values.get("human")
        replacement = interceptor.values.get("replacement") or {}
        withheld = replacement.get("form") if has_human else None
        try:
            with intercepted_by(None):
                model_call = node.model_call(self._priced_name(site.place))
                message = await interceptor.ask_model(model_call)
                if message.tool_calls and site.policy.limits_tools and not self.has_tools:
                    message = await with_allowed_calls(interceptor, node, model_call, message)
            result = node.result_for(message, withheld)
            if site.policy.judges and not node.replacement_id:
                result = await with_passing_texts(site, result, node.messages, judged=message)
                is_whole = result is node.result
                await run.show([message], self._tag(), is_whole=is_whole)
        except GuardStopped as stop:
            decision = await self._decision_of(interceptor, stop)
            text = stop.text if isinstance(stop, AnswerWithheld) else ""
            form = withheld if node.message is None else node.form
            return self._act(interceptor, decision, text, name, form)
        self._store(
            interceptor, replacement={"id": node.replacement_id} if node.replacement_id else {}
        )
        return result

    async def _decision_of(self, interceptor: NodeInterceptor, stop: GuardStopped) -> Decision:
        """Return the decision of a stop, once it is recorded; raise a stop of others again."""
        if not isinstance(stop.decision, Decision):
            raise stop
        if not isinstance(stop, Forbidden):
            return stop.decision
        return await interceptor.site.decide_by_table(stop.decision, possible=False)

    def _priced_name(self, place: Place) -> str:
        """Return the name that prices have for the model: the graph's, or the one at patching."""
        path, first_path = place.path.removesuffix(self.suffix), self.place.path
        prices = self.policy.at(path).prices
        return first_path if path not in prices and first_path in prices else path

    def around_tools(self) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper that runs the calls that may run, and observes their answers."""

        async def node_call(state: Any, call: Call) -> Any:
            interceptor = self._interceptor()
            site = interceptor.site
            tools_node = ToolsNode(state, self._messages())
            watch = Watch(site, priced_as=self._priced_name)
            await self._admit_calls(site, tools_node)
            for tool_call in tools_node.open_calls:
                watch.knows(str(tool_call["id"]), tool_call["name"], tool_call["args"])
            try:
                with (
                    intercepted_by(interceptor),
                    inside_tool("tools"),
                    watched_by(watch),
                    collected_reports() as reports,
                ):
                    result = await self._run_tools(site, tools_node, call)
                await observe_reports(site, "", reports)
            except Overdue as error:  # the model's next node ends the run
                result = tools_node.stop(str(error))
            except GuardStopped as stop:
                if not tools_node.calls:  # they are in another channel: none can be answered
                    return await self._end(interceptor, stop)
                decision = await self._decision_of(interceptor, stop)
                result = tools_node.stop(str(stop))
                site.account.postpone(site.place.visit_key, decision)
            for tool_call, answer in tools_node.answers(updates_of(result)):
                if tool_call["id"] in tools_node.edits:
                    add_notice(answer, tools_node.use(tool_call, self.tools))
                await observe_answer(site, tools_node.use(tool_call, self.tools), answer)
            self._store(interceptor)
            if not tools_node.refusals:
                return result
            update: Any = Command(update={"messages": tools_node.refusals})
            return [*(result if isinstance(result, list) else [result]), update]

        return node_call

    async def _admit_calls(self, site: Site, tools_node: ToolsNode) -> None:
        """Refuse the calls that may not run, and let a human decide on those that must wait."""
        for tool_call in tools_node.calls:
            use = tools_node.use(tool_call, self.tools)
            outcome = await approve_call(site, use) if needs_approval(site, use) else None
            if isinstance(outcome, Answer) and outcome.type == "edit":
                use = use.with_args(args_of(outcome))
                tools_node.edit(tool_call, use.args)
            if not isinstance(outcome, ToolMessage):
                outcome = await refusal(site, use, tools_node.messages)
            if outcome is not None:
                tools_node.refuse(tool_call, outcome)

    async def _run_tools(self, site: Site, tools_node: ToolsNode, call: Call) -> Any:
        """Run a tools node, in the time of one call: its calls run side by side."""
        node_input, limit_s = tools_node.remaining_input(), site.policy.deadlines.tool_s
        if node_input is None:  # all its calls were refused
            return []
        run = partial(call, node_input, config=self._config())
        try:
            return await site.cut_off(run, limit_s, "tool")
        except Overdue as error:
            if not is_cut_off(error):
                raise
            for tool_call in tools_node.open_calls:
                answer = await cut_off(site, tools_node.use(tool_call, self.tools), error)
                tools_node.refuse(tool_call, answer)
        return []

    def around_graph(self) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper of a node that runs further graphs, which have guards of their own."""

        async def node_call(state: Any, call: Call) -> Any:
            if (end := await self._refuse_input(state)) is not None:
                return end
            interceptor, above = self._interceptor(), _above.get()
            level = _Level(interceptor.account)
            watch = Watch(interceptor.site, priced_as=self._priced_name)
            token = _above.set(level)
            try:
                with intercepted_by(None), watched_by(watch):
                    result = await call(state, config=self._config())
                if level.last_word is None and watch.message is not None:
                    result = await self._judge_result(interceptor, watch.message, result)
            except GuardStopped as stop:
                return await self._end(interceptor, stop)
            finally:
                _above.reset(token)
                self._store(interceptor)
            if level.last_word is None:
                return result
            if above is not None:
                above.last_word = level.last_word
            return result if self.is_agent else self._end_with(result, level.last_word)

        return node_call

    def around_other(self) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper of any other node: models that it asks are counted and limited."""

        async def node_call(state: Any, call: Call) -> Any:
            if (end := await self._refuse_input(state)) is not None:
                return end
            # A model may be asked by a graph that the node runs, whose config is another.
            lazy = _LazySite(partial(self._interceptor, get_config()))
            watch = partial(Watch, lazy.site, self._warn, priced_as=self._priced_name)
            run = WatchedNode(call, watch, judges=self.policy.judges)
            try:
                with intercepted_by(None):
                    result = await run.run(state)
                first_result = result
                if run.watch.message is not None:
                    result = await self._judge_result(lazy.interceptor, run.watch.message, result)
                answers = new_answers(result, self._messages() if run.watch.calls else ())
                await run.show(answers, self._tag(), is_whole=result is first_result)
            except GuardStopped as stop:
                if not lazy.is_open:
                    raise
                return await self._end(lazy.interceptor, stop)
            if not self.has_tools:
                await self._observe(lazy, state, result)
            if lazy.is_open:
                self._store(lazy.interceptor)
            return result

        return node_call

    async def _judge_result(
        self, interceptor: NodeInterceptor, message: AIMessage, result: Any
    ) -> Any:
        """Return the result of a node that has asked a model, with texts that pass."""
        if not interceptor.site.policy.judges:
            return result
        text = "" if self.has_messages else str(message.text)
        return await with_passing_texts(interceptor.site, result, self._messages(), text=text)

    async def _observe(self, lazy: _LazySite, state: Any, result: Any) -> None:
        """Observe the answers of tools that run in a node which is not known to run any."""
        updates = [*updates_of(result)]
        if not self.has_messages or not has_tool_answers(updates):
            return
        tools_node = ToolsNode(state, self._messages())
        for tool_call, answer in tools_node.answers(updates):
            site = lazy.interceptor.site
            await observe_answer(site, tools_node.use(tool_call, self.tools), answer)

    async def _end(self, interceptor: NodeInterceptor, stop: GuardStopped) -> Any:
        """End the run of the graph by a stop in a node that cannot be run again."""
        decision = await self._decision_of(interceptor, stop)
        close(interceptor.account, decision.reason, decision.cause, decision.failure_class)
        return self._close(interceptor)

    def _messages(self) -> list[Any]:
        values = read_state(get_config(), ("messages",)) if self.has_messages else {}
        return [*(values.get("messages") or ())]

    def _config(self) -> RunnableConfig:
        """Return the config of a node whose models may say what is judged later."""
        return without_tokens() if self.policy.judges else get_config()

    def _tag(self) -> str:
        """Return the path of the agent for which the graph runs, "" for a graph alone."""
        return str((get_config().get("metadata") or {}).get(AGENT_TAG) or "")

    def _warn(self) -> None:
        if not self.sees_models:
            warn_of_unseen_calls(f"{self.place.path}{self.suffix}")

    def around_question(self) -> Callable[[Any, Call], Awaitable[Any]]:
        """Return the wrapper of the node that asks a human, and does nothing before that."""

        async def ask(state: Any, call: Call) -> Any:
            interceptor = self._interceptor()
            asked = interceptor.values["human"]
            answer = await ask_human(interceptor.site, asked)
            if answer is None:
                return self._close(interceptor)
            human = {**answer, "input": interceptor.account.input_id}
            replacement = interceptor.values.get("replacement") or {}
            self._store(interceptor, human=human, replacement=replacement)
            return Halt(goto=asked["node"])

        return ask

    # What follows from decisions.

    async def _refuse_input(self, state: Any) -> Any:
        """Return what ends the run where a gate refuses what the user says, else None.

        Any node may ask a model, so the first node of a run judges the input.
        """
        if not self.policy.judges_input or not (messages := messages_of(state)):
            return None
        interceptor = self._interceptor()
        refusal = await interceptor.judge_input(convert_to_messages(messages))
        if refusal is None:
            return None
        close(interceptor.account, refusal.reason, refusal.cause, refusal.failure_class)
        return self._close(interceptor)

    def _act(
        self,
        interceptor: NodeInterceptor,
        decision: Decision,
        text: str,
        node: str,
        form: Any = None,
    ) -> Any:
        """Carry out a decision that forbids the model call: ask a human, or end the run."""
        account = interceptor.account
        if decision.action == "escalate":
            account.may_ask = True
            human = {**question(interceptor.site, decision, text), "node": node}
            self._store(interceptor, human=human, replacement={"form": form})
            return Halt(goto=self.await_human)
        close(account, decision.reason, decision.cause, decision.failure_class)
        return self._close(interceptor)

    def _close(self, interceptor: NodeInterceptor) -> Any:
        """End the run of the graph and of all graphs around it, with a message that says why."""
        self._store(interceptor)
        account = interceptor.account
        word = last_word(account.closed_by, account.closed_because, new_id())
        if (above := _above.get()) is not None:
            above.last_word = word
        update: dict[str, Any] = {}
        if self.has_messages:
            update["messages"] = [*interceptor.notices, word]
        if interceptor.values.get(FORM) is not None:
            update[FORM] = None  # an earlier input's answer is none to this one
        if self.is_agent:
            turn = read_state(get_config(), ("turn",)).get("turn") or {}
            update["turn"] = {**turn, "closed": account.closed_by}
        return Halt(goto=END, update=update)

    def _end_with(self, result: Any, last_word: AIMessage) -> Any:
        """Return the result of a node without what follows from it; the last word is the last."""
        parts = result if isinstance(result, list) else [result]
        parts = [replace(part, goto=()) if isinstance(part, Command) else part for part in parts]
        update: dict[str, Any] = {}
        if self.has_messages and last_message_id(updates_of(parts)) != last_word.id:
            update["messages"] = [last_word.model_copy(update={"id": new_id()})]
        return [*(part for part in parts if part is not None), Halt(goto=END, update=update)]

    def _store(
        self,
        interceptor: NodeInterceptor,
        *,
        human: Mapping[str, Any] | None = None,
        replacement: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the account, and what the next node needs of a question or a replacement."""
        values: dict[str, Any] = {"account": interceptor.account.dump()}
        for key, value in (("human", human), ("replacement", replacement)):
            if value or interceptor.values.get(key):
                values[key] = dict(value or {})
        write_run_value(get_config(), values)

    def _interceptor(self, config: RunnableConfig | None = None) -> NodeInterceptor:
        config = get_config() if config is None else config
        ledger, run, above = current_ledger(), current_run(), _above.get()
        values = self._values(config)
        input_id, scope = _input_id(values, config), None if run is None else run.owner
        if ledger is not None:
            input_id, scope = ledger.input_id, ledger.id_scope
        elif run is not None and isinstance(run.account, Account):
            input_id = run.account.input_id
        elif above is not None:
            input_id = above.account.input_id
        tag = (config.get("metadata") or {}).get(AGENT_TAG)
        path = tag or self.place.path
        account = account_of(self.policy, input_id, values.get("guarded"), ledger, scope)
        policy = account.enclosed(self.policy).at(path)
        if run is not None:
            run.account = account
        place = replace(self.place, path=f"{path}{self.suffix}")
        pending_writes = durable_writes(config, ledger)
        site = site_at(policy, place, account, config, ledger, pending_writes)
        return NodeInterceptor(site, values)

    def _values(self, config: Any) -> dict[str, Any]:
        channels: tuple[str, ...] = ("messages",) if self.has_messages else ()
        channels += (FORM,) if self.has_form else ()
        state = read_run_value(config)
        return {**read_state(config, channels), **state, "guarded": state.get("account")}


def _ends_with(state: Any, message_id: str | None) -> bool:
    """Tell whether a message is still the last one: the graph led back without a new message."""
    messages = messages_of(state)
    return bool(message_id and messages and getattr(messages[-1], "id", None) == message_id)


def _input_id(values: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return an id for the input; one message may begin several runs, on one thread or on none."""
    thread = config.get("configurable", {}).get("thread_id") or ""
    prefix = f"{thread}/{input_message_id(values.get('messages') or ())}/"
    stored_id = str((values.get("guarded") or {}).get("input") or "")
    return stored_id if stored_id.startswith(prefix) else prefix + new_id()
