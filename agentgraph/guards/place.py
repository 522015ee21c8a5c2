"""One agent in its tree, as its guards know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool

V = TypeVar("V")

_FOREIGN = "graph"
"""The path of a graph that agentgraph did not build, as long as nobody has named it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The path of an agent in its tree, with the tools and the form of answers that it has."""

    path: str = _FOREIGN
    tools: Mapping[str, BaseTool] = field(default_factory=dict)
    visit: str = ""
    """Which visit to the agent this is: several calls may delegate to it at a time."""
    form: Callable[[AIMessage], str | None] | None = None
    """Reads an answer that is given by a call, in a form."""
    fits: Callable[[str], bool] | None = None
    """Tells whether a text is in that form."""
    name: str = field(init=False, repr=False, compare=False)
    """The agent's own name."""
    visit_key: str = field(init=False, repr=False, compare=False)
    """The path and the visit: parallel visits to one agent are counted apart."""
    depth: int = field(init=False, repr=False, compare=False)
    """The level in its tree; the root is on level 1."""

    def __post_init__(self) -> None:
        # No properties: each call of a model or a tool reads them.
        object.__setattr__(self, "name", self.path.rpartition("/")[2])
        visit_key = f"{self.path}#{self.visit}" if self.visit else self.path
        object.__setattr__(self, "visit_key", visit_key)
        object.__setattr__(self, "depth", self.path.count("/") + 1)

    def answer_of(self, message: AIMessage) -> str | None:
        """Return what a message answers, None where it calls tools first."""
        if not message.tool_calls and not message.invalid_tool_calls:
            return str(message.text)
        return None if self.form is None else self.form(message)


def of_tree(root: str, values: Mapping[str, V]) -> dict[str, V]:
    """Return the values of one tree, by the name of its root; keys are visit keys or paths."""
    return {key: value for key, value in values.items() if _is_within(root, key)}


def of_other_trees(root: str, values: Mapping[str, V]) -> dict[str, V]:
    """Return the values of all other trees."""
    return {key: value for key, value in values.items() if not _is_within(root, key)}


def _is_within(root: str, visit_key: str) -> bool:
    return visit_key.partition("#")[0].partition("/")[0] in (root, _FOREIGN)
