"""The bridge from an asynchronous run to synchronous middleware: a thread for each wrapper.

The wrapper's handler runs on the event loop, and the thread waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context, copy_context
from typing import Any, TypeAlias

from agentgraph.blocking import in_thread

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
        self._is_cancelled = False
        self._calls: list[Future[Any]] = []
        self._lock = threading.Lock()
        self._context = copy_context()
        self._thread: threading.Thread | None = None

    async def run(self, request: Any) -> Any:
        try:
            return await in_thread(self._in_thread, request)
        except asyncio.CancelledError:
            with self._lock:
                self._is_cancelled = True
            for call in self._calls:
                call.cancel()
            raise

    def _in_thread(self, request: Any) -> Any:
        self._thread = threading.current_thread()
        return self._wrap(request, self._wait)

    def _wait(self, request: Any) -> Any:
        with self._lock:
            if self._is_cancelled:  # a wrapper must not retry what was cancelled
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
