"""One attempt at a tool call: what is known of it on both sides of LangGraph's `ToolNode`.

`ToolNode` hands on the call and nothing else, so the attempt travels around it in a context
variable. Tools record their result in it the moment they have it: between a tool's return and its
answer lie several turns of the event loop, and a run that is cancelled just then would otherwise
call a result unknown that is known.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.types import Command

from agentgraph.agents.nodes.middleware import Stops
from agentgraph.agents.nodes.state import CallOutcome
from agentgraph.outcomes import Finish, Handoff, Note
from agentgraph.running import Run


@dataclass(slots=True)
class ToolAttempt:
    """A tool call that runs, and what it has written so far."""

    call: ToolCall
    position: str
    """Which message with calls of its level, and which call of that message."""
    task: str
    """Which task runs it, also when that is resumed. The call's id would not do: ids are unique
    within one history only, and delegates have histories of their own."""
    outcome: CallOutcome
    progress: str = ""
    """How far the conversation had come when the tool was called."""
    run: Run | None = None
    stops: Stops = field(default_factory=Stops)
    updates: list[dict[str, Any]] = field(default_factory=list)
    answers: list[ToolMessage] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    has_run: bool = False
    """Whether something ran for it; a wrapper or a team may answer a call without that."""

    def earlier_result(self) -> ToolMessage | None:
        """Return what the call returned before its run was cut off, in this process."""
        return None if self.run is None else self.run.results.get(self.task)

    def record(self, message: ToolMessage) -> None:
        """Enter a result in the journal, and keep it for a resumed task."""
        if self.run is not None:
            self.run.record_messages([message])
            self.run.results[self.task] = message


current_attempt: ContextVar[ToolAttempt] = ContextVar("agentgraph_tool_attempt")


def recording_tool(tool: BaseTool) -> BaseTool:
    """Return a tool that records its results; one that is made of no function stays as it is."""
    if not isinstance(tool, StructuredTool):
        return tool
    update: dict[str, object] = {}
    if tool.func is not None:
        update["func"] = _recording_function(tool.func)
    if tool.coroutine is not None:
        update["coroutine"] = _recording_coroutine(tool.coroutine)
    return tool.model_copy(update=update)


def _recording_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        _record(result)
        return result

    return run


def _recording_coroutine(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        _record(result)
        return result

    return run


def _record(result: object) -> None:
    attempt = current_attempt.get(None)
    if attempt is None or isinstance(result, Command | Handoff | Finish):
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
