"""Lay out one level of a graph in layers from top to bottom: places of boxes, routes of lines."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from agentgraph.drawing.positions import assign_positions, nearest
from agentgraph.drawing.slots import Box, Line, Slot, chains_of, give_ranks, layers_of

Point = tuple[float, float]
Bands = Mapping[int, Point]  # of each layer, by its rank: the top and the bottom

_END_GAP, _STUB, _LAYER_GAP, _LABEL_GAP, _BORDER_GAP = 15.0, 8.0, 44.0, 28.0, 24.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The centres of the boxes; for each line, its strokes and the centre of its label.

    The points of a stroke come in pairs: between the points of a pair a line runs straight down.
    """

    width: float
    height: float
    places: Mapping[Hashable, Point]
    routes: Sequence[Sequence[Sequence[Point]]]
    labels: Sequence[Point | None]


def arrange(boxes: Mapping[Hashable, Box], lines: Sequence[Line]) -> Layout:
    """Lay out boxes whose lines run downwards, without cycles."""
    slots = {key: Slot(box.width, box.height, box=box) for key, box in boxes.items()}
    step = 2 if any(line.label for line in lines) else 1
    give_ranks(slots, lines, step)
    chains = chains_of(slots, lines)
    layers = layers_of([*slots.values(), *(slot for chain in chains for slot in chain[1:-1])])
    assign_positions(layers, chains, lines)
    width, height, bands = _bands(layers, _LAYER_GAP if step == 1 else _LABEL_GAP)
    ends = _ends(lines, chains)
    return Layout(
        width,
        height,
        {key: (slot.x, slot.y) for key, slot in slots.items()},
        [_route(chain, end, bands) for chain, end in zip(chains, ends, strict=True)],
        [next(((s.x, s.y) for s in chain[1:-1] if s.height), None) for chain in chains],
    )


def _bands(layers: Sequence[Sequence[Slot]], gap: float) -> tuple[float, float, Bands]:
    """Give every slot its final place; return the total size, and the bands of the layers."""
    slots = [slot for layer in layers for slot in layer]
    left_edge = min((slot.x - slot.width / 2 for slot in slots), default=0.0)
    bands: dict[int, Point] = {}
    bottom = 0.0
    for number, layer in enumerate(layers):
        above = layers[number - 1] if number else []
        top = bottom
        if above:
            top += _BORDER_GAP if any(slot.pin for slot in (*above, *layer)) else gap
        bottom = top + max(slot.height for slot in layer)
        bands[layer[0].rank] = (top, bottom)
        for slot in layer:
            slot.x = slot.width / 2 if slot.box and slot.box.corner else slot.x - left_edge
            slot.y = (top + bottom) / 2
    return max((slot.x + slot.right for slot in slots), default=0.0), bottom, bands


def _ends(lines: Sequence[Line], chains: Sequence[Sequence[Slot]]) -> list[Point]:
    """Choose where lines end at their boxes: side by side, ordered by their direction."""
    ends = [[line.at_upper or 0.0, line.at_lower or 0.0] for line in lines]
    sides: dict[tuple[Slot, int], list[tuple[float, int]]] = {}
    for number, (line, chain) in enumerate(zip(lines, chains, strict=True)):
        if line.at_upper is None:
            sides.setdefault((chain[0], 0), []).append((_aim(*chain[:2]), number))
        if line.at_lower is None:
            sides.setdefault((chain[-1], 1), []).append((_aim(*chain[:-3:-1]), number))
    for (slot, end), aims in sides.items():
        aims.sort()
        for (_, number), x in zip(aims, _beside(slot, [x for x, _ in aims]), strict=True):
            ends[number][end] = x
    return [(at_upper, at_lower) for at_upper, at_lower in ends]


def _aim(slot: Slot, next_slot: Slot) -> float:
    """Return where a line to the next slot should leave, as an offset from this slot's centre."""
    apart = next_slot.x - slot.x
    return apart / 2 if next_slot.box and not next_slot.pin else apart


def _beside(slot: Slot, aims: Sequence[float]) -> list[float]:
    """Return offsets for the ends of lines at a box, apart from each other and within its width."""
    reach, last = slot.width * 0.4, len(aims) - 1
    apart = min(_END_GAP, 2 * reach / max(last, 1))
    places = nearest(aims, [1.0] * len(aims), [apart] * last)
    for number, place in enumerate(places):
        places[number] = max(place, number * apart - reach)
    return [min(x, reach - (last - number) * apart) for number, x in enumerate(places)]


def _route(chain: Sequence[Slot], ends: Point, bands: Bands) -> list[list[Point]]:
    """Return a line's strokes: one, or two with a label between them."""
    upper, lower = chain[0], chain[-1]
    x = upper.x + ends[0]
    strokes = [[(x, upper.y + upper.height / 2), (x, bands[upper.rank][1] + _STUB)]]
    for slot in chain[1:-1]:
        top, bottom = bands[slot.rank]
        if slot.height:
            strokes[-1] += [(slot.x, top), (slot.x, slot.y - slot.height / 2)]
            strokes.append([(slot.x, slot.y + slot.height / 2), (slot.x, bottom)])
        else:
            strokes[-1] += [(slot.x, top), (slot.x, bottom)]
    x = lower.x + ends[1]
    strokes[-1] += [(x, bands[lower.rank][0] - _STUB), (x, lower.y - lower.height / 2)]
    return strokes
