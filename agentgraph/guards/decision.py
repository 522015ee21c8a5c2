"""What a guard says: a value, never an act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

Action = Literal["allow", "correct", "deny", "fallback", "replan", "escalate", "abort"]

FailureClass = Literal[
    "infinite_loop",
    "deadlock",
    "cost_overrun",
    "provider_error",
    "schema_failure",
    "spec_malformed",
    "no_progress",
    "unsafe_output",
]
FAILURE_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)

Tier = Literal["interactive", "batch", "regulated"]
TIERS: tuple[Tier, ...] = get_args(Tier)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen, which guard says so, and on what grounds."""

    action: Action
    guard: str
    cause: str = ""
    failure_class: FailureClass | Literal[""] = ""
    evidence: Mapping[str, object] = field(default_factory=dict)
    allows: bool = field(init=False, repr=False, compare=False)
    """Whether nothing stands in the way."""

    def __post_init__(self) -> None:
        # No property: it is asked of each guard at each step, and few decisions are made anew.
        object.__setattr__(self, "allows", self.action == "allow")

    @property
    def reason(self) -> str:
        """Name what a run is closed for that it ends; of a deadline, whose that was."""
        layer = self.evidence.get("layer")
        return f"{self.guard}:{layer}" if layer else self.guard

    def to_dict(self) -> dict[str, object]:
        """Return the decision as JSON-able values."""
        told = asdict(self)
        del told["allows"]
        return told

    def _repr_html_(self) -> str:
        from agentgraph.guards.html import decision_html

        return decision_html(self)
