"""The report of one run of a stage: what its gates say, what it has used, and what it has made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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

    def with_part(self, part: StageReport) -> StageReport:
        """Return the report with that of the stage's gate, or of a further wave of its work."""
        return replace(
            self,
            seconds=self.seconds + part.seconds,
            usage=Usage.sum([self.usage, part.usage]),
            verdicts=(*self.verdicts, *part.verdicts),
            output=self.output if part.output is None else part.output,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it, if its output is JSON."""
        verdicts = [asdict(verdict) for verdict in self.verdicts]
        own = {name: getattr(self, name) for name in _PLAIN}
        return {**own, "usage": self.usage.to_dict(), "verdicts": verdicts}

    @property
    def passed(self) -> bool:
        """Whether all checks at its gates have passed."""
        return all(verdict.passed for verdict in self.verdicts)


def reports_of(reports: Mapping[str, Mapping[str, Any]]) -> tuple[StageReport, ...]:
    """Return the reports of the stages in the order in which they began, gates with their stages.

    `reports` are those of the flow's state, or of an audit, by their keys.
    """
    whole: list[StageReport] = []
    for _, values in sorted(reports.items()):
        report = StageReport.of_values(values)
        at = _place_of(report, whole) if values.get("is_part") else None
        if at is None:
            whole.append(report)
        else:
            whole[at] = whole[at].with_part(report)
    return tuple(whole)


def _place_of(part: StageReport, reports: list[StageReport]) -> int | None:
    """Return the place of the last report of the same stage, None where there is none."""
    about = part.stage, part.attempt, part.worker
    places = [at for at, r in enumerate(reports) if (r.stage, r.attempt, r.worker) == about]
    return places[-1] if places else None
