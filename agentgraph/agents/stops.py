"""A stop by whoever is on duty, inside of middleware: no wrapper makes anything else of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeAlias, TypeVar

from agentgraph.errors import GuardStopped
from agentgraph.sentry import ControlFlow

__all__ = ["Stops"]

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")

Work: TypeAlias = Callable[P, Awaitable[W]]


class _Leaving(ControlFlow):
    """Carry a stop through wrappers: LangChain's let control flow pass, and wait for nothing."""


class Stops:
    """What was stopped in one pass through the wrappers, whatever they may catch."""

    def __init__(self) -> None:
        self._stop: Exception | None = None

    async def inside(self, asking: Callable[[Work[P, W]], Awaitable[T]], work: Work[P, W]) -> T:
        """Have work done by way of whoever is on duty, unless they have ended all this already.

        What the work itself raises is for the wrappers, be it an interrupt.
        """
        own: list[Exception] = []

        async def watched(*args: P.args, **kwargs: P.kwargs) -> W:
            try:
                return await work(*args, **kwargs)
            except Exception as error:
                own.append(error)
                raise

        if self._stop is None:
            try:
                return await asking(watched)
            except (GuardStopped, ControlFlow) as stop:
                if any(stop is error for error in own):
                    raise
                self._stop = stop
        raise _Leaving from self._stop

    async def outside(self, wrapped: Awaitable[T]) -> T:
        """Return what the wrappers return, or raise the stop that they were to let pass."""
        try:
            result = await wrapped
        except Exception:
            if self._stop is None:
                raise
        if self._stop is not None:
            raise self._stop
        return result
