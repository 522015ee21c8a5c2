"""The calls of one model's message: which are open, and what a call carries into its own task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NotRequired, cast

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from typing_extensions import TypedDict

from agentgraph.agents.nodes.answers import report_unrun
from agentgraph.agents.nodes.state import AgentState
from agentgraph.history import calls_of


class CallTask(TypedDict):
    """What a `Send` carries to the task that answers a call; checkpoints store it."""

    call: ToolCall
    position: str
    """Which message with calls of its level, and which call of that message: "2/0"."""
    message_id: str
    alone: NotRequired[bool]
    """Whether a sub-agent gets the request and nothing else, because it is called as a tool."""
    text: NotRequired[str]
    """The transfer, as a delegate reads it."""


def call_task_of(state: AgentState) -> CallTask | None:
    """Return the call that a task was started with by a `Send`, None in an ordinary step."""
    return cast("CallTask | None", state.get("sent"))


@dataclass(frozen=True, slots=True)
class PendingCalls:
    """A model's message with calls, and the answers that they have so far."""

    message: AIMessage
    answers: dict[str, ToolMessage]
    number: int
    """Which of this level's messages with calls it is, since its turn or its visit began."""

    @classmethod
    def last(cls, state: AgentState) -> PendingCalls | None:
        """Return the last calls of a level, None where its messages have none."""
        answers: dict[str, ToolMessage] = {}
        for message in reversed(state.get("messages", [])):
            if isinstance(message, ToolMessage):
                answers[message.tool_call_id] = message
            if isinstance(message, AIMessage) and calls_of(message):
                return cls(message, answers, state.get("asked", 0))
        return None

    def open(self, calls: Iterable[ToolCall]) -> list[ToolCall]:
        """Return those of some calls that have no answer."""
        return [call for call in calls if call["id"] not in self.answers]

    def task(self, call: ToolCall) -> CallTask:
        """Return what a call carries to the task that answers it."""
        index = [c["id"] for c in self.message.tool_calls].index(call["id"])
        position = f"{self.number}/{index}"
        return {"call": call, "position": position, "message_id": str(self.message.id)}

    async def report_unrun(self, answers: Iterable[ToolMessage]) -> None:
        """Report to the guards which of the calls were answered without anything having run."""
        await report_unrun(calls_of(self.message), answers, str(self.message.id))


_visit: ContextVar[str] = ContextVar("agentgraph_visit", default="")


def current_visit() -> str:
    """Return the positions at which this code was entered, the same whenever it runs again."""
    return _visit.get()


@contextmanager
def inside_visit(position: str) -> Iterator[None]:
    """Tell the visits that one turn makes to the same sub-agent apart, by their positions."""
    token = _visit.set(f"{_visit.get()}>{position}")
    try:
        yield
    finally:
        _visit.reset(token)
