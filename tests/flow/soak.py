"""Three hundred kills of flows, over all topologies, on SQLite and on Postgres: `make soak-flows`.

Each flow is killed a few times: around what its workers do, or at an instant that is drawn. What
comes of it is compared with the same flow that nobody has killed; anything wrong fails it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one
from threading import Lock
from typing import Any

from agentgraph.clock import SystemClock
from tests.flow.killed_flows import ENDS, INSTANTS, TOPOLOGIES, UNDONE, WORKERS
from tests.guards.processes.shops import Books
from tests.postgres import new_database, new_server
from tests.sessions.kills import Pen, pen

KILLS = 300
MODULE = "tests.flow.killed_flows"
STORES = ("sqlite", "postgres")
KINDS = tuple((topology, end) for end in ENDS for topology in TOPOLOGIES)
_now = SystemClock().monotonic


@dataclass
class Story:
    """One flow on a thread, and how often it was killed."""

    topology: str
    end: str
    folder: Path
    postgres: str = ""
    """The URL of its store, "" for a file of its own."""
    looks_up: bool = True
    """Whether the outcome of a payment can be looked up."""
    durability: str = "sync"
    kills: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    """What its last process has told."""

    def __post_init__(self) -> None:
        self.folder.mkdir()

    @property
    def books(self) -> Books:
        return Books(str(self.folder / "books.db"))

    @property
    def order(self) -> dict[str, Any]:
        names = ("topology", "end", "looks_up", "durability")
        url = self.postgres or f"sqlite:///{self.folder / 'flows.db'}"
        thread, values = self.folder.name, {name: getattr(self, name) for name in names}
        return {"run": "play", "url": url, "books": self.books.path, "thread": thread, **values}

    def __str__(self) -> str:
        store = "postgres" if self.postgres else "sqlite"
        return f"{self.topology} {self.end} {store} {self.folder}, killed {self.kills} times"


def played(child: Pen, story: Story, random: Random, length_s: dict[str, float], most: int) -> None:
    """Play a flow to its end; its first processes are killed."""
    for _ in range(random.randint(1, most)):
        if not _is_killed(child, story, random, length_s):
            break
        story.kills += 1
    finish(child, story)


def finish(child: Pen, story: Story) -> None:
    """Play a flow to its end."""
    for _ in range(2):  # what a quick child tells before its number is told is lost
        child.begin(**story.order)
        told = child.until("done", "ended")
        if "done" in told:
            story.told = told
            child.until("ended")
            return
        assert told["ended"] == 0, f"{story}: {child.complaints()}"


def _is_killed(child: Pen, story: Story, random: Random, length_s: dict[str, float]) -> bool:
    """Kill a process around an action, or when a part of its usual time has passed."""
    if random.random() < 0.3:
        instant = f"{random.choice(INSTANTS)} {random.choice(WORKERS)}"
        child.begin(**story.order, kill=instant)
        return _ended(child, story) == signal.SIGKILL
    kind = f"{story.topology} {story.end}"
    child.begin(**story.order)
    told: dict[str, Any] | None = child.until("began", "done", "ended")
    began = _now()
    if "began" in (told or {}):
        told = child.told(random.random() * length_s.get(kind, 0.4))
    if told is None:
        child.signal(signal.SIGKILL)
    else:
        length_s[kind] = 0.7 * length_s.get(kind, 0.4) + 0.3 * (_now() - began)
    return (told or {}).get("ended") != 0 and _ended(child, story, told) == signal.SIGKILL


def _ended(child: Pen, story: Story, told: dict[str, Any] | None = None) -> int:
    status = told["ended"] if told and "ended" in told else child.until("ended")["ended"]
    assert status in (0, signal.SIGKILL), f"{story}: {child.complaints()}"
    return int(status)


def faults(story: Story, unkilled: Story) -> Iterator[str]:
    """Yield what is wrong with a flow that has come to its end, beside one that nobody killed."""
    acts, model = story.books.acts(), unkilled.books.acts()
    if story.told["done"] != unkilled.told["done"]:
        yield f"the end is {story.told['done']} and not {unkilled.told['done']}"
    paid = [(item, key) for what, item, key in acts if what == "pay"]
    keys = [key for _, key in paid]
    if len(keys) != len(set(keys)):
        yield f"an effect came twice under one key: {paid}"
    items = Counter(item for item, _ in paid)
    expected = Counter(item for what, item, _ in model if what == "pay")
    if items != expected:
        yield f"the effects are {items} and not {expected}"
    if story.told["tokens"] < unkilled.told["tokens"]:
        yield f"it tells of {story.told['tokens']} tokens of {unkilled.told['tokens']}"
    if story.told["told"] not in (None, story.told["tokens"]):
        yield f"the result tells of {story.told['told']} tokens of {story.told['tokens']}"
    if story.told["spent"] < story.told["tokens"]:
        yield f"its budget knows {story.told['spent']} of {story.told['tokens']} tokens"
    yield from _wrong_undoing(story, keys)
    yield from _repeated_work(acts)


def _wrong_undoing(story: Story, paid: list[str]) -> Iterator[str]:
    undone = [key for what, _, key in story.books.acts() if what == "undo"]
    if story.end not in UNDONE:
        if undone:
            yield f"{len(undone)} effects were undone that nobody has rejected"
        return
    if list(dict.fromkeys(undone)) != paid[::-1]:
        yield f"not all effects were undone, last first: {len(undone)} of {len(paid)}"
    if any(times > 1 + story.kills for times in Counter(undone).values()):
        yield "an effect was undone more often than processes were killed"


def _repeated_work(acts: list[tuple[str, str, str]]) -> Iterator[str]:
    """Yield who was asked again for work that was told as finished."""
    finished: set[tuple[str, str]] = set()
    for what, worker, brief in acts:
        if what == "finished":
            finished.add((worker, brief))
        if what == "asked" and (worker, brief) in finished:
            yield f"{worker} has worked again on {brief[:40]!r}"


# Three hundred


@dataclass
class Tally:
    """What the kills have come to."""

    enough: int
    postgres: str
    folder: Path
    flows: Counter[tuple[str, str]] = field(default_factory=Counter)
    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    undone: int = 0
    wrong: list[str] = field(default_factory=list)
    unkilled: dict[tuple[str, str], Story] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, story: Story, wrong: list[str]) -> None:
        store = "postgres" if story.postgres else "sqlite"
        with self.lock:
            self.flows[story.topology, story.end] += 1
            self.kills[store, story.topology, story.end] += story.kills
            self.undone += sum(what == "undo" for what, _, _ in story.books.acts())
            self.wrong += [f"{story}: {fault}" for fault in wrong]

    @property
    def is_done(self) -> bool:
        return self.kills.total() >= self.enough

    def model_of(self, child: Pen, topology: str, end: str) -> Story:
        """Return the flow of this kind that nobody has killed."""
        if (topology, end) not in self.unkilled:
            story = Story(topology, end, Path(tempfile.mkdtemp(dir=self.folder)) / "unkilled")
            finish(child, story)
            self.unkilled[topology, end] = story
        return self.unkilled[topology, end]


def work(tally: Tally, seed: str, number: int) -> None:
    """Play flows of all kinds until there are enough kills, in a process of one's own."""
    random, length_s = Random(seed), dict[str, float]()
    while not tally.is_done:
        with pen(MODULE) as child:
            wrong: list[str] = []
            while not tally.is_done and not wrong:
                topology, end = KINDS[number % len(KINDS)]
                store = tally.postgres if number // len(KINDS) % 2 else ""
                folder = tally.folder / f"{seed}-{number}"
                story = Story(topology, end, folder, store)
                number += 1
                try:
                    unkilled = tally.model_of(child, topology, end)
                    played(child, story, random, length_s, most=4)
                    wrong = list(faults(story, unkilled))
                except AssertionError as error:
                    wrong = [f"{error}\n{_stacks(child)}"]  # it may have broken the process
                tally.add(story, wrong)


