"""Limits on counts of one outside input: steps, hops, depth, fan-out and new plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision, FailureClass
from agentgraph.guards.mechanisms.canonical import digest

_ALLOWED = Decision("allow", "max_steps")


@dataclass(frozen=True, slots=True)
class StepLimit:
    """Deny the model call after the last allowed one."""

    steps: int = 50

    def __post_init__(self) -> None:
        if type(self.steps) is not int or self.steps < 1:
            raise ConfigurationError(f"StepLimit({self.steps!r}): allow at least one model call")

    def check(self, taken: int, granted: int = 1) -> Decision:
        """Decide on one more model call after `taken` of them; each grant allows the limit anew."""
        limit = self.steps * granted
        if taken < limit:
            return _ALLOWED
        return Decision(
            "abort",
            "max_steps",
            f"{taken} model calls were made for one input; {limit} are allowed",
            "infinite_loop",
            {"taken": taken, "limit": limit},
        )


@dataclass(frozen=True, slots=True)
class HopLimit:
    """Refuse the handoff after the last allowed one."""

    hops: int = 5

    def __post_init__(self) -> None:
        if type(self.hops) is not int or self.hops < 0:
            raise ConfigurationError(f"HopLimit({self.hops!r}): give 0 or more")

    def check(self, made: int, granted: int = 1) -> Decision:
        """Decide on one more handoff after `made` of them; each grant allows the limit anew."""
        limit = self.hops * granted
        if made < limit:
            return Decision("allow", "hop_limit")
        return Decision(
            "deny",
            "hop_limit",
            f"{made} handoffs were made for one input; {limit} are allowed: "
            "answer with what is there",
            "deadlock",
            {"made": made, "limit": limit},
        )


@dataclass(frozen=True, slots=True)
class DepthLimit:
    """Refuse the agent below the last allowed level."""

    depth: int = 8

    def __post_init__(self) -> None:
        if type(self.depth) is not int or self.depth < 0:
            raise ConfigurationError(f"DepthLimit({self.depth!r}): give 0 or more levels")

    def check(self, depth: int) -> Decision:
        """Decide on an agent so many levels below the one that was asked first."""
        if depth <= self.depth:
            return Decision("allow", "depth_limit")
        return Decision(
            "deny",
            "depth_limit",
            f"level {depth} lies below the last allowed one, {self.depth}: "
            "do the work here instead of passing it down",
            "infinite_loop",
            {"depth": depth, "limit": self.depth},
        )


@dataclass(frozen=True, slots=True)
class FanOutLimit:
    """Refuse more workers at once than are allowed."""

    children: int = 8

    def __post_init__(self) -> None:
        if type(self.children) is not int or self.children < 0:
            raise ConfigurationError(f"FanOutLimit({self.children!r}): give 0 or more workers")

    def check(self, asked: int) -> Decision:
        """Decide on so many workers at once."""
        if asked <= self.children:
            return Decision("allow", "fan_out_limit")
        return Decision(
            "deny",
            "fan_out_limit",
            f"{asked} workers were asked for at once; {self.children} are allowed: "
            "send off fewer at a time",
            "cost_overrun",
            {"asked": asked, "limit": self.children},
        )


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
