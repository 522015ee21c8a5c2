"""What is drawn, and which of its edges run against the others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


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


def closing(
    nodes: Iterable[Hashable], edges: Iterable[tuple[Hashable, Hashable]]
) -> set[tuple[Hashable, Hashable]]:
    """Return the edges that close a circle, for one who comes from the first nodes."""
    order = {node: position for position, node in enumerate(nodes)}
    following: dict[Hashable, list[Hashable]] = {node: [] for node in order}
    for source, target in dict.fromkeys(edges):
        following[source].append(target)
    for targets in following.values():
        targets.sort(key=order.__getitem__)
    reached = {target for targets in following.values() for target in targets}
    entered: set[Hashable] = set()
    found: set[tuple[Hashable, Hashable]] = set()
    for first in sorted(order, key=lambda node: (node in reached, order[node])):
        if first not in entered:
            found.update(_closing_from(first, following, entered))
    return found


def _closing_from(
    first: Hashable, following: Mapping[Hashable, Sequence[Hashable]], entered: set[Hashable]
) -> Iterator[tuple[Hashable, Hashable]]:
    path = {first: iter(following[first])}
    entered.add(first)
    while path:
        node, left = next(reversed(path.items()))
        target = next(left, None)
        if target is None:
            del path[node]
        elif target in path:
            yield node, target
        elif target not in entered:
            entered.add(target)
            path[target] = iter(following[target])
