"""Sessions in the memory of this process.

This log serves tests and teams that run without a hub, and is the shortest complete implementation
of the protocol. No method awaits anything, so each is atomic among the tasks of an event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import TypeAlias

from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.live import MemoryLiveTable
from agentgraph.sessions.log.protocol import (
    ALL_SESSIONS,
    NO_BLOBS,
    AppendNotice,
    ChangeListener,
    EmptyInbox,
    InboxConflict,
    InboxEntry,
    SessionQuery,
    SessionSummary,
    SharedBlobs,
    StoredSession,
)
from agentgraph.sessions.log.webhooks import MemoryWebhookTable
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState, is_milestone_due


@dataclass(slots=True)
class _MemorySession:
    """One session: the data that a database log keeps in rows."""

    ordinal: int
    record: SessionRecord
    state: SessionState
    runnable: bool
    due_at: float | None
    """The instant of the session's next timer."""
    envelopes: list[Envelope] = field(default_factory=list)
    in_views: list[int] = field(default_factory=list)
    """The indexes of those `envelopes` that views show."""
    milestones: list[SessionState] = field(default_factory=list)
    by_id: dict[str, Envelope] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    """Envelope ids by sender and idempotency key."""
    blobs: dict[str, str] = field(default_factory=dict)
    inbox: dict[str, InboxEntry] = field(default_factory=dict)
    attempts: int = 0
    owner: str | None = None
    epoch: int = 0
    """Grows with each new owner."""

    def add(self, envelopes: Sequence[Envelope]) -> None:
        """Add envelopes, after which the state is the present one."""
        if is_milestone_due(len(self.envelopes), len(envelopes)):
            self.milestones.append(self.state)
        for envelope in envelopes:
            if envelope.is_in_views:
                self.in_views.append(len(self.envelopes))
            self.envelopes.append(envelope)
            self.by_id[envelope.envelope_id] = envelope
            if envelope.idempotency_key is not None:
                key = (envelope.sender_id, envelope.idempotency_key)
                self.keys.setdefault(key, envelope.envelope_id)


_Place: TypeAlias = tuple[str | None, str | None]
"""A tenant and a creator, by which sessions are found; None is any."""


def _places(record: SessionRecord) -> Iterator[_Place]:
    """Yield the places under which a session is found."""
    yield from product((record.tenant, None), (record.creator, None))


