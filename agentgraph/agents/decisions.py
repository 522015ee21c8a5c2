"""Decisions that humans give, checked against what a thread waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import StateSnapshot

from agentgraph.errors import RoutingError

__all__ = ["asked_in", "reachable_interrupts", "refusal"]


def reachable_interrupts(snapshot: StateSnapshot) -> Iterator[str]:
    """Yield the ids of the questions that a resume would reach.

    A nested graph that was rebuilt without the agent that asked would end in silence.
    """
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from reachable_interrupts(task.state)
        else:
            yield from (interrupt.id for interrupt in task.interrupts)


def asked_in(saved: CheckpointTuple | None) -> set[str]:
    """Return the ids of all questions that a checkpoint holds, whoever asked."""
    writes = (saved.pending_writes or ()) if saved is not None else ()
    return {i.id for _, channel, value in writes if channel == "__interrupt__" for i in value}


def refusal(
    thread_id: str, unknown: Sequence[str], pending: Iterable[str], asked: set[str]
) -> RoutingError:
    """Say why decisions cannot be taken, and what the thread waits for."""
    if gone := sorted(set(unknown) & asked):
        return RoutingError(
            f"the agent that asked {', '.join(gone)} on thread {thread_id!r} is no longer in the "
            "tree: put it back, or go on with a new message",
            code="agent_gone",
        )
    waiting = ", ".join(sorted(pending)) or "nothing"
    given = ", ".join(unknown) or "no decision"
    return RoutingError(
        f"thread {thread_id!r} does not wait for {given}: it waits for {waiting}",
        code="unknown_interrupt",
    )
