"""What guards know of an agent: its place in the tree, its tools, the form of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool

V = TypeVar("V")

_FOREIGN = "graph"
"""The path of a foreign graph that has no name yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """The path of an agent in its tree, its tools, and the form of its answers."""

    path: str = _FOREIGN
    tools: Mapping[str, BaseTool] = field(default_factory=dict)
    visit: str = ""
    """Identifies this visit to the agent: several calls may delegate to it at a time."""
    form: Callable[[AIMessage], str | None] | None = None
    """Reads an answer in a form, which the model gives by a tool call."""
    fits: Callable[[str], bool] | None = None
    """Tells whether a text is in that form."""
    read: Callable[[AIMessage], str | None] | None = None
    """Reads the answer in a message of a graph whose answers are not in its messages alone."""
    name: str = field(init=False, repr=False, compare=False)
    """The agent's own name."""
    visit_key: str = field(init=False, repr=False, compare=False)
    """The path and the visit: parallel visits to one agent are counted separately."""
    depth: int = field(init=False, repr=False, compare=False)
    """The level in its tree; the root is on level 1."""

    def __post_init__(self) -> None:
        # No properties: each call of a model or a tool reads them.
        object.__setattr__(self, "name", self.path.rpartition("/")[2])
        visit_key = f"{self.path}#{self.visit}" if self.visit else self.path
        object.__setattr__(self, "visit_key", visit_key)
        object.__setattr__(self, "depth", self.path.count("/") + 1)

    def answer_of(self, message: AIMessage) -> str | None:
        """Return the answer in a message, None where the message calls tools instead."""
        if self.read is not None:
            return self.read(message)
        if not message.tool_calls and not message.invalid_tool_calls:
            return str(message.text)
        return None if self.form is None else self.form(message)


def of_tree(root: str, values: Mapping[str, V]) -> dict[str, V]:
    """Return the values of one tree, by the name of its root; keys are visit keys or paths."""
    return {key: value for key, value in values.items() if _is_within(root, key)}


def of_other_trees(root: str, values: Mapping[str, V]) -> dict[str, V]:
    """Return the values that do not belong to this tree."""
    return {key: value for key, value in values.items() if not _is_within(root, key)}


def _is_within(root: str, visit_key: str) -> bool:
    return visit_key.partition("#")[0].partition("/")[0] in (root, _FOREIGN)
