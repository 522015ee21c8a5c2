"""Tools that enter their result in the journal the moment they have it.

Between a tool's return and its answer lie several turns of the event loop; a run that is cancelled
just then would call a result unknown that is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.types import Command

from agentgraph.outcomes import Finish, Handoff
from agentgraph.running import note

__all__ = ["current_call", "recorded"]

current_call: ContextVar[ToolCall | None] = ContextVar("agentgraph_call", default=None)


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
    call = current_call.get()
    if call is None or isinstance(result, Command | Handoff | Finish):
        return
    content = result[0] if isinstance(result, tuple) and result else result
    text = content.text if isinstance(content, ToolMessage) else content
    call_id = call["id"] or ""
    note([ToolMessage(str(text), id=f"answer_{call_id}", tool_call_id=call_id, name=call["name"])])
