"""How far a conversation is: its phase, who has it, and how it came there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Final, Literal, TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.routing.values import as_json, check_text, plain, short

MAX_HISTORY = 100
"""What a state keeps of its past: it is stored with every turn, so it must not grow with them."""


class ConversationPhase(StrEnum):
    """The usual phases; any other string is one too."""

    INTAKE = "intake"
    QUALIFICATION = "qualification"
    HANDLING = "handling"
    ESCALATION = "escalation"
    RESOLUTION = "resolution"
    FOLLOWUP = "followup"


class _Keep(Enum):
    KEEP = "keep"


KEEP: Final = _Keep.KEEP
"""The agent who has the conversation keeps it."""

Agent: TypeAlias = str | Literal[_Keep.KEEP] | None


@dataclass(frozen=True, slots=True)
class PhaseTransition:
    """One step of a conversation, for the record."""

    from_phase: str
    to_phase: str
    from_agent: str | None = None
    to_agent: str | None = None
    reason: str = ""
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON has it."""
        return {one.name: _written(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PhaseTransition:
        """Read a step."""
        return cls(**{**_known(cls, data), "timestamp": _instant(data.get("timestamp"))})


@dataclass(frozen=True, slots=True)
class ConversationState:
    """Where a conversation stands; a transition makes a new one."""

    phase: str = ConversationPhase.INTAKE.value
    active_agent_id: str | None = None
    previous_agent_id: str | None = None
    handoff_count: int = 0
    phase_started_at: datetime | None = None
    phase_history: tuple[PhaseTransition, ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)

    def transition(
        self,
        to_phase: str,
        to_agent: Agent = KEEP,
        reason: str = "",
        metadata: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
    ) -> ConversationState:
        """Return the state after a step; without an agent it stays theirs, with None nobody's."""
        agent = self.active_agent_id if to_agent is KEEP else to_agent
        check_text("to_phase", to_phase)
        if agent is not None:
            check_text("to_agent", agent)
        phase = plain(to_phase)
        moved = agent != self.active_agent_id
        step = PhaseTransition(
            self.phase,
            phase,
            self.active_agent_id,
            agent,
            reason,
            at,
            as_json(metadata or {}, "the metadata of a transition"),
        )
        return replace(
            self,
            phase=phase,
            active_agent_id=agent,
            previous_agent_id=self.active_agent_id if moved else self.previous_agent_id,
            handoff_count=self.handoff_count + moved,
            phase_started_at=self.phase_started_at if phase == self.phase else at,
            phase_history=(*self.phase_history, step)[-MAX_HISTORY:],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        written = {one.name: _written(getattr(self, one.name)) for one in fields(self)}
        return {**written, "phase_history": [step.to_dict() for step in self.phase_history]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConversationState:
        """Read a state."""
        values = _known(cls, data)
        values["phase_started_at"] = _instant(data.get("phase_started_at"))
        steps = data.get("phase_history") or ()
        values["phase_history"] = tuple(PhaseTransition.from_dict(step) for step in steps)
        return cls(**values)


_WANTED: Final[Mapping[str, tuple[Any, str]]] = {
    **dict.fromkeys(("phase", "from_phase", "to_phase", "reason"), (str, "a string")),
    **dict.fromkeys(
        ("active_agent_id", "previous_agent_id", "from_agent", "to_agent"),
        (str | None, "a name or null"),
    ),
    **dict.fromkeys(("context", "metadata"), (Mapping, "an object")),
    "handoff_count": (int, "a whole number"),
    "phase_history": (list | tuple | None, "a list"),
}


def _known(kind: Any, data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"a {kind.__name__} is read from an object, not from {data!r}")
    names = [one.name for one in fields(kind)]
    faults = [f"a {kind.__name__} has no {key!r}" for key in data if key not in names]
    faults += [
        f"a {kind.__name__} needs {one.name!r}"
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING and one.name not in data
    ]
    faults += [
        f"a {kind.__name__} has {key}={short(value)}: {wanted[1]} is wanted"
        for key, value in data.items()
        if (wanted := _WANTED.get(key)) and not _is(value, wanted[0])
    ]
    if faults:
        raise ConfigurationError(faults)
    return dict(data)


def _is(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _written(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _instant(value: object) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"{short(value)} is no instant: give it as ISO 8601 has it")
    try:
        return datetime.fromisoformat(value)
    except ValueError as error:
        raise ConfigurationError(f"{value!r} is no instant: {error}") from error
