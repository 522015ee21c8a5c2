"""Who acted in the rounds under way, in its order, for their packets and whoever reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Walks:
    """By speaker, each agent that acted and how often it has asked its model until another did."""

    _paths: dict[str, list[list[Any]]] = field(default_factory=dict)

    def step(self, speaker: str, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or asks its model."""
        path = self._paths.setdefault(speaker, [])
        if not path or path[-1][0] != agent:
            path.append([agent, 0])
        path[-1][1] += asks

    def take(self, speaker: str) -> list[list[Any]]:
        """Return what is to be told of a speaker's round, once."""
        return self._paths.pop(speaker, [])
