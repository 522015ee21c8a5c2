"""The calls of one model's message: which are open, how each is answered, and where it runs.

A call runs in the step of `call_tools`, or in a task of its own. A `Send` with a `CallTask` starts
such a task. The guards against loops compare digests of what calls and texts have led to.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NotRequired

from langchain_core.messages import AIMessage, AnyMessage, InvalidToolCall, ToolCall, ToolMessage
from typing_extensions import TypedDict

from agentgraph.agents.nodes.level import Level
from agentgraph.history import calls_of
from agentgraph.interception import SkippedCall, current_interceptor
from agentgraph.stream import ToolResponseEvent, ToolUsageEvent, emit, media_of

TRANSFER_MADE = "Conversation transferred to "
NOT_EXECUTED = "Not executed: "
HELP_REQUESTED = "Help requested of "


class CallTask(TypedDict):
    """The payload of the `Send` to the task that answers a call; checkpoints store it."""

    call: ToolCall
    position: str
    """The number of the level's message with calls, and of the call in that message: "2/0"."""
    message_id: str
    alone: NotRequired[bool]
    """Whether the call is of an agent as a tool, which gets the request and nothing else."""
    text: NotRequired[str]
    """The text of the transfer for the delegate."""


@dataclass(frozen=True, slots=True)
class PendingCalls:
    """A model's message with calls, and the answers that they have so far."""

    message: AIMessage
    answers: dict[str, ToolMessage]
    open_calls: list[ToolCall]
    """Its calls that had no answer when it was read, without the malformed ones."""
    number: int
    """Its number among the level's messages with calls since the turn or the visit began."""

    @classmethod
    def last(cls, messages: Sequence[AnyMessage], number: int | None) -> PendingCalls | None:
        """Return the calls of a level's last message with calls, None where it has none."""
        answers: dict[str, ToolMessage] = {}
        for message in reversed(messages):
            if isinstance(message, ToolMessage):
                answers[message.tool_call_id] = message
            if isinstance(message, AIMessage) and calls_of(message):
                open_calls = [c for c in message.tool_calls if c["id"] not in answers]
                return cls(message, answers, open_calls, number or 0)
        return None

    @property
    def malformed_calls(self) -> list[InvalidToolCall]:
        """Its calls whose arguments are no JSON, those that had no answer when it was read."""
        return [c for c in self.message.invalid_tool_calls if c["id"] not in self.answers]

    @property
    def has_open(self) -> bool:
        """Whether any of its calls had no answer when it was read."""
        return bool(self.open_calls or self.malformed_calls)

    def work(self, level: Level) -> list[ToolCall]:
        """Return its open calls of tools and of agents as tools: they come before all moves."""
        return [call for call in self.open_calls if call["name"] not in level.toolset.moves]

    def task(self, call: ToolCall) -> CallTask:
        """Return the payload for the task that answers a call."""
        index = [c["id"] for c in self.message.tool_calls].index(call["id"])
        position = f"{self.number}/{index}"
        return {"call": call, "position": position, "message_id": str(self.message.id)}

    async def report_unrun(self, answers: Iterable[ToolMessage]) -> None:
        """Report to the guards the calls that were answered although no tool ran."""
        await report_unrun(calls_of(self.message), answers, str(self.message.id))


def answer(call_id: str, tool: str, text: str, *, failed: bool = False) -> ToolMessage:
    """Answer a call; the id follows from the call's, so that a later answer replaces this one."""
    return ToolMessage(
        text,
        id=f"answer_{call_id}",
        tool_call_id=call_id,
        name=tool,
        status="error" if failed else "success",
    )


def refusal(call_id: str, tool: str, reason: str) -> ToolMessage:
    """Answer a call that was not executed, and say why."""
    return answer(call_id, tool, f"{NOT_EXECUTED}{reason}", failed=True)


def transfer_text(target: str, reason: str, summary: str) -> str:
    """Return the text of the answer to a transfer: which agent has the conversation, and why."""
    lines = [f"{TRANSFER_MADE}{target}"]
    lines += [f"Reason: {reason}"] if reason else []
    lines += [f"Summary: {summary}"] if summary else []
    return "\n".join(lines)


async def emit_call(
    level: Level, tool: str | None, args: Mapping[str, object], call_id: str | None
) -> None:
    """Emit the event that a call is made, before the event of its answer."""
    await emit(
        ToolUsageEvent(agent=level.path, tool=tool or "tool", args=args, call_id=call_id or "")
    )


