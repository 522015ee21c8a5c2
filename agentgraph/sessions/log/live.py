"""Live events on their way from the hub that runs a session to hubs that watch it.

What happens in a session has one order: its envelopes, and between two of them the live events,
each with a place of its own (`Cursor`). The table has the live events of turns under way only, and
only of sessions that another hub watches. Nothing in it has to outlive a loss of power.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from agentgraph.sessions.log.protocol import Log


class Cursor(NamedTuple):
    """A place in a session: after an envelope, or after a live event that followed it.

    str(Cursor(7))        # "7": after the seventh envelope
    str(Cursor(7, 1, 3))  # "7.1.3": after the third live event since, of the first attempt
    """

    sequence: int = 0
    """That of the last envelope."""
    attempt: int = 0
    """The attempt at the round; 0 directly after the envelope."""
    number: int = 0
    """The number of the live event among those since the envelope, from 1."""

    def __str__(self) -> str:
        return ".".join(map(str, self)) if self.number else str(self.sequence)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read the text of a cursor; raise `ValueError` if it is none."""
        parts = text.split(".")
        if len(parts) not in (1, 3) or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"{text!r} is no place in a session, such as 7 or 7.1.3")
        return cls(*(min(int(part), _LAST) for part in parts))


_LAST = 2**62
START = Cursor()
"""Before everything."""


class LiveRow(NamedTuple):
    """Some live events of a session, of one attempt, that follow each other."""

    session_id: str
    sequence: int
    attempt: int
    number: int
    """That of the last of these events."""
    data: str
    """JSON in ASCII, which only hubs read."""

    @property
    def cursor(self) -> Cursor:
        """The place of the last of these events."""
        return Cursor(self.sequence, self.attempt, self.number)


class LiveNotice(str):
    """The id of a session that has new live events, "" for any.

    Listeners of a log get it instead of a plain `str`, where nothing else has changed.
    """

    __slots__ = ()


class WatchNotice(str):
    """Says that the hubs which watch sessions have changed, and nothing else."""

    __slots__ = ()


class LiveTable(Protocol):
    """What a log offers as `live`, so that hubs of other processes see what happens in a session.

    A log may have none: then such hubs see envelopes only. A hub watches for as long as its lease
    lasts.
    """

    async def add(self, rows: Sequence[LiveRow]) -> None:
        """Store rows, of any sessions, in one commit that does not wait for the disk; notify.

        A row whose place is taken is left out.
        """
        ...

    async def read(self, session_id: str, after: Cursor) -> list[LiveRow]:
        """Return the rows of a session whose last event is after a place, in order."""
        ...

    async def trim(self, sequences: Mapping[str, int]) -> None:
        """Delete by session the rows before a sequence."""
        ...

    async def watch(self, session_id: str, owner: str) -> None:
        """Note that a hub watches a session; notify."""
        ...

    async def unwatch(self, session_id: str, owner: str) -> None:
        """Note that a hub watches a session no more; notify."""
        ...

    async def sessions_watched(self, owner: str, now: float) -> set[str]:
        """Return the sessions that others than this hub watch; forget who is gone since long."""
        ...

    async def news(self, session_ids: Collection[str]) -> dict[str, tuple[int, Cursor]]:
        """Return the head of each of these sessions, and the place of its last row."""
        ...


class MemoryLiveTable:
    """The live events of a memory log, for other hubs of its process."""

    def __init__(
        self, log: Log, leases: Mapping[str, float], notify: Callable[[str | None], None]
    ) -> None:
        self._log = log
        self._leases = leases
        self._notify = notify
        self._rows: dict[str, dict[Cursor, LiveRow]] = {}
        self._watchers: set[tuple[str, str]] = set()

    async def add(self, rows: Sequence[LiveRow]) -> None:
        for row in rows:
            self._rows.setdefault(row.session_id, {}).setdefault(row.cursor, row)
        for session_id in {row.session_id for row in rows}:
            self._notify(LiveNotice(session_id))

    async def read(self, session_id: str, after: Cursor) -> list[LiveRow]:
        rows = sorted(self._rows.get(session_id, {}).items())
        return [row for cursor, row in rows if cursor > after]

    async def trim(self, sequences: Mapping[str, int]) -> None:
        for session_id, sequence in sequences.items():
            rows = self._rows.pop(session_id, {})
            if rest := {key: row for key, row in rows.items() if key.sequence >= sequence}:
                self._rows[session_id] = rest

    async def watch(self, session_id: str, owner: str) -> None:
        self._watchers.add((session_id, owner))
        self._notify(WatchNotice())

    async def unwatch(self, session_id: str, owner: str) -> None:
        self._watchers.discard((session_id, owner))
        self._notify(WatchNotice())

    async def sessions_watched(self, owner: str, now: float) -> set[str]:
        return {
            session_id
            for session_id, watcher in self._watchers
            if watcher != owner and self._leases.get(watcher, 0.0) > now
        }

    async def news(self, session_ids: Collection[str]) -> dict[str, tuple[int, Cursor]]:
        heads: dict[str, tuple[int, Cursor]] = {}
        for session_id in session_ids:
            stored_session = await self._log.load(session_id)
            if stored_session is not None:
                last = max(self._rows.get(session_id, {}), default=Cursor())
                heads[session_id] = stored_session.head, last
        return heads

    def forget(self, session_id: str) -> None:
        """Delete what is stored of a session."""
        self._rows.pop(session_id, None)
        self._watchers = {pair for pair in self._watchers if pair[0] != session_id}
