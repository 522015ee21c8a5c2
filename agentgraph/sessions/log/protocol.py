"""The protocol of a session log, and the values that it takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from agentgraph.errors import SessionError
from agentgraph.sessions.state.envelope import Draft, Envelope
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

ChangeListener: TypeAlias = Callable[[str | None], None]
"""Called with the id of a session that any process has changed, None where it may be any."""


class AppendNotice(str):
    """The id of a session that its owner has appended to.

    Listeners get it in place of a plain id where there is something new to read, but nothing in the
    inbox and no session to take over.
    """

    __slots__ = ()


class InboxConflict(SessionError):
    """Something came in while a session was being closed: admit that too, then close."""

    code = "inbox_moved"


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """What was accepted and waits to be admitted; its id will be its envelope's."""

    envelope_id: str
    sender_id: str
    draft: Draft
    order: int = 0
    """Stamped by the store: the order of arrival, over all sessions."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as a log has it."""

    record: SessionRecord
    head: int
    """The sequence of its last envelope."""
    state: SessionState | None
    """The snapshot; None where it is missing or unreadable, so that the log must be folded."""
    attempts: int = 0
    """How often the present round was begun."""
    owner: str | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session in a list of sessions."""

    session_id: str
    team: str
    status: str
    creator: str
    created_at: float
    sequence: int
    parent: str | None = None


class Log(Protocol):
    """Envelopes by session, in order; beside them an inbox, a snapshot and a lease on each session.

    The owner of a session is a hub, which prolongs its lease by `heartbeat`. Another hub that
    claims the session after that lease has run out, or whose `is_gone` says that the owner is dead,
    gets a higher epoch; an append with the lower epoch is then refused.

    `register_log` makes a log of your own known to `Hub.open`.
    """

    async def open(self) -> None:
        """Connect, and bring the tables up to date."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    async def create(
        self,
        record: SessionRecord,
        envelopes: Sequence[Envelope],
        state: SessionState,
        *,
        due_at: float | None = None,
        runnable: bool | None = None,
    ) -> bool:
        """Create a session with its first envelopes; False if there is one of this id.

        `due_at` is when the clock has something to do with it; `runnable` overrides the state's.
        """
        ...

    async def load(self, session_id: str) -> StoredSession | None:
        """Return a session, None if there is none; `Quarantined` if its record is unreadable."""
        ...

    async def sessions(self, status: str | None = None) -> list[SessionSummary]:
        """List the sessions, the oldest first."""
        ...

    async def append(
        self,
        session_id: str,
        envelopes: Sequence[Envelope],
        head: int,
        state: SessionState,
        *,
        epoch: int | None = None,
        due_at: float | None = None,
        admitted_ids: Collection[str] = (),
        attempts: int | None = None,
    ) -> None:
        """Append after `head`, store the state, and remove from the inbox what was admitted.

        All or nothing. `RoundConflict` if the head has moved on, `StaleOwner` if the epoch has,
        `SessionClosed` if the session has ended, `InboxConflict` if the state ends it while the
        inbox has more than what was admitted.
        """
        ...

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        """Return envelopes in order; `Quarantined` if one is torn or missing."""
        ...

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        """Return the last substantive envelopes up to `before`, in order, reading no others."""
        ...

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        """Return one envelope."""
        ...

    async def enqueue(self, session_id: str, entry: InboxEntry) -> str:
        """Put an entry into the inbox, durably; return its id.

        For the same sender and idempotency key that is the id of the first, and nothing is put in.

        `SessionClosed` if the session has ended, `SessionError` if there is none.
        """
        ...

    async def inbox(self, session_id: str) -> list[InboxEntry]:
        """Return what waits to be admitted, in the order of arrival."""
        ...

    async def claim(
        self,
        session_id: str,
        owner: str,
        now: float,
        *,
        is_gone: Callable[[str], bool] = lambda owner: False,
        force: bool = False,
    ) -> int | None:
        """Make a hub the owner of a session, and return the epoch.

        None while another hub's lease on it holds, unless `is_gone` says of that hub that it is
        dead, or `force` overrides it. A hub that owns the session already keeps its epoch, unless
        its own lease has run out meanwhile.
        """
        ...

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        """Give a session back; `attempts` sets how often its round was begun."""
        ...

    async def attempt(self, session_id: str, epoch: int) -> int:
        """Count one more attempt at the present round, and return how many there were.

        `StaleOwner` if the epoch has moved on.
        """
        ...

    async def heartbeat(self, owner: str, until: float) -> None:
        """Prolong the lease of a hub on all its sessions, until that instant."""
        ...

    async def release_all(self, owner: str) -> None:
        """End the lease of a hub, and give back all its sessions."""
        ...

    async def unfinished_sessions(self, now: float) -> list[str]:
        """Return the sessions that need an owner: runnable, with an inbox, or due by the clock.

        Also those that have ended and were not given back: their owner was killed before it deleted
        their checkpoints.
        """
        ...

    async def next_due(self) -> float | None:
        """Return when the next session is due, None if none ever is."""
        ...

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call the listener with each change, on the loop of the caller; the result ends that."""
        ...
