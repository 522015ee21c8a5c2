"""The envelope: what is said in a session, as it stands in its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, cast

from agentgraph.display import event_line
from agentgraph.errors import ConfigurationError
from agentgraph.outcomes import Handoff
from agentgraph.routing.values import short
from agentgraph.sessions.state.payload import canonical

EV_TEXT: Final = "ag.msg.text"
EV_PACKET: Final = "ag.packet"
EV_CONTEXT_SET: Final = "ag.context.set"
EV_SESSION_INVITE: Final = "ag.session.invite"
EV_SESSION_INVITE_ACK: Final = "ag.session.invite.ack"
EV_SESSION_INVITE_REJECT: Final = "ag.session.invite.reject"
EV_SESSION_OPENED: Final = "ag.session.opened"
EV_SESSION_LEFT: Final = "ag.session.left"
EV_SESSION_RELEASED: Final = "ag.session.released"
EV_SESSION_CLOSED: Final = "ag.session.closed"
EV_SESSION_EXPIRED: Final = "ag.session.expired"
EV_EXPECTATION_VIOLATED: Final = "ag.session.expectation_violated"
EV_HANDOFF: Final = "ag.handoff"
EV_HANDOFF_REJECTED: Final = "ag.handoff.rejected"
EV_PHASE: Final = "ag.phase"
EV_ROUND_FAILED: Final = "ag.round.failed"
EV_INTERRUPT: Final = "ag.interrupt"
EV_DECISION: Final = "ag.decision"
EV_AUDIT: Final = "ag.audit"
EV_SUMMARY: Final = "ag.summary"
EV_TASK_STARTED: Final = "ag.task.started"
EV_TASK_PROGRESS: Final = "ag.task.progress"
EV_TASK_COMPLETED: Final = "ag.task.completed"
EV_TASK_FAILED: Final = "ag.task.failed"
EV_TASK_EXPIRED: Final = "ag.task.expired"

SUBSTANTIVE: Final = frozenset({EV_TEXT, EV_PACKET})
"""What is said: it counts as a turn or as an interjection, and views show it."""

SYSTEM: Final = "ag.hub"
"""The sender of what the session says of itself; no participant can be called so."""

_CUSTOM = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_RESERVED = "ag."


class Priority(IntEnum):
    """How urgent what waits in an inbox is; of two, the higher is admitted first."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3


@dataclass(frozen=True, slots=True)
class Draft:
    """What a sender fills in of an envelope; the hub stamps the rest.

    `audience` None is everybody, a list only those.
    """

    event_type: str
    event_data: Mapping[str, Any]
    audience: tuple[str, ...] | None = None
    causation_id: str | None = None
    priority: Priority = Priority.NORMAL
    idempotency_key: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = [*_field_faults(self)]
        if faults:
            raise ConfigurationError(faults, code="draft")
        if self.audience is not None:
            object.__setattr__(self, "audience", tuple(self.audience))
        object.__setattr__(self, "priority", Priority(self.priority))
        object.__setattr__(self, "event_data", canonical(self.event_data, "event_data"))
        object.__setattr__(self, "metadata", canonical(self.metadata, "metadata"))


@dataclass(frozen=True, slots=True)
class Envelope:
    """What was said, by whom and to whom, at its place in the session's log."""

    envelope_id: str
    session_id: str
    sender_id: str
    audience: tuple[str, ...] | None
    event_type: str
    event_data: Mapping[str, Any]
    causation_id: str | None = None
    priority: Priority = Priority.NORMAL
    idempotency_key: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = ""
    sequence: int = 0

    @property
    def text(self) -> str:
        """The words of a text or a packet, else nothing."""
        said = self.event_data.get("body" if self.event_type == EV_PACKET else "text")
        return said if isinstance(said, str) and self.event_type in SUBSTANTIVE else ""

    @property
    def is_substantive(self) -> bool:
        """Whether something was said, rather than noted."""
        return self.event_type in SUBSTANTIVE

    def to_dict(self) -> dict[str, Any]:
        """Return the envelope as JSON has it."""
        return {
            "envelope_id": self.envelope_id,
            "session_id": self.session_id,
            "sender_id": self.sender_id,
            "audience": None if self.audience is None else list(self.audience),
            "event_type": self.event_type,
            "event_data": self.event_data,
            "causation_id": self.causation_id,
            "priority": int(self.priority),
            "idempotency_key": self.idempotency_key,
            "metadata": self.metadata,
            "created_at": self.created_at,
            "sequence": self.sequence,
        }

    def _repr_html_(self) -> str:
        shown: dict[str, object] = {"agent": self.sender_id, "decision": self.event_data}
        if self.is_substantive:
            routing = self.event_data.get("routing")
            shown |= {"text": self.text} if self.text else {"decision": routing}
        return event_line(f"{self.sequence} {self.event_type}", shown)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Envelope:
        """Read an envelope; what is none raises a `ValueError`, a `TypeError` or a `KeyError`."""
        if len(data) != len(cls.__slots__):
            data = {**_UNTOLD, "metadata": {}, **data}
        if len(data) > len(cls.__slots__):
            raise ValueError("it has fields that an envelope has not")
        audience = data["audience"]
        # Field by field, as a log of thousands is read at once.
        envelope = cls(
            data["envelope_id"],
            data["session_id"],
            data["sender_id"],
            None if audience is None else tuple(audience),
            data["event_type"],
            data["event_data"],
            data["causation_id"],
            Priority(data["priority"]),
            data["idempotency_key"],
            data["metadata"],
            data["created_at"],
            data["sequence"],
        )
        if not isinstance(envelope.event_data, dict) or not isinstance(envelope.sequence, int):
            raise ValueError("its event_data is no object, or its sequence no number")
        return envelope


