"""How many workers one agent may send off at once; hops and depth do not see their number."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision

__all__ = ["FanOutLimit"]


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
