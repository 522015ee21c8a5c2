"""What a store of sessions does, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from agentgraph.errors import SessionError
from agentgraph.sessions.state.envelope import Draft, Envelope
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

Changed: TypeAlias = Callable[[str | None], None]
"""Told of every change, by any process: of which session, None where it may be any."""


class Grown(str):
    """The id of a session that its owner has appended to: news, and nothing that waits for it."""

    __slots__ = ()


class InboxMoved(SessionError):
    """Something came in while a session was being closed: take that too, then close."""

    code = "inbox_moved"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What was accepted and waits to be admitted; its id will be its envelope's."""

    envelope_id: str
    sender_id: str
    draft: Draft
    order: int = 0
    """Stamped by the store: the order of arrival, over all sessions."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A session as it is kept."""

    record: SessionRecord
    head: int
    """The sequence of its last envelope."""
    state: SessionState | None
    """The snapshot; None where it is missing or unreadable: fold the log."""
    attempts: int = 0
    """How often the present round was begun."""
    owner: str | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """A session, in a list."""

    session_id: str
    team: str
    status: str
    creator: str
    created_at: float
    sequence: int
    parent: str | None = None


class Log(Protocol):
    """Envelopes by session, in order; and beside them an inbox, a snapshot and a lease.

    Owners are hubs. A hub says `beat` before its lease ends; whoever claims a session of one that
    has not, or that `is_gone` says is dead, gets a higher epoch, and the other writes nothing more.
    """

    async def open(self) -> None:
        """Connect, and bring the tables up to date."""
        ...

    async def close(self) -> None:
        """Let go of all connections."""
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
        """Begin a session; False if there is one of this id. `runnable` overrides the state's."""
        ...

    async def load(self, session_id: str) -> Stored | None:
        """Return what is kept of a session, None if there is none; `Quarantined` if unreadable."""
        ...

    async def sessions(self, status: str | None = None) -> list[Summary]:
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
        taken: Collection[str] = (),
        attempts: int | None = None,
    ) -> None:
        """Append after `head` and store the state, all or nothing; what was taken leaves the inbox.

        `RoundConflict` if the log has moved on, `StaleOwner` if the epoch has, `SessionClosed` if
        it has ended, `InboxMoved` if the state ends it while more waits than was taken.
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

    async def put(self, session_id: str, waiting: Waiting) -> str:
        """Accept something, durably; return its id, or the earlier one of the same key and sender.

        `SessionClosed` if the session has ended, `SessionError` if there is none.
        """
        ...

    async def waiting(self, session_id: str) -> list[Waiting]:
        """Return what waits, in the order of arrival."""
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
        """Take a session, and return the epoch; None while another hub's lease on it holds.

        A hub that has it already keeps its epoch, unless its own lease has run out meanwhile.
        """
        ...

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        """Give a session back, and set the attempts that its round has had."""
        ...

    async def attempt(self, session_id: str, epoch: int) -> int:
        """Count one more attempt at the present round, and return how many it has had."""
        ...

    async def beat(self, owner: str, until: float) -> None:
        """Prolong the lease of a hub on all that it has."""
        ...

    async def retire(self, owner: str) -> None:
        """End the lease of a hub, and give back all that it has."""
        ...

    async def unfinished(self, now: float) -> list[str]:
        """Return the sessions that need somebody: runnable, with an inbox, or due by the clock.

        And those that have ended and were not given back: their owner had not cleared them away.
        """
        ...

    async def next_due(self) -> float | None:
        """Return when the first session is due."""
        ...

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        """Have changes told on the loop of the caller; the result ends it."""
        ...
