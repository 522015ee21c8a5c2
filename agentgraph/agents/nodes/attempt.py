"""One attempt at a tool call, shared by the code around LangGraph's `ToolNode` and inside of it.

`ToolNode` passes on the call and nothing else, so the attempt is in a context variable. A tool
records its result in the attempt as soon as it returns: several turns of the event loop lie between
a tool's return and the answer to its call, and a run that is cancelled in between would otherwise
report a known result as unknown.
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
    """A running tool call, and what it has written so far."""

    call: ToolCall
    position: str
    """The number of the level's message with calls, and of the call in that message."""
    task: str
    """The task that runs the call, the same when it is resumed. The call's id would not do: ids are
    unique within one history only, and delegates have histories of their own."""
    outcome: CallOutcome
    progress: str = ""
    """The digest of the conversation's progress when the tool was called."""
    run: Run | None = None
    stops: Stops = field(default_factory=Stops)
    updates: list[dict[str, Any]] = field(default_factory=list)
    answers: list[ToolMessage] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    has_run: bool = False
    """Whether a tool ran for the call; a wrapper or a team may answer it without a tool."""

    def earlier_result(self) -> ToolMessage | None:
        """Return the call's result from before its run was cut off, if it ran in this process."""
        return None if self.run is None else self.run.results.get(self.task)

    def record(self, message: ToolMessage) -> None:
        """Enter a result in the journal, and in the results for a resumed task."""
        if self.run is not None:
            self.run.record_messages([message])
            self.run.results[self.task] = message


current_attempt: ContextVar[ToolAttempt] = ContextVar("agentgraph_tool_attempt")


def recording_tool(tool: BaseTool) -> BaseTool:
    """Return a tool that records its results; a tool without a function is returned unchanged."""
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
