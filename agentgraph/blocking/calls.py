"""Calls between synchronous and asynchronous code; a cancellation reaches the calls inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from agentgraph.blocking.loops import BackgroundLoop, background_loop, loops, threads
from agentgraph.contexts import scope
from agentgraph.errors import AgentGraphError
from agentgraph.timeouts import without_limits

P = ParamSpec("P")
T = TypeVar("T")


def run_sync(work: Coroutine[Any, Any, T], loop: BackgroundLoop | None = None) -> T:
    """Run a coroutine to its end from synchronous code, also where a loop is already running.

    It runs in another thread, on a loop of its own or on the given one, which no other code may
    block. Ctrl-C in the caller's thread cancels it. Raises `Abort` where the coroutine has raised
    anything else than an `Exception`.
    """
    call = _Call(work, loop)
    with _part_of_outer_call(call), _blocked_loop(call):
        call.start()
        return call.wait()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a thread, without waiting for other blocking functions.

    A cancellation cancels what the function waits for in `run_sync`, but not the function itself.
    Raises `Abort` where the function has raised anything else than an `Exception`.
    """
    calls = _Calls()
    work = calls.around(partial(_convert_aborts, partial(function, *args, **kwargs)))
    with _part_of_outer_call(calls):
        try:
            return await asyncio.get_running_loop().run_in_executor(threads(), work)
        except asyncio.CancelledError:
            calls.cancel()
            raise


