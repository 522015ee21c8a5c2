"""How long the stage around this code may still take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentgraph.guards.deadlines import Deadline

__all__ = ["current_stage", "inside_stage"]

_stage: ContextVar[Deadline | None] = ContextVar("agentgraph_stage", default=None)


def current_stage(outer: Deadline | None) -> Deadline | None:
    """Return the stage's deadline or that of the whole input, whichever comes first."""
    stage = _stage.get()
    return outer if stage is None else stage.shorter(outer)


@contextmanager
def inside_stage(deadline: Deadline | None) -> Iterator[None]:
    """Let what runs in here be over by then; an outer stage's deadline holds as well."""
    token = _stage.set(deadline if deadline is None else deadline.shorter(_stage.get()))
    try:
        yield
    finally:
        _stage.reset(token)
