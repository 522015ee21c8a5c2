"""Clusters within clusters: each is laid out by itself, and is a box on the level above."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentgraph.drawing.graph import Edge, Node, closing
from agentgraph.drawing.layers import Layout, Point, arrange
from agentgraph.drawing.spots import Box, Line
from agentgraph.drawing.text import label_of, label_size, title_width, width_of

Path = tuple[str, ...]

PAD, LOOP, LOOP_HEIGHT = 14.0, 26.0, 20.0
TITLE = object()  # the key of a cluster's title among the boxes of its level

_NODE_HEIGHT, _TITLE_HEIGHT = 30.0, 14.0


@dataclass(frozen=True, slots=True)
class Port:
    """Where lines pass a cluster's border, on their way to or from a node in it."""

    node: str
    at_top: bool
    rising: bool


@dataclass(frozen=True, slots=True)
class Link:
    """An edge, or its part within a cluster; `rising` if its arrow is at its upper end."""

    upper: Hashable
    lower: Hashable
    rising: bool
    edge: Edge

    def ports(self) -> tuple[Port, Port]:
        """Return the ports at the upper and the lower end, for those that are clusters."""
        ends = (self.edge.source, self.edge.target)
        above, below = reversed(ends) if self.rising else ends
        return Port(above, False, self.rising), Port(below, True, self.rising)


@dataclass(slots=True)
class Level:
    """What is directly within one cluster, or within none."""

    path: Path
    nodes: Mapping[str, Node]
    items: dict[str | Path, None] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    ports: dict[Port, Edge] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    loops: dict[str, list[Edge]] = field(default_factory=dict)
    boxes: dict[Hashable, Box] = field(default_factory=dict)
    layout: Layout = field(default_factory=lambda: arrange({}, []))
    origin: Point = (PAD, PAD)

    @property
    def size(self) -> Point:
        """Return the size of the cluster's box."""
        return self.layout.width + 2 * PAD, self.layout.height + 2 * PAD

    def at(self, item: Hashable) -> Point:
        """Return the middle of an item in the picture."""
        x, y = self.layout.places[item]
        return self.origin[0] + x, self.origin[1] + y

    def connect(self) -> None:
        """Turn edges and ports into links that run downwards."""
        between = []
        for edge in self.edges:
            if edge.source == edge.target:
                self.loops.setdefault(edge.source, []).append(edge)
            else:
                between.append((self._item(edge.source), self._item(edge.target), edge))
        back = closing(self.items, [(source, target) for source, target, _ in between])
        for source, target, edge in between:
            rising = (source, target) in back
            upper, lower = (target, source) if rising else (source, target)
            self.links.append(Link(upper, lower, rising, edge))
        for port, edge in sorted(self.ports.items(), key=lambda entry: entry[0].rising):
            item = self._item(port.node)
            self.links.append(
                Link(port, item, port.rising, edge)
                if port.at_top
                else Link(item, port, port.rising, edge)
            )

    def hand_down(self, levels: Mapping[Path, Level]) -> None:
        """Give the clusters their ports; edges that pass a border alike share one."""
        for link in self.links:
            for item, port in zip((link.upper, link.lower), link.ports(), strict=True):
                if isinstance(item, tuple):
                    ports = levels[item].ports
                    known = ports.get(port, link.edge)
                    ports[port] = replace(
                        known,
                        label="",
                        dashed=known.dashed and link.edge.dashed,
                        highlighted=known.highlighted or link.edge.highlighted,
                    )

    def arrange(self, levels: Mapping[Path, Level]) -> None:
        """Lay out what is on this level; its clusters are laid out."""
        if self.path:
            self.boxes[TITLE] = Box(title_width(self.path[-1]), _TITLE_HEIGHT, 8, "first", True)
        for port in sorted(self.ports, key=lambda port: port.rising):
            self.boxes[port] = Box(0, 0, 0, "first" if port.at_top else "last")
        for item in self.items:
            self.boxes[item] = (
                Box(*levels[item].size) if isinstance(item, tuple) else self._box(item)
            )
        self.layout = arrange(self.boxes, [_line(link, levels) for link in self.links])

    def place(self, levels: Mapping[Path, Level]) -> None:
        """Tell the clusters on this level where they begin."""
        for item in self.items:
            if isinstance(item, tuple):
                (x, y), (width, height) = self.at(item), levels[item].size
                levels[item].origin = (x - width / 2 + PAD, y - height / 2 + PAD)

    def _item(self, name: str) -> str | Path:
        cluster = self.nodes[name].cluster
        return name if cluster == self.path else cluster[: len(self.path) + 1]

    def _box(self, name: str) -> Box:
        loops = self.loops.get(name, ())
        margin = max((LOOP + label_size(loop.label)[0] for loop in loops), default=0.0)
        width = max(width_of(label_of(self.nodes[name])) + 26, 60)
        return Box(width, max(_NODE_HEIGHT, LOOP_HEIGHT * len(loops) + 8), margin)


def levels_of(nodes: Iterable[Node], edges: Sequence[Edge]) -> list[Level]:
    """Lay out a graph; its outermost level comes first."""
    known = {node.id: node for node in nodes}
    for edge in edges:
        for name in (edge.source, edge.target):
            known.setdefault(name, Node(name))
    levels = _sorted(known, edges)
    for level in levels.values():
        level.connect()
        level.hand_down(levels)
    for level in reversed(levels.values()):
        level.arrange(levels)
    for level in levels.values():
        level.place(levels)
    return list(levels.values())


def _sorted(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> dict[Path, Level]:
    levels: dict[Path, Level] = {(): Level((), nodes)}
    for node in nodes.values():
        for depth in range(len(node.cluster)):
            path = node.cluster[: depth + 1]
            if path not in levels:
                levels[path] = Level(path, nodes)
                levels[path[:-1]].items[path] = None
        levels[node.cluster].items[node.id] = None
    for edge in edges:
        shared = _shared(nodes[edge.source].cluster, nodes[edge.target].cluster)
        levels[shared].edges.append(edge)
    return dict(sorted(levels.items(), key=lambda entry: len(entry[0])))


def _shared(one: Path, other: Path) -> Path:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return one[:length]


def _line(link: Link, levels: Mapping[Path, Level]) -> Line:
    ends = zip((link.upper, link.lower), link.ports(), strict=True)
    at_upper, at_lower = (_offset(item, port, levels) for item, port in ends)
    label = label_size(link.edge.label) if link.edge.label else None
    return Line(link.upper, link.lower, at_upper, at_lower, label)


def _offset(item: Hashable, port: Port, levels: Mapping[Path, Level]) -> float | None:
    if isinstance(item, tuple):
        layout = levels[item].layout
        return layout.places[port][0] - layout.width / 2
    return 0.0 if isinstance(item, Port) else None
