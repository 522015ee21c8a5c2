"""Slots in layers: a slot is a box, or the point where a line crosses a layer between its boxes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

_BOX_GAP, _LINE_GAP = 28.0, 16.0
_BENDS = 4
"""Bends per box and line: a dense graph with more would be slow to draw and impossible to read."""

_WEIGHTS = (8.0, 1.0, 6.0)
"""The weight of a tie, by how many of its ends are boxes: long lines should be the straightest."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box with its size; `margin` stays free at its right, `layer` pins it to the top or bottom.

    A `corner` goes to the left end of its layer.
    """

    width: float
    height: float
    margin: float = 0.0
    layer: Literal["first", "last"] | None = None
    corner: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line from an upper box to a lower one.

    `at_upper` and `at_lower` fix its ends, as offsets from the boxes' centres; None: ends are free.
    """

    upper: Hashable
    lower: Hashable
    at_upper: float | None = None
    at_lower: float | None = None
    label: tuple[float, float] | None = None


@dataclass(slots=True, eq=False)
class Slot:
    """A box, or the point where a line crosses a layer; with ties to slots of adjacent layers.

    A tie is another slot, the best offset of this slot from it, and the weight of that offset.
    """

    width: float = 0.0
    height: float = 0.0
    rank: int = 0
    box: Box | None = None
    x: float = 0.0
    y: float = 0.0
    above: list[tuple[Slot, float, float]] = field(default_factory=list)
    below: list[tuple[Slot, float, float]] = field(default_factory=list)

    @property
    def pin(self) -> str | None:
        """Return the end of the graph that it is pinned to."""
        return self.box.layer if self.box else None

    @property
    def right(self) -> float:
        """Return how far it extends from its centre to the right."""
        return self.width / 2 + (self.box.margin if self.box else 0)

    def gap_before(self, neighbour: Slot) -> float:
        """Return the least distance between its centre and that of its right neighbour."""
        gap = _BOX_GAP if self.box and neighbour.box else _LINE_GAP
        return self.right + neighbour.width / 2 + gap


def give_ranks(slots: Mapping[Hashable, Slot], lines: Sequence[Line], step: int) -> None:
    """Give each box a layer below all boxes that lead to it; a first box is just above its next."""
    first = step if any(slot.pin == "first" for slot in slots.values()) else 0
    for slot in slots.values():
        slot.rank = 0 if slot.pin == "first" else first
    below: dict[Hashable, list[Slot]] = {key: [] for key in slots}
    for line in lines:
        below[line.upper].append(slots[line.lower])
    roots = set(slots) - {line.lower for line in lines}
    for key in _downwards(slots, lines):
        for lower in below[key]:
            lower.rank = max(lower.rank, slots[key].rank + step)
    for key in roots:
        if below[key] and slots[key].pin is None:
            slots[key].rank = min(lower.rank for lower in below[key]) - step
    inner = [slot.rank for slot in slots.values() if slot.pin != "last"]
    for slot in slots.values():
        if slot.pin == "last":
            slot.rank = max(inner, default=-step) + step


def _downwards(slots: Iterable[Hashable], lines: Sequence[Line]) -> list[Hashable]:
    """Return the boxes, each after all boxes that lead to it."""
    below: dict[Hashable, list[Hashable]] = {key: [] for key in slots}
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


def chains_of(slots: Mapping[Hashable, Slot], lines: Sequence[Line]) -> list[list[Slot]]:
    """Return the slots of each line, from box to box; the longest lines may skip layers."""

    def length(number: int) -> int:
        return slots[lines[number].lower].rank - slots[lines[number].upper].rank

    bends_left = _BENDS * (len(slots) + len(lines))
    chains: dict[int, list[Slot]] = {}
    for number in sorted(range(len(lines)), key=length):
        line, span = lines[number], length(number)
        bends_left -= span - 1
        chain = [slots[line.upper], slots[line.lower]]
        crossings = range(1, span) if bends_left >= 0 else [span // 2] if line.label else []
        for distance in crossings:
            is_middle = line.label is not None and distance == span // 2
            size = line.label if line.label and is_middle else (0.0, 0.0)
            chain.insert(-1, Slot(*size, rank=chain[0].rank + distance))
        _tie(chain, line)
        chains[number] = chain
    return [chains[number] for number in range(len(lines))]


def _tie(chain: Sequence[Slot], line: Line) -> None:
    """Tie each slot of a line to the next, in both directions."""
    for upper, lower in pairwise(chain):
        shift = 0.0
        if lower is chain[-1]:
            shift += line.at_lower or 0.0
        if upper is chain[0]:
            shift -= line.at_upper or 0.0
        weight = _WEIGHTS[(upper.box is not None) + (lower.box is not None)]
        upper.below.append((lower, shift, weight))
        lower.above.append((upper, -shift, weight))


def layers_of(slots: Iterable[Slot]) -> list[list[Slot]]:
    """Sort slots into layers, from the top."""
    layers: dict[int, list[Slot]] = {}
    for slot in slots:
        layers.setdefault(slot.rank, []).append(slot)
    return [layers[rank] for rank in sorted(layers)]
