"""What code deep inside a run may ask about it: context variables, set by whoever runs it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from langchain_core.messages import AnyMessage, ToolMessage, UsageMetadata
from langchain_core.messages.ai import add_usage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError
from agentgraph.scoped import scoped
from agentgraph.timeouts import apart, unhurried

__all__ = [
    "CallEnd",
    "Run",
    "at_call_end",
    "current_errand",
    "current_history",
    "current_round_key",
    "current_run",
    "enter",
    "entered",
    "handed_over",
    "held_back",
    "history",
    "idempotency_key",
    "in_tool",
    "inside_call",
    "inside_round",
    "inside_run",
    "joined",
    "leave_run",
    "note",
    "outer_run",
    "run_sync",
]

T = TypeVar("T")

CallEnd: TypeAlias = Callable[[bool], None]

_LOOP_THREAD = "agentgraph-sync"


class Suspended(Protocol):
    """What has a deadline that may be moved."""

    def suspend(self, since: float) -> None:
        """Leave the time since then out of it."""
        ...


@dataclass(slots=True, weakref_slot=True)
class Run:
    """One run of a root agent in this process, shared by all levels of its tree."""

    id: str
    thread_id: str
    owner: object = None
    began_at: float = field(default_factory=lambda: clock().wall())
    steps: int = 0
    usage: dict[str, UsageMetadata] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    journal: dict[str | None, list[AnyMessage]] = field(default_factory=dict)
    """Every message as it is made, by the delegate's call it serves: a run that is cut off may
    have made what no checkpoint has got yet."""
    results: dict[str, ToolMessage] = field(default_factory=dict)
    """What tools have returned, by task: a resume that was cut off must not run them again."""
    stored: str | None = None
    """The last checkpoint that the store is known to have had: once it is gone, the thread was
    deleted, maybe by another process, and the journal with it."""
    turns: set[str | None] = field(default_factory=set)
    """The ids of its own turn and of the one before: another in the store is somebody else's."""
    is_resumed: bool = False
    """Whether it goes on with what a human has decided."""
    has_ended: bool = False
    """Whether its turn on the thread is over: LangGraph goes on writing what was cut off."""
    tell: Callable[[Any], Awaitable[None]] | None = None
    """Where the run's events go, if somebody listens."""
    told: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many tokens have been told of each agent's visit: they cannot be taken back."""
    account: Suspended | None = None
    """What its guards have counted; it lives as long as the run."""
    interceptor: object = None
    """The interceptor of the last node of a model, which may serve the next nodes of its agent."""
    held_s: float = 0.0
    """How long whoever reads its events has kept it waiting."""
    holds: int = 0
    """How many of its branches wait for that reader now."""
    held_since: float = 0.0
    fence: Callable[[], Awaitable[None]] | None = None
    """Asked before a checkpoint is written: it raises where the thread was taken over."""

    def note_stored(self, config: RunnableConfig) -> None:
        """Note that a checkpoint is in the store, if it is one of the run's own level."""
        at = config.get("configurable", {})
        if at.get("thread_id") == self.thread_id and not at.get("checkpoint_ns"):
            self.stored = at.get("checkpoint_id")

    def let_go(self) -> None:
        """Move its deadlines by the time in which its reader has kept it waiting."""
        since, self.held_since = self.held_since, clock().wall()
        self.held_s += max(0.0, self.held_since - since)
        if self.account is not None:
            self.account.suspend(since)

    def record_usage(self, agent: str, usage: UsageMetadata | None, model: str) -> None:
        """Add what a model call has used to its agent's account."""
        if usage is not None:
            path = f"{_part.get()}{agent}"
            self.usage[path] = add_usage(self.usage.get(path), usage)
            self.models[path] = model

    def record_told(self, agent: str, told: Mapping[str, Any]) -> None:
        """Add what a session has told that an agent has used."""
        read, written, total = (int(told.get(name) or 0) for name in _FIGURES)
        used = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=total)
        self.record_usage(agent, used, str(told.get("model") or ""))

    def take_usage(self, name: str) -> dict[str, dict[str, Any]]:
        """Return what an agent of this name and all below it have used, and begin anew.

        Where it is at work in a part of the run, it is that part's.
        """
        part = _part.get()
        own = [path for path in self.usage if f"{path}/".startswith(f"{part}{name}/")]
        return {
            path.removeprefix(part): {**self.usage.pop(path), "model": self.models.get(path)}
            for path in own
        }


