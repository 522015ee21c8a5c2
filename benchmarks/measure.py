"""Time conversations side by side: turn for turn in alternation, so that noise meets all alike."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from typing import TypeAlias

from langgraph.checkpoint.memory import InMemorySaver

__all__ = ["Conversation", "Opening", "Row", "Times", "bytes_in", "side_by_side"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One contestant's thread: have its next turn, or weigh what it keeps."""

    turn: Callable[[int], Awaitable[object]]
    weigh: Callable[[], int] = lambda: 0


Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[Conversation]]


@dataclass(frozen=True, slots=True)
class Times:
    """One contestant's seconds, by turn and repetition, and its bytes after some turns."""

    seconds: list[list[float]]
    bytes: dict[int, int] = field(default_factory=dict)

    def around(self, first: int, last: int) -> float:
        """Return the mean over turns, each turn being the fastest of its repetitions.

        The fastest, because a busy machine only adds: under load the median's ratio fell by half
        and this one stayed. The mean, because a turn costs more the longer ago the history's last
        snapshot is; without the slowest and the fastest tenth of the turns.
        """
        turns = sorted(min(times) for times in self.seconds[first - 1 : last])
        cut = len(turns) // 10
        return fmean(turns[cut : len(turns) - cut])

    def bytes_per_turn(self, first: int, last: int) -> float:
        """Return the mean of what the turns between two weighings added."""
        return (self.bytes[last] - self.bytes[first]) / (last - first)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: ours, theirs, and how many times theirs ours may be."""

    what: str
    ours: float
    theirs: float
    goal: float | None
    unit: str = "ms"
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return self.note
        return "pass" if self.ratio <= self.goal else "**miss**"


async def side_by_side(
    openings: Mapping[str, Opening],
    *,
    turns: int,
    repetitions: int,
    weigh_after: Sequence[int] = (),
    timer: Callable[[], float] = perf_counter,
) -> dict[str, Times]:
    """Hold conversations of so many turns with everybody, over and over."""
    measured = {name: Times([[] for _ in range(turns)]) for name in openings}
    for _ in range(repetitions):
        async with AsyncExitStack() as stack:
            held = {name: await stack.enter_async_context(o()) for name, o in openings.items()}
            gc.collect()
            for number in range(1, turns + 1):
                for name, conversation in held.items():
                    began = timer()
                    await conversation.turn(number)
                    measured[name].seconds[number - 1].append(timer() - began)
                    if number in weigh_after:
                        measured[name].bytes[number] = conversation.weigh()
    return measured


def bytes_in(saver: InMemorySaver) -> int:
    """Add up all that was serialised: checkpoints, channel values and writes."""
    values = [data for _, data in saver.blobs.values()]
    for namespaces in saver.storage.values():
        for checkpoints in namespaces.values():
            for (_, checkpoint), (_, metadata), _parent in checkpoints.values():
                values += [checkpoint, metadata]
    for writes in saver.writes.values():
        values += [data for _, _, (_, data), _ in writes.values()]
    return sum(map(len, values))
