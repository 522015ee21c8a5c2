"""The report of one run of a stage: what its gates say, what it has used, and what it has made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agentgraph.usage import Usage

_PLAIN = ("stage", "attempt", "worker", "started_at", "seconds", "output")


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of one check at a gate of a stage."""

    gate: str
    """The stage and the side of it: `validate:after`."""
    check: str
    """The check: schema, requires, budget, policy, invariants, grounding, confidence, critic."""
    passed: bool
    problems: tuple[str, ...] = ()
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class StageReport:
    """One run of a stage, or of one worker in it."""

    stage: str
    attempt: int
    """Which plan it belongs to, from 1."""
    worker: str = ""
    started_at: float = 0.0
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    verdicts: tuple[ValidationResult, ...] = ()
    output: Any = None
    """What it has made, as JSON; None where it has failed."""

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> StageReport:
        """Read a report from the flow's state, or from an audit."""
        verdicts = tuple(
            ValidationResult(**{**verdict, "problems": tuple(verdict["problems"])})
            for verdict in values["verdicts"]
        )
        own = {name: values[name] for name in _PLAIN}
        return cls(**own, usage=Usage.from_dict(values["usage"]), verdicts=verdicts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it, if its output is JSON."""
        verdicts = [asdict(verdict) for verdict in self.verdicts]
        own = {name: getattr(self, name) for name in _PLAIN}
        return {**own, "usage": self.usage.to_dict(), "verdicts": verdicts}

    @property
    def passed(self) -> bool:
        """Whether all checks at its gates have passed."""
        return all(verdict.passed for verdict in self.verdicts)