_FIGURES = ("input_tokens", "output_tokens", "total_tokens")
_run: ContextVar[Run | None] = ContextVar("agentgraph_run", default=None)
_inherited: ContextVar[tuple[AnyMessage, ...]] = ContextVar("agentgraph_inherited", default=())
_history: ContextVar[tuple[AnyMessage, ...] | None] = ContextVar("agentgraph_history", default=None)
_errands: ContextVar[tuple[str, ...]] = ContextVar("agentgraph_errands", default=())
_part: ContextVar[str] = ContextVar("agentgraph_part", default="")
_in_tool: ContextVar[bool] = ContextVar("agentgraph_in_tool", default=False)
_call_key: ContextVar[str | None] = ContextVar("agentgraph_call_key", default=None)
_call_ends: ContextVar[list[CallEnd] | None] = ContextVar("agentgraph_call_ends", default=None)
_round: ContextVar[str | None] = ContextVar("agentgraph_round", default=None)


_unowned: WeakValueDictionary[str, Run] = WeakValueDictionary()


def current_run() -> Run | None:
    """Return the run around a node, None where a graph was invoked without its agent.

    A graph that a tool runs is no part of the tool's run: its words and steps are its own.
    """
    return None if _in_tool.get() else _run.get()


def outer_run() -> Run | None:
    """Return the run around this code, from inside of a tool too."""
    return _run.get()


@contextmanager
def held_back() -> Iterator[None]:
    """Wait for a reader: that time is not the run's, and counts for none of its limits."""
    run = outer_run()
    if run is None:
        yield
        return
    if run.holds == 0:
        run.held_since = clock().wall()
    run.holds += 1
    try:
        with unhurried():
            yield
    finally:
        run.holds -= 1
        run.let_go()


@contextmanager
def inside_round(key: str | None) -> Iterator[None]:
    """Name the round of a team that runs in here; the keys of its tool calls follow from it."""
    token = _round.set(key)
    try:
        yield
    finally:
        _round.reset(token)


def current_round_key() -> str | None:
    """Return the name of the round around a node, None outside of a team."""
    return None if _in_tool.get() else _round.get()


@contextmanager
def inside_run(run: Run) -> Iterator[None]:
    """Make a run the current one; what an outer run handed over does not reach into it."""
    tokens = _run.set(run), _inherited.set(()), _errands.set(()), _in_tool.set(False)
    try:
        with apart():
            yield
    finally:
        _run.reset(tokens[0])
        _inherited.reset(tokens[1])
        _errands.reset(tokens[2])
        _in_tool.reset(tokens[3])


def leave_run() -> None:
    """Forget, for good in this context, whatever run this code is inside of."""
    var_child_runnable_config.set(None)
    _run.set(None)
    _inherited.set(())
    _errands.set(())
    _in_tool.set(False)
    _history.set(None)
    _call_key.set(None)
    _call_ends.set(None)
    _round.set(None)


@contextmanager
def joined(turn_id: str) -> Iterator[None]:
    """Share one run among the sub-agents of a turn whose root was invoked without its agent."""
    if current_run() is not None:
        yield
        return
    run = _unowned.get(turn_id) or Run(turn_id, "")
    _unowned[turn_id] = run
    tokens = _run.set(run), _in_tool.set(False)
    try:
        yield
    finally:
        _run.reset(tokens[0])
        _in_tool.reset(tokens[1])


@contextmanager
def handed_over(messages: Sequence[AnyMessage], errand: str | None = None) -> Iterator[None]:
    """Hand a history over to a nested graph, which does not store it."""
    served = (*_errands.get(), errand) if errand else _errands.get()
    tokens = _inherited.set(tuple(messages)), _errands.set(served)
    try:
        yield
    finally:
        _inherited.reset(tokens[0])
        _errands.reset(tokens[1])


