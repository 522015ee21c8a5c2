"""What a test of agents needs: a model that follows a script, and a clock that stands still.

model = ScriptedModel(["Hello.", call("refund", reason="charged twice"), "It is done."])
assert model.requests[0].tools == ("refund",)

with FakeClock().installed() as clock:
    clock.advance(60)
"""

from __future__ import annotations

import asyncio
import heapq
import json
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from inspect import isawaitable, iscoroutine
from itertools import count
from random import Random  # noqa: TID251 - a seeded one, for the fake clock
from threading import Lock
from types import ModuleType
from typing import Any, Self, TypeAlias, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    InvalidToolCall,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from agentgraph.clock import SystemClock, clock, use_clock

__all__ = [
    "FakeClock",
    "Fault",
    "IllegalHistory",
    "Request",
    "ScriptExhausted",
    "ScriptedModel",
    "Turn",
    "bad_call",
    "call",
    "check_history",
]

T = TypeVar("T")
Call: TypeAlias = ToolCall | InvalidToolCall
Scripted: TypeAlias = "str | AIMessage | Call | Sequence[Call] | Turn | Fault | Exception"
Script: TypeAlias = (
    "Sequence[Scripted] | Callable[[list[BaseMessage]], Scripted | Awaitable[Scripted]]"
)

_URL = "https://api.openai.com/v1/chat/completions"
_NANO = 1_000_000_000


class IllegalHistory(ValueError):
    """A provider would refuse these messages."""


class ScriptExhausted(AssertionError):
    """The model was asked more often than its script has turns."""


def call(name: str, /, **args: object) -> ToolCall:
    """Make a tool call; it gets its id when the model makes it."""
    return ToolCall(name=name, args=json.loads(json.dumps(args)), id=None, type="tool_call")


