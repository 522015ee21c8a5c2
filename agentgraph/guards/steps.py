"""How many model calls one outside input may cost, over all levels of a tree."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision

__all__ = ["StepLimit"]

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