_UNTOLD = {
    "causation_id": None,
    "priority": Priority.NORMAL,
    "idempotency_key": None,
    "created_at": "",
    "sequence": 0,
}
"""What an envelope has where nothing is told of it."""


def _field_faults(draft: Draft) -> Iterator[str]:
    if isinstance(draft.audience, str) or not isinstance(draft.audience, Iterable | None):
        yield f"audience={short(draft.audience)}: give a list of names, or None for everybody"
    if draft.priority not in [*Priority]:
        yield f"priority={short(draft.priority)}: use Priority.LOW, NORMAL, HIGH or URGENT"
    for name in ("causation_id", "idempotency_key"):
        given = getattr(draft, name)
        if not isinstance(given, str | None):
            yield f"{name}={short(given)}: give a string"


def visible_to(envelope: Envelope, participant: str) -> bool:
    """Tell whether a participant sees an envelope: its sender does, and its audience."""
    if envelope.audience is None or envelope.sender_id == participant:
        return True
    return participant in envelope.audience


def text_envelope(
    text: str,
    *,
    audience: Sequence[str] | None = None,
    causation_id: str | None = None,
    priority: Priority = Priority.NORMAL,
    idempotency_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Draft:
    """Draft a text."""
    if not isinstance(text, str):
        raise ConfigurationError(f"a text is a string, not {type(text).__name__}", code="draft")
    return Draft(
        EV_TEXT,
        {"text": text},
        cast("tuple[str, ...] | None", audience),
        causation_id,
        priority,
        idempotency_key,
        metadata or {},
    )


def packet_envelope(
    body: str,
    *,
    handoff: Handoff | None = None,
    context_set: Mapping[str, Any] | None = None,
    context_delete: Sequence[str] = (),
    tool: str | None = None,
    audience: Sequence[str] | None = None,
    causation_id: str | None = None,
    priority: Priority = Priority.NORMAL,
    idempotency_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Draft:
    """Draft a whole round of somebody who speaks from outside: a bridge, a gateway, a test."""
    routing: dict[str, Any] = {"kind": "handoff" if handoff or tool else "text", "tool": tool}
    if handoff is not None:
        routing |= {
            "target": handoff.target,
            "reason": handoff.reason,
            "summary": handoff.summary,
            "next_phase": handoff.next_phase,
        }
    data = {
        "routing": routing,
        "context_updates": {"set": dict(context_set or {}), "delete": list(context_delete)},
        "body": body,
    }
    return Draft(
        EV_PACKET,
        data,
        cast("tuple[str, ...] | None", audience),
        causation_id,
        priority,
        idempotency_key,
        metadata or {},
    )


def type_fault(event_type: object) -> str | None:
    """Say what is wrong with the type of what comes from outside, if anything."""
    if event_type in (*SUBSTANTIVE, EV_CONTEXT_SET):
        return None
    if not isinstance(event_type, str) or not _CUSTOM.fullmatch(event_type):
        return f"the event type {event_type!r} is not dotted, as in 'myapp.review_requested'"
    if event_type.startswith(_RESERVED):
        return f"{event_type!r} is said by sessions alone: use a prefix of your own"
    return None
