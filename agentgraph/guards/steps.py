"""How many model calls one outside input may cost, over all levels of a tree."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision

__all__ = ["StepLimit"]


@dataclass(frozen=True, slots=True)
class StepLimit:
    """Deny the model call after the last allowed one."""

    steps: int = 50

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigurationError(f"StepLimit({self.steps}): allow at least one model call")

    def check(self, taken: int) -> Decision:
        """Decide on one more model call after `taken` of them."""
        if taken < self.steps:
            return Decision("allow", "max_steps")
        return Decision(
            "abort",
            "max_steps",
            f"{taken} model calls were made for one input; {self.steps} are allowed",
            "infinite_loop",
            {"taken": taken, "limit": self.steps},
        )
