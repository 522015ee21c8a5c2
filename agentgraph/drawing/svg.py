"""Draw a graph as one self-contained SVG image: `draw`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agentgraph.display import escaped
from agentgraph.drawing.graph import Edge, Node, label_of, label_size, short
from agentgraph.drawing.layout import Point
from agentgraph.drawing.levels import LOOP, LOOP_HEIGHT, PAD, TITLE, Level, Port, levels_of

# Where styles are stripped, the picture is light. Every rule names the picture's class: otherwise
# it would apply to the whole page of a notebook.
_DARK = """<style>@media (prefers-color-scheme: dark) {
.ag-drawing .page { fill: #171b22 }
.ag-drawing .cluster rect { fill: #9ab8e8; stroke: #9ab8e8 }
.ag-drawing .cluster text, .ag-drawing .edge text { fill: #b3c0d4 }
.ag-drawing .node rect { fill: #252d3a; stroke: #64789a }
.ag-drawing .node text { fill: #e6ebf3 }
.ag-drawing .end rect { fill: #64789a }
.ag-drawing .edge path { stroke: #8494ac }
.ag-drawing .edge polygon { fill: #8494ac }
.ag-drawing .failed rect { stroke: #ff8a80 }
.ag-drawing .on rect, .ag-drawing .edge.on path { stroke: #6ea8fe }
.ag-drawing .edge.on polygon, .ag-drawing .edge.on text { fill: #6ea8fe }
}</style>"""
_INK, _LINE, _ON, _FAILED = "#1f2a3a", "#7487a3", "#1d64d8", "#c0392b"
_KINDS = {
    "box": ("#ffffff", _INK, 7),
    "start": ("#e6edf7", _INK, 15),
    "end": ("#5d7496", "#fff", 15),
}


def draw(nodes: Iterable[Node], edges: Iterable[Edge]) -> str:
    """Draw a graph as SVG, its first nodes on top; a name that only edges have becomes a node too.

    The text of nodes and labels may be anything: it is escaped, and cut where it is long. The same
    graph gives the same picture, byte for byte.
    """
    levels = levels_of(nodes, list(edges))
    width, height = (f"{length:.0f}" for length in levels[0].size)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ag-drawing" role="img" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" style="max-width:100%" '
        'font-family="system-ui, sans-serif" font-size="13">',
        _DARK,
        f'<rect class="page" width="{width}" height="{height}" rx="8" fill="#fcfdfe"/>',
    ]
    parts += [_cluster(level) for level in levels if level.path]
    for level in levels:
        parts += _links(level)
        parts += _loops(level)
    for level in levels:
        parts += [_node(level, name) for name in level.items if isinstance(name, str)]
    return "\n".join([*parts, "</svg>"])


def _group(kind: str, title: str, *parts: str) -> str:
    return f'<g class="{kind}"><title>{escaped(title)}</title>{"".join(parts)}</g>'


def _rect(middle: Point, size: Point, rest: str) -> str:
    x, y = middle[0] - size[0] / 2, middle[1] - size[1] / 2
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" {rest}/>'


def _text(at: Point, text: str, rest: str) -> str:
    return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" dy=".35em" {rest}>{escaped(short(text))}</text>'


def _cluster(level: Level) -> str:
    """Draw the box and the title of a cluster."""
    (x, y), (width, height) = level.origin, level.size
    middle = (x - PAD + width / 2, y - PAD + height / 2)
    blue = 'rx="10" fill="#4a6fa5" fill-opacity=".07" stroke="#4a6fa5" stroke-opacity=".35"'
    title = _text((x, level.at(TITLE)[1]), level.path[-1], 'font-weight="600" fill="#4b5d78"')
    return _group("cluster", "/".join(level.path), _rect(middle, (width, height), blue), title)


def _node(level: Level, name: str) -> str:
    """Draw a node; its id is the tooltip."""
    node, box, middle = level.nodes[name], level.boxes[name], level.at(name)
    kind = node.kind if node.kind in _KINDS else "box"
    fill, ink, radius = _KINDS[kind]
    mark = "failed" if node.failed else "on" if node.highlighted else ""
    stroke = 'stroke="#8ba0bf"'
    if mark:
        stroke = f'stroke="{_FAILED if node.failed else _ON}" stroke-width="2"'
    rest = f'rx="{radius}" fill="{fill}" {stroke}'
    return _group(
        f"node {kind} {mark}".rstrip(),
        name,
        _rect(middle, (box.width, box.height), rest),
        _text(middle, label_of(node), f'text-anchor="middle" fill="{ink}"'),
    )


def _links(level: Level) -> Iterator[str]:
    """Draw the edges of a level, and the parts of edges that pass through it."""
    x, y = level.origin
    layout = level.layout
    for link, route, label in zip(level.links, layout.routes, layout.labels, strict=True):
        strokes = [[(x + dx, y + dy) for dx, dy in stroke] for stroke in route]
        start, end = strokes[0], strokes[-1]
        inside = [isinstance(item, Port) for item in (link.upper, link.lower)]
        if inside[0]:
            start[0] = (start[0][0], y - PAD)
        if inside[1]:
            end[-1] = (end[-1][0], y + layout.height + PAD)
        tip = ""
        if isinstance(link.upper if link.upwards else link.lower, str):
            tip = _tip(start[0], 1) if link.upwards else _tip(end[-1], -1)
        path = " ".join(map(_curve, strokes))
        at = (x + label[0], y + label[1]) if label else None
        yield _edge(link.edge, path, tip, at, is_whole=not any(inside))


def _loops(level: Level) -> Iterator[str]:
    """Draw the edges from a node to itself, at its right."""
    for name, loops in level.loops.items():
        box, (x, y) = level.boxes[name], level.at(name)
        x += box.width / 2
        for number, loop in enumerate(loops):
            middle = y + (number - (len(loops) - 1) / 2) * LOOP_HEIGHT
            path = f"M{x:.1f},{middle - 6:.1f}c{LOOP},-8 {LOOP},20 4,12"
            at = (x + LOOP - 4 + label_size(loop.label)[0] / 2, middle)
            yield _edge(loop, path, _tip((x, middle + 6), 0), at)


def _edge(edge: Edge, path: str, tip: str, label_at: Point | None, is_whole: bool = True) -> str:
    """Draw an edge or a part of one, with its arrowhead and label."""
    colour = _ON if edge.highlighted else _LINE
    width = 2.2 if edge.highlighted else 1.3
    dashes = ' stroke-dasharray="5 4"' if edge.dashed else ""
    parts = [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>']
    if tip:
        parts.append(f'<polygon points="{tip}" fill="{colour}"/>')
    if edge.label and label_at:
        ink = _ON if edge.highlighted else "#44546a"
        parts.append(
            _text(label_at, edge.label, f'text-anchor="middle" font-size="11" fill="{ink}"')
        )
    title = f"{edge.source} → {edge.target}{f': {edge.label}' if edge.label else ''}"
    return _group(
        f"{'edge' if is_whole else 'edge part'}{' on' if edge.highlighted else ''}", title, *parts
    )


def _curve(points: Sequence[Point]) -> str:
    """Return a path that is straight within each pair of points, and curved between the pairs."""
    x, y = points[0]
    path = [f"M{x:.1f},{y:.1f}"]
    for number, (x, y) in enumerate(points[1:], 1):
        if number % 2:
            path.append(f"V{y:.1f}")
        else:
            x0, y0 = points[number - 1]
            half = (y0 + y) / 2
            path.append(f"C{x0:.1f},{half:.1f} {x:.1f},{half:.1f} {x:.1f},{y:.1f}")
    return "".join(path)


def _tip(at: Point, way: int) -> str:
    """Return the corners of an arrowhead; `way` is -1 for downwards, 1 for upwards, 0 for left."""
    x, y = at
    sides = (
        [(x - 4, y + 8 * way), (x + 4, y + 8 * way)] if way else [(x + 8, y - 4), (x + 8, y + 4)]
    )
    return " ".join(f"{px:.1f},{py:.1f}" for px, py in (at, *sides))
