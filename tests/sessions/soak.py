"""A thousand kills, half of them on SQLite and half on Postgres: `make soak`.

Each session is killed at every write in turn and then at random instants while its rounds run,
until there are enough. What comes of it is printed as a table; anything wrong fails it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, count, cycle, product
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one
from threading import Lock
from typing import TypeAlias

from agentgraph.clock import SystemClock
from tests.postgres import new_database, new_server
from tests.sessions.crashing import KINDS
from tests.sessions.kills import AtWrite, Kill, Played, faults, pen, played, spread

KILLS = 1_000
DURABILITIES = ("round", "step")

Kind: TypeAlias = tuple[str, str]
"""A kind of session, and its durability."""
Plan: TypeAlias = tuple[Kind, list[Kill]]


@dataclass
class Tally:
    """What the kills of one store have come to."""

    store: str
    enough: int
    sessions: Counter[Kind] = field(default_factory=Counter)
    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    round_s: dict[Kind, float] = field(default_factory=dict)
    """How long a round took lately."""
    lock: Lock = field(default_factory=Lock)

    def add(self, durability: str, result: Played, found: list[str]) -> None:
        with self.lock:
            self.sessions[result.kind, durability] += 1
            for where, count in result.kills.items():
                self.kills[result.kind, durability, where] += count
            self.wrong += [f"{result.session}: {told}" for told in found]
            if result.round_s:
                self.round_s[result.kind, durability] = result.round_s

    @property
    def is_done(self) -> bool:
        return self.kills.total() >= self.enough

    def rows(self) -> Iterator[tuple[object, ...]]:
        for kind, durability in product(KINDS, DURABILITIES):
            at_write, in_round = (
                self.kills[kind, durability, where] for where in ("at a write", "in a round")
            )
            yield self.store, kind, durability, self.sessions[kind, durability], at_write, in_round


def plans(random: Random, writes: dict[Kind, int]) -> Iterator[Plan]:
    """Yield what to play: each write in turn, between kills at random; then those without end."""
    both = [*product(KINDS, DURABILITIES)]
    every: list[Plan] = [
        (one, [AtWrite(when, number)])
        for one in both
        for number in range(1, writes[one] + 1)
        for when in ("before", "after")
    ]
    random.shuffle(every)
    drawn: Iterator[Plan] = ((one, spread(random, one[0], writes[one])) for one in cycle(both))
    mixed = ((one, next(drawn)) for one in every)
    return chain(chain.from_iterable(mixed), drawn)


def work(tally: Tally, todo: Iterator[Plan], url: str, folder: Path, name: str) -> None:
    """Play until there are enough kills, in a process of one's own."""
    with pen() as kept:
        for number in count(1):
            with tally.lock:
                if tally.is_done:
                    return
                (kind, durability), kills = next(todo)
                round_s = tally.round_s.get((kind, durability), 0.05)
            session = f"{name}-{number}"
            order = url.format(session), str(folder / f"{session}.ledger"), session
            result = played(kept, *order, kind, durability, *kills, round_s=round_s)
            found = asyncio.run(faults(result))
            tally.add(
                durability, result, [f"{kind}, {durability}, {kills}: {one}" for one in found]
            )


def measured(folder: Path) -> dict[Kind, int]:
    """Return how often each kind of session is written to when nobody kills it."""
    found = {}
    with pen() as kept:
        for kind, durability in product(KINDS, DURABILITIES):
            name = f"measured-{kind}-{durability}"
            order = f"sqlite:///{folder / name}.db", str(folder / f"{name}.ledger"), name
            found[kind, durability] = played(kept, *order, kind, durability).writes
    return found


def main(kills: int, seed: int) -> int:
    began = SystemClock().monotonic()
    tallies = [Tally("SQLite", kills // 2), Tally("Postgres", kills - kills // 2)]
    with tempfile.TemporaryDirectory() as name, new_server() as server:
        folder = Path(name)
        writes = measured(folder)
        with new_database(server.url) as one, new_database(server.url) as other:
            places = [f"sqlite:///{folder}/{{}}.db"] * 2, [one.url, other.url]
            with ThreadPoolExecutor() as pool:
                working = []
                for tally, urls in zip(tallies, places, strict=True):
                    todo = plans(Random(f"{seed}-{tally.store}"), writes)
                    for number, url in enumerate(urls):
                        label = f"{tally.store.lower()}-{number}"
                        working.append(pool.submit(work, tally, todo, url, folder, label))
                for done in working:
                    done.result()
    return report(tallies, SystemClock().monotonic() - began)


def report(tallies: list[Tally], seconds: float) -> int:
    """Print what came of it; 1 if anything is wrong."""
    line = "{:<10}{:<16}{:<12}{:>9}{:>17}{:>11}"
    told = [
        line.format("store", "session", "durability", "sessions", "kills at writes", "in rounds")
    ]
    told += [line.format(*row) for tally in tallies for row in tally.rows()]
    killed = sum(tally.kills.total() for tally in tallies)
    held = sum(tally.sessions.total() for tally in tallies)
    wrong = [one for tally in tallies for one in tally.wrong]
    told.append(
        f"{killed} kills of {held} sessions in {seconds:.0f} s, {len(wrong)} wrong outcomes"
    )
    sys.stdout.write("\n".join([*told, *wrong, ""]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(os.environ.get("KILLS", KILLS)), int(os.environ.get("SEED", "1"))))
