"""A run that was ended while a question beside it still waits: it is undone before new input."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot

from agentgraph.agents.takeover import Leftovers
from agentgraph.guards.pauses import left_to_undo
from agentgraph.guards.side_notes import PAUSED, SideNotes

__all__ = ["ended"]


async def ended(
    saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot, left: Leftovers
) -> dict[str, Any] | None:
    """Return the state in which what was ended is undone, None where nothing is to be.

    The question is dropped, as new input always drops it.
    """
    turn = snapshot.values.get("turn") or {}
    known = [account async for account in _accounts(saver, snapshot)]
    unbegun = await SideNotes(saver, snapshot.config).registered()
    account = left_to_undo(known, turn.get("id", ""), unbegun)
    if account is None:
        return None
    at = {} if left.active is None else {"current_active_agent": left.active}
    closed = {**turn, "closed": account["closed"]}
    return {**left.values, **at, "messages": left.messages, "guarded": account, "turn": closed}


async def _accounts(
    saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield what each level of a run that waits has of the account, stored and noted beside it."""
    # A graph of others may have a state of any form, and any channel in it.
    values: object = snapshot.values
    stored = values.get("guarded") if isinstance(values, Mapping) else None
    if isinstance(stored, Mapping):
        yield stored
    for noted in await SideNotes(saver, snapshot.config).read(PAUSED):
        yield noted
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            async for below in _accounts(saver, task.state):
                yield below