class MemoryLog:
    """A log that lasts as long as the process; several hubs of the process may share one.

    Envelopes, records and states are immutable, so they are stored without being copied.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _MemorySession] = {}
        self._leases: dict[str, float] = {}  # by hub: the instant at which its lease expires
        self._order = count(1)  # of arrival in the inboxes
        self._ordinals = count(1)  # of sessions
        self._lowest_epoch = 0  # of new sessions
        self._index: dict[_Place, dict[str, _MemorySession]] = {}
        self._listeners = Listeners()
        self.live = MemoryLiveTable(self, self._leases, self._listeners.notify)
        self.webhooks = MemoryWebhookTable(self._sessions)

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: another hub may still use the log."""

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
        key = record.key
        if parent_epoch is not None:
            parent = self._sessions.get(record.parent_key or "")
            if parent is None or parent.epoch != parent_epoch:
                raise r.stale_owner(record.parent_key or "")
        if key in self._sessions:
            return False
        is_runnable = state.is_runnable if runnable is None else runnable
        session = self._sessions[key] = _MemorySession(
            next(self._ordinals), record, state, is_runnable, due_at
        )
        session.epoch = self._lowest_epoch
        session.add(envelopes)
        if blobs is not None and (source := self._sessions.get(blobs.session_id)) is not None:
            own_digests = [digest for digest in blobs.digests if digest in source.blobs]
            session.blobs.update({digest: source.blobs[digest] for digest in own_digests})
        for place in _places(record):
            self._index.setdefault(place, {})[key] = session
        self._listeners.notify(key)
        return True

    async def load(self, session_id: str) -> StoredSession | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        return StoredSession(
            session.record,
            len(session.envelopes),
            session.state,
            session.attempts,
            session.owner,
            session.epoch,
        )

    async def sessions(self, query: SessionQuery = ALL_SESSIONS) -> list[SessionSummary]:
        after = None if query.after is None else self._session(query.after).ordinal
        own = self._index.get((query.tenant, query.creator), {}).values()
        summaries: list[SessionSummary] = []
        for session in reversed(own) if query.newest_first else own:
            is_seen = after is not None and (
                session.ordinal >= after if query.newest_first else session.ordinal <= after
            )
            if len(summaries) == query.limit:
                break
            if not is_seen and query.selects(session.record, session.state.status):
                count = len(session.envelopes)
                summaries.append(SessionSummary.of(session.record, session.state.status, count))
        return summaries

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
        session = self._session(session_id)
        if epoch is not None and session.epoch != epoch:
            raise r.stale_owner(session_id)
        if session.state.is_ended:
            raise r.session_ended(session_id, session.state.status)
        if len(session.envelopes) != head:
            raise r.session_moved(session_id, len(session.envelopes))
        # An accepted entry that remains in the inbox of a session that ends would be lost.
        if state.is_ended and any(key not in admitted_ids for key in session.inbox):
            raise InboxConflict()
        session.state, session.runnable, session.due_at = state, state.is_runnable, due_at
        session.add(envelopes)
        session.blobs.update(blobs)
        for envelope_id in admitted_ids:
            session.inbox.pop(envelope_id, None)
        if attempts is not None:
            session.attempts = attempts
        self._listeners.notify(AppendNotice(session_id))

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        envelopes, after = self._session(session_id).envelopes, max(after, 0)
        return envelopes[after : None if limit is None else after + limit]

    async def milestone(self, session_id: str, at: int) -> SessionState | None:
        milestones = self._session(session_id).milestones
        place = bisect_right(milestones, at, key=lambda state: state.sequence)
        return milestones[place - 1] if place else None

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        session = self._session(session_id)
        newest_first: list[Envelope] = []
        for place in reversed(session.in_views):
            if len(newest_first) >= count:
                break
            if before is None or place < before:
                newest_first.append(session.envelopes[place])
        return newest_first[::-1]

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        return self._session(session_id).by_id.get(envelope_id)

    async def sessions_with(self, envelope_id: str) -> list[str]:
        return [
            key
            for key, session in self._sessions.items()
            if envelope_id in session.by_id or envelope_id in session.inbox
        ]

    async def store_blobs(self, session_id: str, blobs: Mapping[str, str]) -> None:
        self._session(session_id).blobs.update(blobs)

    async def blobs(self, session_id: str, digests: Collection[str]) -> dict[str, str]:
        own_blobs = self._session(session_id).blobs
        return {digest: own_blobs[digest] for digest in digests if digest in own_blobs}

    async def enqueue(self, session_id: str, entry: InboxEntry) -> str:
        session = self._session(session_id)
        # Looked up before the status: an identical resend gets its first id after the end, too.
        idempotency_key = entry.draft.idempotency_key
        key = (entry.sender_id, idempotency_key or "")
        if idempotency_key is not None and key in session.keys:
            return session.keys[key]
        if session.state.is_ended:
            raise r.session_ended(session_id, session.state.status)
        if idempotency_key is not None:
            session.keys[key] = entry.envelope_id
        session.inbox[entry.envelope_id] = replace(entry, order=next(self._order))
        self._listeners.notify(session_id)
        return entry.envelope_id

    async def accepted_id(self, session_id: str, sender_id: str, key: str) -> str | None:
        return self._session(session_id).keys.get((sender_id, key))

    async def inbox(self, session_id: str) -> list[InboxEntry]:
        return list(self._session(session_id).inbox.values())

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
        session = self._session(session_id)
        # A hub whose lease has expired meanwhile gets a new epoch: another hub may have owned the
        # session in between.
        if session.owner == owner and self._leases.get(owner, 0) > now:
            return session.epoch
        if session.owner not in (None, owner) and not force:
            is_leased = self._leases.get(session.owner or "", 0) > now
            is_withheld = is_leased and not is_gone(session.owner or "")
            if is_withheld and (session.runnable or not at_rest):
                return None
        session.owner, session.epoch = owner, session.epoch + 1
        return session.epoch

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        session = self._session(session_id)
        if session.owner == owner:
            session.owner = None
            if attempts is not None:
                session.attempts = attempts

    async def attempt(self, session_id: str, epoch: int) -> int:
        session = self._session(session_id)
        if session.epoch != epoch:
            raise r.stale_owner(session_id)
        session.attempts += 1
        return session.attempts

    async def heartbeat(self, owner: str, until: float) -> None:
        self._leases[owner] = until

    async def release_all(self, owner: str) -> None:
        self._leases.pop(owner, None)
        for session in self._sessions.values():
            if session.owner == owner:
                session.owner = None
        self._listeners.notify(None)

    async def unfinished_sessions(self, now: float) -> list[str]:
        return [
            session_id if session.inbox else EmptyInbox(session_id)
            for session_id, session in self._sessions.items()
            if (
                session.owner is not None
                if session.state.is_ended
                else session.runnable
                or session.inbox
                or (session.due_at is not None and session.due_at <= now)
            )
        ]

    async def owned_sessions(self, owner: str) -> list[str]:
        return [key for key, session in self._sessions.items() if session.owner == owner]

    async def next_due(self, after: float = float("-inf")) -> float | None:
        instants = [
            session.due_at
            for session in self._sessions.values()
            if session.due_at is not None and session.due_at > after and not session.state.is_ended
        ]
        return min(instants, default=None)

    async def children(self, session_id: str) -> list[str]:
        sessions = self._sessions.items()
        return [key for key, session in sessions if session.record.parent_key == session_id]

    async def forget(self, session_id: str, epoch: int) -> None:
        session = self._session(session_id)
        if session.epoch != epoch:
            raise r.stale_owner(session_id)
        self._lowest_epoch = max(self._lowest_epoch, epoch + 1)
        del self._sessions[session_id]
        for place in _places(session.record):
            del self._index[place][session_id]
        self.live.forget(session_id)
        self._listeners.notify(session_id)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        return self._listeners.subscribe(listener)

    def _session(self, session_id: str) -> _MemorySession:
        session = self._sessions.get(session_id)
        if session is None:
            raise r.unknown_session(session_id)
        return session
