"""Sessions as rows of a database: how they are written, read and checked.

All text in the rows is ASCII, which any database can store, index and return. A row may be read
torn, or be missing: then its session is quarantined, and no other session is affected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from agentgraph.errors import (
    AgentGraphError,
    RoundConflict,
    SessionClosed,
    SessionError,
    StaleOwner,
)
from agentgraph.routing.frozen_json import FrozenDict, freeze_object
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import Envelope, private_envelope
from agentgraph.sessions.envelopes.payload import (
    decode_json,
    decode_object,
    encode_json,
    encode_object,
)
from agentgraph.sessions.log.protocol import (
    DamagedSession,
    EmptyInbox,
    InboxEntry,
    SessionSummary,
    StoredSession,
)
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.record import SessionRecord, id_of, tenant_of
from agentgraph.sessions.state.state import FINAL_STATUSES, SessionState

ReadEnvelope: TypeAlias = Callable[[Mapping[str, Any]], Envelope]
Row: TypeAlias = Sequence[Any]
"""A row as a driver returns it; each function that reads rows names their columns."""

_READ_ERRORS = (AgentGraphError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_quote = json.JSONEncoder().encode


class EnvelopeRow(NamedTuple):
    """An envelope as it is stored: fields used in lookups have columns, the rest is JSON."""

    sequence: int
    envelope_id: str
    view_number: int | None
    """The number among those envelopes of its append that views show; None if they do not."""
    data: str


class InboxRow(NamedTuple):
    """An inbox entry as it is stored; `digest` is None without an idempotency key."""

    envelope_id: str
    digest: str | None
    data: str


class Lease(NamedTuple):
    """Which hub owns a session, and until when."""

    owner: str | None
    epoch: int
    until: float | None

    def is_held_by(self, owner: str, now: float) -> bool:
        """Tell whether this hub owns the session under a lease that has not expired."""
        return self.owner == to_ascii(owner) and (self.until or 0) > now

    def is_withheld_from(self, owner: str, now: float, is_gone: Callable[[str], bool]) -> bool:
        """Tell whether another hub, which is not dead, has a valid lease on the session."""
        if self.owner is None or self.owner == to_ascii(owner) or (self.until or 0) <= now:
            return False
        return not is_gone(from_ascii(self.owner))


class ClaimTerms(NamedTuple):
    """On which terms a session is claimed whose lease was read before."""

    sure: bool
    """Whether the lease is overridden, though it may be valid."""
    at_rest: bool
    """Whether the session must not be runnable."""
    now: float


def to_ascii(text: str) -> str:
    """Write a name as ASCII: some databases cannot store NUL or a lone surrogate."""
    return _quote(text)[1:-1]


def from_ascii(text: object) -> str:
    """Read a name; return it unchanged if `to_ascii` has not written it."""
    try:
        return str(decode_json(f'"{text}"'))
    except ValueError:
        return str(text)


def digest(sender: str, key: str) -> str:
    """Return a digest of a sender and a key: an index cannot hold texts of unlimited length."""
    return blake2b(encode_json([sender, key]).encode(), digest_size=20).hexdigest()


def envelope_rows(envelopes: Iterable[Envelope], head: int) -> list[EnvelopeRow]:
    """Return the rows of the envelopes that follow the sequence `head`."""
    rows: list[EnvelopeRow] = []
    count = 0
    for sequence, envelope in enumerate(envelopes, head + 1):
        count += envelope.is_in_views
        number = count if envelope.is_in_views else None
        data = encode_object(envelope.stored_fields())
        rows.append(EnvelopeRow(sequence, to_ascii(envelope.envelope_id), number, data))
    return rows


def view_count(rows: Sequence[EnvelopeRow]) -> int:
    """Return how many of the rows hold envelopes that views show."""
    return sum(row.view_number is not None for row in rows)


def keys_of(envelopes: Iterable[Envelope]) -> dict[str, str]:
    """Map the digest of each idempotency key to the id of the envelope that has it."""
    keys: dict[str, str] = {}
    for envelope in envelopes:
        if envelope.idempotency_key is not None:
            key = digest(envelope.sender_id, envelope.idempotency_key)
            keys.setdefault(key, to_ascii(envelope.envelope_id))
    return keys


def record_columns(record: SessionRecord) -> dict[str, Any]:
    """Return the columns of a session that never change."""
    return {
        "session_id": to_ascii(record.key),
        "tenant": to_ascii(record.tenant),
        "team": to_ascii(record.team),
        "creator": to_ascii(record.creator),
        "parent": None if record.parent_key is None else to_ascii(record.parent_key),
        "created_at": record.created_at,
        "metadata": encode_object(record.metadata) if record.metadata else None,
        "record": encode_object(record.to_dict()),
    }


def state_columns(
    state: SessionState, due_at: float | None, runnable: bool | None = None
) -> dict[str, Any]:
    """Return the columns of a session that change with each append.

    A session that has ended is neither runnable nor due.
    """
    runs = state.is_runnable if runnable is None else runnable
    return {
        "snapshot": encode_object(state.stored_fields()),
        "status": state.status,
        "runnable": runs and not state.is_ended,
        "due_at": None if state.is_ended else due_at,
    }


def read_session(session_id: str, row: Row) -> StoredSession:
    """Read record, snapshot, head, attempts, owner and epoch, and the last stored sequence.

    Team, creator and creation follow. `DamagedSession` with what is readable, if not all is.
    """
    text, snapshot, head, attempts, owner, epoch, last, *columns = row
    rest = (
        head,
        read_snapshot(session_id, snapshot, head),
        attempts,
        None if owner is None else from_ascii(owner),
        epoch,
    )
    try:
        record = SessionRecord.from_dict(_json(text))
        if record.key != session_id:
            raise ValueError("it is another session's")
    except _READ_ERRORS as error:
        stored_session = StoredSession(_partial_record(session_id, *columns), *rest)
        raise _unreadable(session_id, "its record", error, session=stored_session) from error
    stored_session = StoredSession(record, *rest)
    if (last or 0) != head:
        raise _missing_envelope(session_id, min(last or 0, head) + 1, session=stored_session)
    return stored_session


def _partial_record(
    session_id: str, team: object, creator: object, created_at: object
) -> SessionRecord:
    """Return what the columns of a session tell of its unreadable record."""
    instant = float(created_at) if isinstance(created_at, int | float) else 0.0
    names = (id_of(session_id), from_ascii(team), from_ascii(creator))
    return SessionRecord(*names, (), (), {}, instant, tenant=tenant_of(session_id))


def read_summary(row: Row) -> SessionSummary:
    """Read id, team, status, creator, creation, head, parent and metadata, and no more columns.

    Never raises: one torn row must not make the list of all sessions fail.
    """
    session_id, team, status, creator, created_at, head, parent, metadata, *_ = row
    key = from_ascii(session_id)
    return SessionSummary(
        id_of(key),
        from_ascii(team),
        str(status),
        from_ascii(creator),
        float(created_at) if isinstance(created_at, int | float) else 0.0,
        int(head) if isinstance(head, int) else 0,
        None if parent is None else id_of(from_ascii(parent)),
        tenant_of(key),
        _metadata(metadata),
    )


def read_unfinished(rows: Sequence[Row]) -> list[str]:
    """Read the ids of unfinished sessions; a later row of one tells that its inbox has an entry."""
    flags = {from_ascii(session_id): has_entry for _, session_id, has_entry in rows}
    return [key if has_entry else EmptyInbox(key) for key, has_entry in flags.items()]


def _metadata(text: object) -> Mapping[str, Any]:
    """Read the metadata of a session; none if they are torn, as its record then is too."""
    try:
        return FrozenDict() if text is None else freeze_object(_json(text))
    except _READ_ERRORS:
        return FrozenDict()


def envelope_of(
    session_id: str, sequence: int, data: object, read: ReadEnvelope = Envelope.from_dict
) -> Envelope:
    """Read an envelope; `Quarantined` if it is torn, or stored in the wrong place."""
    try:
        envelope = read(_json(data))
        # A row that was moved or edited by hand must not be folded as if it belonged there.
        if envelope.session_id != id_of(session_id) or envelope.sequence != sequence:
            raise ValueError("it belongs elsewhere")
    except _READ_ERRORS as error:
        place = f"sequence {sequence}"
        raise _unreadable(session_id, place, error, sequence=sequence) from error
    return envelope


def read_rows(
    session_id: str, rows: Iterable[Row], after: int, limit: int | None
) -> list[Envelope]:
    """Read heads, sequences and data, as an outer join returns them: at least one row.

    `Quarantined` if an envelope up to the head, or up to the limit, is missing.
    """
    return [*_in_order(session_id, rows, after, limit, Envelope.from_dict)]


def fold_rows(state: SessionState, rows: Iterable[Row], limit: int) -> SessionState:
    """Return the state after the envelopes that follow it, of rows as `read_rows` reads them."""
    return fold_all(state, _in_order(state.key, rows, state.sequence, limit, private_envelope))


def _in_order(
    session_id: str, rows: Iterable[Row], after: int, limit: int | None, read: ReadEnvelope
) -> Iterator[Envelope]:
    all_rows = list(rows)
    head = all_rows[0][0]
    count = max(head - after, 0)
    if limit is not None:
        count = min(count, limit)
    due = after + 1
    for _, sequence, data in all_rows[:count]:
        if sequence != due:
            raise _missing_envelope(session_id, due)
        yield envelope_of(session_id, sequence, data, read)
        due += 1
    if due <= after + count:
        raise _missing_envelope(session_id, due)


def tail_rows(
    session_id: str, rows: Sequence[Row], before: int | None, count: int
) -> list[Envelope]:
    """Read counts of what views show, numbers, sequences and data, the newest first.

    `Quarantined` if one of the numbers is missing.
    """
    if count <= 0:
        return []
    # The newest envelope that views show has the session's total as its number. With `before` the
    # expected number is unknown, so counting begins at the newest row that is there.
    due = rows[0][0] if before is None else rows[0][1] or 0
    envelopes: list[Envelope] = []
    for _, number, sequence, data in rows:
        if number is None or number != due:
            break
        envelopes.append(envelope_of(session_id, sequence, data))
        due -= 1
    if due and len(envelopes) < count:
        where = f"before sequence {envelopes[-1].sequence}" if envelopes else "at its end"
        raise _unreadable(session_id, f"what was said {where}", "it is missing")
    return envelopes[::-1]


def inbox_row(entry: InboxEntry) -> InboxRow:
    """Return an inbox entry as a row."""
    draft = entry.draft
    fields = {
        "event_type": draft.event_type,
        "event_data": draft.event_data,
        "audience": draft.audience,
        "causation_id": draft.causation_id,
        "priority": int(draft.priority),
        "idempotency_key": draft.idempotency_key,
        "metadata": draft.metadata,
    }
    data = {"envelope_id": entry.envelope_id, "sender_id": entry.sender_id, "draft": fields}
    key = draft.idempotency_key
    return InboxRow(
        to_ascii(entry.envelope_id),
        None if key is None else digest(entry.sender_id, key),
        encode_object(data),
    )


def read_inbox(session_id: str, rows: Iterable[Row]) -> list[InboxEntry]:
    """Read arrival numbers and data, as an outer join returns them."""
    return [_read_entry(session_id, order, data) for order, data in rows if order is not None]


def _read_entry(session_id: str, order: int, data: object) -> InboxEntry:
    try:
        value = _json(data)
        envelope_id, sender_id = value["envelope_id"], value["sender_id"]
        if not isinstance(envelope_id, str) or not isinstance(sender_id, str):
            raise ValueError("one of its texts is none")
        return InboxEntry(envelope_id, sender_id, Draft(**value["draft"]), order)
    except _READ_ERRORS as error:
        raise _unreadable(session_id, f"number {order} of its inbox", error) from error


# Errors name a session by its id: its key, which a log has, tells the tenant too.


def unknown_session(key: str) -> SessionError:
    """Return the error for a session that the log does not have."""
    return SessionError(f"there is no session {id_of(key)!r}", code="unknown_session")


def session_ended(key: str, status: object) -> SessionClosed:
    """Return the error for an operation on a session that has ended."""
    return SessionClosed(f"session {id_of(key)!r} is {status}")


def stale_owner(key: str) -> StaleOwner:
    """Return the error for a former owner whose session another hub has claimed."""
    return StaleOwner(f"session {id_of(key)!r} has another owner by now")


def session_moved(key: str, head: int) -> RoundConflict:
    """Return the error for an append that does not begin at the head of a session."""
    return RoundConflict(f"session {id_of(key)!r} is at {head} by now")


def refusal(session_id: str, row: Row | None, epoch: int | None) -> SessionError:
    """Return why an append changed nothing, as an error, from the row's status, head and epoch."""
    if row is None:
        return unknown_session(session_id)
    status, head, present = row
    if epoch is not None and present != epoch:
        return stale_owner(session_id)
    if status in FINAL_STATUSES:
        return session_ended(session_id, status)
    return session_moved(session_id, head)


