"""One level of a graph, laid out in layers from top to bottom."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from agentgraph.drawing.columns import nearest, place_in_columns
from agentgraph.drawing.spots import Box, Line, Spot, chains_of, give_ranks, layers_of

Point = tuple[float, float]
Bands = Mapping[int, Point]  # of each layer, by its rank: the top and the bottom

_END_GAP, _STUB, _LAYER_GAP, _LABEL_GAP, _BORDER_GAP = 15.0, 8.0, 44.0, 28.0, 24.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The middles of the boxes, and of each line the strokes and the middle of its label.

    The points of a stroke come in pairs: between those of a pair a line runs straight down.
    """

    width: float
    height: float
    places: Mapping[Hashable, Point]
    routes: Sequence[Sequence[Sequence[Point]]]
    labels: Sequence[Point | None]


def arrange(boxes: Mapping[Hashable, Box], lines: Sequence[Line]) -> Layout:
    """Lay out boxes whose lines run in no circle."""
    spots = {key: Spot(box.width, box.height, box=box) for key, box in boxes.items()}
    step = 2 if any(line.label for line in lines) else 1
    give_ranks(spots, lines, step)
    chains = chains_of(spots, lines)
    layers = layers_of([*spots.values(), *(spot for chain in chains for spot in chain[1:-1])])
    place_in_columns(layers, chains, lines)
    width, height, bands = _bands(layers, _LAYER_GAP if step == 1 else _LABEL_GAP)
    ends = _ends(lines, chains)
    return Layout(
        width,
        height,
        {key: (spot.x, spot.y) for key, spot in spots.items()},
        [_route(chain, end, bands) for chain, end in zip(chains, ends, strict=True)],
        [next(((s.x, s.y) for s in chain[1:-1] if s.height), None) for chain in chains],
    )


def _bands(layers: Sequence[Sequence[Spot]], gap: float) -> tuple[float, float, Bands]:
    """Give every spot its final place; return the size of it all, and the layers' heights."""
    everything = [spot for layer in layers for spot in layer]
    left = min((spot.x - spot.width / 2 for spot in everything), default=0.0)
    bands: dict[int, Point] = {}
    bottom = 0.0
    for number, layer in enumerate(layers):
        above = layers[number - 1] if number else []
        top = bottom
        if above:
            top += _BORDER_GAP if any(spot.pin for spot in (*above, *layer)) else gap
        bottom = top + max(spot.height for spot in layer)
        bands[layer[0].rank] = (top, bottom)
        for spot in layer:
            spot.x = spot.width / 2 if spot.box and spot.box.corner else spot.x - left
            spot.y = (top + bottom) / 2
    return max((spot.x + spot.right for spot in everything), default=0.0), bottom, bands


def _ends(lines: Sequence[Line], chains: Sequence[Sequence[Spot]]) -> list[Point]:
    """Choose where lines end at their boxes: beside each other, in the order they come from."""
    found = [[line.at_upper or 0.0, line.at_lower or 0.0] for line in lines]
    sides: dict[tuple[Spot, int], list[tuple[float, int]]] = {}
    for number, (line, chain) in enumerate(zip(lines, chains, strict=True)):
        if line.at_upper is None:
            sides.setdefault((chain[0], 0), []).append((_aim(*chain[:2]), number))
        if line.at_lower is None:
            sides.setdefault((chain[-1], 1), []).append((_aim(*chain[:-3:-1]), number))
    for (spot, end), aims in sides.items():
        aims.sort()
        for (_, number), x in zip(aims, _beside(spot, [x for x, _ in aims]), strict=True):
            found[number][end] = x
    return [(at_upper, at_lower) for at_upper, at_lower in found]


def _aim(spot: Spot, other: Spot) -> float:
    """Return where a line to another spot is best, seen from this one's middle."""
    apart = other.x - spot.x
    return apart / 2 if other.box and not other.pin else apart


def _beside(spot: Spot, aims: Sequence[float]) -> list[float]:
    reach, last = spot.width * 0.4, len(aims) - 1
    apart = min(_END_GAP, 2 * reach / max(last, 1))
    places = nearest(aims, [1.0] * len(aims), [apart] * last)
    for number, place in enumerate(places):
        places[number] = max(place, number * apart - reach)
    return [min(x, reach - (last - number) * apart) for number, x in enumerate(places)]


def _route(chain: Sequence[Spot], ends: Point, bands: Bands) -> list[list[Point]]:
    """Return a line's strokes: one, or with a label that before it and that after it."""
    upper, lower = chain[0], chain[-1]
    x = upper.x + ends[0]
    strokes = [[(x, upper.y + upper.height / 2), (x, bands[upper.rank][1] + _STUB)]]
    for spot in chain[1:-1]:
        top, bottom = bands[spot.rank]
        if spot.height:
            strokes[-1] += [(spot.x, top), (spot.x, spot.y - spot.height / 2)]
            strokes.append([(spot.x, spot.y + spot.height / 2), (spot.x, bottom)])
        else:
            strokes[-1] += [(spot.x, top), (spot.x, bottom)]
    x = lower.x + ends[1]
    strokes[-1] += [(x, bands[lower.rank][0] - _STUB), (x, lower.y - lower.height / 2)]
    return strokes
