"""How often a stage may be planned anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.canonical import digest
from agentgraph.guards.decision import Decision, FailureClass

__all__ = ["ReplanLimit"]

_MOST_PLANS = 32
_GUARD = "replan_limit"


@dataclass(slots=True)
class ReplanLimit:
    """Allow so many new plans per stage and run, none of them like an earlier one."""

    replans: int = 2
    _made: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _plans: dict[str, list[str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if type(self.replans) is not int or self.replans < 0:
            raise ConfigurationError(f"ReplanLimit({self.replans!r}): give 0 or more")

    def ask(self, stage: str, plan: object = None) -> Decision:
        """Decide on one more plan for a stage, and count it before it runs.

        `plan` is the one that failed or the one to come, always the same of the two: a plan that
        was here before is no progress.
        """
        made = self._made.get(stage, 0)
        evidence: dict[str, object] = {"stage": stage, "made": made, "limit": self.replans}
        if plan is not None and not self._is_new(stage, plan):
            cause = (
                f"the plan of {stage!r} is one that was tried already: another try changes nothing"
            )
            return _escalated(cause, "no_progress", evidence)
        if made >= self.replans:
            cause = f"{stage!r} was planned anew {made} times; {self.replans} are allowed"
            return _escalated(cause, "", evidence)
        self._made[stage] = made + 1
        cause = f"{stage!r} is planned anew: {made + 1} of {self.replans}"
        return Decision("replan", _GUARD, cause, "", {**evidence, "made": made + 1})

    def _is_new(self, stage: str, plan: object) -> bool:
        seen = self._plans.setdefault(stage, [])
        known = digest(plan)[:32]
        if known in seen:
            return False
        seen.append(known)
        del seen[:-_MOST_PLANS]
        return True

    def fresh(self) -> Self:
        """Return the same limit for another run."""
        return replace(self)

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values."""
        plans = {stage: list(seen) for stage, seen in self._plans.items()}
        return {"made": dict(self._made), "plans": plans}

    def load(self, dumped: Mapping[str, object]) -> None:
        """Take the memory that `dump` gave."""
        self._made = dict(cast(Mapping[str, int], dumped.get("made", {})))
        plans = cast(Mapping[str, Sequence[str]], dumped.get("plans", {}))
        self._plans = {stage: list(seen) for stage, seen in plans.items()}


def _escalated(
    cause: str, failure: FailureClass | Literal[""], evidence: Mapping[str, object]
) -> Decision:
    return Decision("escalate", _GUARD, cause, failure, evidence)
