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

    @property
    def name(self) -> str:
        """Return the agent's own name."""
        return self.path.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """Return on which level of its tree it stands; the root is on the first."""
        return self.path.count("/") + 1
