"""The node `call_model`: one model call on a history that is legal for every provider.

A provider's error is an event and a raised `ModelError`: it never becomes an answer. Below the node
stands how citations and the provider's own tool calls are read from a message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
)
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic_core import to_json

from agentgraph.agents.nodes.attempt import run_users_code, run_wrappers
from agentgraph.agents.nodes.calls import emit_call
from agentgraph.agents.nodes.formed_answer import ask_in_form
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.middleware import Middleware
from agentgraph.agents.nodes.state import AgentState
from agentgraph.clock import new_id
from agentgraph.errors import GuardStopped, ModelError
from agentgraph.history import (
    KnownHistory,
    apply_policy,
    as_plain_chat,
    calls_of,
    repair,
    split_system,
)
from agentgraph.interception import Answerer, ask_model
from agentgraph.models import attempting_once, resolve_model
from agentgraph.running import current_run
from agentgraph.sendable import with_call_ids
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    ToolResponseEvent,
    ToolUsageEvent,
    emit,
    media_of,
)
from agentgraph.telling import AGENT_TAG, FOREIGN_TAG, MOVES_TAG

Node: TypeAlias = Callable[[AgentState, Runtime[Any]], Awaitable[Command[str]]]
Ask: TypeAlias = Callable[
    [str, AgentState, Runtime[Any], list[AnyMessage]], Awaitable[tuple[AIMessage, dict[str, Any]]]
]


def call_model(level: Level, model: BaseChatModel, middleware: Middleware) -> Node:
    """Make the node for a level; `model` has the retries of its own client switched off."""
    ask = _asker(level, model, middleware)

    async def call(state: AgentState, runtime: Runtime[Any]) -> Command[str]:
        run, messages = current_run(), level.history(state)
        known_history = KnownHistory() if run is None else run.known_history
        system_texts, view = await _view(level, messages, known_history)
        texts = (state.get("system_prompt", ""), *system_texts)
        system = "\n\n".join(text for text in texts if text)
        output = level.toolset.output
        if output is None:
            response, update = await ask(system, state, runtime, view)
        else:
            ask_again = partial(ask, system, state, runtime)
            response, update = await ask_in_form(level, output, messages, view, ask_again)
        message = _adopt(level, response, messages, known_history)
        if run is not None:
            run.record_messages([message])
            run.record_usage_of(level.path, message)
        await _report(level, message)
        update = {**update, "messages": [*update.get("messages", ()), message]}
        if state.get("forced_tool"):
            update["forced_tool"] = None
        if message.tool_calls or message.invalid_tool_calls:
            update["asked"] = state.get("asked", 0) + 1
        elif output is not None:
            update["output"] = output.read(str(message.text))
        return Command(update=update)

    return call


async def _view(
    level: Level, messages: list[AnyMessage], known_history: KnownHistory
) -> tuple[list[str], list[AnyMessage]]:
    """Return the system texts of a history, and the messages that the policy shows the model."""
    system, view = split_system(messages)
    policy = level.agent.history
    if policy is None or isinstance(policy, int):
        return system, repair(apply_policy(view, policy), known_history)
    # A function of the user gets a legal history too, or it would have to repair one itself.
    more, view = split_system(
        await run_users_code(level.path, "history", apply_policy, repair(view), policy)
    )
    return [*system, *more], repair(view)


def _asker(level: Level, model: BaseChatModel, middleware: Middleware) -> Ask:
    """Return a function that asks the model inside of middleware and guards.

    The function returns the message and the middleware's update to the state. It turns every error
    of a provider into `ModelError`; interrupts and the stops of guards pass.
    """
    binding = _Binding(level, model)

    async def ask(
        system: str, state: AgentState, runtime: Runtime[Any], view: list[AnyMessage]
    ) -> tuple[AIMessage, dict[str, Any]]:
        if binding.is_plain:
            await emit(_no_tools(level, model))
            view = as_plain_chat(view)
            if (output := level.toolset.output) is not None:
                system = f"{system}\n\n{output.request}".lstrip()
        choice = binding.choice
        if forced_tool := state.get("forced_tool"):
            choice, hint = binding.force(forced_tool)
            system = f"{system}\n\n{hint}".strip()
        try:
            if middleware.wraps_model:
                specs = [] if binding.is_plain else binding.specs
                request = middleware.request(
                    model, view, system, specs, {**state, "messages": view}, runtime
                )
                around = partial(run_wrappers, level.path, "wrap_model_call")
                return await middleware.call_model(request, choice, binding.tag, around)
            messages = [SystemMessage(system), *view] if system else view
            ask = partial(binding.ask, choice)
            return await ask_model(model, messages, binding.specs, ask), {}
        except (GraphBubbleUp, GuardStopped):
            raise
        except Exception as error:
            # The boundary to providers: users catch one type for all of their errors.
            raise await _model_error(level, error) from error

    return ask


class _Binding:
    """A level's tools, bound to its model, or to the fallback that a guard asks instead."""

    def __init__(self, level: Level, model: BaseChatModel) -> None:
        self.specs = level.toolset.specs
        self.choice: Mapping[str, Any] = {}
        output = level.toolset.output
        if output is not None and output.provider_settings and _has_forms(model):
            self.choice = output.provider_settings
        elif output is not None:
            self.specs, self.choice = [*self.specs, *output.specs], {"tool_choice": "any"}
        self.tag: dict[str, object] = {AGENT_TAG: level.path, FOREIGN_TAG: False}
        if level.toolset.moves:
            self.tag[MOVES_TAG] = sorted(level.toolset.moves)
        self.is_plain = False
        self._model = model
        self._own = self._bind(model, self.choice)

    def force(self, tool: str) -> tuple[Mapping[str, Any], str]:
        """Return the choice that makes the model call a tool, and a hint where that fails."""
        choice = {**self.choice, "tool_choice": tool}
        if self.is_plain:
            return {}, ""
        try:
            self._model.bind_tools(self.specs, **choice)
        except Exception:  # clients refuse an argument that they do not know in many ways
            return self.choice, f"Call the tool `{tool}` now, with arguments from the last message."
        return choice, ""

    def _bind(self, model: BaseChatModel, choice: Mapping[str, Any]) -> Any:
        runnable: Any = model
        if self.specs:
            try:
                runnable = model.bind_tools(self.specs, **choice)
            except NotImplementedError:  # LangChain's sign that a model supports no tools
                self.is_plain, self.choice = True, {}
        elif self.choice:
            runnable = model.bind(**self.choice)
        return runnable.with_config(metadata=self.tag)

    async def ask(
        self,
        choice: Mapping[str, Any],
        answerer: Answerer | None,
        messages: Sequence[BaseMessage],
    ) -> AIMessage:
        """Ask the level's model, or the one that a guard has chosen in its place."""
        model = self._own
        if answerer is not None:
            model = self._bind(attempting_once(resolve_model(answerer)), choice)
        elif choice != self.choice:
            model = self._bind(self._model, choice)
        # With a config, LangChain merges the metadata of the node into that of the binding.
        answer: AIMessage = await model.ainvoke(list(messages), {})
        return answer


