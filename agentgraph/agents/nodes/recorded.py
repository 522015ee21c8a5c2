"""Tools that enter their result in the journal the moment they have it.

Between a tool's return and its answer lie several turns of the event loop; a run that is cancelled
just then would call a result unknown that is known.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.types import Command

from agentgraph.outcomes import Finish, Handoff
from agentgraph.running import Run, enter


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A tool call, and the task that runs it.

    The task tells calls apart: ids need only be unique within one history, and delegates have
    histories of their own. A resumed task keeps its name.
    """

    call: ToolCall
    task: str
    run: Run | None = None


current_call: ContextVar[RunningCall | None] = ContextVar("agentgraph_call", default=None)


def known_result(running: RunningCall) -> ToolMessage | None:
    """Return what a call returned before its run was cut off, in this process."""
    return None if running.run is None else running.run.results.get(running.task)


def recorded(tool: BaseTool) -> BaseTool:
    """Return a tool that records; one that is not made of a function stays as it is."""
    if not isinstance(tool, StructuredTool):
        return tool
    update: dict[str, object] = {}
    if tool.func is not None:
        update["func"] = _recording(tool.func)
    if tool.coroutine is not None:
        update["coroutine"] = _recording_async(tool.coroutine)
    return tool.model_copy(update=update)


def _recording(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        _record(result)
        return result

    return run


def _recording_async(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        _record(result)
        return result

    return run


def _record(result: object) -> None:
    running = current_call.get()
    if running is None or isinstance(result, Command | Handoff | Finish):
        return
    call = running.call
    call_id = call["id"] or ""
    content = result[0] if isinstance(result, tuple) and len(result) == 2 else result
    told = (
        content
        if isinstance(content, ToolMessage)
        else ToolMessage(_as_text(content), tool_call_id=call_id, name=call["name"])
    ).model_copy(update={"id": f"answer_{call_id}", "tool_call_id": call_id})
    run = running.run
    enter(run, [told])
    if run is not None:
        run.results[running.task] = told


def _as_text(content: object) -> str:
    if isinstance(content, str):
        return content
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(content)
