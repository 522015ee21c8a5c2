"""How many levels of agents may work below one another."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision

__all__ = ["DepthLimit"]


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