def _has_forms(model: BaseChatModel) -> bool:
    """Tell whether a model's provider answers in a form itself, as far as that is known."""
    return (model.profile or {}).get("structured_output") is not False


async def _model_error(level: Level, error: Exception) -> ModelError:
    """Emit a failure; return it as an error that says it in words, but without secrets."""
    failure = ModelError.of(f"the model of agent {level.agent.name!r}", error)
    await emit(ErrorEvent.of(failure, level.path))
    return failure


def _no_tools(level: Level, model: BaseChatModel) -> ErrorEvent:
    message = f"{type(model).__name__} cannot bind tools: {level.agent.name} runs as plain chat"
    return ErrorEvent(agent=level.path, code="tools_unsupported", message=message)


def _adopt(
    level: Level, message: AIMessage, history: Sequence[AnyMessage], known_history: KnownHistory
) -> AIMessage:
    """Give a message its author, an id, and call ids that the conversation has not seen."""
    update: dict[str, Any] = {"name": message.name or level.agent.name}
    if not message.id or message.id in [earlier.id for earlier in history]:
        update["id"] = new_id()  # a cached answer repeats its id; it must not replace the first one
    calls = calls_of(message)
    if calls and (new_ids := _fresh_ids(calls, known_history.call_ids_of(history))):
        message = with_call_ids(message, new_ids)
    return level.marked(message.model_copy(update=update))


