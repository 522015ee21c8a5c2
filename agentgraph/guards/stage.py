"""How long the stage around this code may still take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentgraph.guards.deadlines import Deadline
from agentgraph.running import outer_run

__all__ = ["current_stage", "inside_stage"]

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


def _held_s() -> float:
    run = outer_run()
    return run.held_s if run is not None else 0.0
