"""Levels of nesting: each cluster is laid out by itself, and is a box on the level above it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentgraph.drawing.graph import Edge, Node, label_of, label_size, title_width, width_of
from agentgraph.drawing.layout import Layout, Point, arrange
from agentgraph.drawing.slots import Box, Line

Path = tuple[str, ...]

PAD, LOOP, LOOP_HEIGHT = 14.0, 26.0, 20.0
TITLE = object()  # the key of a cluster's title among the boxes of its level

_NODE_HEIGHT, _TITLE_HEIGHT = 30.0, 14.0


@dataclass(frozen=True, slots=True)
class Port:
    """The point where lines cross a cluster's border, on the way to or from a node inside."""

    node: str
    at_top: bool
    upwards: bool


@dataclass(frozen=True, slots=True)
class Link:
    """An edge, or its part within a cluster; `upwards` if its arrow is at its upper end.

    An end is a node's name, a cluster's path, or the port by which the edge leaves the cluster.
    """

    upper: Hashable
    lower: Hashable
    upwards: bool
    edge: Edge

    def ports(self) -> tuple[Port, Port]:
        """Return the ports at the upper and the lower end, for ends that are clusters."""
        ends = (self.edge.source, self.edge.target)
        above, below = reversed(ends) if self.upwards else ends
        return Port(above, False, self.upwards), Port(below, True, self.upwards)


@dataclass(slots=True)
class Level:
    """The nodes and clusters directly inside one cluster; an empty path is the whole picture."""

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
        """Turn edges and ports into links that run downwards, edges to themselves into loops."""
        between = []
        for edge in self.edges:
            if edge.source == edge.target:
                self.loops.setdefault(edge.source, []).append(edge)
            else:
                between.append((self._item(edge.source), self._item(edge.target), edge))
        back = _back_edges(self.items, [(source, target) for source, target, _ in between])
        for source, target, edge in between:
            upwards = (source, target) in back
            upper, lower = (target, source) if upwards else (source, target)
            self.links.append(Link(upper, lower, upwards, edge))
        for port, edge in sorted(self.ports.items(), key=lambda entry: entry[0].upwards):
            item = self._item(port.node)
            self.links.append(
                Link(port, item, port.upwards, edge)
                if port.at_top
                else Link(item, port, port.upwards, edge)
            )

    def hand_down(self, levels: Mapping[Path, Level]) -> None:
        """Give the clusters their ports; edges that cross a border in the same way share a port."""
        for link in self.links:
            for item, port in zip((link.upper, link.lower), link.ports(), strict=True):
                if isinstance(item, tuple):
                    ports = levels[item].ports
                    shared_edge = ports.get(port, link.edge)
                    ports[port] = replace(
                        shared_edge,
                        label="",
                        dashed=shared_edge.dashed and link.edge.dashed,
                        highlighted=shared_edge.highlighted or link.edge.highlighted,
                    )

    def arrange(self, levels: Mapping[Path, Level]) -> None:
        """Lay out this level; its clusters are laid out already, so that their sizes are known."""
        if self.path:
            self.boxes[TITLE] = Box(title_width(self.path[-1]), _TITLE_HEIGHT, 8, "first", True)
        for port in sorted(self.ports, key=lambda port: port.upwards):
            self.boxes[port] = Box(0, 0, 0, "first" if port.at_top else "last")
        for item in self.items:
            self.boxes[item] = (
                Box(*levels[item].size) if isinstance(item, tuple) else self._box(item)
            )
        self.layout = arrange(self.boxes, [_line(link, levels) for link in self.links])

    def place(self, levels: Mapping[Path, Level]) -> None:
        """Give the clusters on this level their origins."""
        for item in self.items:
            if isinstance(item, tuple):
                (x, y), (width, height) = self.at(item), levels[item].size
                levels[item].origin = (x - width / 2 + PAD, y - height / 2 + PAD)

    def _item(self, name: str) -> str | Path:
        cluster = self.nodes[name].cluster
        return name if cluster == self.path else cluster[: len(self.path) + 1]

    def _box(self, name: str) -> Box:
        """Return the box of a node, with room at its right for edges from the node to itself."""
        loops = self.loops.get(name, ())
        margin = max((LOOP + label_size(loop.label)[0] for loop in loops), default=0.0)
        width = max(width_of(label_of(self.nodes[name])) + 26, 60)
        return Box(width, max(_NODE_HEIGHT, LOOP_HEIGHT * len(loops) + 8), margin)


