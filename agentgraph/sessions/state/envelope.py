"""The envelope: one entry of a session's log, and the types of what it may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from agentgraph.display import event_line

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
"""The types of what participants say: a turn or an interjection, which views show."""

SYSTEM: Final = "ag.hub"
"""The sender of what a session records of itself; no participant can have this name."""


class Priority(IntEnum):
    """How urgent an entry of the inbox is: the higher is admitted first."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3


@dataclass(frozen=True, slots=True)
class Envelope:
    """What was said, by whom and to whom, at its place in the session's log.

    It is never changed. `audience` None is everybody; `causation_id` names the envelope that this
    one answers; `sequence` counts 1, 2, 3 … in its session, without gaps.
    """

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
        words = self.event_data.get("body" if self.event_type == EV_PACKET else "text")
        return words if isinstance(words, str) and self.event_type in SUBSTANTIVE else ""

    @property
    def is_substantive(self) -> bool:
        """Whether a participant says something with it, rather than the session notes something."""
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
        fields: dict[str, object] = {"agent": self.sender_id, "decision": self.event_data}
        if self.is_substantive:
            routing = self.event_data.get("routing")
            fields |= {"text": self.text} if self.text else {"decision": routing}
        return event_line(f"{self.sequence} {self.event_type}", fields)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Envelope:
        """Read an envelope; raise `ValueError`, `TypeError` or `KeyError` for what is none.

        Fields that are missing have their defaults.
        """
        if len(data) != len(cls.__slots__):
            data = {**_DEFAULTS, "metadata": {}, **data}
        if len(data) > len(cls.__slots__):
            raise ValueError("it has fields that an envelope has not")
        audience = data["audience"]
        # Positional, which is faster: a log of thousands is read at once.
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


_DEFAULTS = {
    "causation_id": None,
    "priority": Priority.NORMAL,
    "idempotency_key": None,
    "created_at": "",
    "sequence": 0,
}
"""The fields that may be missing where an envelope is read; `metadata` beside them."""


def visible_to(envelope: Envelope, participant: str) -> bool:
    """Tell whether a participant sees an envelope: its sender does, and its audience."""
    if envelope.audience is None or envelope.sender_id == participant:
        return True
    return participant in envelope.audience
