"""What stands in the layers: boxes, and the places where lines pass."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

_BOX_GAP, _LINE_GAP = 28.0, 16.0
_BENDS = 4  # as many per box and line: with more there is nothing to read, and no end

# How much a tie wants to be vertical, by how many of its ends are boxes.
_WEIGHTS = (8.0, 1.0, 6.0)


@dataclass(frozen=True, slots=True)
class Box:
    """What takes up room; `margin` is kept free at its right, `layer` pins it to an end.

    A `corner` goes to the left end of its layer.
    """

    width: float
    height: float
    margin: float = 0.0
    layer: Literal["first", "last"] | None = None
    corner: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line, told from its upper box to its lower one.

    `at_upper` and `at_lower` fix where it ends, seen from a box's middle; else that is chosen.
    """

    upper: Hashable
    lower: Hashable
    at_upper: float | None = None
    at_lower: float | None = None
    label: tuple[float, float] | None = None


@dataclass(slots=True, eq=False)
class Spot:
    """A box, or where a line passes a layer.

    A tie is another spot, where this one is best, seen from that one, and how much that matters.
    """

    width: float = 0.0
    height: float = 0.0
    rank: int = 0
    box: Box | None = None
    x: float = 0.0
    y: float = 0.0
    above: list[tuple[Spot, float, float]] = field(default_factory=list)
    below: list[tuple[Spot, float, float]] = field(default_factory=list)

    @property
    def pin(self) -> str | None:
        """Return the end that it is pinned to."""
        return self.box.layer if self.box else None

    @property
    def right(self) -> float:
        """Return how far it reaches from its middle to the right."""
        return self.width / 2 + (self.box.margin if self.box else 0)

    def gap_before(self, other: Spot) -> float:
        """Return how far its middle is at least from that of its neighbour at the right."""
        gap = _BOX_GAP if self.box and other.box else _LINE_GAP
        return self.right + other.width / 2 + gap


def give_ranks(spots: Mapping[Hashable, Spot], lines: Sequence[Line], step: int) -> None:
    """Give each box a layer below all that lead to it, and those above nothing else the next."""
    first = step if any(spot.pin == "first" for spot in spots.values()) else 0
    for spot in spots.values():
        spot.rank = 0 if spot.pin == "first" else first
    below: dict[Hashable, list[Spot]] = {key: [] for key in spots}
    for line in lines:
        below[line.upper].append(spots[line.lower])
    roots = set(spots) - {line.lower for line in lines}
    for key in _downwards(spots, lines):
        for lower in below[key]:
            lower.rank = max(lower.rank, spots[key].rank + step)
    for key in roots:
        if below[key] and spots[key].pin is None:
            spots[key].rank = min(lower.rank for lower in below[key]) - step
    inner = [spot.rank for spot in spots.values() if spot.pin != "last"]
    for spot in spots.values():
        if spot.pin == "last":
            spot.rank = max(inner, default=-step) + step


def _downwards(spots: Iterable[Hashable], lines: Sequence[Line]) -> list[Hashable]:
    """Return the boxes, each after all that lead to it."""
    below: dict[Hashable, list[Hashable]] = {key: [] for key in spots}
    waits = dict.fromkeys(below, 0)
    for line in lines:
        below[line.upper].append(line.lower)
        waits[line.lower] += 1
    ready = [key for key, count in waits.items() if not count]
    for key in ready:
        for lower in below[key]:
            waits[lower] -= 1
            if not waits[lower]:
                ready.append(lower)
    return ready


def chains_of(spots: Mapping[Hashable, Spot], lines: Sequence[Line]) -> list[list[Spot]]:
    """Return the spots of each line, from box to box; the longest lines may pass straight over."""

    def length(number: int) -> int:
        return spots[lines[number].lower].rank - spots[lines[number].upper].rank

    left = _BENDS * (len(spots) + len(lines))
    chains: dict[int, list[Spot]] = {}
    for number in sorted(range(len(lines)), key=length):
        line, span = lines[number], length(number)
        left -= span - 1
        chain = [spots[line.upper], spots[line.lower]]
        passed = range(1, span) if left >= 0 else [span // 2] if line.label else []
        for distance in passed:
            labelled = line.label is not None and distance == span // 2
            size = line.label if line.label and labelled else (0.0, 0.0)
            chain.insert(-1, Spot(*size, rank=chain[0].rank + distance))
        _tie(chain, line)
        chains[number] = chain
    return [chains[number] for number in range(len(lines))]


def _tie(chain: Sequence[Spot], line: Line) -> None:
    for upper, lower in pairwise(chain):
        shift = 0.0
        if lower is chain[-1]:
            shift += line.at_lower or 0.0
        if upper is chain[0]:
            shift -= line.at_upper or 0.0
        weight = _WEIGHTS[(upper.box is not None) + (lower.box is not None)]
        upper.below.append((lower, shift, weight))
        lower.above.append((upper, -shift, weight))


def layers_of(spots: Iterable[Spot]) -> list[list[Spot]]:
    """Sort spots into layers, from the top."""
    found: dict[int, list[Spot]] = {}
    for spot in spots:
        found.setdefault(spot.rank, []).append(spot)
    return [found[rank] for rank in sorted(found)]