def _json(data: object) -> Any:
    """Read a JSON object; `ValueError` if the data is torn."""
    if isinstance(data, str):
        data = data.encode("ascii")
    if not isinstance(data, bytes) or not data.isascii():
        raise ValueError("it is no ASCII text")
    value = decode_object(data)
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def read_snapshot(session_id: str, text: object, sequence: int) -> SessionState | None:
    """Read a session's state at a sequence; None if it is unreadable: the log is folded instead."""
    try:
        state = SessionState.from_dict(_json(text))
    except _READ_ERRORS:
        return None
    is_whole = state.sequence == sequence and state.key == session_id
    return state if is_whole and isinstance(state.status, str) else None


def _missing_envelope(
    session_id: str, sequence: int, session: StoredSession | None = None
) -> DamagedSession:
    place = f"sequence {sequence}"
    return _unreadable(session_id, place, "it is missing", sequence=sequence, session=session)


def _unreadable(
    session_id: str,
    place: str,
    cause: object,
    *,
    sequence: int | None = None,
    session: StoredSession | None = None,
) -> DamagedSession:
    reason = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
    return DamagedSession(
        f"session {id_of(session_id)!r} cannot be read at {place} ({reason}): restore that from a "
        "backup, or fork the session before it; other sessions are not affected",
        session_id,
        sequence,
        session,
    )
