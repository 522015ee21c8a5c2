"""What each property of the resume contract demands of a cell, beside what really happened.

What a durability promises stands here, and nowhere else: `most_payments`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.contract.cells import COMMITTED, RECORDED, TWO, UNSEEN, Cell
from tests.contract.ledger import Entry
from tests.contract.matrix import Outcome
from tests.contract.site import ITEM, ITEMS

Fault = tuple[str, str]
"""A property, and how it is broken."""


def faults(outcome: Outcome) -> list[Fault]:
    """Return what is broken in a cell."""
    checks = {
        "prefix continuation": _lost_or_repeated,
        "effect once": _repeated_effects,
        "consume once": _decided_twice,
        "recovery determinism": _different_ends,
        "liveness": _stuck,
    }
    found = [(name, text) for name, check in checks.items() for text in check(outcome)]
    return found


def most_payments(cell: Cell, item: str, kills: int) -> int:
    """Return how often something may be paid for by a durability's promise, at most.

    - An `@effect` is on record before it begins, whatever the durability: once.
    - `sync`, `step`: a super-step is stored before the next one begins, and in it each task that
      has ended: only what was under way when the process was killed may run again.
    - `async`: steps are stored while later ones run: what is not stored may run again.
    - `round`: a round runs again from its start, and no other round does.
    - What was answered, or committed with its round, never runs again.
    """
    subject = cell.subject
    if subject.is_effect or cell.instant == UNSEEN:
        return 1
    is_under_way = item == ITEM and cell.instant not in (RECORDED, COMMITTED)
    if subject.home == "team":
        may_repeat = item == ITEM and subject.operation != "close" and cell.instant != COMMITTED
        if subject.stores_steps:
            may_repeat = may_repeat and is_under_way
        if subject.operation == "close":
            may_repeat = item == ITEMS[2]
        return 1 + kills * may_repeat
    if subject.stores_steps:
        is_parallel = subject.operation.startswith("parallel") and item != ITEMS[0]
        return 1 + kills * (is_under_way or is_parallel)
    return 1 + kills * (cell.instant != COMMITTED or subject.durability == "async")


def _kills(outcome: Outcome) -> int:
    return sum(entry.what == "killed" for entry in outcome.entries)


def _end(entries: list[Entry]) -> Any:
    ends = [entry.data for entry in entries if entry.what == "end"]
    return ends[-1] if ends else None


def _texts(end: Any) -> list[str]:
    """Return all that was said, by tools and agents."""
    rows = [*end["messages"], *end.get("told", ())]
    return [str(row[4] if len(row) > 3 else row[1]) for row in rows]


def _lost_or_repeated(outcome: Outcome) -> Iterator[str]:
    end = _end(outcome.entries)
    for entry in outcome.entries:
        if entry.what == "stored" and end is not None:
            stored = entry.data
            if end["messages"][: len(stored)] != stored:
                yield f"what was stored is not the beginning of the end: {stored}"
    kills, paid = _kills(outcome), _paid(outcome)
    for item in ITEMS if not outcome.cell.subject.is_effect else ():
        if paid[item] > most_payments(outcome.cell, item, kills):
            yield f"{item} was paid for {paid[item]} times"


def _paid(outcome: Outcome) -> Counter[str]:
    return Counter(entry.item for entry in outcome.entries if entry.what == "paid")


def _repeated_effects(outcome: Outcome) -> Iterator[str]:
    subject, end = outcome.cell.subject, _end(outcome.entries)
    for item, times in _paid(outcome).items():
        if subject.is_effect and times > 1:
            yield f"the effect {item} came {times} times"
    if end is not None and subject.operation != "model call":
        said = " ".join(_texts(end))
        for item in ITEMS:
            yield from _wrong_words(outcome, item, said)
        if subject.operation in ("effect", "parallel effects") and "nknown" in said:
            yield "an outcome that can be looked up is told as unknown"
    yield from _wrong_undoing(outcome)


def _wrong_words(outcome: Outcome, item: str, said: str) -> Iterator[str]:
    """Yield where what is said of a payment is not what has happened."""
    is_paid, is_refused = _paid(outcome)[item], f"refused {item}" in said
    is_left_open = any(text in said for text in ("nknown", "nobody knows", "Not executed"))
    if not is_paid and f"paid {item}" in said:
        yield f"{item} is said to be paid, and is not"
    if not is_paid and not is_left_open and not is_refused:
        yield f"{item} was never paid for, and nobody says so"
    if is_paid and is_refused:
        yield f"{item} is said to be refused, and was paid"
    if is_paid and not is_left_open and not _is_told(outcome, item, said):
        yield f"{item} was paid, and nobody says so: {said}"


def _is_told(outcome: Outcome, item: str, said: str) -> bool:
    operation = outcome.cell.subject.operation
    return f"paid {item}" in said or operation in ("compensation", "delegate")


def _wrong_undoing(outcome: Outcome) -> Iterator[str]:
    undone = [(entry.item, entry.key) for entry in outcome.entries if entry.what == "undone"]
    if not outcome.cell.subject.is_undone:
        return
    paid = [(entry.item, entry.key) for entry in outcome.entries if entry.what == "paid"]
    if list(dict.fromkeys(undone)) != paid[::-1]:
        yield f"what was paid, {paid}, is not undone last first: {undone}"
    under_way = 1 + _kills(outcome)
    for (item, _), times in Counter(undone).items():
        is_recorded = item != ITEM or outcome.cell.instant in _RECORDED
        # Under "async" the record may be stored before the step that it belongs to.
        if times > (1 if is_recorded and outcome.cell.subject.durability != "async" else under_way):
            yield f"{item} was undone {times} times"


_RECORDED = (RECORDED, COMMITTED, UNSEEN)


def _decided_twice(outcome: Outcome) -> Iterator[str]:
    acted = [str(entry.data) for entry in outcome.entries if entry.what == "acted"]
    if len(set(acted)) > 1:
        yield f"one question was acted on as {acted}"
    for entry in outcome.entries:
        if entry.what == "refused" and "decided" not in str(entry.data):
            yield f"a loser does not hear that it was decided: {entry.data}"


def _different_ends(outcome: Outcome) -> Iterator[str]:
    if outcome.copy is not None:
        one, other = _shape(outcome.entries), _shape(outcome.copy)
        if one != other:
            yield f"two recoveries of one store differ: {one} and {other}"
    ends = [_plain(entry.data) for entry in outcome.entries if entry.what == "end"]
    if outcome.cell.restart == TWO and any(end != ends[-1] for end in ends):
        yield f"who went on at once saw different ends: {ends}"


def _shape(entries: list[Entry]) -> Any:
    acts = sorted((e.what, e.item) for e in entries if e.what in ("paid", "undone", "acted"))
    return acts, _plain(_end(entries))


def _plain(end: Any) -> Any:
    """Return an end without its ids."""
    if end is None or not end["messages"] or len(end["messages"][0]) == 3:
        return end
    return {**end, "messages": [[row[0], *row[2:]] for row in end["messages"]]}


def _stuck(outcome: Outcome) -> Iterator[str]:
    yield from outcome.complaints
    subject, end = outcome.cell.subject, _end(outcome.entries)
    if end is None:
        yield "nobody came to the end"
        return
    due = {"team": "closed", "alone": "waiting_human", "flow": "finished"}.get(subject.home)
    if subject.home == "flow" and subject.is_undone:
        due = "aborted"
    if due is not None and end["status"] != due:
        yield f"the end is {end['status']} and not {due}"
    is_alive = any(entry.what == "alive" and entry.data for entry in outcome.entries)
    if subject.home in ("thread", "alone") and not is_alive:
        yield "a new message is not answered"
