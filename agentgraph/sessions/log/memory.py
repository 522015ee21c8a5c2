"""Sessions in this process's memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from agentgraph.errors import RoundConflict, SessionClosed, SessionError, StaleOwner
from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.protocol import (
    Changed,
    Grown,
    InboxMoved,
    Stored,
    Summary,
    Waiting,
)
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState


@dataclass(slots=True)
class _Shelf:
    """One session."""

    record: SessionRecord
    state: SessionState
    runnable: bool
    due_at: float | None
    envelopes: list[Envelope] = field(default_factory=list)
    substantive: list[int] = field(default_factory=list)
    by_id: dict[str, Envelope] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    inbox: dict[str, Waiting] = field(default_factory=dict)
    attempts: int = 0
    owner: str | None = None
    epoch: int = 0

    def add(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if envelope.is_substantive:
                self.substantive.append(len(self.envelopes))
            self.envelopes.append(envelope)
            self.by_id[envelope.envelope_id] = envelope
            if envelope.idempotency_key is not None:
                key = (envelope.sender_id, envelope.idempotency_key)
                self.keys.setdefault(key, envelope.envelope_id)


class MemoryLog:
    """Keep sessions as long as the process lives; several hubs of it may share one."""

    def __init__(self) -> None:
        self._shelves: dict[str, _Shelf] = {}
        self._leases: dict[str, float] = {}
        self._order = count(1)
        self._listeners = Listeners()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def create(
        self,
        record: SessionRecord,
        envelopes: Sequence[Envelope],
        state: SessionState,
        *,
        due_at: float | None = None,
        runnable: bool | None = None,
    ) -> bool:
        if record.session_id in self._shelves:
            return False
        runs = state.is_runnable if runnable is None else runnable
        shelf = self._shelves[record.session_id] = _Shelf(record, state, runs, due_at)
        shelf.add(envelopes)
        self._listeners.tell(record.session_id)
        return True

    async def load(self, session_id: str) -> Stored | None:
        shelf = self._shelves.get(session_id)
        if shelf is None:
            return None
        return Stored(
            shelf.record,
            len(shelf.envelopes),
            shelf.state,
            shelf.attempts,
            shelf.owner,
            shelf.epoch,
        )

    async def sessions(self, status: str | None = None) -> list[Summary]:
        return [
            Summary(
                session_id,
                shelf.record.team,
                shelf.state.status,
                shelf.record.creator,
                shelf.record.created_at,
                len(shelf.envelopes),
                shelf.record.parent.session_id if shelf.record.parent else None,
            )
            for session_id, shelf in self._shelves.items()
            if status is None or shelf.state.status == status
        ]

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
        shelf = self._shelf(session_id)
        if epoch is not None and shelf.epoch != epoch:
            raise StaleOwner(f"session {session_id!r} has another owner by now")
        if shelf.state.is_ended:
            raise SessionClosed(f"session {session_id!r} is {shelf.state.status}")
        if len(shelf.envelopes) != head:
            raise RoundConflict(f"session {session_id!r} is at {len(shelf.envelopes)}, not {head}")
        if state.is_ended and any(key not in taken for key in shelf.inbox):
            raise InboxMoved()
        shelf.add(envelopes)
        for envelope_id in taken:
            shelf.inbox.pop(envelope_id, None)
        shelf.state, shelf.runnable, shelf.due_at = state, state.is_runnable, due_at
        if attempts is not None:
            shelf.attempts = attempts
        self._listeners.tell(Grown(session_id))

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        envelopes, after = self._shelf(session_id).envelopes, max(after, 0)
        return envelopes[after : None if limit is None else after + limit]

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        shelf = self._shelf(session_id)
        found: list[Envelope] = []
        for place in reversed(shelf.substantive):
            if len(found) >= count:
                break
            if before is None or place < before:
                found.append(shelf.envelopes[place])
        return found[::-1]

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        return self._shelf(session_id).by_id.get(envelope_id)

    async def put(self, session_id: str, waiting: Waiting) -> str:
        shelf = self._shelf(session_id)
        idempotency_key = waiting.draft.idempotency_key
        key = (waiting.sender_id, idempotency_key or "")
        if idempotency_key is not None and key in shelf.keys:
            return shelf.keys[key]
        if shelf.state.is_ended:
            raise SessionClosed(f"session {session_id!r} is {shelf.state.status}")
        if idempotency_key is not None:
            shelf.keys[key] = waiting.envelope_id
        shelf.inbox[waiting.envelope_id] = replace(waiting, order=next(self._order))
        self._listeners.tell(session_id)
        return waiting.envelope_id

    async def waiting(self, session_id: str) -> list[Waiting]:
        return list(self._shelf(session_id).inbox.values())

    async def claim(
        self,
        session_id: str,
        owner: str,
        now: float,
        *,
        is_gone: Callable[[str], bool] = lambda owner: False,
        force: bool = False,
    ) -> int | None:
        shelf = self._shelf(session_id)
        if shelf.owner == owner and self._leases.get(owner, 0) > now:
            return shelf.epoch
        if shelf.owner not in (None, owner) and not force:
            holds = self._leases.get(shelf.owner or "", 0) > now
            if holds and not is_gone(shelf.owner or ""):
                return None
        shelf.owner, shelf.epoch = owner, shelf.epoch + 1
        return shelf.epoch

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        shelf = self._shelf(session_id)
        if shelf.owner == owner:
            shelf.owner = None
            if attempts is not None:
                shelf.attempts = attempts

    async def attempt(self, session_id: str, epoch: int) -> int:
        shelf = self._shelf(session_id)
        if shelf.epoch != epoch:
            raise StaleOwner(f"session {session_id!r} has another owner by now")
        shelf.attempts += 1
        return shelf.attempts

    async def beat(self, owner: str, until: float) -> None:
        self._leases[owner] = until

    async def retire(self, owner: str) -> None:
        self._leases.pop(owner, None)
        for shelf in self._shelves.values():
            if shelf.owner == owner:
                shelf.owner = None
        self._listeners.tell(None)

    async def unfinished(self, now: float) -> list[str]:
        return [
            session_id
            for session_id, shelf in self._shelves.items()
            if (
                shelf.owner is not None
                if shelf.state.is_ended
                else shelf.runnable
                or shelf.inbox
                or (shelf.due_at is not None and shelf.due_at <= now)
            )
        ]

    async def next_due(self) -> float | None:
        dues = [
            shelf.due_at
            for shelf in self._shelves.values()
            if shelf.due_at is not None and not shelf.state.is_ended
        ]
        return min(dues, default=None)

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        return self._listeners.add(changed)

    def _shelf(self, session_id: str) -> _Shelf:
        shelf = self._shelves.get(session_id)
        if shelf is None:
            raise SessionError(f"there is no session {session_id!r}", code="unknown_session")
        return shelf
