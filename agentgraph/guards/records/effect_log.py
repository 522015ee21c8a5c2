"""The effect log of a thread: what the actions of its last input have come to, action by action.

Checkpoints are stored later than what they tell of: under durability "async" while the next step
runs, under "exit" when the run ends. So an action is in this log before it begins, and its outcome
as soon as it ends. The next input of the thread reads here what a run that was cut off has done.
A session needs no such log: its ledger does the same.

The log is stored in parts: the first has all that is known when a run begins to write, each later
one what is new since. So an action costs the same, however many have been before it. The parts of
the next input replace these one by one; a part that another writer has left is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agentgraph.clock import SystemClock
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
    writer: str = ""
    """The id of the log that has written it: its later parts have the same."""

    @property
    def by_key(self) -> dict[str, Entry]:
        """The actions by their keys."""
        return entries_of({"entries": self.entries})

    def with_part(self, later: LoggedEffects) -> LoggedEffects:
        """Return what the log has with one more part of it."""
        journal = {call_id: list(messages) for call_id, messages in self.journal.items()}
        for call_id, messages in later.journal.items():
            journal.setdefault(call_id, []).extend(messages)
        return replace(later, entries={**self.entries, **later.entries}, journal=journal)

    def since(self, earlier: LoggedEffects | None) -> LoggedEffects | None:
        """Return what is new since an earlier state of the log, None where it does not go on."""
        if earlier is None or (self.turn, self.before) != (earlier.turn, earlier.before):
            return None
        counts = {call_id: len(messages) for call_id, messages in self.journal.items()}
        if any(len(old) > counts.get(call_id, 0) for call_id, old in earlier.journal.items()):
            return None
        earlier_entries, journal = earlier.entries, earlier.journal
        return replace(
            self,
            entries={
                key: raw for key, raw in self.entries.items() if earlier_entries.get(key) is not raw
            },
            journal={
                call_id: new
                for call_id, messages in self.journal.items()
                if (new := messages[len(journal.get(call_id, ())) :])
            },
        )


class EffectLog:
    """The effect log of one thread, for the run that has the thread."""

    def __init__(self, saver: Saver, thread_id: str, *, is_ahead: bool = False) -> None:
        self._saver, self._thread_id = saver, thread_id
        self._is_ahead = is_ahead
        """Whether the run may be ahead of its checkpoints: then the log has its messages too."""
        self._lock = asyncio.Lock()
        self._parts = 0
        """How many parts it has stored since it has begun with a first one."""
        self._state: LoggedEffects | None = None
        """What these parts have."""

    async def first_part(self) -> LoggedEffects | None:
        """Return the first part of the log, None where it is empty: it tells whose log it is."""
        return await self._read(0)

    async def read(self) -> LoggedEffects | None:
        """Return what the log has, None where it is empty."""
        state = await self._read(0)
        part = 1
        while state is not None and state.writer:
            later = await self._read(part)
            if later is None or later.writer != state.writer:
                break
            state, part = state.with_part(later), part + 1
        return state

    async def write(self, account: ActionAccount) -> None:
        """Write what is new of the actions of an input; it is durable when this returns."""
        async with self._lock:  # a later state must not be overtaken by an earlier one
            if account.saga is None:
                return
            entries: Any = account.saga.dump()["entries"]
            unbegun_keys, run = account.unbegun_keys, current_run()
            journal = run.journal if self._is_ahead and run is not None else {}
            await self.store(
                LoggedEffects(
                    account.input_id,
                    _turns_before(run, account.input_id),
                    {key: entry for key, entry in entries.items() if key not in unbegun_keys},
                    account.undone_by,
                    {call_id: list(messages) for call_id, messages in journal.items()},
                )
            )

    async def store(self, state: LoggedEffects) -> None:
        """Store what the log is to have: what is new, where this log has stored what was before."""
        new, part = state.since(self._state), self._parts
        if new is None or self._state is None:  # it begins anew: older parts are none of it
            state = new = replace(state, writer=SystemClock().new_id())
            part = 0
        else:
            writer = self._state.writer
            state, new = replace(state, writer=writer), replace(new, writer=writer)
        values = {name: getattr(new, name) for name in LoggedEffects.__slots__}
        await self._note(part).write({**values, "before": list(new.before)})
        self._state, self._parts = state, part + 1

    async def merge_into(self, account: ActionAccount) -> None:
        """Add to an input's saga what the log has of this input, as another process wrote it."""
        record = await self.read() if account.saga is not None else None
        if record is not None and account.saga is not None and record.turn == account.input_id:
            entries = {"entries": record.entries}
            account.saga.load(merge_entries(account.saga.dump(), entries))

    async def _read(self, part: int) -> LoggedEffects | None:
        values = await self._note(part).read()
        if not isinstance(values, Mapping):
            return None
        return LoggedEffects(**{**values, "before": tuple(values["before"])})

    def _note(self, part: int) -> Note:
        return Note(self._saver, self._thread_id, _NOTE, part)


def _turns_before(run: Run | None, input_id: str) -> tuple[str | None, ...]:
    turns = set[str | None]() if run is None else run.turn_ids - {input_id}
    return tuple(sorted(turns, key=str))
