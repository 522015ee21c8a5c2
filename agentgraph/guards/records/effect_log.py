"""The effect log of a thread: what the actions of its last input have come to, action by action.

Checkpoints are stored later than what they tell of: under durability "async" while the next step
runs, under "exit" when the run ends. So an action is in this log before it begins, and its outcome
as soon as it ends. The next input of the thread reads here what a run that was cut off has done.
A session needs no such log: its ledger does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentgraph.guards.mechanisms.saga import Saga
from agentgraph.guards.mechanisms.saga_entry import Entry, entries_of, merge_entries
from agentgraph.running import Journal, Run, current_run
from agentgraph.storage import Note, Saver

_NOTE = "effects"


class ActionAccount(Protocol):
    """What the log needs of the account of an input."""

    input_id: str
    saga: Saga | None

    @property
    def unbegun_keys(self) -> Collection[str]:
        """The actions that are registered and have not begun."""
        ...

    @property
    def undone_by(self) -> str:
        """The guard that has ended the input and has it undone, "" without one."""
        ...


@dataclass(frozen=True, slots=True)
class LoggedEffects:
    """What the log of a thread has."""

    turn: str
    """The id of the input."""
    before: tuple[str | None, ...]
    """The turns of which the thread's last checkpoint may be, while this one has stored none."""
    entries: Mapping[str, Any] = field(default_factory=dict)
    """The actions of the input, as a saga stores them."""
    undone_by: str = ""
    """The guard that has ended the input, once the undoing has begun."""
    journal: Journal = field(default_factory=dict)
    """The run's messages up to the last action, where checkpoints may lack them."""

    @property
    def by_key(self) -> dict[str, Entry]:
        """The actions by their keys."""
        return entries_of({"entries": self.entries})


class EffectLog:
    """The effect log of one thread, for the run that has the thread."""

    def __init__(self, saver: Saver, thread_id: str, *, is_ahead: bool = False) -> None:
        self._note = Note(saver, thread_id, _NOTE)
        self._is_ahead = is_ahead
        """Whether the run may be ahead of its checkpoints: then the log has its messages too."""
        self._lock = asyncio.Lock()

    async def read(self) -> LoggedEffects | None:
        """Return what the log has, None where it is empty."""
        values = await self._note.read()
        if not isinstance(values, Mapping):
            return None
        before = tuple(values["before"])
        return LoggedEffects(**{**values, "before": before})

    async def write(self, account: ActionAccount) -> None:
        """Write the state of all actions of an input; it is durable when this returns."""
        async with self._lock:  # a later state must not be overtaken by an earlier one
            if account.saga is None:
                return
            entries: Any = account.saga.dump()["entries"]
            unbegun_keys, run = account.unbegun_keys, current_run()
            record = LoggedEffects(
                account.input_id,
                _turns_before(run, account.input_id),
                {key: entry for key, entry in entries.items() if key not in unbegun_keys},
                account.undone_by,
                run.journal if self._is_ahead and run is not None else {},
            )
            await self.store(record)

    async def store(self, record: LoggedEffects) -> None:
        """Store what the log is to have."""
        values = {name: getattr(record, name) for name in LoggedEffects.__slots__}
        values["before"] = list(record.before)
        await self._note.write(values)

    async def merge_into(self, account: ActionAccount) -> None:
        """Add to an input's saga what the log has of this input, as another process wrote it."""
        record = await self.read() if account.saga is not None else None
        if record is not None and account.saga is not None and record.turn == account.input_id:
            entries = {"entries": record.entries}
            account.saga.load(merge_entries(account.saga.dump(), entries))


def _turns_before(run: Run | None, input_id: str) -> tuple[str | None, ...]:
    turns = set[str | None]() if run is None else run.turn_ids - {input_id}
    return tuple(sorted(turns, key=str))