def levels_of(nodes: Iterable[Node], edges: Sequence[Edge]) -> list[Level]:
    """Lay out a graph, and return its levels, the outermost first.

    Edges are split from the outside in, because a cluster needs its ports before it is laid out.
    Clusters are laid out from the inside out, because a level needs the sizes of its clusters.
    Origins are assigned from the outside in again.
    """
    nodes_by_id = {node.id: node for node in nodes}
    for edge in edges:
        for name in (edge.source, edge.target):
            nodes_by_id.setdefault(name, Node(name))
    levels = _split_levels(nodes_by_id, edges)
    for level in levels.values():
        level.connect()
        level.hand_down(levels)
    for level in reversed(levels.values()):
        level.arrange(levels)
    for level in levels.values():
        level.place(levels)
    return list(levels.values())


def _split_levels(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> dict[Path, Level]:
    """Return the levels by their paths, outer ones first, each with its nodes and edges.

    An edge belongs to the innermost level that has both of its ends.
    """
    levels: dict[Path, Level] = {(): Level((), nodes)}
    for node in nodes.values():
        for depth in range(len(node.cluster)):
            path = node.cluster[: depth + 1]
            if path not in levels:
                levels[path] = Level(path, nodes)
                levels[path[:-1]].items[path] = None
        levels[node.cluster].items[node.id] = None
    for edge in edges:
        path = _common_path(nodes[edge.source].cluster, nodes[edge.target].cluster)
        levels[path].edges.append(edge)
    return dict(sorted(levels.items(), key=lambda entry: len(entry[0])))


def _common_path(first: Path, second: Path) -> Path:
    """Return the beginning that two paths share."""
    length = 0
    for outer, inner in zip(first, second, strict=False):
        if outer != inner:
            break
        length += 1
    return first[:length]


def _line(link: Link, levels: Mapping[Path, Level]) -> Line:
    """Return a link as a line, with fixed ends where it crosses the border of a cluster."""
    ends = zip((link.upper, link.lower), link.ports(), strict=True)
    at_upper, at_lower = (_offset(item, port, levels) for item, port in ends)
    label = label_size(link.edge.label) if link.edge.label else None
    return Line(link.upper, link.lower, at_upper, at_lower, label)


def _offset(item: Hashable, port: Port, levels: Mapping[Path, Level]) -> float | None:
    """Return where a line ends, as an offset from an item's centre; None where it is free."""
    if isinstance(item, tuple):
        layout = levels[item].layout
        return layout.places[port][0] - layout.width / 2
    return 0.0 if isinstance(item, Port) else None


def _back_edges(
    nodes: Iterable[Hashable], edges: Iterable[tuple[Hashable, Hashable]]
) -> set[tuple[Hashable, Hashable]]:
    """Return the edges that close a cycle in a depth-first search from the first nodes.

    Without them the graph has no cycles, and can be put into layers; they are drawn upwards.
    """
    order = {node: position for position, node in enumerate(nodes)}
    successors: dict[Hashable, list[Hashable]] = {node: [] for node in order}
    for source, target in dict.fromkeys(edges):
        successors[source].append(target)
    for targets in successors.values():
        targets.sort(key=order.__getitem__)
    all_targets = {target for targets in successors.values() for target in targets}
    seen_nodes: set[Hashable] = set()
    back_edges: set[tuple[Hashable, Hashable]] = set()
    for first in sorted(order, key=lambda node: (node in all_targets, order[node])):
        if first not in seen_nodes:
            back_edges.update(_back_edges_from(first, successors, seen_nodes))
    return back_edges


def _back_edges_from(
    first: Hashable, successors: Mapping[Hashable, Sequence[Hashable]], seen_nodes: set[Hashable]
) -> Iterator[tuple[Hashable, Hashable]]:
    """Search from one node, without recursion; yield edges to nodes on the path."""
    path = {first: iter(successors[first])}
    seen_nodes.add(first)
    while path:
        node, targets = next(reversed(path.items()))
        target = next(targets, None)
        if target is None:
            del path[node]
        elif target in path:
            yield node, target
        elif target not in seen_nodes:
            seen_nodes.add(target)
            path[target] = iter(successors[target])
