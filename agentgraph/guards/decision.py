"""What a guard returns: a `Decision` with its action, its failure class and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from agentgraph.display import code, panel, prose, row

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
"""From the laxest to the strictest: where two policies meet, the later tier applies."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The action that a guard decides on, the name of the guard, and its grounds.

    A guard only returns it; the node that asked the guard carries it out. `failure_class` is ""
    where nothing has failed. `evidence` holds JSON-able values, which go into the audit trail.
    """

    action: Action
    guard: str
    cause: str = ""
    failure_class: FailureClass | Literal[""] = ""
    evidence: Mapping[str, object] = field(default_factory=dict)
    allows: bool = field(init=False, repr=False, compare=False)
    """Whether the guard lets the step happen."""

    def __post_init__(self) -> None:
        # Not a property: it is read of each guard's decision at each step, and most decisions are
        # constants that are made once.
        object.__setattr__(self, "allows", self.action == "allow")

    @property
    def reason(self) -> str:
        """Return the close reason of the run that it ends: the guard, and a deadline's layer."""
        layer = self.evidence.get("layer")
        return f"{self.guard}:{layer}" if layer else self.guard

    def to_dict(self) -> dict[str, object]:
        """Return the decision as JSON-able values."""
        values = asdict(self)
        del values["allows"]
        return values

    def __str__(self) -> str:
        return f"{self.guard}: {self.cause}" if self.cause else self.guard

    def _repr_html_(self) -> str:
        lines = [prose(self.cause)] if self.cause else []
        if self.failure_class:
            lines.append(row("failure", code(self.failure_class)))
        lines += [row(name, code(value)) for name, value in self.evidence.items()]
        return panel(f"{self.action}, says {self.guard}", *lines)
