"""How long the stage around this code may still take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from agentgraph.clock import clock
from agentgraph.errors import ModelError
from agentgraph.guards.mechanisms.deadlines import Deadline, Layer
from agentgraph.running import outer_run

_TOLERANCE_S = 0.1
"""How much the wall clock and the one that cuts off may differ."""

_stage: ContextVar[tuple[Deadline, float] | None] = ContextVar("agentgraph_stage", default=None)


def current_stage(outer: Deadline | None) -> Deadline | None:
    """Return the stage's deadline or that of the whole input, whichever comes first.

    The stage's is later by the time in which a reader has held the run back since it began.
    """
    found = _stage.get()
    if found is None:
        return outer
    stage, held_s = found
    return stage.shifted(_held_s() - held_s).shorter(outer)


@contextmanager
def inside_stage(deadline: Deadline | None) -> Iterator[None]:
    """Let what runs in here be over by then; an outer stage's deadline holds as well."""
    stage = current_stage(None)
    if deadline is not None:
        stage = deadline.shorter(stage)
    token = _stage.set(None if stage is None else (stage, _held_s()))
    try:
        yield
    finally:
        _stage.reset(token)


class Overdue(ModelError, TimeoutError):
    """A deadline has passed."""

    code = "deadline"

    def __init__(self, layer: Layer, seconds: float) -> None:
        self.layer = layer
        super().__init__(f"cut off after {seconds:.6g} s by the deadline of the {layer}")


class in_time:
    """Cut off what is not over by a deadline, or after a step's time, and say which it was."""

    # No generator, and no deadline made that hardly ever is missed: each call of a run enters it.
    __slots__ = ("_at", "_layer", "_limit", "_seconds")

    def __init__(self, deadline: Deadline | None, step_s: float | None = None) -> None:
        now = clock().wall()
        self._layer: Layer = "step"
        self._at = math.inf if step_s is None else now + step_s
        if deadline is not None and deadline.at <= self._at:
            self._at, self._layer = deadline.at, deadline.layer
        self._seconds = self._at - now
        self._limit = clock().timeout(None if self._at == math.inf else self._seconds)

    def __enter__(self) -> None:
        self._limit.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._limit.__exit__(kind, error, traceback)
        except TimeoutError as late:
            error = late
        if not isinstance(error, TimeoutError):
            return
        # Another limit, of a provider's client perhaps, is none of ours.
        if self._at - clock().wall() > _TOLERANCE_S:
            raise error
        raise Overdue(self._layer, self._seconds) from error


def _held_s() -> float:
    run = outer_run()
    return run.reader_wait_s if run is not None else 0.0