def _stacks(child: Pen) -> str:
    """Return where a child is that tells nothing."""
    with suppress(ProcessLookupError):
        child.signal(signal.SIGUSR1)
        child.told(1.0)
    return child.complaints()


def main(kills: int, seed: int) -> int:
    began = _now()
    with (
        tempfile.TemporaryDirectory() as name,
        new_server() as server,
        new_database(server.url) as database,
        ThreadPoolExecutor() as pool,
    ):
        tally = Tally(kills, database.url, Path(name))
        starts = [(f"{seed}-{number}", number * len(KINDS)) for number in range(2)]
        for done in [pool.submit(work, tally, *start) for start in starts]:
            done.result()
        return report(tally, _now() - began)


def report(tally: Tally, seconds: float) -> int:
    """Print what came of it; 1 if anything is wrong."""
    line = "{:<14}{:<12}{:>7}{:>17}{:>19}"
    told = [line.format("topology", "end", "flows", "kills on SQLite", "kills on Postgres")]
    for kind in sorted(KINDS):
        counts = [tally.kills[store, *kind] for store in STORES]
        told.append(line.format(*kind, tally.flows[kind], *counts))
    told.append(
        f"{tally.kills.total()} kills of {tally.flows.total()} flows in {seconds:.0f} s, "
        f"{tally.undone} times something was undone, {len(tally.wrong)} wrong outcomes"
    )
    sys.stdout.write("\n".join([*told, *tally.wrong, ""]))
    return bool(tally.wrong)


if __name__ == "__main__":
    sys.exit(main(int(os.environ.get("KILLS", KILLS)), int(os.environ.get("SEED", "1"))))
