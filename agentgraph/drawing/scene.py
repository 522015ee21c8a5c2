"""A graph with positions, as data: what a page draws by itself, laid out as the SVG is.

Positions are in pixels, from the upper left corner. A page that shows what happens needs the ids of
the nodes, and the texts whole: neither is shortened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentgraph.drawing.graph import Edge, Node
from agentgraph.drawing.layout import Point
from agentgraph.drawing.levels import LOOP, LOOP_HEIGHT, Level, levels_of


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node with its place: `x` and `y` are its upper left corner."""

    id: str
    label: str
    kind: str
    parent: str | None
    description: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """An edge with its way: the points that it passes, from its source to its target."""

    source: str
    target: str
    label: str
    dashed: bool
    points: Sequence[Point]
    label_at: Point | None


@dataclass(frozen=True, slots=True)
class Scene:
    """A graph that is laid out."""

    width: float
    height: float
    nodes: Sequence[PlacedNode]
    edges: Sequence[PlacedEdge]

    def to_dict(self) -> dict[str, Any]:
        """Return the scene as a JSON object."""
        return asdict(self)


def scene_of(nodes: Iterable[Node], edges: Iterable[Edge]) -> Scene:
    """Lay out a graph, its first nodes on top; a name that only edges have becomes a node too.

    Clusters are not laid out: what a node is a part of, `parent` says.
    """
    flat = [replace(node, cluster=()) for node in nodes]
    level, *_ = levels_of(flat, list(edges))
    width, height = level.size
    placed = [_place(level, name) for name in level.items if isinstance(name, str)]
    return Scene(_round(width), _round(height), placed, [*_edges(level), *_loops(level)])


def _place(level: Level, name: str) -> PlacedNode:
    node, box, (x, y) = level.nodes[name], level.boxes[name], level.at(name)
    return PlacedNode(
        id=node.id,
        label=node.label or node.id,
        kind=node.kind,
        parent=node.parent,
        description=node.description,
        x=_round(x - box.width / 2),
        y=_round(y - box.height / 2),
        width=_round(box.width),
        height=_round(box.height),
    )


def _edges(level: Level) -> Iterator[PlacedEdge]:
    layout = level.layout
    for link, route, label in zip(level.links, layout.routes, layout.labels, strict=True):
        points = [_at(level, point) for stroke in route for point in stroke]
        if link.upwards:
            points.reverse()
        yield _edge(link.edge, points, None if label is None else _at(level, label))


def _loops(level: Level) -> Iterator[PlacedEdge]:
    """Yield the edges from a node to itself, at its right."""
    for name, loops in level.loops.items():
        x, middle = level.at(name)
        x += level.boxes[name].width / 2
        for number, loop in enumerate(loops):
            y = middle + (number - (len(loops) - 1) / 2) * LOOP_HEIGHT
            ends = [(x, y - 6), (x + LOOP, y - 6), (x + LOOP, y + 6), (x, y + 6)]
            points = [(_round(px), _round(py)) for px, py in ends]
            yield _edge(loop, points, (_round(x + LOOP), _round(y)))


def _edge(edge: Edge, points: Sequence[Point], label_at: Point | None) -> PlacedEdge:
    at = label_at if edge.label else None
    return PlacedEdge(edge.source, edge.target, edge.label, edge.dashed, points, at)


def _at(level: Level, point: Point) -> Point:
    return _round(level.origin[0] + point[0]), _round(level.origin[1] + point[1])


def _round(value: float) -> float:
    return round(value, 1)
