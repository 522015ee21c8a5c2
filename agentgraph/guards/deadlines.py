"""How long something may take."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError

__all__ = ["Deadlines"]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The seconds that one turn of an agent in a team may take; None is without limit."""

    stage_s: float | None = 180.0

    def __post_init__(self) -> None:
        if self.stage_s is not None and not self.stage_s > 0:
            raise ConfigurationError(f"Deadlines(stage_s={self.stage_s}): give seconds above 0")
