"""A thousand kills of guarded agents and sessions that act and undo: `make soak`.

Each shop is killed a few times while it buys and while what it bought is undone: around an action,
or at an instant that is drawn. What comes of it is printed as a table; anything wrong fails it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from json import loads
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one
from threading import Lock
from typing import Any

from agentgraph.clock import SystemClock
from agentgraph.guards import SQLiteSink
from tests.guards.processes.killed_threads import PLACES
from tests.guards.processes.shops import INSTANTS, ITEMS, Books
from tests.sessions.kills import PATIENCE_S, Pen, pen

KILLS = 1_000
MODULE = "tests.guards.processes.shops"
KINDS = (
    *(
        ("thread", place, durability)
        for place in PLACES
        for durability in ("sync", "async", "exit")
    ),
    *(("session", place, mode) for place in ("team", "single") for mode in ("round", "step")),
)
_now = SystemClock().monotonic


@dataclass
class Shop:
    """One shop: how it is run, and how often it was killed."""

    run: str
    place: str
    durability: str
    folder: Path
    looks_up: bool = False
    """Whether its tool has a `lookup`."""
    at_once: bool = False
    """Whether it buys all things in one message."""
    resends: bool = False
    """Whether it goes on by a new message; a session is cancelled before it is rejected."""
    is_rejected: bool = False
    may_stay: bool = False
    """Whether its purchase may have been answered before the rejection: then that stays."""
    kills: Counter[str] = field(default_factory=Counter)
    """How often it was killed, by stage."""

    @classmethod
    def drawn(cls, random: Random, kind: tuple[str, str, str], folder: Path) -> Shop:
        """Return a shop of a kind whose other properties are drawn."""
        folder.mkdir()
        looks_up, at_once, resends, is_rejected = (
            random.random() < part for part in (0.6, 0.3, 0.4, 0.75)
        )
        return cls(*kind, folder, looks_up, at_once, resends, is_rejected)

    @property
    def books(self) -> Books:
        return Books(str(self.folder / "books.db"))

    def order(self, stage: str) -> dict[str, Any]:
        """Return the order to go on to the end of a stage."""
        names = ("run", "place", "durability", "looks_up", "at_once", "resends")
        values = {name: getattr(self, name) for name in names}
        url, audit = f"sqlite:///{self.folder / 'shop.db'}", str(self.folder / "audit.db")
        return {**values, "url": url, "books": self.books.path, "audit": audit, "stage": stage}

    def __str__(self) -> str:
        flags = [name for name in ("looks_up", "at_once", "resends") if getattr(self, name)]
        end = "rejected" if self.is_rejected else "bought"
        return f"{self.run} {self.place} {self.durability} {' '.join(flags)} {end} {self.folder}"


def played(child: Pen, shop: Shop, random: Random, length_s: dict[str, float]) -> None:
    """Play a shop to its end; its first processes in each stage are killed."""
    for stage in ("buy", "reject") if shop.is_rejected else ("buy",):
        for _ in range(random.randint(1, 3)):
            if _is_killed(child, shop, stage, random, length_s):
                shop.kills[stage] += 1
            elif stage == "buy":
                break
        if stage == "buy" and shop.is_rejected:
            # A session goes on with its round by itself, until it is cancelled.
            shop.may_stay = shop.run == "session" or _finish(child, shop, "look")
        else:
            _finish(child, shop, stage)


def _finish(child: Pen, shop: Shop, stage: str) -> bool:
    """Play a stage to its end; return whether its last input was answered."""
    child.begin(**shop.order(stage))
    told = child.until("done", "ended")
    if told.get("ended") == 0:  # what it told was lost, see below; its end can be played again
        return _finish(child, shop, stage)
    assert "done" in told, f"{shop}: {child.complaints()}"
    child.until("ended")
    return bool(told["done"])


def _is_killed(
    child: Pen, shop: Shop, stage: str, random: Random, length_s: dict[str, float]
) -> bool:
    """Kill a process around an action, or when a part of its usual time has passed."""
    kind = f"{shop.run} {stage}"
    if random.random() < 0.5:
        instants = INSTANTS[:3] if stage == "buy" else INSTANTS[3:]
        instant = f"{random.choice(instants)} {random.choice(ITEMS)}"
        child.begin(**shop.order(stage), kill=instant)
        return _ended(child, shop) == signal.SIGKILL
    child.begin(**shop.order(stage))
    # What a quick child tells before its number is told is lost.
    told: dict[str, Any] | None = child.until("began", "done", "ended")
    began = _now()
    if "began" in (told or {}):
        told = child.told(random.random() * length_s.get(kind, 0.2))
    if told is None:
        child.signal(signal.SIGKILL)
    else:
        length_s[kind] = 0.7 * length_s.get(kind, 0.2) + 0.3 * (_now() - began)
    return (told or {}).get("ended") != 0 and _ended(child, shop, told) == signal.SIGKILL


def _ended(child: Pen, shop: Shop, told: dict[str, Any] | None = None) -> int:
    status = told["ended"] if told and "ended" in told else child.until("ended")["ended"]
    assert status in (0, signal.SIGKILL), f"{shop}: {child.complaints()}"
    return int(status)


def faults(shop: Shop) -> Iterator[str]:
    """Yield what is wrong with a shop that has come to its end."""
    acts = shop.books.acts()
    payments = [(item, key) for what, item, key in acts if what == "pay"]
    undone = [key for what, _, key in acts if what == "undo"]
    paid = [key for _, key in payments]
    if len(paid) != len(set(paid)):
        yield f"an action was done twice: {acts}"
    if shop.is_rejected:
        yield from _wrong_undoing(shop, paid, undone)
    else:
        yield from _wrong_purchases(shop, [item for item, _ in payments], undone)
    yield from _wrong_records(shop, paid, undone)


def _wrong_undoing(shop: Shop, paid: list[str], undone: list[str]) -> Iterator[str]:
    forgotten = set(paid) - set(undone)
    if forgotten and not (shop.may_stay and forgotten == set(paid)):
        yield f"{len(forgotten)} of {len(paid)} actions were not undone"
    most = 1 + shop.kills["reject"]  # the one under way when it was killed is undone again
    if any(times > most for times in Counter(undone).values()):
        yield f"an action was undone more than {most} times"
    order = [key for key in dict.fromkeys(undone) if key in paid]
    if not shop.at_once and order and order != paid[::-1]:
        yield "the actions were not undone last first"


def _wrong_purchases(shop: Shop, items: list[str], undone: list[str]) -> Iterator[str]:
    if undone:
        yield f"{len(undone)} actions were undone that nobody has rejected"
    if shop.place in ("root", "deep", "team", "single") and len(items) != len(set(items)):
        yield f"something was bought twice: {items}"


def _wrong_records(shop: Shop, paid: list[str], undone: list[str]) -> Iterator[str]:
    """Compare the world with the audit trail, and in a session with its log too."""
    records = {"trail": _states_in_trail(shop)}
    if shop.run == "session":
        records["log"] = _states_in_log(shop)
    for name, states in records.items():
        told = sorted({states[key] for key in paid if key in undone} - {"compensated"})
        told += sorted({states[key] for key in paid if key not in undone} & {"compensated", ""})
        if told:
            yield f"the {name} says {told} of actions that are otherwise"


def _states_in_trail(shop: Shop) -> defaultdict[str, str]:
    sink = SQLiteSink(shop.order("")["audit"])
    records = sorted(
        (record for run in sink.runs() for record in sink.read(run)), key=lambda record: record.at
    )
    sink.close()
    states = defaultdict[str, str](str)
    for record in records:
        if record.kind in ("effect", "compensated"):
            states[str(record.data["key"])] = str(record.data["state"])
    return states


def _states_in_log(shop: Shop) -> defaultdict[str, str]:
    query = "SELECT data FROM agentgraph_envelopes WHERE session_id = 's' ORDER BY sequence"
    with closing(sqlite3.connect(shop.folder / "shop.db")) as file:
        rows = [loads(row[0]) for row in file.execute(query)]
    data = [row.get("event_data", row) for row in rows]
    states = defaultdict[str, str](str)
    for record in data:
        if record.get("kind") == "effect":
            states[record["entry"]["key"]] = record["entry"]["state"]
    return states


# A thousand


@dataclass
class Tally:
    """What the kills have come to."""

    enough: int
    shops: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    undone: int = 0
    """How many actions were undone."""
    kills: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def add(self, shop: Shop, wrong: list[str]) -> None:
        kind = shop.run, shop.place, shop.durability
        with self.lock:
            self.shops[kind] += 1
            self.undone += sum(what == "undo" for what, _, _ in shop.books.acts())
            for stage, times in shop.kills.items():
                self.kills[*kind, stage] += times
            self.wrong += [f"{shop}: {fault}" for fault in wrong]

    @property
    def is_done(self) -> bool:
        return self.kills.total() >= self.enough


def work(tally: Tally, seed: str, folder: Path) -> None:
    """Play shops of all kinds until there are enough kills, in a process of one's own."""
    random, length_s, numbers = Random(seed), dict[str, float](), count()
    while not tally.is_done:
        with pen(MODULE) as child:
            wrong: list[str] = []
            while not tally.is_done and not wrong:
                number = next(numbers)
                kind = KINDS[number % len(KINDS)]
                shop = Shop.drawn(random, kind, folder / f"{seed}-{number}")
                try:
                    played(child, shop, random, length_s)
                    wrong = list(faults(shop))
                except AssertionError as error:
                    wrong = [f"{error}\n{_stacks(child)}"]  # it may have broken the process
                tally.add(shop, wrong)


