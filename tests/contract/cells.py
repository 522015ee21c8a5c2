"""The cells of the resume contract, as data: what is killed, when, and who goes on, on which store.

Each subject pays for tea, then for milk, then for jam, one way or another. The kill comes at an
instant of the payment for milk, which is the operation that the subject's name tells of; so tea
is what was done before, and jam what is still to be done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

BEFORE_DISPATCH: Final = "before dispatch"
AFTER_DISPATCH: Final = "after dispatch"
INSIDE: Final = "inside the effect"
AFTER_EFFECT: Final = "after the effect"
RECORDED: Final = "after its record"
COMMITTED: Final = "after the commit"
UNSEEN: Final = "before the answer is seen"
INSTANTS: Final = (
    BEFORE_DISPATCH,
    AFTER_DISPATCH,
    INSIDE,
    AFTER_EFFECT,
    RECORDED,
    COMMITTED,
    UNSEEN,
)

MEMORYLESS: Final = "memoryless restart"
OTHER: Final = "other process"
TWO: Final = "two at once"
AGAIN: Final = "killed again"
RESTARTS: Final = (MEMORYLESS, OTHER, TWO, AGAIN)
"""A new process; one that was open before and has read the thread; two that begin at one time;
one that is killed at the same instant, and then another one."""

STORES: Final = ("sqlite", "postgres")

PROPERTIES: Final = (
    "prefix continuation",
    "effect once",
    "consume once",
    "recovery determinism",
    "liveness",
)
"""What each cell shows; forks and stored states have tests of their own beside the matrix."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What runs, where it runs, and the durability whose promises it is held to."""

    operation: str
    home: str
    """`thread`: an Agent; `alone`: an Agent in a session; `team`: a Team in a session; `flow`."""
    durability: str

    @property
    def is_effect(self) -> bool:
        """Whether its payments are marked `@effect`."""
        return self.operation in EFFECTS

    @property
    def stores_steps(self) -> bool:
        """Whether each super-step is stored before the next one begins."""
        return self.durability in ("sync", "step")

    @property
    def asks(self) -> bool:
        """Whether a human is asked before milk is paid for."""
        return self.operation in ("interrupt", "asked effect")

    @property
    def is_undone(self) -> bool:
        """Whether all payments are undone in the end."""
        return self.operation == "compensation"

    def __str__(self) -> str:
        return f"{self.operation}, {self.home}, {self.durability}"


EFFECTS: Final = ("effect", "blind effect", "parallel effects", "asked effect", "compensation")
_OPERATIONS: Final = {
    "model call": ("thread", "alone"),
    "tool": ("thread", "alone"),
    "effect": ("thread", "alone", "team", "flow"),
    "blind effect": ("thread", "alone", "team"),
    "parallel tools": ("thread", "alone"),
    "parallel effects": ("thread", "alone"),
    "interrupt": ("thread", "alone", "team", "flow"),
    "asked effect": ("thread", "alone", "team"),
    "sub-agent": ("thread", "alone"),
    "delegate": ("thread", "alone"),
    "round": ("team",),
    "parallel round": ("team",),
    "packet": ("team",),
    "close": ("team",),
    "flow worker": ("flow",),
    "compensation": ("thread", "alone", "flow"),
}
_DURABILITIES: Final = {
    "thread": ("sync", "async"),
    "alone": ("step", "round"),
    "team": ("step", "round"),
    "flow": ("sync",),
}
SUBJECTS: Final = tuple(
    Subject(operation, home, durability)
    for operation, homes in _OPERATIONS.items()
    for home in homes
    for durability in _DURABILITIES[home]
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One kill, and who goes on after it."""

    subject: Subject
    instant: str
    restart: str
    store: str

    def __str__(self) -> str:
        return f"{self.subject}, {self.instant}, {self.restart}, {self.store}"


def senseless(subject: Subject, instant: str) -> str | None:
    """Return why an instant makes no sense for a subject, None if it does."""
    if subject.operation == "compensation" and instant == AFTER_DISPATCH:
        return "nothing of the user's runs between the dispatch of an undoing and its function"
    if subject.operation == "packet" and instant == RECORDED:
        return "a packet is its own record"
    if (
        subject.durability == "round"
        and instant == RECORDED
        and subject.operation not in (*EFFECTS, "close")
    ):
        return "a round that runs again from its start has no record before its packet"
    return None


def cells() -> Iterator[Cell]:
    """Yield all cells that make sense."""
    for store, restart, instant, subject in product(STORES, RESTARTS, INSTANTS, SUBJECTS):
        if senseless(subject, instant) is None:
            yield Cell(subject, instant, restart, store)


def sample() -> list[Cell]:
    """Return one cell of each subject; each instant, restart and store occurs with many of them."""
    chosen: list[Cell] = []
    for number, subject in enumerate(SUBJECTS):
        instants = [instant for instant in INSTANTS if senseless(subject, instant) is None]
        restart = RESTARTS[number // len(INSTANTS) % len(RESTARTS)]
        store = STORES[number % len(STORES)]
        chosen.append(Cell(subject, instants[number % len(instants)], restart, store))
    return chosen