async def emit_answers(
    level: Level, pending: PendingCalls, answers: list[ToolMessage]
) -> list[ToolMessage]:
    """Emit the events of answers, and return the answers.

    The calls of transfer tools and of `request_help` have no such events but routing events.
    """
    names = {call["id"]: call["name"] for call in calls_of(pending.message)}
    for message in answers:
        name = names.get(message.tool_call_id) or "tool"
        if name not in level.toolset.moves:
            await emit_answer(level, message, name)
    return answers


async def emit_answer(level: Level, message: ToolMessage, tool: str = "") -> None:
    """Emit the event that a call has its answer; `tool` where the answer has another name."""
    await emit(
        ToolResponseEvent(
            agent=level.path,
            tool=tool or message.name or "",
            content=str(message.text),
            call_id=message.tool_call_id,
            status=message.status,
            blocks=media_of(message),
        )
    )


async def report_unrun(
    calls: Iterable[ToolCall | InvalidToolCall], answers: Iterable[ToolMessage], message_id: str
) -> None:
    """Report to the guards the calls that were answered although no tool ran.

    A model may make such a call again and again, and no tool run would ever show that.
    """
    interceptor = current_interceptor()
    if interceptor is None:
        return
    by_id = {call["id"] or "": call for call in calls}
    for message in answers:
        call = by_id[message.tool_call_id]
        failed = message.status == "error"
        await interceptor.tool_skipped(
            SkippedCall(message.name or "", call["args"], message_id, message.text, failed)
        )


_visit: ContextVar[str] = ContextVar("agentgraph_visit", default="")


def current_visit() -> str:
    """Return the positions of the calls around this code, the same when the code runs again."""
    return _visit.get()


@contextmanager
def inside_visit(position: str) -> Iterator[None]:
    """Mark the code in here by the call's position, as a turn may visit one agent several times."""
    token = _visit.set(f"{_visit.get()}>{position}")
    try:
        yield
    finally:
        _visit.reset(token)


def progress(messages: Sequence[AnyMessage], *, by_work: bool = False) -> str:
    """Return a digest of the last text or tool result, "" where there is none.

    A handoff, its reason and its notices do not count: two agents that only pass a conversation
    back and forth make no progress. With `by_work` neither do requests for help, and what is said
    beside calls.
    """
    moves = (*_MOVES, HELP_REQUESTED) if by_work else _MOVES
    for message in reversed(messages):
        text = str(message.text)
        if isinstance(message, ToolMessage):
            text = "" if text.startswith(moves) else text
        elif by_work and isinstance(message, AIMessage) and calls_of(message):
            text = ""
        else:
            text = _NOTICES.sub("", text).strip()
        if text:
            return _digest(f"{message.type} {text}")
    return ""


def work_of(messages: Sequence[AnyMessage]) -> str:
    """Return a digest of the calls that succeeded and of their results, "" where there are none.

    The arguments count too: many tools answer "ok" to every call.
    """
    calls = {c["id"]: c for m in messages if isinstance(m, AIMessage) for c in m.tool_calls}
    answers = [m for m in messages if isinstance(m, ToolMessage) and m.status == "success"]
    texts = [(calls.get(m.tool_call_id), str(m.text)) for m in answers]
    results = [[_call_text(call), text] for call, text in texts if not text.startswith(_MOVES)]
    return _digest(json.dumps(results)) if results else ""


def _call_text(call: ToolCall | None) -> str:
    if call is None:
        return ""
    return json.dumps([call["name"], call["args"]], sort_keys=True, default=str)


_HANDOFF_RESULT = '{"accepted":'
"""The beginning of the answer to a handoff in a team."""
_NOTICES = re.compile(
    r"^\[(?:[^\]\n]* handed over to [^\]\n]*|Earlier in this conversation: [^\]\n]*)\]$"
    r"|^\[Context from [^\]\n]*\]:.*?(?=\n\n\[|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""The notices of handoffs in the history of a team's participants."""
_MOVES = (TRANSFER_MADE, NOT_EXECUTED, _HANDOFF_RESULT)


def _digest(text: str) -> str:
    # A provider may cut a surrogate pair in two, and strict UTF-8 cannot encode one half.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
