"""The node `call_model`: one model call on a history that is legal for every provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, SystemMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from agentgraph.agents.nodes.content import native_calls_of
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.middleware import Middleware
from agentgraph.agents.nodes.state import AgentState
from agentgraph.clock import new_id
from agentgraph.errors import AgentGraphError, GuardStopped, ModelError, kind_of
from agentgraph.history import apply_policy, as_plain_chat, calls_of, repair, split_system
from agentgraph.interception import Answerer, ask_model
from agentgraph.models import attempting_once, resolve_model
from agentgraph.running import current_run, note
from agentgraph.stream import AIMessageEvent, ErrorEvent, ToolUsageEvent, emit
from agentgraph.telling import AGENT_TAG, FOREIGN_TAG

Node: TypeAlias = Callable[[AgentState, Runtime[Any]], Awaitable[Command[str]]]
Ask: TypeAlias = Callable[
    [list[AnyMessage], str, AgentState, Runtime[Any]], Awaitable[tuple[AIMessage, dict[str, Any]]]
]


def call_model(level: Level, model: BaseChatModel, middleware: Middleware) -> Node:
    """Make the node for a level."""
    ask = _asker(level, model, middleware)

    async def call(state: AgentState, runtime: Runtime[Any]) -> Command[str]:
        whole = level.history(state)
        said, view = _view(level, whole)
        system = "\n\n".join(text for text in (state.get("system_prompt", ""), *said) if text)
        response, update = await ask(view, system, state, runtime)
        message = _adopt(level, response, whole)
        note([message])
        await _tell(level, message)
        update = {**update, "messages": [*update.get("messages", ()), message]}
        if calls_of(message):
            update["asked"] = state.get("asked", 0) + 1
        output = level.toolset.output
        if output is not None and not calls_of(message):
            update["output"] = output.read(str(message.text))
        goto = level.exits[0] if level.exits else after_model(level, message)
        return Command(goto=goto, update=update)

    return call


def after_model(level: Level, message: AIMessage) -> str:
    """Return where a model's message leads."""
    return "call_tools" if calls_of(message) else level.end


def _view(level: Level, whole: list[AnyMessage]) -> tuple[list[str], list[AnyMessage]]:
    system, view = split_system(whole)
    policy = level.agent.history
    if policy is None or isinstance(policy, int):
        return system, repair(apply_policy(view, policy))
    return system, repair(apply_policy(repair(view), policy))  # a function is given what is legal


def _asker(level: Level, model: BaseChatModel, middleware: Middleware) -> Ask:
    bound_to = _Bound(level, model)
    choice = bound_to.choice
    tag = bound_to.tag

    async def ask(
        view: list[AnyMessage], system: str, state: AgentState, runtime: Runtime[Any]
    ) -> tuple[AIMessage, dict[str, Any]]:
        if bound_to.is_plain:
            await emit(_no_tools(level, model))
            view = as_plain_chat(view)
        try:
            if middleware.wraps_model:
                shown = [] if bound_to.is_plain else level.toolset.specs
                request = middleware.request(
                    model, view, system, shown, {**state, "messages": view}, runtime
                )
                return await middleware.call_model(request, choice, tag)
            messages = [SystemMessage(system), *view] if system else view
            return await ask_model(model, messages, bound_to.specs, bound_to.ask), {}
        except (GraphBubbleUp, GuardStopped):
            raise
        except Exception as error:
            # The boundary to providers: whatever they raise, users catch one type.
            raise await _failed(level, error) from error

    return ask


class _Bound:
    """A level's tools, bound to its model, and to another that stands in for it."""

    def __init__(self, level: Level, model: BaseChatModel) -> None:
        self.specs = level.toolset.specs
        self.choice: dict[str, Any] = {} if level.toolset.output is None else {"tool_choice": "any"}
        self.tag: dict[str, object] = {AGENT_TAG: level.path, FOREIGN_TAG: False}
        self.is_plain = False
        self._own = self._bind(model)

    def _bind(self, model: BaseChatModel) -> Any:
        bound: Any = model
        if self.specs:
            try:
                bound = model.bind_tools(self.specs, **self.choice)
            except NotImplementedError:
                self.is_plain = True
        return bound.with_config(metadata=self.tag)

    async def ask(self, answerer: Answerer | None, messages: Sequence[BaseMessage]) -> AIMessage:
        bound = self._own
        if answerer is not None:
            bound = self._bind(attempting_once(resolve_model(answerer)))
        answer: AIMessage = await bound.ainvoke(list(messages))
        return answer


async def _failed(level: Level, error: Exception) -> ModelError:
    told = str(error) if isinstance(error, AgentGraphError) else kind_of(error)
    code = error.code if isinstance(error, ModelError) else None
    failure = ModelError(f"the model of agent {level.agent.name!r} failed: {told}", code=code)
    await emit(ErrorEvent(agent=level.path, code=failure.code, message=str(failure)))
    return failure


def _no_tools(level: Level, model: BaseChatModel) -> ErrorEvent:
    message = f"{type(model).__name__} cannot bind tools: {level.agent.name} runs as plain chat"
    return ErrorEvent(agent=level.path, code="tools_unsupported", message=message)


def _adopt(level: Level, message: AIMessage, whole: Sequence[AnyMessage]) -> AIMessage:
    """Give a message its author, an id, and call ids that the conversation has not seen."""
    update: dict[str, Any] = {"name": message.name or level.agent.name}
    if not message.id or any(known.id == message.id for known in whole):
        update["id"] = new_id()  # a cached answer has the id of the first; it must not replace it
    if calls_of(message):
        asked = (call for m in whole if isinstance(m, AIMessage) for call in calls_of(m))
        used = {str(call["id"]) for call in asked}
        used |= {m.tool_call_id for m in whole if isinstance(m, ToolMessage)}
        for key, calls in (
            ("tool_calls", message.tool_calls),
            ("invalid_tool_calls", message.invalid_tool_calls),
        ):
            update[key] = [_with_fresh_id(dict(call), used) for call in calls]
    return message.model_copy(update=update)


def _with_fresh_id(call: dict[str, Any], used: set[str]) -> dict[str, Any]:
    if not call["id"] or call["id"] in used:
        call["id"] = f"call_{new_id()}"
    used.add(call["id"])
    return call


async def _tell(level: Level, message: AIMessage) -> None:
    usage = message.usage_metadata
    run = current_run()
    if run is not None:
        model = str(message.response_metadata.get("model_name") or "")
        run.record_usage(level.path, usage, model)
    for native in native_calls_of(message):
        await emit(
            ToolUsageEvent(agent=level.path, tool=native.tool, args=native.args, call_id=native.id)
        )
    if message.text:
        text, message_id = str(message.text), message.id or ""
        await emit(AIMessageEvent(agent=level.path, text=text, message_id=message_id))
    for call in message.tool_calls:
        if not level.toolset.is_signal(call["name"]):
            await emit(
                ToolUsageEvent(
                    agent=level.path,
                    tool=call["name"],
                    args=call["args"],
                    call_id=call["id"] or "",
                )
            )
