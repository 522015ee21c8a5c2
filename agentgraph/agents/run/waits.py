"""Which run waits for which: a wait that would never end is refused before it begins.

A run waits for the runs before it in the queue of its thread. A run goes on only when the calls
inside of it have ended; a run on an event loop only when no synchronous call blocks that loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import takewhile
from typing import TypeAlias

from agentgraph.blocking import loops_waiting
from agentgraph.errors import AgentGraphError
from agentgraph.running import Run, outer_run

LOCK = threading.Lock()
"""Held wherever a queue changes: a circle may go through the queues of several savers."""


class Place:
    """The place of a call in the queue of a thread; the first one holds the thread."""

    def __init__(self, thread_id: str, run: Run | None) -> None:
        self.thread_id = thread_id
        self.run = run
        self.loop = asyncio.get_running_loop()
        self.turn = self.loop.create_future()
        self.queue: Queue = deque()
        self.held_up: list[object] = []
        """The runs and the event loops that stand still until the call has ended, if it waits."""

    def wake(self) -> bool:
        """Give the thread to the call; return whether it is still there."""
        if self.loop.is_closed():  # it would never wake
            return False
        self.loop.call_soon_threadsafe(self._settle)
        return True

    def _settle(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)


Queue: TypeAlias = deque[Place]

_causes: defaultdict[object, list[Place]] = defaultdict(list)
"""By run or event loop, the waiting calls that delay it."""


def begin_wait(place: Place, queue: Queue) -> None:
    """Append a call to a queue; raise `AgentGraphError("inside_run")` where that closes a circle.

    The caller has `LOCK`. No circle can be closed later: who gets a thread waits for less.
    """
    place.queue = queue
    place.held_up = [*_runs_around(), *loops_waiting()]
    for thing in place.held_up:
        _causes[thing].append(place)
    queue.append(place)
    circle = _circle(place) if place.held_up else []
    if circle:
        queue.pop()
        end_wait(place)
        raise _refusal(place, circle)


def end_wait(place: Place) -> None:
    """Note that a call does not wait any more; the caller has `LOCK`."""
    for thing in place.held_up:
        _causes[thing].remove(place)
        if not _causes[thing]:
            del _causes[thing]


def _runs_around() -> Iterator[Run]:
    run = outer_run()
    while run is not None:
        yield run
        run = run.outer


def _circle(start: Place) -> list[tuple[Place, Place]]:
    """Return how a call would wait for itself, [] if it would not.

    Each step is a call that it waits for, and a waiting call that delays this one.
    """
    paths: deque[tuple[Place, list[tuple[Place, Place]]]] = deque([(start, [])])
    seen_before: set[Place] = set()
    seen_causes: set[Place] = set()
    while paths:
        waiter, path = paths.popleft()
        for before in _before(waiter):
            if before in seen_before:
                continue
            seen_before.add(before)
            for cause in _causes_of(before):
                if cause is start:
                    return [*path, (before, cause)]
                if cause not in seen_causes:
                    seen_causes.add(cause)
                    paths.append((cause, [*path, (before, cause)]))
    return []


def _before(waiter: Place) -> Iterator[Place]:
    return takewhile(lambda place: place is not waiter, waiter.queue)


def _causes_of(place: Place) -> list[Place]:
    own = _causes.get(place.run, []) if place.run is not None else []
    return [*own, *_causes.get(place.loop, [])]


def _refusal(place: Place, circle: list[tuple[Place, Place]]) -> AgentGraphError:
    if len(circle) == 1 and circle[0][0].run in place.held_up:
        text = (
            f"a run on thread {place.thread_id!r} cannot wait for another on the same thread: "
            "give the inner one a thread of its own"
        )
    else:
        steps = ", ".join(_step(before, cause, place) for before, cause in circle)
        text = (
            f"a call on thread {place.thread_id!r} would wait for ever, because {steps}: await the "
            "asynchronous method where a loop is blocked, or give one of the calls another thread"
        )
    return AgentGraphError(text, code="inside_run")


def _step(before: Place, cause: Place, place: Place) -> str:
    call = "this call" if cause is place else f"a call on thread {cause.thread_id!r}"
    if before.run in cause.held_up:
        return f"the run on thread {before.thread_id!r} waits for {call}"
    return f"the event loop of the run on thread {before.thread_id!r} is blocked by {call}"
