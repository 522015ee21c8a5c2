"""Where things stand within their layer: few crossings, straight lines, nothing on anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import TypeAlias

from agentgraph.drawing.spots import Line, Spot

_Room: TypeAlias = Mapping[Spot, tuple[Spot | None, Spot | None]]
_SWEEPS = 12


def place_in_columns(
    layers: Sequence[list[Spot]], chains: Sequence[Sequence[Spot]], lines: Sequence[Line]
) -> None:
    """Choose the order within each layer, and how far each spot is to the right."""
    for layer in layers:
        _pack(layer)
    for sweep in range(_SWEEPS):
        _order(layers, down=sweep % 2 == 0)
    for sweep in range(2 * _SWEEPS):
        _align(layers, down=sweep % 2 == 0, both=sweep >= _SWEEPS)
    room = _neighbours(layers)
    for _ in range(_SWEEPS):
        for chain, line in zip(chains, lines, strict=True):
            _straighten(chain, line, room)


def _order(layers: Sequence[list[Spot]], *, down: bool) -> None:
    """Sort each layer by the middle of what its spots are tied to."""
    for layer in layers if down else reversed(layers):
        wanted = {}
        for spot in layer:
            ties = spot.above if down else spot.below
            wanted[spot] = sum(o.x + at for o, at, _ in ties) / len(ties) if ties else spot.x
        layer.sort(key=lambda spot: (not (spot.box and spot.box.corner), wanted[spot]))
        _pack(layer)


def _pack(layer: Sequence[Spot]) -> None:
    """Place a layer side by side around zero."""
    layer[0].x = 0.0
    for left, right in pairwise(layer):
        right.x = left.x + left.gap_before(right)
    middle = layer[-1].x / 2
    for spot in layer:
        spot.x -= middle


def _align(layers: Sequence[Sequence[Spot]], *, down: bool, both: bool) -> None:
    """Move all as near to what they are tied to as their order allows."""
    for layer in layers if down else reversed(layers):
        wanted, weights = [], []
        for spot in layer:
            ties = [*spot.above, *spot.below] if both else spot.above if down else spot.below
            weight = sum(weight for *_, weight in ties)
            place = sum((o.x + at) * w for o, at, w in ties) / weight if ties else spot.x
            wanted.append(place)
            weights.append(weight or 0.01)
        gaps = [left.gap_before(right) for left, right in pairwise(layer)]
        for spot, place in zip(layer, nearest(wanted, weights, gaps), strict=True):
            spot.x = place


def nearest(
    wanted: Sequence[float], weights: Sequence[float], gaps: Sequence[float]
) -> list[float]:
    """Return places in their order, `gaps` apart at least, with the least squares of distances."""
    offsets = [*accumulate(gaps, initial=0.0)]
    runs: list[tuple[float, float, int]] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        place, heavy, count = want - offset, weight, 1
        while runs and runs[-1][0] > place:
            x, w, n = runs.pop()
            place = (x * w + place * heavy) / (w + heavy)
            heavy, count = w + heavy, n + count
        runs.append((place, heavy, count))
    places = [place for place, _, count in runs for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]


def _neighbours(layers: Sequence[Sequence[Spot]]) -> _Room:
    found: dict[Spot, tuple[Spot | None, Spot | None]] = {}
    for layer in layers:
        beside = [None, *layer, None]
        for position, spot in enumerate(layer):
            found[spot] = (beside[position], beside[position + 2])
    return found


def _straighten(chain: Sequence[Spot], line: Line, room: _Room) -> None:
    """Let a line run straight down where its neighbours leave room, best to where it must end."""
    runs = list(_runs(chain[1:-1], room))
    for number, (run, low, high) in enumerate(runs):
        x = sum(spot.x for spot in run) / len(run)
        if line.at_lower is not None and number == len(runs) - 1:
            x = chain[-1].x + line.at_lower
        elif line.at_upper is not None and not number:
            x = chain[0].x + line.at_upper
        for spot in run:
            spot.x = min(max(x, low), high)


def _runs(chain: Sequence[Spot], room: _Room) -> Iterator[tuple[list[Spot], float, float]]:
    """Cut a line into pieces that can be straight, with the bounds of where they can be."""
    run: list[Spot] = []
    low, high = -inf, inf
    for spot in chain:
        left, right = room[spot]
        least = left.x + left.gap_before(spot) if left else -inf
        most = right.x - spot.gap_before(right) if right else inf
        if run and max(low, least) > min(high, most):
            yield run, low, high
            run, low, high = [], -inf, inf
        run.append(spot)
        low, high = max(low, least), min(high, most)
    if run:
        yield run, low, high