def bad_call(name: str, arguments: str = '{"reason": oops}') -> InvalidToolCall:
    """Make a tool call whose arguments are no JSON object."""
    probe = AIMessageChunk(content="", tool_call_chunks=[_call_chunk(0, name, arguments, "probe")])
    if probe.tool_calls:
        raise ValueError(f"LangChain can read these arguments: {arguments!r}")
    return InvalidToolCall(name=name, args=arguments, id=None, error=None, type="invalid_tool_call")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says at once; words are counted where no usage is given."""

    text: str = ""
    calls: Sequence[Call] = ()
    usage: UsageMetadata | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """A turn gone wrong: waits, then says it; with an error it streams half of it and raises."""

    turn: Scripted = ""
    delay_s: float = 0.0
    error: Exception | None = None

    @classmethod
    def delay(cls, seconds: float, turn: Scripted) -> Self:
        """Wait on the clock before the turn."""
        return cls(turn, delay_s=seconds)

    @classmethod
    def cut(cls, turn: Scripted, error: Exception | None = None) -> Self:
        """Lose the connection in mid-stream."""
        return cls(turn, error=error or _connection_error())

    @classmethod
    def rate_limit(cls, retry_after_s: float | None = None) -> Self:
        """Answer 429, as `openai.RateLimitError`."""
        return cls(error=_status_error(429, retry_after_s))

    @classmethod
    def server_error(cls, status: int = 500) -> Self:
        """Answer 5xx, as `openai.InternalServerError`."""
        return cls(error=_status_error(status))


@dataclass(frozen=True, slots=True)
class Request:
    """What the model received in one call."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...] = ()
    tool_choice: object = None
    specs: tuple[Mapping[str, object], ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def system(self) -> str:
        """Return the system prompt, or an empty string."""
        first = self.messages[0] if self.messages else None
        return first.text if isinstance(first, SystemMessage) else ""


class ScriptedModel(BaseChatModel):
    """A chat model that says what it is told, streams it properly and records what it was asked.

    `turns` is a sequence, or a function (sync or async) of the messages; for runs side by side take
    a function, as the order in which they take turns is open. `strict` refuses the histories that
    providers refuse; `binds_tools=False` is a model that cannot call tools.
    """

    strict: bool = True
    binds_tools: bool = True
    model_name: str = "scripted"
    _tape: _Tape = PrivateAttr()
    _bound: dict[str, object] = PrivateAttr(default_factory=dict)

    def __init__(
        self, turns: Script, *, strict: bool = True, binds_tools: bool = True, **fields: Any
    ) -> None:
        fields |= {"strict": strict, "binds_tools": binds_tools}
        super().__init__(**fields)
        self._tape = _Tape(turns)

    @property
    def requests(self) -> list[Request]:
        """Return what was asked so far, of this model and all its `bind_tools` copies."""
        return self._tape.requests

    @property
    def _llm_type(self) -> str:
        return "agentgraph-scripted"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> ScriptedModel:
        """Return a copy with these tools, on the same script and record."""
        if not self.binds_tools:
            raise NotImplementedError("This model was made with binds_tools=False.")
        bound = self.model_copy()
        bound._bound = {"tools": [*map(_spec, tools)], "tool_choice": tool_choice, **kwargs}
        return bound

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self._wait_for_plan(messages, kwargs).result()

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return (await self._plan(messages, kwargs)).result()

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        yield from self._wait_for_plan(messages, kwargs).stream()

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in (await self._plan(messages, kwargs)).stream():
            yield chunk
            await clock().sleep(0)

    def _wait_for_plan(self, messages: list[BaseMessage], kwargs: Mapping[str, object]) -> _Plan:
        turn = self._ask(messages, kwargs)
        plan = _plan(_block_on(turn) if iscoroutine(turn) else turn, messages, self.model_name)
        if plan.delay_s:
            _block_on(clock().sleep(plan.delay_s))
        return plan

    async def _plan(self, messages: list[BaseMessage], kwargs: Mapping[str, object]) -> _Plan:
        turn = self._ask(messages, kwargs)
        plan = _plan(await turn if isawaitable(turn) else turn, messages, self.model_name)
        if plan.delay_s:
            await clock().sleep(plan.delay_s)
        return plan

    def _ask(
        self, messages: list[BaseMessage], kwargs: Mapping[str, object]
    ) -> Scripted | Awaitable[Scripted]:
        self._tape.requests.append(_request(messages, {**self._bound, **kwargs}))
        if self.strict:
            check_history(messages)
        return self._tape.next(messages)


class _Tape:
    """A script, its cursor and the record, shared by all copies of a model."""

    def __init__(self, turns: Script) -> None:
        if isinstance(turns, str):
            raise TypeError("A script is a sequence of turns: write [text], not text.")
        self._turns = turns if callable(turns) else tuple(turns)
        self._asked = count()
        self.requests: list[Request] = []

    def __deepcopy__(self, memo: object) -> _Tape:
        return self

    def next(self, messages: list[BaseMessage]) -> Scripted | Awaitable[Scripted]:
        if callable(self._turns):
            return self._turns(messages)
        # `next` on a count is one bytecode under the GIL: no two runs get the same turn.
        index = next(self._asked)
        if index < len(self._turns):
            return self._turns[index]
        turns = "1 turn" if len(self._turns) == 1 else f"{len(self._turns)} turns"
        last = messages[-1] if messages else None
        raise ScriptExhausted(f"The script has {turns}, and turn {index + 1} was asked by {last!r}")


@dataclass(frozen=True, slots=True)
class _Plan:
    message: AIMessage
    delay_s: float = 0.0
    error: Exception | None = None

    def result(self) -> ChatResult:
        if self.error is not None:
            raise self.error
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    def stream(self) -> Iterator[ChatGenerationChunk]:
        chunks = _chunks(self.message)
        for chunk in chunks if self.error is None else chunks[: len(chunks) // 2]:
            yield ChatGenerationChunk(message=chunk)
        if self.error is not None:
            raise self.error


def _block_on(waiting: Coroutine[Any, Any, T]) -> T:
    """Wait from sync code, which must not be inside a running loop."""
    try:
        return asyncio.run(waiting)
    finally:
        waiting.close()


def _plan(turn: object, asked: Sequence[BaseMessage], model: str) -> _Plan:
    match turn:
        case Fault():
            inner = _plan(turn.turn, asked, model)
            error = inner.error or turn.error
            return _Plan(inner.message, inner.delay_s + turn.delay_s, error)
        case Exception():
            return _Plan(AIMessage(""), error=turn)
        case AIMessage():
            return _Plan(turn.model_copy(update={"id": turn.id or _fresh("ai")}))
        case _:
            return _Plan(_said(_turn(turn), asked, model))


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


def _said(turn: Turn, asked: Sequence[BaseMessage], model: str) -> AIMessage:
    """Make the message of a turn, with ids and usage."""
    calls: list[Any] = [{**one, "id": one.get("id") or _fresh("call")} for one in turn.calls]
    message = AIMessage(
        turn.text,
        id=_fresh("ai"),
        tool_calls=[one for one in calls if not _is_bad(one)],
        invalid_tool_calls=[one for one in calls if _is_bad(one)],
        response_metadata={"model_name": model, **turn.metadata},
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
        words += sum(len(f"{one['name']} {one['args']}".split()) for one in _calls(message))
    return words


def _calls(message: AIMessage) -> list[Call]:
    return [*message.tool_calls, *message.invalid_tool_calls]


def _chunks(message: AIMessage) -> list[AIMessageChunk]:
    """Split a message as a provider streams it; the chunks add up to the message."""
    content = message.content
    # A list and a string do not add up, so that the empty content has the type of the rest.
    empty: Any = "" if isinstance(content, str) else []
    pieces: list[Any] = (
        re.findall(r"\s*\S+|\s+", content)
        if isinstance(content, str)
        else [[block] for block in content]
    )
    texts = [AIMessageChunk(content=piece, id=message.id) for piece in pieces]
    calls = [
        AIMessageChunk(content=empty, id=message.id, tool_call_chunks=[chunk])
        for index, one in enumerate(_calls(message))
        for chunk in _call_chunks(index, one)
    ]
    # LangChain would read the raw calls of older messages as calls once more.
    extras = {k: v for k, v in message.additional_kwargs.items() if k != "tool_calls"}
    last = AIMessageChunk(
        content=empty,
        id=message.id,
        additional_kwargs=extras,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        chunk_position="last",
    )
    return [*texts, *calls, last]


def _call_chunks(index: int, one: Call) -> Iterator[ToolCallChunk]:
    args = one["args"]
    text = args if isinstance(args, str) else json.dumps(args or {})
    half = len(text) // 2
    yield _call_chunk(index, one["name"], "", one["id"])
    yield _call_chunk(index, None, text[:half])
    yield _call_chunk(index, None, text[half:])


def _call_chunk(
    index: int, name: str | None, args: str, call_id: str | None = None
) -> ToolCallChunk:
    return ToolCallChunk(name=name, args=args, id=call_id, index=index, type="tool_call_chunk")


def _request(messages: Sequence[BaseMessage], options: dict[str, Any]) -> Request:
    specs = tuple(options.pop("tools", None) or ())
    names = tuple(name for spec in specs if (name := _spec_name(spec)))
    return Request(tuple(messages), names, options.pop("tool_choice", None), specs, options)


def _spec(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> dict[str, Any]:
    """Return the tool as it is sent: a dict as it is, unless it is a titled JSON schema."""
    if isinstance(tool, dict) and "title" not in tool:
        return tool
    return convert_to_openai_tool(tool)


def _spec_name(spec: Mapping[str, Any]) -> str | None:
    name: str | None = spec.get("function", spec).get("name")
    return name


def _status_error(status: int, retry_after_s: float | None = None) -> Exception:
    import openai

    http = _http()
    wait = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    response = http.Response(status, headers=wait, request=http.Request("POST", _URL))
    kind = openai.RateLimitError if status == 429 else openai.InternalServerError
    return kind(f"Scripted answer {status}", response=response, body=None)


def _connection_error() -> Exception:
    import openai

    return openai.APIConnectionError(request=_http().Request("POST", _URL))


def _http() -> ModuleType:
    # What openai speaks through was httpx before it was httpx2.
    return import_module("httpx2" if find_spec("httpx2") else "httpx")


def check_history(messages: Sequence[BaseMessage]) -> None:
    """Raise `IllegalHistory` if a strict provider would refuse these messages."""
    seen: set[str] = set()
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        if fault := _misplaced(message, index, waiting) or _bad_ids(message, seen):
            raise IllegalHistory(f"Message {index} ({message.type}) {fault}.")
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
        elif isinstance(message, AIMessage):
            waiting = {one["id"] or "" for one in _calls(message)}
            seen |= waiting
    if waiting:
        raise IllegalHistory(f"The history ends before the answer to {sorted(waiting)}.")
    if not messages or isinstance(messages[-1], AIMessage):
        end = "ends with the assistant" if messages else "is empty"
        raise IllegalHistory(f"The history {end}.")


def _misplaced(message: BaseMessage, index: int, waiting: set[str]) -> str | None:
    if isinstance(message, ToolMessage):
        known = message.tool_call_id in waiting
        return None if known else "answers no open call of the assistant right before it"
    if waiting:
        return f"comes before the answer to {sorted(waiting)}"
    if isinstance(message, RemoveMessage):
        return "is an instruction to a reducer, not to a model"
    if isinstance(message, SystemMessage) and index:
        return "is a system message, which can only be the first"
    return None


def _bad_ids(message: BaseMessage, seen: set[str]) -> str | None:
    ids = [one["id"] for one in _calls(message)] if isinstance(message, AIMessage) else []
    if not all(ids):
        return "has a call without an id"
    again = [one for one in ids if one in seen or ids.count(one) > 1]
    return f"uses the call id {again[0]} again" if again else None


class FakeClock:
    """A clock that stands still until it is advanced; its random numbers and ids follow the seed.

    Times are kept in whole nanoseconds, so that ten steps of 0.1 s make one second.
    """

    def __init__(self, start: float | datetime = 1_700_000_000.0, *, seed: int = 0) -> None:
        self._monotonic = 0
        self._offset = _nanoseconds(start)
        self._seed = seed
        self._random = Random(seed)
        self._ids = count(1)
        self._order = count()
        self._sleepers: list[_Sleeper] = []
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []
        self._lock = Lock()

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return (self._offset + self._monotonic) / _NANO

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        return self._monotonic / _NANO

    def random(self) -> float:
        """Return the seed's next number in [0, 1)."""
        return self._random.random()

    def new_id(self) -> str:
        """Return the next id: 32 hexadecimal digits of seed and counter."""
        return f"{self._seed & 0xFFFF_FFFF_FFFF_FFFF:016x}{next(self._ids):016x}"

    def set_wall(self, instant: float | datetime) -> None:
        """Set the wall clock, back or forth; no sleeper notices."""
        self._offset = _nanoseconds(instant) - self._monotonic

    def advance(self, seconds: float) -> None:
        """Move on and wake whose time has come, in the order of their times."""
        if seconds < 0:
            raise ValueError("Time cannot be advanced backwards: see `set_wall`.")
        with self._lock:
            until = self._monotonic + _nanoseconds(seconds)
            while self._sleepers and self._sleepers[0].due <= until:
                _wake(heapq.heappop(self._sleepers).woken)
            self._monotonic = until

    @property
    def sleepers(self) -> int:
        """Return how many are asleep."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced so far."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            due = self._monotonic + _nanoseconds(seconds)
            sleeper = _Sleeper(due, next(self._order), woken)
            if due <= self._monotonic:
                _wake(woken)
            else:
                heapq.heappush(self._sleepers, sleeper)
                self._tell_watchers()
        try:
            await woken
        finally:
            self._forget(sleeper)

    async def asleep(self, count: int = 1) -> None:
        """Wait until at least so many are asleep: then it is time to advance."""
        with self._lock:
            if len(self._sleepers) >= count:
                return
            seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append((count, seen))
        await seen

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """Put this clock in force for a block and all that it starts."""
        with use_clock(self):
            yield self

    def _tell_watchers(self) -> None:
        asleep = len(self._sleepers)
        for _, seen in (one for one in self._watchers if one[0] <= asleep):
            _wake(seen)
        self._watchers = [one for one in self._watchers if one[0] > asleep]

    def _forget(self, sleeper: _Sleeper) -> None:
        with self._lock:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)


@dataclass(order=True, frozen=True, slots=True)
class _Sleeper:
    due: int
    order: int
    woken: asyncio.Future[None] = field(compare=False)


def _wake(waiting: asyncio.Future[None]) -> None:
    """Resolve a future of any loop, from any thread."""
    loop = waiting.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_resolve, waiting)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _nanoseconds(time: float | datetime) -> int:
    seconds = time.timestamp() if isinstance(time, datetime) else time
    return round(seconds * _NANO)
