"""How often models may hand a conversation over for one outside input."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision

__all__ = ["HopLimit"]


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
