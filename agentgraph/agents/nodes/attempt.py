"""One attempt at a tool call, shared by the code around LangGraph's `ToolNode` and inside of it.

`ToolNode` passes on the call and nothing else, so the attempt is in a context variable. A tool
records its result in the attempt as soon as it returns: several turns of the event loop lie between
a tool's return and the answer to its call, and a run that is cancelled in between would otherwise
report a known result as unknown.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tracers.context import register_configure_hook
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command

from agentgraph.agents.nodes.middleware import Stops
from agentgraph.agents.nodes.state import CallOutcome
from agentgraph.blocking import in_thread, without_aborts
from agentgraph.contexts import scope
from agentgraph.graphs.silence import Silence
from agentgraph.interception import Code, current_code_guard, interception, outer_call
from agentgraph.outcomes import Finish, Handoff, Note
from agentgraph.running import Run, current_run
from agentgraph.telling import AGENT_TAG
from agentgraph.timeouts import is_left_behind

T = TypeVar("T")

Execute: TypeAlias = Callable[[Any], Awaitable[Any]]


@dataclass(slots=True)
class ToolAttempt:
    """A running tool call, and what it has written so far."""

    call: ToolCall
    position: str
    """The number of the level's message with calls, and of the call in that message."""
    task: str
    """The task that runs the call, the same when it is resumed. The call's id would not do: ids are
    unique within one history only, and delegates have histories of their own."""
    config: RunnableConfig
    outcome: CallOutcome
    progress: str = ""
    """The digest of the conversation's progress when the tool was called."""
    run: Run | None = None
    path: str = ""
    """The path of the agent whose tool it is."""
    stops: Stops = field(default_factory=Stops)
    updates: list[dict[str, Any]] = field(default_factory=list)
    answers: list[ToolMessage] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    has_run: bool = False
    """Whether a tool ran for the call; a wrapper or a team may answer it without a tool."""
    history: Sequence[AnyMessage] = ()
    """The conversation that the tool has seen."""
    is_over: bool = False
    """Whether the call has its answer: a tool that was left behind may still return."""
    is_inside: bool = False
    """Whether the tool itself is running, or has failed."""

    @property
    def has_removed_all(self) -> bool:
        """Whether the tool has removed all messages, its own call among them."""
        messages = [m for update in self.updates for m in update.get("messages") or ()]
        return any(isinstance(m, RemoveMessage) and m.id == REMOVE_ALL_MESSAGES for m in messages)

    @property
    def report(self) -> ToolMessage | None:
        """What the agent of the call has done, if it was removed while it served the call."""
        return None if self.run is None else self.run.reports.get(self.call["id"] or "")

    def earlier_result(self) -> ToolMessage | None:
        """Return the call's result from before its run was cut off, if it ran in this process."""
        return None if self.run is None else self.run.results.get(self.task)

    def record(self, message: ToolMessage) -> None:
        """Enter a result in the journal, and in the results for a resumed task."""
        if self.run is not None and not self.is_over:
            self.run.record_messages([message])
            self.run.results[self.task] = message


current_attempt: ContextVar[ToolAttempt] = ContextVar("agentgraph_tool_attempt")


class AskedModels(BaseCallbackHandler):
    """Counts the usage of the models that a tool, or a prompt function, asks itself, at its path.

    Agents that it runs count their own.
    """

    raise_error = True
    run_inline = True
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, run: Run | None, path: str) -> None:
        self._run = run
        self._path = path
        self._run_ids: set[UUID] = set()
        """The calls of models under way."""

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Follow a call of a model."""
        self._follow(run_id, metadata)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Follow a call of a model that takes texts."""
        self._follow(run_id, metadata)

    def _follow(self, run_id: UUID, metadata: dict[str, Any] | None) -> None:
        if asked_models.get() is self and AGENT_TAG not in (metadata or {}):
            self._run_ids.add(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **fields: Any) -> None:
        self._run_ids.discard(run_id)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **fields: Any) -> None:
        """Count what the call has used."""
        if run_id not in self._run_ids:
            return
        self._run_ids.remove(run_id)
        messages = (
            getattr(generation, "message", None)
            for generations in response.generations
            for generation in generations
        )
        for message in messages:
            if isinstance(message, AIMessage) and self._run is not None:
                self._run.record_usage_of(self._path, message)


asked_models: ContextVar[AskedModels | None] = ContextVar("agentgraph_asked_models", default=None)
"""Set inside of tools and the like, so that LangChain tells it of each call of a model."""
register_configure_hook(asked_models, inheritable=True)


