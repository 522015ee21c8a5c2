"""What a guard says: a value, never an act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

__all__ = ["Action", "Decision"]

Action = Literal["allow", "correct", "deny", "fallback", "replan", "escalate", "abort"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen, which guard says so, and on what grounds."""

    action: Action
    guard: str
    cause: str = ""
    failure_class: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the decision as JSON-able values."""
        return asdict(self)
