"""The graph to draw: nodes and edges, with their labels and the sizes of the labels.

No font is available for measuring: widths are estimated, and rather too wide than too narrow.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal

_LONGEST = 44


NodeKind = Literal[
    "box", "start", "end", "agent", "team", "flow", "graph", "stage", "gate", "tool", "human", "any"
]
"""What a node stands for; in an SVG only `start` and `end` look different from a box."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node; `cluster` names the boxes around it, the outermost first."""

    id: str
    label: str = ""
    kind: NodeKind = "box"
    cluster: tuple[str, ...] = ()
    highlighted: bool = False
    failed: bool = False
    """Whether it is marked as what has failed."""
    parent: str | None = None
    """The id of the node that it is a part of, which a scene tells and an SVG does not."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow from one node to another or the same."""

    source: str
    target: str
    label: str = ""
    dashed: bool = False
    highlighted: bool = False


def short(text: str) -> str:
    """Return text as one line of limited length."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def label_of(node: Node) -> str:
    """Return the text on a node; a mark says too, not the colour alone, that it has failed."""
    return f"{short(node.label or node.id)}{' ✗' if node.failed else ''}"


def label_size(label: str) -> tuple[float, float]:
    """Return the width and the height of an edge's label."""
    return (width_of(short(label), 11.0) + 8, 16.0) if label else (0.0, 0.0)


def title_width(title: str) -> float:
    """Return the width of a cluster's title, which is bold."""
    return 1.1 * width_of(short(title))


def width_of(text: str, size: float = 13.0) -> float:
    """Estimate the width of text."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return size * (0.6 * len(text) + 0.5 * wide)
