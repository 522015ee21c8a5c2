"""How long something may take: instants that are handed down, so that no retry resets the clock."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeGuard, get_args

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision, FailureClass

Layer = Literal["step", "stage", "workflow"]

_OUTERMOST_LAST: tuple[Layer, ...] = get_args(Layer)
_GUARD = "deadline"
_IN_TIME = {
    layer: Decision("allow", _GUARD, evidence={"layer": layer}) for layer in _OUTERMOST_LAST
}


def is_finite(value: object) -> TypeGuard[float]:
    """Tell whether it is a number to reckon with: no bool, no NaN, no infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # Not math.isfinite: it raises on an int that is too large for a float.
    return abs(value) <= sys.float_info.max


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of the wall clock, in seconds since the epoch, and the layer that set it.

    It may be stored and read in another process; inside of one, see `anchored`.
    """

    at: float
    layer: Layer

    def __post_init__(self) -> None:
        faults = []
        if not is_finite(self.at):
            faults.append(f"Deadline(at={self.at!r}): give seconds since the epoch")
        if self.layer not in _OUTERMOST_LAST:
            faults.append(f"Deadline(layer={self.layer!r}): give step, stage or workflow")
        if faults:
            raise ConfigurationError(faults)

    def remaining(self) -> float:
        """Return the seconds left, below 0 when it has passed."""
        return self.at - clock().wall()

    def shorter(self, other: Deadline | None) -> Deadline:
        """Return the earlier one; of two at the same instant, the one of the outer layer."""
        return self if other is None else min(self, other, key=_precedence)

    def shifted(self, seconds: float) -> Deadline:
        """Return it later by the time a human took, which is the only ground for moving it.

        A pause below 0, of a wall clock set back meanwhile, leaves as much time as there was.
        """
        return replace(self, at=self.at + seconds)

    def anchored(self) -> Anchored:
        """Return it by monotonic time: do so once, on entry to a process."""
        return Anchored(self, clock().monotonic() + self.remaining())

    def check(self, min_useful_s: float = 1.0) -> Decision:
        """Decide whether there is time enough left to start something."""
        left = self.at - clock().wall()
        # In this sense and not its opposite: a NaN must stop the work, not let it pass.
        if left > 0 and left >= min_useful_s:
            return _IN_TIME[self.layer]
        return _late(self, left, min_useful_s)


@dataclass(frozen=True, slots=True)
class Anchored:
    """A deadline that no change of the wall clock moves; it means nothing in another process."""

    deadline: Deadline
    until: float

    def remaining(self) -> float:
        """Return the seconds left, below 0 when it has passed."""
        return self.until - clock().monotonic()

    def check(self, min_useful_s: float = 1.0) -> Decision:
        """Decide whether there is time enough left to start something."""
        left = self.remaining()
        if left > 0 and left >= min_useful_s:
            return _IN_TIME[self.deadline.layer]
        return _late(self.deadline, left, min_useful_s)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The seconds that a model call, a stage and a whole input may take; None: no limit.

    A stage is a turn of a sub-agent, or of a team's speaker; one that nobody stands above has the
    whole input's. Each deadline is set from now and never lies after the outer one.
    """

    step_s: float | None = 60.0
    stage_s: float | None = 180.0
    workflow_s: float | None = 600.0

    def __post_init__(self) -> None:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        faults = [
            f"Deadlines({name}={value!r}): give seconds above 0, or None for no limit"
            for name, value in given.items()
            if value is not None and not (is_finite(value) and value > 0)
        ]
        if faults:
            raise ConfigurationError(faults)

    def step(self, outer: Deadline | None = None) -> Deadline | None:
        """Return when a model call that starts now has to be over."""
        return _within("step", self.step_s, outer)

    def stage(self, outer: Deadline | None = None) -> Deadline | None:
        """Return when a turn that starts now has to be over."""
        return _within("stage", self.stage_s, outer)

    def workflow(self) -> Deadline | None:
        """Return when an input that arrives now has to be done with."""
        return _within("workflow", self.workflow_s, None)


def _within(layer: Layer, seconds: float | None, outer: Deadline | None) -> Deadline | None:
    if seconds is None:
        return outer
    return Deadline(clock().wall() + seconds, layer).shorter(outer)


def _precedence(deadline: Deadline) -> tuple[float, int]:
    return deadline.at, -_OUTERMOST_LAST.index(deadline.layer)


def _late(deadline: Deadline, left: float, min_useful_s: float) -> Decision:
    evidence: dict[str, object] = {
        "layer": deadline.layer,
        "at": deadline.at,
        "remaining_s": left,
        "min_useful_s": min_useful_s if is_finite(min_useful_s) else None,
    }
    if left > 0:
        cause = (
            f"the {deadline.layer} has {left:.6g} s left; {min_useful_s:g} s is the least of use"
        )
    else:
        cause = f"the deadline of the {deadline.layer} passed {-left:.6g} s ago"
    failure: FailureClass = "provider_error" if deadline.layer == "step" else "deadlock"
    return Decision("abort", _GUARD, cause, failure, evidence)
