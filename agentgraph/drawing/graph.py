"""What is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Edge", "Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node; `cluster` names the boxes around it, the outermost first."""

    id: str
    label: str = ""
    kind: Literal["box", "start", "end"] = "box"
    cluster: tuple[str, ...] = ()
    highlighted: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow from one node to another or the same."""

    source: str
    target: str
    label: str = ""
    dashed: bool = False
    highlighted: bool = False