def current_errand() -> str:
    """Name the delegate's visit that this code is part of, by its calls; "" outside of one."""
    return "/".join(_errands.get())


def note(messages: Iterable[AnyMessage]) -> None:
    """Enter new messages in the run's journal."""
    enter(current_run(), messages)


def enter(run: Run | None, messages: Iterable[AnyMessage]) -> None:
    """Enter new messages in a run's journal, under the errands that this code serves."""
    if run is not None:
        made = list(messages)
        for errand in _errands.get() or (None,):
            run.journal.setdefault(errand, []).extend(made)


def entered() -> list[AnyMessage]:
    """Return what stands in the run's journal of the errand that this code serves."""
    run, errands = current_run(), _errands.get()
    return [] if run is None else run.journal.get(errands[-1] if errands else None, [])


def history(state: Mapping[str, Any]) -> list[AnyMessage]:
    """Return the whole conversation: what was handed over to this level, then its own messages.

    A message of its own replaces an inherited one of the same id; a level that has rewritten the
    conversation, with a summary for instance, sees nothing but its own.
    """
    own = state.get("messages") or ()
    inherited = () if state.get("rewritten") else _inherited.get()
    if not inherited:
        return list(own)
    return list({message.id: message for message in (*inherited, *own)}.values())


@contextmanager
def inside_call(whole: Sequence[AnyMessage], key: str) -> Iterator[list[CallEnd]]:
    """Let a tool ask for the history and its idempotency key; yields who waits for its end."""
    ends: list[CallEnd] = []
    ending = _call_ends.set(ends)
    tokens = _history.set(tuple(whole)), _call_key.set(key), _inherited.set(()), _in_tool.set(True)
    try:
        yield ends
    finally:
        _call_ends.reset(ending)
        _history.reset(tokens[0])
        _call_key.reset(tokens[1])
        _inherited.reset(tokens[2])
        _in_tool.reset(tokens[3])


def in_tool(is_inside: bool) -> scoped[bool]:
    """Say whether this is a tool at work, or who stands beside it and belongs to the run."""
    return scoped(_in_tool, is_inside)


def at_call_end(end: CallEnd) -> None:
    """Have a function told whether the tool call around this code has gone well, once it is over.

    It is not where a call is broken off, or waits for a human.
    """
    ends = _call_ends.get()
    if ends is not None:
        ends.append(end)


def current_history() -> list[AnyMessage]:
    """Return the conversation as the tool that asks finds it."""
    whole = _history.get()
    if whole is None:
        raise AgentGraphError(
            "current_history() was called outside of a tool: call it while a tool runs",
            code="outside_tool",
        )
    return list(whole)


def idempotency_key() -> str:
    """Return a key that is the same whenever this very tool call runs again."""
    key = _call_key.get()
    if key is None:
        raise AgentGraphError(
            "idempotency_key() was called outside of a tool: call it while a tool runs",
            code="outside_tool",
        )
    return key


def inside_part(place: str) -> scoped[str]:
    """Have what is used in here in the run's account by this place: names may be there twice."""
    return scoped(_part, f"{_part.get()}{place}/" if place else _part.get())


def run_sync(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end from synchronous code, also where a loop is already running.

    All such work shares one loop in a thread of its own: savers and pools bind to their loop, so a
    loop per call would cost a connection per call.
    """
    loop = _background_loop()
    if threading.current_thread().name == _LOOP_THREAD:
        work.close()
        raise AgentGraphError("a synchronous call inside an asynchronous run: await the async one")
    future = asyncio.run_coroutine_threadsafe(_in_context(work, copy_context()), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C must end the run, not only the waiting for it
        raise


async def _in_context(work: Coroutine[object, object, T], context: Context) -> T:
    return await asyncio.get_running_loop().create_task(work, context=context)


@lru_cache(maxsize=1)
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_LOOP_THREAD, daemon=True).start()
    return loop


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_background_loop.cache_clear)  # a fork inherits no thread