def _fresh_ids(
    calls: Sequence[ToolCall | InvalidToolCall], call_ids: set[str | None]
) -> dict[int, str]:
    """Return new ids for calls, by position, that have none or one of `call_ids`."""
    new_ids: dict[int, str] = {}
    for position, call in enumerate(calls):
        if not call["id"] or call["id"] in call_ids:
            new_ids[position] = f"call_{new_id()}"
        call_ids.add(new_ids.get(position) or str(call["id"]))
    return new_ids


async def _report(level: Level, message: AIMessage) -> None:
    """Emit the content of a message: native calls, text, images and calls."""
    for native in native_calls_of(message):
        await emit(
            ToolUsageEvent(agent=level.path, tool=native.tool, args=native.args, call_id=native.id)
        )
        if native.result is not None:
            await emit(_native_response(level, native))
    text, blocks, message_id = str(message.text), media_of(message), message.id or ""
    if text or blocks:
        path = level.path
        await emit(AIMessageEvent(agent=path, text=text, message_id=message_id, blocks=blocks))
    for call in message.tool_calls:
        if call["name"] not in level.toolset.moves:
            await emit_call(level, call["name"], call["args"], call["id"])
    for bad_call in message.invalid_tool_calls:
        await emit_call(level, bad_call["name"], {}, bad_call["id"])


def _native_response(level: Level, native: NativeCall) -> ToolResponseEvent:
    return ToolResponseEvent(
        agent=level.path,
        tool=native.tool,
        content=native.result or "",
        call_id=native.id,
        status="error" if native.has_failed else "success",
    )


@dataclass(frozen=True, slots=True)
class Citation:
    """A source that a text names."""

    url: str
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A tool that the provider has run itself."""

    id: str
    tool: str
    args: dict[str, object]
    result: str | None = None
    """What the provider reports of its result, None where it reports nothing."""
    has_failed: bool = False


def citations_of(message: AIMessage) -> list[Citation]:
    """Return the sources that a message names, each once, in their order."""
    citations = {
        str(note["url"]): Citation(
            str(note["url"]), str(note.get("title") or ""), str(note.get("cited_text") or "")
        )
        for block in _blocks(message)
        for note in block.get("annotations") or ()
        if isinstance(note, dict) and note.get("url")
    }
    return list(citations.values())


def native_calls_of(message: AIMessage) -> list[NativeCall]:
    """Return the calls of the provider's own tools that a message reports."""
    blocks = list(_blocks(message))
    results = {b.get("tool_call_id"): b for b in blocks if b.get("type") == "server_tool_result"}
    return [
        _native_call(block, results.get(block.get("id")))
        for block in blocks
        if block.get("type") == "server_tool_call"
    ]


def _native_call(block: dict[str, Any], result: dict[str, Any] | None) -> NativeCall:
    call_id, name = str(block.get("id") or ""), str(block.get("name") or "")
    if result is None:
        return NativeCall(call_id, name, _args(block))
    output = result.get("output")
    text = output if isinstance(output, str) else to_json(output, fallback=str).decode()
    return NativeCall(call_id, name, _args(block), text, result.get("status") == "error")


def _args(block: dict[str, Any]) -> dict[str, object]:
    args = block.get("args")
    return args if isinstance(args, dict) else {}


def _blocks(message: AIMessage) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, list):  # a plain string has no such blocks
        yield from (dict(block) for block in message.content_blocks)
