"""What a database holds of a session: ASCII text that it can store, index and give back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from agentgraph.errors import (
    AgentGraphError,
    Quarantined,
    RoundConflict,
    SessionClosed,
    SessionError,
    StaleOwner,
)
from agentgraph.sessions.log.protocol import Stored, Summary, Waiting
from agentgraph.sessions.state.envelope import Draft, Envelope
from agentgraph.sessions.state.payload import decoded, encoded
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import ENDED, SessionState

Row: TypeAlias = Sequence[Any]

_MALFORMED = (AgentGraphError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_quoted = json.JSONEncoder().encode


class EnvelopeRow(NamedTuple):
    """An envelope, as it is stored."""

    sequence: int
    envelope_id: str
    said: int | None
    """The how manieth it is of the substantive ones of its append."""
    data: str


class InboxRow(NamedTuple):
    """What waits, as it is stored; None is the digest where there is no key."""

    envelope_id: str
    digest: str | None
    data: str


class Held(NamedTuple):
    """Who has a session, and until when."""

    owner: str | None
    epoch: int
    until: float | None

    def is_kept_by(self, owner: str, now: float) -> bool:
        """Tell whether somebody has it, and a lease that holds."""
        return self.owner == safe(owner) and (self.until or 0) > now

    def is_withheld_from(self, owner: str, now: float, is_gone: Callable[[str], bool]) -> bool:
        """Tell whether the lease of somebody else holds."""
        if self.owner is None or self.owner == safe(owner) or (self.until or 0) <= now:
            return False
        return not is_gone(plain(self.owner))


def safe(text: str) -> str:
    """Write a name as ASCII: neither NUL nor half a character is held by every store."""
    return _quoted(text)[1:-1]


def plain(text: object) -> str:
    """Read a name, or leave it as it is where it was not written by `safe`."""
    try:
        return str(decoded(f'"{text}"'))
    except ValueError:
        return str(text)


def digest(sender: str, key: str) -> str:
    """Return what stands for a key of a sender: an index holds no text of any length."""
    return blake2b(encoded([sender, key]).encode(), digest_size=20).hexdigest()


def envelope_rows(envelopes: Iterable[Envelope], head: int) -> list[EnvelopeRow]:
    """Write the envelopes after a head."""
    rows: list[EnvelopeRow] = []
    said = 0
    for sequence, envelope in enumerate(envelopes, head + 1):
        said += envelope.is_substantive
        nth = said if envelope.is_substantive else None
        rows.append(
            EnvelopeRow(sequence, safe(envelope.envelope_id), nth, encoded(envelope.to_dict()))
        )
    return rows


def spoken(rows: Sequence[EnvelopeRow]) -> int:
    """Count the substantive ones."""
    return sum(row.said is not None for row in rows)


def keys_of(envelopes: Iterable[Envelope]) -> dict[str, str]:
    """Return the ids of those that have a key, by its digest."""
    keys: dict[str, str] = {}
    for envelope in envelopes:
        if envelope.idempotency_key is not None:
            key = digest(envelope.sender_id, envelope.idempotency_key)
            keys.setdefault(key, safe(envelope.envelope_id))
    return keys


def record_columns(record: SessionRecord) -> dict[str, Any]:
    """Write what never changes of a session."""
    return {
        "session_id": safe(record.session_id),
        "team": safe(record.team),
        "creator": safe(record.creator),
        "parent": safe(record.parent.session_id) if record.parent else None,
        "created_at": record.created_at,
        "record": encoded(record.to_dict()),
    }


def state_columns(
    state: SessionState, due_at: float | None, runnable: bool | None = None
) -> dict[str, Any]:
    """Write where a session stands; what has ended needs nobody any more."""
    runs = state.is_runnable if runnable is None else runnable
    return {
        "snapshot": encoded(state.to_dict()),
        "status": state.status,
        "runnable": runs and not state.is_ended,
        "due_at": None if state.is_ended else due_at,
    }


def stored(session_id: str, row: Row) -> Stored:
    """Read record, snapshot, head, attempts, owner and epoch, and the last sequence there is."""
    record, snapshot, head, attempts, owner, epoch, last = row
    try:
        read = SessionRecord.from_dict(_json(record))
        if read.session_id != session_id:
            raise ValueError("it is another session's")
    except _MALFORMED as error:
        raise _unreadable(session_id, "its record", error) from error
    if (last or 0) != head:
        raise _missing(session_id, (last or 0) + 1)
    return Stored(
        read,
        head,
        _snapshot(session_id, snapshot, head),
        attempts,
        None if owner is None else plain(owner),
        epoch,
    )


def summary(row: Row) -> Summary:
    """Read id, team, status, creator, creation, head and parent; never fail, as it is in a list."""
    session_id, team, status, creator, created_at, head, parent = row
    return Summary(
        plain(session_id),
        plain(team),
        str(status),
        plain(creator),
        float(created_at) if isinstance(created_at, int | float) else 0.0,
        int(head) if isinstance(head, int) else 0,
        None if parent is None else plain(parent),
    )


def envelope_of(session_id: str, sequence: int, data: object) -> Envelope:
    """Read an envelope."""
    try:
        value = _json(data)
        if not isinstance(value["audience"], list | None):
            raise ValueError("its audience is no list")
        envelope = Envelope.from_dict(value)
        if fault := _fault(envelope, session_id, sequence):
            raise ValueError(fault)
    except _MALFORMED as error:
        raise _unreadable(session_id, f"sequence {sequence}", error) from error
    return envelope


def read_rows(
    session_id: str, rows: Iterable[Row], after: int, limit: int | None
) -> list[Envelope]:
    """Read heads, sequences and data, as of an outer join: none is missing up to the head."""
    found = list(rows)
    head = found[0][0]
    wanted = max(head - after, 0)
    if limit is not None:
        wanted = min(wanted, limit)
    envelopes: list[Envelope] = []
    for _, sequence, data in found[:wanted]:
        due = after + len(envelopes) + 1
        if sequence != due:
            raise _missing(session_id, due)
        envelopes.append(envelope_of(session_id, sequence, data))
    if len(envelopes) < wanted:
        raise _missing(session_id, after + len(envelopes) + 1)
    return envelopes


def tail_rows(
    session_id: str, rows: Sequence[Row], before: int | None, count: int
) -> list[Envelope]:
    """Read counts of the substantive, their numbers, sequences and data, the newest first."""
    if count <= 0:
        return []
    due = rows[0][0] if before is None else rows[0][1] or 0
    envelopes: list[Envelope] = []
    for _, said, sequence, data in rows:
        if said is None or said != due:
            break
        envelopes.append(envelope_of(session_id, sequence, data))
        due -= 1
    if due and len(envelopes) < count:
        where = f"before sequence {envelopes[-1].sequence}" if envelopes else "at its end"
        raise _unreadable(session_id, f"what was said {where}", "it is missing")
    return envelopes[::-1]


def inbox_row(waiting: Waiting) -> InboxRow:
    """Write what waits."""
    draft = waiting.draft
    told = {
        "event_type": draft.event_type,
        "event_data": draft.event_data,
        "audience": draft.audience,
        "causation_id": draft.causation_id,
        "priority": int(draft.priority),
        "idempotency_key": draft.idempotency_key,
        "metadata": draft.metadata,
    }
    data = {"envelope_id": waiting.envelope_id, "sender_id": waiting.sender_id, "draft": told}
    key = draft.idempotency_key
    return InboxRow(
        safe(waiting.envelope_id),
        None if key is None else digest(waiting.sender_id, key),
        encoded(data),
    )


def waiting_rows(session_id: str, rows: Iterable[Row]) -> list[Waiting]:
    """Read orders and data, as of an outer join."""
    return [_waiting(session_id, order, data) for order, data in rows if order is not None]


def _waiting(session_id: str, order: int, data: object) -> Waiting:
    try:
        value = _json(data)
        envelope_id, sender_id = value["envelope_id"], value["sender_id"]
        if not isinstance(envelope_id, str) or not isinstance(sender_id, str):
            raise ValueError("one of its texts is none")
        return Waiting(envelope_id, sender_id, Draft(**value["draft"]), order)
    except _MALFORMED as error:
        raise _unreadable(session_id, f"number {order} of its inbox", error) from error


def unknown(session_id: str) -> SessionError:
    """Say that there is no such session."""
    return SessionError(f"there is no session {session_id!r}", code="unknown_session")


def closed(session_id: str, status: object) -> SessionClosed:
    """Say that a session has ended."""
    return SessionClosed(f"session {session_id!r} is {status}")


def stale(session_id: str) -> StaleOwner:
    """Say that a session was taken over."""
    return StaleOwner(f"session {session_id!r} has another owner by now")


def refusal(session_id: str, row: Row | None, epoch: int | None) -> SessionError:
    """Say why nothing was appended, from status, head and epoch."""
    if row is None:
        return unknown(session_id)
    status, head, present = row
    if epoch is not None and present != epoch:
        return stale(session_id)
    if status in ENDED:
        return closed(session_id, status)
    return RoundConflict(f"session {session_id!r} is at {head} by now")


def _json(data: object) -> Any:
    if not isinstance(data, str) or not data.isascii():
        raise ValueError("it is no ASCII text")
    value = decoded(data)
    if not isinstance(value, Mapping):
        raise ValueError("it is no object")
    return value


def _fault(envelope: Envelope, session_id: str, sequence: int) -> str | None:
    if envelope.session_id != session_id or envelope.sequence != sequence:
        return "it belongs elsewhere"
    texts = (envelope.envelope_id, envelope.sender_id, envelope.event_type, envelope.created_at)
    if not all(isinstance(text, str) for text in (*texts, *(envelope.audience or ()))):
        return "one of its texts is none"
    for text in (envelope.causation_id, envelope.idempotency_key):
        if text is not None and not isinstance(text, str):
            return "one of its texts is none"
    return None if isinstance(envelope.metadata, dict) else "its metadata is no object"


def _snapshot(session_id: str, text: object, head: int) -> SessionState | None:
    try:
        state = SessionState.from_dict(_json(text))
    except _MALFORMED:
        return None
    is_whole = state.sequence == head and state.session_id == session_id
    return state if is_whole and isinstance(state.status, str) else None


def _missing(session_id: str, sequence: int) -> Quarantined:
    return _unreadable(session_id, f"sequence {sequence}", "it is missing")


def _unreadable(session_id: str, what: str, why: object) -> Quarantined:
    told = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return Quarantined(
        f"session {session_id!r} cannot be read at {what} ({told}): restore that from a backup, "
        "or fork the session before it; other sessions are not affected"
    )
