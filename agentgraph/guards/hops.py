"""How often models may hand a conversation over for one outside input."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError

__all__ = ["HopLimit"]


@dataclass(frozen=True, slots=True)
class HopLimit:
    """Refuse the handoff after the last allowed one."""

    hops: int = 5

    def __post_init__(self) -> None:
        if self.hops < 0:
            raise ConfigurationError(f"HopLimit({self.hops}): give 0 or more")
