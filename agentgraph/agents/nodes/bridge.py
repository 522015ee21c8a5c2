"""The bridge from an asynchronous run to synchronous middleware: a thread for each wrapper.

The wrapper's handler runs on the event loop, and the thread waits for it. A thread pool would
deadlock: wrappers could use up its threads while their handlers wait for one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]
Wrapper: TypeAlias = Callable[[Handler, Any], Awaitable[Any]]


def asynchronous(wrap: Callable[[Any, Any], Any]) -> Wrapper:
    """Return an asynchronous wrapper that runs a synchronous one."""

    async def wrapper(handler: Handler, request: Any) -> Any:
        return await _Bridge(wrap, handler).run(request)

    return wrapper


class _Bridge:
    """One run of a synchronous wrapper.

    A cancellation cancels the handler that the wrapper waits for, and refuses further handlers. The
    thread itself cannot be cancelled; it ends when its wrapper ends.
    """

    def __init__(self, wrap: Callable[[Any, Any], Any], handler: Handler) -> None:
        self._wrap = wrap
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[Any] = self._loop.create_future()
        self._calls: list[Future[Any]] = []
        self._lock = threading.Lock()
        self._context = copy_context()
        self._thread: threading.Thread | None = None

    async def run(self, request: Any) -> Any:
        run = self._context.copy().run
        self._thread = threading.Thread(target=run, args=(self._in_thread, request), daemon=True)
        self._thread.start()
        try:
            return await self._outcome
        except asyncio.CancelledError:
            with self._lock:
                self._outcome.cancel()
            for call in self._calls:
                call.cancel()
            raise

    def _in_thread(self, request: Any) -> None:
        result, error = None, None
        try:
            result = self._wrap(request, self._wait)
        except BaseException as raised:  # any error: `run` raises it on the loop
            error = raised
        with suppress(RuntimeError):  # the loop may be gone
            self._loop.call_soon_threadsafe(self._settle, result, error)

    def _wait(self, request: Any) -> Any:
        with self._lock:
            if self._outcome.cancelled():  # a wrapper must not retry what was cancelled
                raise asyncio.CancelledError
            # A wrapper may go on in a thread of its own, which lacks the context of the run.
            is_own = threading.current_thread() is self._thread
            context = copy_context() if is_own else self._context.copy()
            call = asyncio.run_coroutine_threadsafe(self._inside(request, context), self._loop)
            self._calls.append(call)
        try:
            return call.result()
        except CancelledError:
            raise asyncio.CancelledError from None

    async def _inside(self, request: Any, context: Context) -> Any:
        async def handle() -> Any:
            return await self._handler(request)

        return await asyncio.get_running_loop().create_task(handle(), context=context)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self._outcome.done():
            return
        if isinstance(error, StopIteration):  # a future refuses it, and would never be done
            error = RuntimeError(f"a wrapper raised {error!r}")
        if error is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(result)
