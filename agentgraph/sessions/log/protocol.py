"""The protocol of a session log, with the types of its parameters and results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from agentgraph.errors import Quarantined, SessionError
from agentgraph.routing.frozen_json import FrozenDict
from agentgraph.routing.values import json_equal
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.record import DEFAULT_TENANT, SessionRecord, session_key
from agentgraph.sessions.state.state import SessionState

ChangeListener: TypeAlias = Callable[[str | None], None]
"""Called with the id of a session that some process has changed; None if any may have changed."""


class AppendNotice(str):
    """The id of a session to which its owner has appended.

    Listeners get this type instead of a plain `str` where a change means only new envelopes to
    read: no new inbox entry, and no session to take over.
    """

    __slots__ = ()


class EmptyInbox(str):
    """The id of an unfinished session whose inbox has no entry: whoever drives it reads none."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SharedBlobs:
    """Blobs that a new session has of an earlier one, of which it has copies of envelopes."""

    session_id: str
    """The earlier session."""
    digests: Collection[str]


class InboxConflict(SessionError):
    """An entry arrived in the inbox while a session was being closed: admit it too, then close."""

    code = "inbox_moved"


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """An accepted draft that waits to be admitted; its envelope will have the same id."""

    envelope_id: str
    sender_id: str
    draft: Draft
    order: int = 0
    """The order of arrival, over all sessions; the store sets it."""

    def as_envelope(self, session_id: str) -> Envelope:
        """Return the envelope that it will be, as far as it is known before it has its place."""
        draft = self.draft
        return Envelope(
            self.envelope_id,
            session_id,
            self.sender_id,
            draft.audience,
            draft.event_type,
            draft.event_data,
        )


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as a log stores it."""

    record: SessionRecord
    head: int
    """The sequence of the session's last envelope."""
    state: SessionState | None
    """The snapshot; None if it is missing or unreadable, so that the log must be folded."""
    attempts: int = 0
    """How often the present round has been begun."""
    owner: str | None = None
    epoch: int = 0


def is_unknown(error: SessionError) -> bool:
    """Tell whether an error says that there is no such session, or no more."""
    return error.code == "unknown_session"


