"""All cells of the resume contract: `make contract`.

Prints what was held and broken by property, subject and store. `CELLS="thread, sqlite"` plays the
cells whose names have all of these parts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from threading import Lock

from agentgraph.clock import SystemClock
from tests.contract.cells import (
    INSTANTS,
    PROPERTIES,
    STORES,
    SUBJECTS,
    Cell,
    Subject,
    cells,
    senseless,
)
from tests.contract.checks import Fault, faults
from tests.contract.matrix import bench
from tests.postgres import new_server

WORKERS = 2


@dataclass
class Tally:
    """What the cells have come to."""

    played: Counter[tuple[Subject, str]] = field(default_factory=Counter)
    broken: Counter[tuple[str, Subject, str]] = field(default_factory=Counter)
    unreached: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def add(self, cell: Cell, is_reached: bool, faults: list[Fault]) -> None:
        with self.lock:
            self.played[cell.subject, cell.store] += 1
            if not is_reached:
                self.unreached.append(str(cell))
            for name in {name for name, _ in faults}:
                self.broken[name, cell.subject, cell.store] += 1
            self.wrong += [f"{cell}: {name}: {text[:600]}" for name, text in faults]


def work(tally: Tally, chosen: list[Cell], folder: Path, postgres_url: str) -> None:
    """Play cells, with two processes of one's own."""
    folder.mkdir()
    while chosen:
        with bench(folder, postgres_url) as one:
            while chosen:
                cell = chosen.pop()
                try:
                    outcome = one.play(cell)
                except AssertionError as error:  # it tells nothing any more
                    tally.add(cell, True, [("liveness", str(error))])
                    break  # it may have broken the process
                tally.add(cell, outcome.is_reached, faults(outcome))


def main(parts: list[str]) -> int:
    began = SystemClock().monotonic()
    chosen = [cell for cell in cells() if all(part in str(cell) for part in parts)][::-1]
    tally = Tally()
    with (
        tempfile.TemporaryDirectory() as name,
        new_server() as server,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        folders = [Path(name) / f"worker-{number}" for number in range(WORKERS)]
        works = [pool.submit(work, tally, chosen, folder, server.url) for folder in folders]
        for done in works:
            done.result()
    return report(tally, SystemClock().monotonic() - began)


def report(tally: Tally, seconds: float) -> int:
    """Print what came of it; 1 if anything is wrong."""
    line = "{:<34}" + "{:>8}{:>10}" + "{:>23}" * len(PROPERTIES)
    lines = [line.format("subject", "store", "cells", *PROPERTIES)]
    for subject, store in product(SUBJECTS, STORES):
        if number := tally.played[subject, store]:
            lost = [tally.broken[name, subject, store] for name in PROPERTIES]
            columns = [f"{number - n} held, {n} broken" if n else "held" for n in lost]
            lines.append(line.format(str(subject), store, number, *columns))
    reasons = Counter(senseless(*pair) for pair in product(SUBJECTS, INSTANTS))
    lines += [f"not played, {n} times: {why}" for why, n in reasons.items() if why is not None]
    lines.append(
        f"{tally.played.total()} cells in {seconds:.0f} s, {len(tally.wrong)} times broken, "
        f"{len(tally.unreached)} not reached"
    )
    sys.stdout.write("\n".join([*lines, *tally.wrong, *tally.unreached, ""]))
    return bool(tally.wrong or tally.unreached)


if __name__ == "__main__":
    sys.exit(main([part for part in os.environ.get("CELLS", "").split(", ") if part]))
