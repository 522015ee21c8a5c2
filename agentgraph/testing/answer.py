"""A turn of the script as LangChain wants it: a message with ids and usage, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from agentgraph.clock import SystemClock
from agentgraph.testing.calls import Call, calls_of
from agentgraph.testing.chunks import chunks_of
from agentgraph.testing.turns import Fault, Turn

__all__ = ["Answer", "answer_of"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said, after how long, and what goes wrong then."""

    message: AIMessage
    delay_s: float = 0.0
    error: Exception | None = None

    def result(self) -> ChatResult:
        if self.error is not None:
            raise self.error
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    def stream(self) -> Iterator[ChatGenerationChunk]:
        chunks = chunks_of(self.message)
        for chunk in chunks if self.error is None else chunks[: len(chunks) // 2]:
            yield ChatGenerationChunk(message=chunk)
        if self.error is not None:
            raise self.error


def answer_of(turn: object, *, asked: Sequence[BaseMessage], model_name: str) -> Answer:
    """Return the answer that a turn is to these messages."""
    match turn:
        case Fault():
            inner = answer_of(turn.turn, asked=asked, model_name=model_name)
            error = inner.error or turn.error
            return Answer(inner.message, inner.delay_s + turn.delay_s, error)
        case Exception():
            return Answer(AIMessage(""), error=turn)
        case AIMessage():
            return Answer(turn.model_copy(update={"id": turn.id or _fresh("ai")}))
        case _:
            return Answer(_said(_turn(turn), asked, model_name))


def _turn(turn: object) -> Turn:
    match turn:
        case Turn():
            return turn
        case str():
            return Turn(turn)
        case {"name": str(), "args": _}:
            return _turn([turn])
        case list() | tuple() if all(isinstance(one, dict) and "args" in one for one in turn):
            return Turn(calls=cast("Sequence[Call]", turn))
        case _:
            raise TypeError(f"No turn: {turn!r}. Write a text, calls, a Turn, a Fault or an error.")


def _said(turn: Turn, asked: Sequence[BaseMessage], model_name: str) -> AIMessage:
    calls: list[Any] = [{**one, "id": one.get("id") or _fresh("call")} for one in turn.calls]
    message = AIMessage(
        turn.text,
        id=_fresh("ai"),
        tool_calls=[one for one in calls if not _is_bad(one)],
        invalid_tool_calls=[one for one in calls if _is_bad(one)],
        response_metadata={"model_name": model_name, **turn.metadata},
    )
    message.usage_metadata = turn.usage or _counted(asked, message)
    return message


def _is_bad(one: Call) -> bool:
    return one.get("type") == "invalid_tool_call"


def _fresh(kind: str) -> str:
    # Never a fake clock's id: two of those in one test would give a thread one id twice.
    return f"{kind}_{SystemClock().new_id()[:24]}"


def _counted(asked: Sequence[BaseMessage], said: AIMessage) -> UsageMetadata:
    read, written = sum(map(_words, asked)), _words(said)
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _words(message: BaseMessage) -> int:
    words = len(message.text.split())
    if isinstance(message, AIMessage):
        words += sum(len(f"{one['name']} {one['args']}".split()) for one in calls_of(message))
    return words