def _stacks(child: Pen) -> str:
    """Return where a child is that tells nothing."""
    with suppress(ProcessLookupError):
        child.signal(signal.SIGUSR1)
        child.told(1.0)
    return child.complaints()


def main(kills: int, seed: int) -> int:
    began, tally = _now(), Tally(kills)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        seeds = [f"{seed}-{number}" for number in range(2)]
        for done in [pool.submit(work, tally, each, Path(name)) for each in seeds]:
            done.result()
    return report(tally, _now() - began)


def report(tally: Tally, seconds: float) -> int:
    """Print what came of it; 1 if anything is wrong."""
    line = "{:<10}{:<10}{:<10}{:>7}{:>15}{:>18}"
    told = [
        line.format("run", "place", "durability", "shops", "kills in buying", "kills in undoing")
    ]
    for kind in KINDS:
        buying, undoing = tally.kills[*kind, "buy"], tally.kills[*kind, "reject"]
        told.append(line.format(*kind, tally.shops[kind], buying, undoing))
    end = f"{tally.kills.total()} kills of {tally.shops.total()} shops in {seconds:.0f} s, "
    told.append(
        f"{end}{tally.undone} times something was undone, {len(tally.wrong)} wrong outcomes"
    )
    sys.stdout.write("\n".join([*told, *tally.wrong, ""]))
    return bool(tally.wrong)


if __name__ == "__main__":
    assert PATIENCE_S
    sys.exit(main(int(os.environ.get("KILLS", KILLS)), int(os.environ.get("SEED", "1"))))