async def run_users_code(
    path: str,
    name: str,
    function: Callable[..., Any],
    *args: Any,
    turn: Mapping[str, Any] | None = None,
) -> Any:
    """Call a function of the user, which may be asynchronous, under the guards of its agent.

    Guards run any other in a thread, as they could not cut it off in the thread of the event loop.
    """
    guard = current_code_guard()
    in_loop = guard is None or is_asynchronous(function)

    async def work() -> Any:
        result = function(*args) if in_loop else await in_thread(function, *args)
        return await result if inspect.isawaitable(result) else result

    return await _run_counted(path, Code(name, work), current_run(), turn)


async def run_wrappers(
    path: str,
    name: str,
    wrap: Callable[[Execute], Awaitable[T]],
    execute: Execute,
    run: Run | None = None,
) -> T:
    """Run middleware around a call; what it does itself is guarded, and `execute` as before."""
    reinstalled = interception()

    async def innermost(request: Any) -> Any:
        with reinstalled(), scope(asked_models, None):
            return await execute(request)

    code = Code(name, lambda: wrap(innermost), is_wrapper=True)
    return await _run_counted(path, code, run or current_run())


async def _run_counted(
    path: str, code: Code[T], run: Run | None, turn: Mapping[str, Any] | None = None
) -> T:
    """Run code under guards, if there are any, and count the usage of its models."""
    guard = current_code_guard()
    with scope(asked_models, AskedModels(run, f"{path}/{code.name}")):
        return await (code.work() if guard is None else guard.run_code(code, turn))


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Tell whether calling a function returns a coroutine."""
    call = getattr(function, "__call__", None)  # noqa: B004 - its type is asked, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def recording_tool(tool: BaseTool) -> BaseTool:
    """Return a tool that records its results, and ends no event loop, whatever it raises.

    A tool that is not asynchronous runs in a thread of our own: the loop's may all be taken.
    """
    if isinstance(tool, StructuredTool | Tool):
        work = tool.coroutine or (tool.func and _in_thread(tool.func))
        return tool.model_copy(update={"coroutine": work and _with_record(work)})
    copy = tool.model_copy()
    # The copy's `_arun` calls the original's, so that what a tool keeps of its calls stays there.
    is_synchronous = type(tool)._arun is BaseTool._arun
    work = _with_sync_manager(_in_thread(tool._run)) if is_synchronous else tool._arun
    object.__setattr__(copy, "_arun", _with_record(work))
    return copy


def _with_record(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        result = await _run_watched(function, *args, **kwargs)
        _record(result)
        return result

    return run


async def _run_watched(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    """Run the code of a tool; guards watch the models and tools that it calls itself."""
    call = outer_call()
    if call is None:
        return await without_aborts(function(*args, **kwargs))
    with call.interceptor.watch():
        if not call.interceptor.judges_answers:
            return await without_aborts(function(*args, **kwargs))
        with Silence(holds=lambda: False) as silence:  # no gate judges what its models say
            quiet = {name: _quiet(value, silence) for name, value in kwargs.items()}
            return await without_aborts(function(*args, **quiet))


def _quiet(value: Any, silence: Silence) -> Any:
    """Return an argument of a tool without the streams that a config in it has."""
    if isinstance(value, ToolRuntime):
        return replace(value, config=silence.quiet(value.config))
    if not isinstance(value, dict) or "callbacks" not in value:
        return value
    return silence.quiet(cast(RunnableConfig, value))


def _in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await in_thread(function, *args, **kwargs)

    return run


def _with_sync_manager(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("run_manager") is not None:
            kwargs["run_manager"] = kwargs["run_manager"].get_sync()
        return await function(*args, **kwargs)

    return run


def _record(result: object) -> None:
    attempt = current_attempt.get(None)
    if attempt is None or isinstance(result, Command | Handoff | Finish) or is_left_behind():
        return
    call_id = attempt.call["id"] or ""
    content = result[0] if isinstance(result, tuple) and len(result) == 2 else result
    message = (
        content
        if isinstance(content, ToolMessage)
        else ToolMessage(_as_text(content), tool_call_id=call_id, name=attempt.call["name"])
    )
    attempt.record(message.model_copy(update={"id": f"answer_{call_id}", "tool_call_id": call_id}))


def _as_text(content: object) -> str:
    if isinstance(content, str):
        return content
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(content)
