"""The envelope: one entry of a session's log; and the types of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from agentgraph.display import event_line
from agentgraph.remote.principal import PRINCIPAL_KEY
from agentgraph.routing.frozen_json import FrozenDict, freeze, thaw

EV_TEXT: Final = "ag.msg.text"
EV_PACKET: Final = "ag.packet"
EV_WITHDRAWN: Final = "ag.msg.withdrawn"
EV_CONTEXT_SET: Final = "ag.context.set"
EV_SESSION_INVITE: Final = "ag.session.invite"
EV_SESSION_INVITE_ACK: Final = "ag.session.invite.ack"
EV_SESSION_INVITE_REJECT: Final = "ag.session.invite.reject"
EV_SESSION_OPENED: Final = "ag.session.opened"
EV_SESSION_LEFT: Final = "ag.session.left"
EV_SESSION_RELEASED: Final = "ag.session.released"
EV_REWOUND: Final = "ag.session.rewound"
EV_SESSION_CLOSED: Final = "ag.session.closed"
EV_SESSION_EXPIRED: Final = "ag.session.expired"
EV_EXPECTATION_VIOLATED: Final = "ag.session.expectation_violated"
EV_HANDOFF: Final = "ag.handoff"
EV_HANDOFF_REJECTED: Final = "ag.handoff.rejected"
EV_PHASE: Final = "ag.phase"
EV_ROUND_FAILED: Final = "ag.round.failed"
EV_CANCELLED: Final = "ag.round.cancelled"
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
"""The types that participants send as a turn or an interjection."""
_IN_VIEWS = SUBSTANTIVE | {EV_CANCELLED}

SYSTEM: Final = "ag.hub"
"""The sender of the session's own notes; no participant can have this name."""


class Priority(IntEnum):
    """How urgent an entry of the inbox is: the higher is admitted first."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3


@dataclass(frozen=True, slots=True)
class Envelope:
    """One entry of a session's log: the sender, the audience and the event.

    It is immutable, and so are `event_data` and `metadata`, all the way down: a write to them
    raises `TypeError`, and `to_dict` makes a copy that may be changed. `audience` None means all
    participants; `causation_id` is the id of the envelope that this one answers; `sequence` counts
    1, 2, 3 … in its session, without gaps.
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
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    created_at: str = ""
    sequence: int = 0

    def __post_init__(self) -> None:
        if type(self.event_data) is not FrozenDict:
            object.__setattr__(self, "event_data", freeze(self.event_data))
        if type(self.metadata) is not FrozenDict:
            object.__setattr__(self, "metadata", freeze(self.metadata))

    @property
    def cursor(self) -> str:
        """The envelope's place in its session, from which a stream goes on."""
        return str(self.sequence)

    @property
    def text(self) -> str:
        """The text of a text or a packet, "" for other types."""
        words = self.event_data.get("body" if self.event_type == EV_PACKET else "text")
        return words if isinstance(words, str) and self.event_type in SUBSTANTIVE else ""

    @property
    def is_substantive(self) -> bool:
        """Whether it is a text or a packet of a participant, and not a note of the session."""
        return self.event_type in SUBSTANTIVE

    @property
    def is_in_views(self) -> bool:
        """Whether views show it: what participants say, and that a round was cancelled."""
        return self.event_type in _IN_VIEWS

    def to_dict(self) -> dict[str, Any]:
        """Return the envelope as a JSON object, which may be changed."""
        fields: dict[str, Any] = thaw(self.stored_fields())
        return fields

    def stored_fields(self) -> dict[str, Any]:
        """Return the envelope as a JSON object that shares the envelope's data, to be written."""
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
        """Read an envelope; raise `ValueError`, `TypeError` or `KeyError` if it is malformed.

        Missing fields get their defaults.
        """
        envelope = _without_checks(data)
        object.__setattr__(envelope, "event_data", freeze(envelope.event_data))
        object.__setattr__(envelope, "metadata", freeze(envelope.metadata))
        object.__setattr__(envelope, "__class__", cls)
        envelope._check()
        return envelope

    def _check(self) -> None:
        """Raise `ValueError` for fields of wrong types, as data from elsewhere may have."""
        names = (self.envelope_id, self.session_id, self.sender_id, *(self.audience or ()))
        for text in (*names, self.event_type, self.created_at):
            if not isinstance(text, str):
                raise ValueError("one of its texts is none")
        for optional in (self.causation_id, self.idempotency_key):
            if optional is not None and not isinstance(optional, str):
                raise ValueError("one of its texts is none")
        if not isinstance(self.event_data, dict) or not isinstance(self.sequence, int):
            raise ValueError("its event_data is no object, or its sequence no number")
        if not isinstance(self.metadata, dict):
            raise ValueError("its metadata is no object")


class _Private(Envelope):
    """An envelope whose fields are set one by one, as in a class that is not frozen.

    A log may have thousands of envelopes: this is three times as fast as the constructor.
    """

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


def private_envelope(data: Mapping[str, Any]) -> Envelope:
    """Read an envelope as `Envelope.from_dict` does, without freezing its data, which it shares.

    It is for the fold alone, which changes no envelope and hands none out.
    """
    envelope = _without_checks(data)
    envelope._check()
    return envelope


def _without_checks(data: Mapping[str, Any]) -> Envelope:
    if len(data) != len(Envelope.__slots__):
        data = {**_DEFAULTS, "metadata": {}, **data}
    if len(data) > len(Envelope.__slots__):
        raise ValueError("it has fields that an envelope has not")
    envelope = object.__new__(_Private)
    audience = data["audience"]
    if audience is not None and not isinstance(audience, list | tuple):
        raise ValueError("its audience is no list")
    fields: Any = envelope  # type checkers know it as frozen
    fields.envelope_id = data["envelope_id"]
    fields.session_id = data["session_id"]
    fields.sender_id = data["sender_id"]
    fields.audience = None if audience is None else tuple(audience)
    fields.event_type = data["event_type"]
    fields.event_data = data["event_data"]
    fields.causation_id = data["causation_id"]
    fields.priority = _PRIORITIES[data["priority"]]
    fields.idempotency_key = data["idempotency_key"]
    fields.metadata = data["metadata"]
    fields.created_at = data["created_at"]
    fields.sequence = data["sequence"]
    return envelope


_PRIORITIES = {priority.value: priority for priority in Priority}  # a call of the type is slower
_DEFAULTS = {
    "causation_id": None,
    "priority": Priority.NORMAL,
    "idempotency_key": None,
    "created_at": "",
    "sequence": 0,
}
"""The fields that may be missing when an envelope is read; also `metadata`."""


def visible_to(envelope: Envelope, participant: str) -> bool:
    """Tell whether a participant may see an envelope: as its sender, or in its audience."""
    if envelope.audience is None or envelope.sender_id == participant:
        return True
    return participant in envelope.audience


def for_participant(envelope: Envelope) -> Envelope:
    """Return an envelope as participants see it.

    It has neither the state of a rewind, nor who has sent it to a server.
    """
    if PRINCIPAL_KEY in envelope.metadata:
        metadata = {key: value for key, value in envelope.metadata.items() if key != PRINCIPAL_KEY}
        envelope = replace(envelope, metadata=metadata)
    if envelope.event_type != EV_REWOUND:
        return envelope
    data = {key: envelope.event_data[key] for key in ("to", "by") if key in envelope.event_data}
    return replace(envelope, event_data=data)
