"""The turns of a script, and the answers that a model makes of them: a message, or its chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    InvalidToolCall,
    ToolCall,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from agentgraph.clock import SystemClock
from agentgraph.testing.provider_errors import connection_error, status_error

Call: TypeAlias = ToolCall | InvalidToolCall


def call(name: str, /, **args: object) -> ToolCall:
    """Return a tool call for a script; it gets an id when the model makes the call.

    call("refund", reason="charged twice")
    """
    return ToolCall(name=name, args=json.loads(json.dumps(args)), id=None, type="tool_call")


def bad_call(name: str, arguments: str = '{"reason": oops}') -> InvalidToolCall:
    """Return a tool call whose arguments are no JSON object: models sometimes write such calls.

    Raises `ValueError` for arguments that LangChain can read.
    """
    chunk = tool_call_chunk(name=name, args=arguments, id="probe", index=0)
    if AIMessageChunk(content="", tool_call_chunks=[chunk]).tool_calls:
        raise ValueError(f"LangChain can read these arguments: {arguments!r}")
    return InvalidToolCall(name=name, args=arguments, id=None, error=None, type="invalid_tool_call")


def calls_of(message: AIMessage) -> list[Call]:
    """Return the calls of a message, the malformed ones last."""
    return [*message.tool_calls, *message.invalid_tool_calls]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the model; without `usage`, each word counts as a token.

    `reasoning` is what the model thinks before it answers: a block of its own before the text.
    With `pieces` it streams the arguments of its calls in pieces, else each call's at once.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    usage: UsageMetadata | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    reasoning: str = ""
    pieces: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A turn that is late or fails: with an error half of it is streamed, then the error raised."""

    turn: Scripted = ""
    delay_s: float = 0.0
    error: Exception | None = None

    @classmethod
    def delay(cls, seconds: float, turn: Scripted) -> Self:
        """Return a turn that comes after `seconds` of the clock in force."""
        return cls(turn, delay_s=seconds)

    @classmethod
    def cut(cls, turn: Scripted, error: Exception | None = None) -> Self:
        """Return a turn whose stream breaks off, by default with the error of a lost connection."""
        return cls(turn, error=error or connection_error())

    @classmethod
    def rate_limit(cls, retry_after_s: float | None = None) -> Self:
        """Answer 429, as `openai.RateLimitError`."""
        return cls(error=status_error(429, retry_after_s))

    @classmethod
    def server_error(cls, status: int = 500) -> Self:
        """Answer 5xx, as `openai.InternalServerError`."""
        return cls(error=status_error(status))


Scripted: TypeAlias = str | AIMessage | Call | Sequence[Call] | Turn | Fault | Exception


