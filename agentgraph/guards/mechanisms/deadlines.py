"""Deadlines of a model call, a stage and a whole input.

They are instants and no durations: an inner call gets the deadline of the outer one, so that no
retry and no resume in another process starts the time anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, Self, get_args

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, FailureClass, Tier
from agentgraph.guards.mechanisms.settings import is_finite, is_positive, smaller

Layer = Literal["tool", "step", "stage", "workflow"]

_LAYERS: tuple[Layer, ...] = get_args(Layer)
"""From the innermost to the outermost."""
_GUARD = "deadline"
_IN_TIME = {layer: Decision("allow", _GUARD, evidence={"layer": layer}) for layer in _LAYERS}
_OF_TIER: Mapping[Tier, tuple[float, float, float]] = {
    "interactive": (60, 180, 600),
    "batch": (120, 1_800, 6 * 3_600),
    "regulated": (120, 900, 24 * 3_600),
}
"""The seconds of a model call, a stage and a whole input."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of the wall clock, in seconds since the epoch, and the layer that set it.

    It may be stored and read in another process. Within one process use `to_monotonic`, which no
    change of the wall clock moves.
    """

    at: float
    layer: Layer

    def __post_init__(self) -> None:
        faults = []
        if not is_finite(self.at):
            faults.append(f"Deadline(at={self.at!r}): give seconds since the epoch")
        if self.layer not in _LAYERS:
            faults.append(f"Deadline(layer={self.layer!r}): give {', '.join(_LAYERS)}")
        if faults:
            raise ConfigurationError(faults)

    def remaining(self) -> float:
        """Return the seconds left, below 0 when it has passed."""
        return self.at - clock().wall()

    def shorter(self, other: Deadline | None) -> Deadline:
        """Return the earlier deadline; at the same instant, the one of the outer layer."""
        return self if other is None else min(self, other, key=_precedence)

    def shifted(self, seconds: float) -> Deadline:
        """Return a deadline later by the time that a human took: the only reason to move one.

        `seconds` is below 0 where the wall clock was set back during the pause: then as much time
        is left as there was before it.
        """
        return replace(self, at=self.at + seconds)

    def to_monotonic(self) -> MonotonicDeadline:
        """Convert it to monotonic time; a process does so once, when it begins to work on it."""
        return MonotonicDeadline(self, clock().monotonic() + self.remaining())

    def check(self, min_useful_s: float = 1.0) -> Decision:
        """Decide whether enough time is left to start something that takes `min_useful_s`."""
        remaining_s = self.at - clock().wall()
        # Written so that a NaN, for which every comparison is false, denies.
        if remaining_s > 0 and remaining_s >= min_useful_s:
            return _IN_TIME[self.layer]
        return _late(self, remaining_s, min_useful_s)


@dataclass(frozen=True, slots=True)
class MonotonicDeadline:
    """A deadline that no change of the wall clock moves; it means nothing in another process."""

    deadline: Deadline
    until: float

    def remaining(self) -> float:
        """Return the seconds left, below 0 when it has passed."""
        return self.until - clock().monotonic()

    def check(self, min_useful_s: float = 1.0) -> Decision:
        """Decide whether enough time is left to start something that takes `min_useful_s`."""
        remaining_s = self.remaining()
        if remaining_s > 0 and remaining_s >= min_useful_s:
            return _IN_TIME[self.deadline.layer]
        return _late(self.deadline, remaining_s, min_useful_s)


@dataclass(frozen=True, slots=True)
class Deadlines(BuiltInGuard):
    """The seconds that a model call, a stage and a whole input may take; None is no limit.

    A stage is a turn of a sub-agent, or of a team's speaker; an agent at the root has the input's
    deadline alone. Each deadline is set when its call starts, and never lies after the outer one.

    `tool_s` is for each call of a tool. A call that takes longer is cancelled, or left behind where
    it cannot be, as in a thread; the model is told, and the run goes on.
    """

    setting = "deadlines"
    summary = "Deadlines(60, 180, 600): seconds for a model call, a stage, the input"
    short_form = "seconds above 0 for a whole input"
    is_removable = False
    comes_with_tier = True

    step_s: float | None = 60.0
    stage_s: float | None = 180.0
    workflow_s: float | None = 600.0
    tool_s: float | None = None

    def __post_init__(self) -> None:
        limits = {limit.name: getattr(self, limit.name) for limit in fields(self)}
        faults = [
            f"Deadlines({name}={value!r}): give seconds above 0, or None for no limit"
            for name, value in limits.items()
            if value is not None and not is_positive(value)
        ]
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def of_tier(cls, tier: Tier) -> Self:
        """Return the deadlines of a tier; calls of tools have none of their own."""
        return cls(*_OF_TIER[tier])

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the deadlines where `value` is all that an input may take; calls have the tier's.

        The policy may be that of a stage, so the stage has as much time.
        """
        if not is_positive(value):
            return None
        step_s, _, _ = _OF_TIER[tier]
        return cls(min(step_s, value), value, value)

    def tighter(self, outer: Self) -> Self:
        """Return the deadlines with the smaller one of each limit."""
        return replace(
            self,
            step_s=smaller(self.step_s, outer.step_s),
            stage_s=smaller(self.stage_s, outer.stage_s),
            workflow_s=smaller(self.workflow_s, outer.workflow_s),
            tool_s=smaller(self.tool_s, outer.tool_s),
        )

    def step(self, outer: Deadline | None = None) -> Deadline | None:
        """Return the deadline of a model call that starts now."""
        return _within("step", self.step_s, outer)

    def stage(self, outer: Deadline | None = None) -> Deadline | None:
        """Return the deadline of a turn that starts now."""
        return _within("stage", self.stage_s, outer)

    def workflow(self) -> Deadline | None:
        """Return the deadline of an input that arrives now."""
        return _within("workflow", self.workflow_s, None)


def _within(layer: Layer, seconds: float | None, outer: Deadline | None) -> Deadline | None:
    if seconds is None:
        return outer
    return Deadline(clock().wall() + seconds, layer).shorter(outer)


def _precedence(deadline: Deadline) -> tuple[float, int]:
    # At the same instant the outer layer wins: its decision ends more than one call.
    return deadline.at, -_LAYERS.index(deadline.layer)


def _late(deadline: Deadline, remaining_s: float, min_useful_s: float) -> Decision:
    evidence: dict[str, object] = {
        "layer": deadline.layer,
        "at": deadline.at,
        "remaining_s": remaining_s,
        "min_useful_s": min_useful_s if is_finite(min_useful_s) else None,
    }
    if remaining_s > 0:
        least = f"{min_useful_s:g} s is the least of use"
        cause = f"the {deadline.layer} has {remaining_s:.6g} s left; {least}"
    else:
        cause = f"the deadline of the {deadline.layer} passed {-remaining_s:.6g} s ago"
    failure: FailureClass = "provider_error" if deadline.layer == "step" else "deadlock"
    return Decision("abort", _GUARD, cause, failure, evidence)