async def in_caller(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in the thread that waits in `run_sync` for this code.

    That thread has nothing else to do. It runs one function at a time.
    """
    call, calls = _waiting_call.get(), _Calls()
    work = calls.around(partial(function, *args, **kwargs))
    with _part_of_outer_call(calls):
        try:
            return await asyncio.wrap_future(call.lend_thread_to(work))
        except asyncio.CancelledError:
            calls.cancel()
            raise


def iterate_sync(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield what an asynchronous generator yields; closing this iterator closes the generator."""

    async def next_item() -> tuple[T] | None:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    async def close() -> None:
        await items.aclose()

    with background_loop() as loop:  # one loop for all: the work goes on between two items
        try:
            while (item := run_sync(next_item(), loop)) is not None:
                yield item[0]
        finally:
            run_sync(close(), loop)


async def on_loop_of_stores(work: Coroutine[Any, Any, T]) -> T:
    """Run what uses a store: code on a loop that was lent uses the connections of one other loop.

    Otherwise every synchronous call at a time would have connections of its own.
    """
    if asyncio.get_running_loop() not in loops():
        return await work
    return await on_loop(loops().of_stores, work)


async def on_loop(loop: BackgroundLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on another loop, in the present context."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


async def run_to_end(work: Awaitable[T]) -> T:
    """Await what must not be cut off half-way: a cancellation takes effect after its end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not complain
        raise


def loop_of(home: BackgroundLoop) -> BackgroundLoop:
    """Return the loop for what is bound to one: that one, unless it stands still."""
    return home if home.is_running() and home not in _blocked_loops else loops().of_stores


def loops_waiting() -> list[BackgroundLoop]:
    """Return the loops that stand still until the code around here has ended."""
    return [loop for loop, call in _blocking_calls.get() if _blocked_loops.get(loop) is call]


async def without_aborts(work: Awaitable[T]) -> T:
    """Await a function of others; raise `Abort` where it raises what is no `Exception`.

    An event loop would end with a `KeyboardInterrupt` of one of its tasks.
    """
    try:
        return await work
    except (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError) as error:
        if _is_from_outside(error):
            raise
        raise Abort(error) from error


def _is_from_outside(error: BaseException) -> bool:
    """Tell whether a coroutine was cancelled or closed: it has not raised the error itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs: the coroutine is closed
        return True
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class Abort(AgentGraphError):
    """Code that was called has raised what is no `Exception`, such as a `KeyboardInterrupt`.

    It would end the event loop or the process of the caller; here it ends no more than the call.
    """

    code = "aborted"

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"it was ended by {error!r}: raise an Exception instead")
        self.__cause__ = error


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


class _Calls:
    """The calls under way inside of a call or of a blocking function."""

    def __init__(self) -> None:
        self.members: set[_Cancellable] = set()

    def cancel(self) -> None:
        """Cancel them all, also where a loop is blocked by a call further inside."""
        for member in list(self.members):
            member.cancel()

    def around(self, function: Callable[[], T]) -> Callable[[], T]:
        """Return a function that runs in the present context, its calls being part of these."""
        with scope(_outer_calls, self):
            context = copy_context()
        return partial(context.run, function)


class _Call(_Calls, Generic[T]):
    """One call of `run_sync`."""

    def __init__(self, work: Coroutine[Any, Any, T], loop: BackgroundLoop | None) -> None:
        super().__init__()
        self._work = work
        self._is_lent = loop is None
        self._loop = loops().take() if loop is None else loop
        self._task: asyncio.Task[T] | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def start(self) -> None:
        """Start the coroutine in the caller's context, without limits: their loop is another."""
        with without_limits(), scope(_waiting_call, self), scope(_outer_calls, self):
            context = copy_context()
        self._loop.call_soon_threadsafe(self._start, context)

    def wait(self) -> T:
        """Return the result; run in this thread meanwhile what the coroutine gives to it."""
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except BaseException:
            self.cancel()  # Ctrl-C must end the run, not only this wait
            raise
        assert self._task is not None
        try:
            return self._task.result()
        except asyncio.CancelledError:
            raise CancelledError from None
        except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
            raise Abort(error) from error

    def cancel(self) -> None:
        super().cancel()
        with suppress(RuntimeError):  # it has ended, and its loop too
            self._loop.call_soon_threadsafe(self._cancel)

    def lend_thread_to(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the waiting thread."""
        future: Future[T] = Future()
        self._jobs.put(partial(_settle, future, function))
        return future

    def _start(self, context: Context) -> None:
        self._task = self._loop.create_task(self._work, context=context)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn where the caller has left
        if self._is_lent:
            loops().give_back(self._loop)
        self._jobs.put(None)


_outer_calls: ContextVar[_Calls | None] = ContextVar("agentgraph_outer_calls", default=None)
_waiting_call: ContextVar[_Call[Any]] = ContextVar("agentgraph_waiting_call")


_blocked_loops: dict[BackgroundLoop, _Call[Any]] = {}
"""The loops that wait in `run_sync`, and for which call."""

_blocking_calls: ContextVar[tuple[tuple[BackgroundLoop, _Call[Any]], ...]] = ContextVar(
    "agentgraph_blocking_calls", default=()
)
"""The calls around this code for which loops wait."""


@contextmanager
def _blocked_loop(call: _Call[Any]) -> Iterator[None]:
    loop = asyncio._get_running_loop()
    if loop is None or loop in _blocked_loops:  # the call around this one blocks it longer
        yield
        return
    _blocked_loops[loop] = call
    try:
        with scope(_blocking_calls, (*_blocking_calls.get(), (loop, call))):
            yield
    finally:
        del _blocked_loops[loop]


@contextmanager
def _part_of_outer_call(calls: _Calls) -> Iterator[None]:
    outer = _outer_calls.get()
    if outer is None:
        yield
        return
    outer.members.add(calls)
    try:
        yield
    finally:
        outer.members.discard(calls)


def _convert_aborts(function: Callable[[], T]) -> T:
    try:
        return function()
    except StopIteration as error:  # a future refuses it, and would never be done
        raise RuntimeError(f"a blocking function raised {error!r}") from error
    except Exception:
        raise
    except BaseException as error:
        raise Abort(error) from error


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except StopIteration as error:
        future.set_exception(RuntimeError(f"a blocking function raised {error!r}"))
    except Exception as error:
        future.set_exception(error)