@dataclass(frozen=True, slots=True)
class Answer:
    """A message, its delay, and the error that is raised in place of its second half."""

    message: AIMessage
    delay_s: float = 0.0
    error: Exception | None = None
    pieces: bool = False

    def result(self) -> ChatResult:
        """Return the message at once, or raise the error."""
        if self.error is not None:
            raise self.error
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    def stream(self) -> Iterator[ChatGenerationChunk]:
        """Yield the chunks; with an error the first half of them, then raise it."""
        chunks = chunks_of(self.message, self.pieces)
        for chunk in chunks if self.error is None else chunks[: len(chunks) // 2]:
            yield ChatGenerationChunk(message=chunk)
        if self.error is not None:
            raise self.error


def answer_of(turn: object, *, messages: Sequence[BaseMessage], model_name: str) -> Answer:
    """Return the answer of a turn to these messages; raise `TypeError` for an invalid turn."""
    match turn:
        case Fault():
            inner = answer_of(turn.turn, messages=messages, model_name=model_name)
            error = inner.error or turn.error
            return replace(inner, delay_s=inner.delay_s + turn.delay_s, error=error)
        case Exception():
            return Answer(AIMessage(""), error=turn)
        case AIMessage():
            return Answer(turn.model_copy(update={"id": turn.id or _fresh("ai")}))
        case _:
            written = _turn(turn)
            return Answer(_message(written, messages, model_name), pieces=written.pieces)


def _turn(turn: object) -> Turn:
    """Return a turn for a text or calls; raise `TypeError` for anything else."""
    match turn:
        case Turn():
            return turn
        case str():
            return Turn(turn)
        case {"name": str(), "args": _}:
            return _turn([turn])
        case list() | tuple() if all(isinstance(c, dict) and "args" in c for c in turn):
            return Turn(calls=cast("Sequence[Call]", turn))
        case _:
            raise TypeError(f"No turn: {turn!r}. Write a text, calls, a Turn, a Fault or an error.")


def _message(turn: Turn, messages: Sequence[BaseMessage], model_name: str) -> AIMessage:
    """Return the message of a turn, with ids and usage."""
    calls: list[Any] = [{**c, "id": c.get("id") or _fresh("call")} for c in turn.calls]
    message = AIMessage(
        _content(turn),
        id=_fresh("ai"),
        tool_calls=[c for c in calls if not _is_bad(c)],
        invalid_tool_calls=[c for c in calls if _is_bad(c)],
        response_metadata={"model_name": model_name, **turn.metadata},
    )
    message.usage_metadata = turn.usage or _word_usage(messages, message)
    return message


def _content(turn: Turn) -> Any:
    if not turn.reasoning:
        return turn.text
    # With an index, as providers have it: the pieces of one block are added up by it.
    thoughts = {"type": "reasoning", "reasoning": turn.reasoning, "index": 0}
    text = {"type": "text", "text": turn.text, "index": 1}
    return [thoughts, text] if turn.text else [thoughts]


def _is_bad(call: Call) -> bool:
    return call.get("type") == "invalid_tool_call"


def _fresh(kind: str) -> str:
    # Never a fake clock's id: two fake clocks in one test would give a thread one id twice.
    return f"{kind}_{SystemClock().new_id()[:24]}"


def _word_usage(messages: Sequence[BaseMessage], answer: AIMessage) -> UsageMetadata:
    inputs, outputs = sum(map(_words, messages)), _words(answer)
    return UsageMetadata(input_tokens=inputs, output_tokens=outputs, total_tokens=inputs + outputs)


def _words(message: BaseMessage) -> int:
    """Return the number of words in a message and its calls."""
    words = len(message.text.split())
    if isinstance(message, AIMessage):
        words += sum(len(f"{c['name']} {c['args']}".split()) for c in calls_of(message))
    return words


def chunks_of(message: AIMessage, pieces: bool = False) -> list[AIMessageChunk]:
    """Split a message as a provider streams it; the chunks add up to the message."""
    # A list and a string cannot be added, so the empty content has the type of the rest.
    empty: Any = "" if isinstance(message.content, str) else []
    # LangChain would read the raw calls of older messages as calls a second time.
    extras = {k: v for k, v in message.additional_kwargs.items() if k != "tool_calls"}
    last = AIMessageChunk(
        content=empty,
        id=message.id,
        additional_kwargs=extras,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        chunk_position="last",
    )
    return [
        *(AIMessageChunk(content=piece, id=message.id) for piece in _pieces(message.content)),
        *(
            AIMessageChunk(content=empty, id=message.id, tool_call_chunks=[chunk])
            for index, call in enumerate(calls_of(message))
            for chunk in _call_chunks(index, call, pieces)
        ),
        last,
    ]


def _pieces(content: str | list[Any]) -> list[Any]:
    """Split content: a text by words, a list by its blocks, and those with an index by words."""
    if isinstance(content, str):
        return re.findall(r"\s*\S+|\s+", content)
    return [[piece] for block in content for piece in _block_pieces(block)]


def _block_pieces(block: Any) -> list[Any]:
    kind = block.get("type") if isinstance(block, dict) and "index" in block else None
    if kind not in ("text", "reasoning"):
        return [block]
    return [{**block, kind: piece} for piece in _pieces(block[kind])]


def _call_chunks(index: int, call: Call, pieces: bool) -> Iterator[ToolCallChunk]:
    """Yield a call as providers stream it: the name first, then its arguments."""
    args = call["args"]
    text = args if isinstance(args, str) else json.dumps(args or {})
    half = len(text) // 2 if pieces else len(text)
    yield tool_call_chunk(index=index, name=call["name"], args="", id=call["id"])
    yield tool_call_chunk(index=index, args=text[:half])
    yield tool_call_chunk(index=index, args=text[half:])
