"""Where a guarded node stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from langchain_core.tools import BaseTool

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """One agent in its tree, as its guards know it."""

    path: str = "graph"
    tools: Mapping[str, BaseTool] = field(default_factory=dict)
    visit: str = ""
    """Which of the visits to it this is: a delegate is visited by several at a time."""

    @property
    def name(self) -> str:
        """Return the agent's own name."""
        return self.path.rpartition("/")[2]

    @property
    def spot(self) -> str:
        """Return by what its run is told from others at the same agent."""
        return f"{self.path}#{self.visit}" if self.visit else self.path

    @property
    def depth(self) -> int:
        """Return on which level of its tree it stands; the root is on the first."""
        return self.path.count("/") + 1