class DamagedSession(Quarantined):
    """A record of a session is torn, altered or missing: restore it from a backup.

    `sequence` is that of the damaged envelope, None if another record is damaged. `stored_session`
    is what `Log.load` could read: of a damaged session record only a part, with an empty `graph`.
    """

    def __init__(
        self,
        message: str,
        session_id: str,
        sequence: int | None = None,
        stored_session: StoredSession | None = None,
    ) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.sequence = sequence
        self.stored_session = stored_session


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One row of a list of sessions."""

    session_id: str
    team: str
    status: str
    creator: str
    created_at: float
    sequence: int
    parent: str | None = None
    """The id of the session whose round it serves, or whose fork it is."""
    tenant: str = DEFAULT_TENANT
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)

    @classmethod
    def of(cls, record: SessionRecord, status: str, sequence: int) -> SessionSummary:
        """Return the summary of a session with this record, status and last sequence."""
        return cls(
            record.session_id,
            record.team,
            status,
            record.creator,
            record.created_at,
            sequence,
            record.parent.session_id if record.parent is not None else None,
            record.tenant,
            record.metadata,
        )

    @property
    def key(self) -> str:
        """The session's key in the log, unique among all tenants."""
        return session_key(self.tenant, self.session_id)


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Which sessions a log is to list, and in which order; a field that is None selects all.

    A session has the `metadata` if it has each of these entries. `after` is the key of the session
    that was listed last, `limit` the most that are listed.
    """

    status: str | None = None
    team: str | None = None
    creator: str | None = None
    person: str | None = None
    """One who has opened the session, or takes part in it and is no agent."""
    tenant: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    after: str | None = None
    limit: int | None = None
    newest_first: bool = False
    with_inner: bool = True
    """Whether sessions that serve a round of another one are listed."""

    def selects(self, record: SessionRecord, status: str) -> bool:
        """Tell whether a session is one of those, wherever it is in the list."""
        pairs = (
            (self.status, status),
            (self.team, record.team),
            (self.creator, record.creator),
            (self.tenant, record.tenant),
        )
        own = record.metadata
        if record.serves and not self.with_inner:
            return False
        if self.person not in (None, record.creator, *record.humans, *record.invited):
            return False
        return all(choice in (None, value) for choice, value in pairs) and all(
            key in own and json_equal(own[key], value) for key, value in self.metadata.items()
        )


ALL_SESSIONS = SessionQuery()
NO_BLOBS: Mapping[str, str] = FrozenDict()


@runtime_checkable
class FoldingLog(Protocol):
    """A log that also folds what it reads; of one that does not, envelopes are read and folded."""

    async def fold(self, state: SessionState, limit: int) -> SessionState:
        """Return the state after up to `limit` envelopes that follow it; raise what `read` does.

        Faster than `read`, as nobody else sees these envelopes, which therefore need no freezing.
        """
        ...


class Log(Protocol):
    """Stores envelopes by session, in order, with an inbox, a snapshot and a lease per session.

    The owner of a session is a hub, which prolongs its lease by `heartbeat`. Another hub may claim
    the session once that lease has expired, or when its `is_gone` says that the owner is dead. The
    claim raises the epoch; the log then refuses an append with the lower epoch.

    A `session_id` here is the key of a session (`SessionRecord.key`), unique among all tenants.

    `register_log` makes a log of your own known to `Hub.open`.
    """

    async def open(self) -> None:
        """Connect, and migrate the tables to the current version."""
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
        parent_epoch: int | None = None,
        blobs: SharedBlobs | None = None,
    ) -> bool:
        """Create a session with its first envelopes; return False if a session of this id exists.

        `blobs` are the blobs to which these envelopes refer: they are copied, or nothing is stored.

        `due_at` is the instant of the session's next timer; `runnable` overrides that of the state.
        With a `parent_epoch` it raises `StaleOwner` unless its parent is there under this epoch.

        Its epoch is higher than that of any session that was forgotten: a former owner of one with
        the same id can write nothing to it. Of many envelopes the state is a milestone, as in
        `append`.
        """
        ...

    async def load(self, session_id: str) -> StoredSession | None:
        """Return a session, None if it is unknown; `Quarantined` if its record is unreadable."""
        ...

    async def sessions(self, query: SessionQuery = ALL_SESSIONS) -> list[SessionSummary]:
        """List the sessions that a query selects, the oldest first unless it says otherwise.

        `SessionError` if there is no session with the key `query.after`.
        """
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
        blobs: Mapping[str, str] = NO_BLOBS,
    ) -> None:
        """Append after `head`, store the state, and remove the admitted entries from the inbox.

        The state is stored as a milestone too, where `is_milestone_due` says so.
        `blobs` are those to which the envelopes refer, by their digests, unless they are stored
        already. All or nothing. `RoundConflict` if the head has moved on, `StaleOwner` if the epoch
        has, `SessionClosed` if the session has ended, `InboxConflict` if the state ends the session
        while the inbox has entries besides the admitted ones.
        """
        ...

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        """Return envelopes in order; `Quarantined` if one is torn or missing."""
        ...

    async def milestone(self, session_id: str, at: int) -> SessionState | None:
        """Return the state at the last milestone up to the sequence `at`, None if there is none.

        A milestone that is damaged is passed over. A log may have no milestones: the state at a
        sequence is then folded from the first envelope.
        """
        ...

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        """Return the last envelopes up to `before` that views show, reading no others."""
        ...

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        """Return the envelope with this id, None if the session has no such envelope."""
        ...

    async def sessions_with(self, envelope_id: str) -> list[str]:
        """Return the sessions that have an envelope, or an entry of the inbox, with this id.

        The oldest first: forks of a session have its envelopes too.
        """
        ...

    async def store_blobs(self, session_id: str, blobs: Mapping[str, str]) -> None:
        """Store texts by their digests, durably: before an entry of the inbox that refers to them.

        The owner of a session stores blobs by `append`, which checks its epoch. What is stored
        already stays. `SessionError` if there is no such session.
        """
        ...

    async def blobs(self, session_id: str, digests: Collection[str]) -> dict[str, str]:
        """Return the blobs with these digests, as far as the session has them."""
        ...

    async def enqueue(self, session_id: str, entry: InboxEntry) -> str:
        """Put an entry into the inbox, durably; return its id.

        If the same sender has sent the same idempotency key before, nothing is inserted and the id
        of the first entry is returned.

        `SessionClosed` if the session has ended, `SessionError` if there is no such session.
        """
        ...

    async def accepted_id(self, session_id: str, sender_id: str, key: str) -> str | None:
        """Return the id of the entry that a sender has sent with this idempotency key, if any."""
        ...

    async def inbox(self, session_id: str) -> list[InboxEntry]:
        """Return the entries that wait to be admitted, in the order of arrival."""
        ...

    async def claim(
        self,
        session_id: str,
        owner: str,
        now: float,
        *,
        is_gone: Callable[[str], bool] = lambda owner: False,
        force: bool = False,
        at_rest: bool = False,
    ) -> int | None:
        """Make a hub the owner of a session, and return the epoch.

        None while another hub's lease on the session is valid, unless `is_gone` returns true for
        that hub or `force` is set. With `at_rest` a session that is not runnable is claimed from
        such a hub too, which has nothing under way in it. A hub that owns the session already keeps
        its epoch, unless its own lease has expired meanwhile.
        """
        ...

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        """End a hub's ownership of a session; `attempts` sets the round's attempts."""
        ...

    async def attempt(self, session_id: str, epoch: int) -> int:
        """Count one more attempt at the present round, and return the number of attempts.

        `StaleOwner` if the epoch has moved on.
        """
        ...

    async def heartbeat(self, owner: str, until: float) -> None:
        """Prolong the lease of a hub on all its sessions, until the instant `until`."""
        ...

    async def release_all(self, owner: str) -> None:
        """End the lease of a hub, and its ownership of all its sessions."""
        ...

    async def unfinished_sessions(self, now: float) -> list[str]:
        """Return the sessions that need an owner: runnable, with an inbox, or with a due timer.

        Also sessions that have ended but still have an owner: that hub was killed before it deleted
        their checkpoints. The id of one whose inbox is known to be empty may be an `EmptyInbox`.
        """
        ...

    async def owned_sessions(self, owner: str) -> list[str]:
        """Return the sessions that a hub owns."""
        ...

    async def next_due(self, after: float = float("-inf")) -> float | None:
        """Return the instant of the first timer of any session after `after`, None without one."""
        ...

    async def children(self, session_id: str) -> list[str]:
        """Return the sessions whose parent this one is: inner sessions, and forks."""
        ...

    async def forget(self, session_id: str, epoch: int) -> None:
        """Delete a session and all that is stored of it, at once; listeners learn of the change.

        `StaleOwner` if the epoch has moved on.
        """
        ...

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call the listener with each change, on the caller's loop; the result unsubscribes."""
        ...
