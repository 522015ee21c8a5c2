"""The state of a conversation: its phase, its active agent, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from enum import Enum, StrEnum
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.routing.frozen_json import FrozenDict, freeze, thaw
from agentgraph.routing.values import as_frozen_json, check_text, plain, short

MAX_HISTORY = 100
"""The most transitions that a state keeps: each turn stores the state, which must not grow."""


class ConversationPhase(StrEnum):
    """The usual phases; any other string is a phase too."""

    INTAKE = "intake"
    QUALIFICATION = "qualification"
    HANDLING = "handling"
    ESCALATION = "escalation"
    RESOLUTION = "resolution"
    FOLLOWUP = "followup"


class _Keep(Enum):
    KEEP = "keep"


KEEP: Final = _Keep.KEEP
"""For `transition`: the active agent stays the same."""

Agent: TypeAlias = str | Literal[_Keep.KEEP] | None


@dataclass(frozen=True, slots=True)
class PhaseTransition:
    """One step of a conversation, as its history records it."""

    from_phase: str
    to_phase: str
    from_agent: str | None = None
    to_agent: str | None = None
    reason: str = ""
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)

    def __post_init__(self) -> None:
        if type(self.metadata) is not FrozenDict:
            object.__setattr__(self, "metadata", freeze(self.metadata))

    def to_dict(self) -> dict[str, Any]:
        """Return the step as a JSON object."""
        return {item.name: _as_json(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PhaseTransition:
        """Read a step; `ConfigurationError` names all faults."""
        return cls(**{**_checked_fields(cls, data), "timestamp": _instant(data.get("timestamp"))})


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The phase, the active agent and the history of a conversation.

        state = ConversationState().transition("handling", "billing", "wants a refund")
        state.phase, state.active_agent_id, state.handoff_count  # "handling", "billing", 1

    It is immutable, its `context` too: a transition returns a new state. `context` is the caller's
    own JSON object.
    """

    phase: str = ConversationPhase.INTAKE.value
    active_agent_id: str | None = None
    previous_agent_id: str | None = None
    handoff_count: int = 0
    phase_started_at: datetime | None = None
    phase_history: tuple[PhaseTransition, ...] = ()
    context: Mapping[str, Any] = field(default_factory=FrozenDict)

    def __post_init__(self) -> None:
        if type(self.context) is not FrozenDict:
            object.__setattr__(self, "context", freeze(self.context))

    def transition(
        self,
        to_phase: str,
        to_agent: Agent = KEEP,
        reason: str = "",
        metadata: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
    ) -> ConversationState:
        """Return the state after a step into a phase, which may be the same.

        Without `to_agent` the active agent stays; with None there is no active agent. A change to
        another agent counts as a handoff. `at` is the instant of the step.
        """
        agent = self.active_agent_id if to_agent is KEEP else to_agent
        check_text("to_phase", to_phase)
        if agent is not None:
            check_text("to_agent", agent)
        phase = plain(to_phase)
        is_handoff = agent != self.active_agent_id
        step = PhaseTransition(
            self.phase,
            phase,
            self.active_agent_id,
            agent,
            reason,
            at,
            as_frozen_json(metadata or {}, "the metadata of a transition"),
        )
        return replace(
            self,
            phase=phase,
            active_agent_id=agent,
            previous_agent_id=self.active_agent_id if is_handoff else self.previous_agent_id,
            handoff_count=self.handoff_count + is_handoff,
            phase_started_at=self.phase_started_at if phase == self.phase else at,
            phase_history=(*self.phase_history, step)[-MAX_HISTORY:],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        values = {item.name: _as_json(getattr(self, item.name)) for item in fields(self)}
        return {**values, "phase_history": [step.to_dict() for step in self.phase_history]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConversationState:
        """Read a state; `ConfigurationError` names all faults."""
        values = _checked_fields(cls, data)
        values["phase_started_at"] = _instant(data.get("phase_started_at"))
        steps = data.get("phase_history") or ()
        values["phase_history"] = tuple(PhaseTransition.from_dict(step) for step in steps)
        return cls(**values)


_FIELD_TYPES: Final[Mapping[str, tuple[Any, str]]] = {
    **dict.fromkeys(("phase", "from_phase", "to_phase", "reason"), (str, "a string")),
    **dict.fromkeys(
        ("active_agent_id", "previous_agent_id", "from_agent", "to_agent"),
        (str | None, "a name or null"),
    ),
    **dict.fromkeys(("context", "metadata"), (Mapping, "an object")),
    "handoff_count": (int, "a whole number"),
    "phase_history": (list | tuple | None, "a list"),
}


@cache
def _names_of(kind: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of the fields of a class, and of those that have no default."""
    items = fields(kind)
    required = [i for i in items if i.default is MISSING and i.default_factory is MISSING]
    return frozenset(item.name for item in items), tuple(item.name for item in required)


def _checked_fields(kind: Any, data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"a {kind.__name__} is read from an object, not from {data!r}")
    names, required = _names_of(kind)
    faults = [f"a {kind.__name__} has no {key!r}" for key in data if key not in names]
    faults += [f"a {kind.__name__} needs {name!r}" for name in required if name not in data]
    faults += [
        f"a {kind.__name__} has {key}={short(value)}: {field_type[1]} is wanted"
        for key, value in data.items()
        if (field_type := _FIELD_TYPES.get(key)) and not _is(value, field_type[0])
    ]
    if faults:
        raise ConfigurationError(faults)
    return dict(data)


def _is(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return thaw(value)
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
