"""What code deep inside a run may ask about it: context variables, set by whoever runs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from langchain_core.messages import AnyMessage, ToolMessage, UsageMetadata
from langchain_core.messages.ai import add_usage

from agentgraph.errors import AgentGraphError

__all__ = [
    "Run",
    "current_history",
    "current_run",
    "enter",
    "handed_over",
    "history",
    "idempotency_key",
    "inside_call",
    "inside_run",
    "joined",
    "note",
    "outer_run",
    "run_sync",
]

T = TypeVar("T")

_LOOP_THREAD = "agentgraph-sync"


@dataclass(slots=True, weakref_slot=True)
class Run:
    """One run of a root agent in this process, shared by all levels of its tree."""

    id: str
    thread_id: str
    owner: object = None
    steps: int = 0
    usage: dict[str, UsageMetadata] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    journal: dict[str | None, list[AnyMessage]] = field(default_factory=dict)
    """Every message as it is made, by the delegate's call it serves: a run that is cut off may
    have made what no checkpoint has got yet."""
    results: dict[str, ToolMessage] = field(default_factory=dict)
    """What tools have returned, by task: a resume that was cut off must not run them again."""

    def record_usage(self, agent: str, usage: UsageMetadata | None, model: str) -> None:
        """Add what a model call has used to its agent's account."""
        if usage is not None:
            self.usage[agent] = add_usage(self.usage.get(agent), usage)
            self.models[agent] = model


_run: ContextVar[Run | None] = ContextVar("agentgraph_run", default=None)
_inherited: ContextVar[tuple[AnyMessage, ...]] = ContextVar("agentgraph_inherited", default=())
_history: ContextVar[tuple[AnyMessage, ...] | None] = ContextVar("agentgraph_history", default=None)
_errands: ContextVar[tuple[str, ...]] = ContextVar("agentgraph_errands", default=())
_in_tool: ContextVar[bool] = ContextVar("agentgraph_in_tool", default=False)
_call_key: ContextVar[str | None] = ContextVar("agentgraph_call_key", default=None)


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
def inside_run(run: Run) -> Iterator[None]:
    """Make a run the current one; what an outer run handed over does not reach into it."""
    tokens = _run.set(run), _inherited.set(()), _errands.set(()), _in_tool.set(False)
    try:
        yield
    finally:
        _run.reset(tokens[0])
        _inherited.reset(tokens[1])
        _errands.reset(tokens[2])
        _in_tool.reset(tokens[3])


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


def note(messages: Iterable[AnyMessage]) -> None:
    """Enter new messages in the run's journal."""
    enter(current_run(), messages)


def enter(run: Run | None, messages: Iterable[AnyMessage]) -> None:
    """Enter new messages in a run's journal, under the errands that this code serves."""
    if run is not None:
        made = list(messages)
        for errand in _errands.get() or (None,):
            run.journal.setdefault(errand, []).extend(made)


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
def inside_call(whole: Sequence[AnyMessage], key: str) -> Iterator[None]:
    """Let a tool ask for the history and its idempotency key."""
    tokens = _history.set(tuple(whole)), _call_key.set(key), _inherited.set(()), _in_tool.set(True)
    try:
        yield
    finally:
        _history.reset(tokens[0])
        _call_key.reset(tokens[1])
        _inherited.reset(tokens[2])
        _in_tool.reset(tokens[3])


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
