"""Where a guarded node stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool

V = TypeVar("V")

_FOREIGN = "graph"
"""What a graph of others is called: it does not know its name in a tree, or in a team."""


@dataclass(frozen=True, slots=True)
class Place:
    """One agent in its tree, as its guards know it."""

    path: str = _FOREIGN
    tools: Mapping[str, BaseTool] = field(default_factory=dict)
    visit: str = ""
    """Which of the visits to it this is: a delegate is visited by several at a time."""
    form: Callable[[AIMessage], str | None] | None = None
    """Reads an answer that is given by a call, in a form."""
    fits: Callable[[str], bool] | None = None
    """Tells whether a text is in that form."""

    @property
    def name(self) -> str:
        """Return the agent's own name."""
        return self.path.rpartition("/")[2]

    @property
    def spot(self) -> str:
        """Return by what its run is told from others at the same agent."""
        return f"{self.path}#{self.visit}" if self.visit else self.path

    def answer_of(self, message: AIMessage) -> str | None:
        """Return what a message answers, None where it asks for something first."""
        if not message.tool_calls and not message.invalid_tool_calls:
            return str(message.text)
        return None if self.form is None else self.form(message)

    @property
    def depth(self) -> int:
        """Return on which level of its tree it stands; the root is on the first."""
        return self.path.count("/") + 1


def own_of(name: str, by_spot: Mapping[str, V]) -> dict[str, V]:
    """Return what belongs to one tree, by the name of its root."""
    return {spot: one for spot, one in by_spot.items() if _is_within(name, spot)}


def others_of(name: str, by_spot: Mapping[str, V]) -> dict[str, V]:
    """Return what belongs to other trees."""
    return {spot: one for spot, one in by_spot.items() if not _is_within(name, spot)}


def _is_within(name: str, spot: str) -> bool:
    return spot.partition("#")[0].partition("/")[0] in (name, _FOREIGN)
