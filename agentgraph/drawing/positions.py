"""Choose the order and the horizontal positions within layers: few crossings, straight lines.

The steps are those of layered graph drawing (Sugiyama): sort each layer by its neighbours in the
next layer, sweep down and up, then move every slot towards the slots that it is tied to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import TypeAlias

from agentgraph.drawing.slots import Line, Slot

_Neighbours: TypeAlias = Mapping[Slot, tuple[Slot | None, Slot | None]]
_SWEEPS = 12


def assign_positions(
    layers: Sequence[list[Slot]], chains: Sequence[Sequence[Slot]], lines: Sequence[Line]
) -> None:
    """Choose the order within each layer, and the horizontal position of each slot."""
    for layer in layers:
        _pack(layer)
    for sweep in range(_SWEEPS):
        _order(layers, down=sweep % 2 == 0)
    for sweep in range(2 * _SWEEPS):
        _align(layers, down=sweep % 2 == 0, both_sides=sweep >= _SWEEPS)
    neighbours = _neighbours(layers)
    for _ in range(_SWEEPS):
        for chain, line in zip(chains, lines, strict=True):
            _straighten(chain, line, neighbours)


def _order(layers: Sequence[list[Slot]], *, down: bool) -> None:
    """Sort each layer by the mean position of the slots that its slots are tied to."""
    for layer in layers if down else reversed(layers):
        targets = {}
        for slot in layer:
            ties = slot.above if down else slot.below
            targets[slot] = sum(o.x + at for o, at, _ in ties) / len(ties) if ties else slot.x
        layer.sort(key=lambda slot: (not (slot.box and slot.box.corner), targets[slot]))
        _pack(layer)


def _pack(layer: Sequence[Slot]) -> None:
    """Place the slots of a layer side by side, with their centre at zero."""
    layer[0].x = 0.0
    for slot, successor in pairwise(layer):
        successor.x = slot.x + slot.gap_before(successor)
    middle = layer[-1].x / 2
    for slot in layer:
        slot.x -= middle


def _align(layers: Sequence[Sequence[Slot]], *, down: bool, both_sides: bool) -> None:
    """Move all slots as near to the slots that they are tied to as their order allows."""
    for layer in layers if down else reversed(layers):
        targets, weights = [], []
        for slot in layer:
            ties = [*slot.above, *slot.below] if both_sides else slot.above if down else slot.below
            weight = sum(weight for *_, weight in ties)
            place = sum((o.x + at) * w for o, at, w in ties) / weight if ties else slot.x
            targets.append(place)
            weights.append(weight or 0.01)
        gaps = [slot.gap_before(successor) for slot, successor in pairwise(layer)]
        for slot, place in zip(layer, nearest(targets, weights, gaps), strict=True):
            slot.x = place


def nearest(
    targets: Sequence[float], weights: Sequence[float], gaps: Sequence[float]
) -> list[float]:
    """Return places in this order, at least `gaps` apart, as near to their targets as possible.

    The sum of the weighted squared distances is minimal (pool adjacent violators).
    """
    offsets = [*accumulate(gaps, initial=0.0)]
    runs: list[tuple[float, float, int]] = []
    for target, weight, offset in zip(targets, weights, offsets, strict=True):
        place, heavy, count = target - offset, weight, 1
        while runs and runs[-1][0] > place:
            x, w, n = runs.pop()
            place = (x * w + place * heavy) / (w + heavy)
            heavy, count = w + heavy, n + count
        runs.append((place, heavy, count))
    places = [place for place, _, count in runs for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]


def _neighbours(layers: Sequence[Sequence[Slot]]) -> _Neighbours:
    """Return the left and the right neighbour of each slot."""
    neighbours: dict[Slot, tuple[Slot | None, Slot | None]] = {}
    for layer in layers:
        beside = [None, *layer, None]
        for position, slot in enumerate(layer):
            neighbours[slot] = (beside[position], beside[position + 2])
    return neighbours


def _straighten(chain: Sequence[Slot], line: Line, neighbours: _Neighbours) -> None:
    """Let a line run straight down where its neighbours leave room, preferably to a fixed end."""
    runs = list(_runs(chain[1:-1], neighbours))
    for number, (run, low, high) in enumerate(runs):
        x = sum(slot.x for slot in run) / len(run)
        if line.at_lower is not None and number == len(runs) - 1:
            x = chain[-1].x + line.at_lower
        elif line.at_upper is not None and not number:
            x = chain[0].x + line.at_upper
        for slot in run:
            slot.x = min(max(x, low), high)


def _runs(
    chain: Sequence[Slot], neighbours: _Neighbours
) -> Iterator[tuple[list[Slot], float, float]]:
    """Cut a line into pieces that can be straight, each with the bounds of its position."""
    run: list[Slot] = []
    low, high = -inf, inf
    for slot in chain:
        before, after = neighbours[slot]
        least = before.x + before.gap_before(slot) if before else -inf
        most = after.x - slot.gap_before(after) if after else inf
        if run and max(low, least) > min(high, most):
            yield run, low, high
            run, low, high = [], -inf, inf
        run.append(slot)
        low, high = max(low, least), min(high, most)
    if run:
        yield run, low, high
