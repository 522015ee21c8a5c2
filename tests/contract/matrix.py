"""Plays the cells of the resume contract in processes that are killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.contract.cells import AGAIN, MEMORYLESS, OTHER, TWO, Cell
from tests.contract.ledger import Entry, Ledger
from tests.postgres import Database, new_database
from tests.sessions.kills import Pen, pen

MODULE = "tests.contract.child"


@dataclass
class Outcome:
    """What a cell has come to."""

    cell: Cell
    entries: list[Entry]
    """What has really happened, in its order."""
    copy: list[Entry] | None = None
    """The same of a second recovery, of a copy of the store; None where there was none."""
    is_reached: bool = True
    """Whether the process came to the instant at which it is killed."""
    complaints: list[str] = field(default_factory=list)
    """What processes said that failed."""


class Bench:
    """Two processes that fork children, and the places in which cells are played."""

    def __init__(self, folder: Path, postgres_url: str) -> None:
        self._folder, self._postgres_url = folder, postgres_url
        self._numbers = count()
        self._stack = ExitStack()
        self.one: Pen = self._stack.enter_context(pen(MODULE))
        self.two: Pen = self._stack.enter_context(pen(MODULE))

    def close(self) -> None:
        self._stack.close()

    def play(self, cell: Cell) -> Outcome:
        """Play a cell to its end."""
        folder = self._folder / f"cell-{next(self._numbers)}"
        folder.mkdir()
        with ExitStack() as stack:
            play = _Play(self, cell, folder, self._place(cell, folder, stack), stack)
            outcome = play.outcome()
        shutil.rmtree(folder)
        return outcome

    def _place(self, cell: Cell, folder: Path, stack: ExitStack) -> Database | None:
        if cell.store == "sqlite":
            return None
        return stack.enter_context(new_database(self._postgres_url))


@contextmanager
def bench(folder: Path, postgres_url: str) -> Iterator[Bench]:
    """Have a bench for a while."""
    one = Bench(folder, postgres_url)
    try:
        yield one
    finally:
        one.close()


class _Play:
    """One cell that is played."""

    def __init__(
        self, owner: Bench, cell: Cell, folder: Path, database: Database | None, stack: ExitStack
    ) -> None:
        self._one, self._two, self._cell = owner.one, owner.two, cell
        self._folder, self._database, self._stack = folder, database, stack
        self._complaints: list[str] = []

    def outcome(self) -> Outcome:
        cell, order = self._cell, self._order()
        first = "reject" if cell.subject.is_undone else "approve"
        # Whoever goes on decides otherwise: what was decided before the kill has to hold.
        later = "refuse" if cell.subject.asks else first
        if cell.restart == OTHER:
            gate = self._wait_with(self._two, {**order, "decides": later})
        self._one.begin(**order, kill=cell.instant, decides=first)
        is_reached = self._end(self._one, may_be_killed=True) == signal.SIGKILL
        copied = None
        match cell.restart:
            case _ if cell.restart == OTHER:
                self._open(gate)
                self._end(self._two)
            case _ if cell.restart == TWO:
                self._go_on_twice(order, first, later)
            case _ if cell.restart == AGAIN:
                self._one.begin(**order, kill=cell.instant, decides=later)
                self._end(self._one, may_be_killed=True)
                self._go_on(order, later)
            case _:
                copied = self._copied() if cell.restart == MEMORYLESS else None
                self._go_on(order, later)
                if copied is not None:
                    self._go_on(copied, later)
        entries = Ledger(order["ledger"]).entries()
        copy = Ledger(copied["ledger"]).entries() if copied is not None else None
        return Outcome(cell, entries, copy, is_reached, self._complaints)

    def _order(self) -> dict[str, Any]:
        file = f"sqlite:///{self._folder / 'store.db'}"
        url = file if self._database is None else self._database.url
        subject = self._cell.subject
        names = [subject.operation, subject.home, subject.durability]
        return {"url": url, "ledger": str(self._folder / "ledger"), "subject": names}

    def _copied(self) -> dict[str, Any]:
        """Copy the store and the ledger as the kill has left them; return the order for these."""
        folder = self._folder.with_name(f"{self._folder.name}-copy")
        shutil.copytree(self._folder, folder)
        self._stack.callback(shutil.rmtree, folder)
        url = f"sqlite:///{folder / 'store.db'}"
        if self._database is not None:
            asyncio.run(self._database.deserted())
            url = self._stack.enter_context(_copy_of(self._database)).url
        return {**self._order(), "url": url, "ledger": str(folder / "ledger")}

    def _go_on(self, order: dict[str, Any], decides: str) -> None:
        self._one.begin(**order, decides=decides)
        self._end(self._one)

    def _go_on_twice(self, order: dict[str, Any], first: str, later: str) -> None:
        order = {**order, "greets": False}
        gates = [
            self._wait_with(self._one, {**order, "decides": first}),
            self._wait_with(self._two, {**order, "decides": later, "begins": False}),
        ]
        for gate in gates:
            self._open(gate)
        for child in (self._one, self._two):
            self._end(child)
        self._go_on({**order, "greets": True}, later)

    def _wait_with(self, child: Pen, order: dict[str, Any]) -> str:
        """Begin a process that waits at a gate, with the store open; return the gate."""
        gate = str(self._folder / f"gate-{'one' if child is self._one else 'two'}")
        os.mkfifo(gate)
        child.begin(**order, gate=gate)
        told = child.until("ready", "ended")
        assert "ready" in told, child.complaints()
        return gate

    def _open(self, gate: str) -> None:
        with open(gate, "w"):
            pass

    def _end(self, child: Pen, *, may_be_killed: bool = False) -> int:
        status = int(child.until("ended")["ended"])
        if status and not (may_be_killed and status == signal.SIGKILL):
            self._complaints.append(f"a process ended with {status}: {child.complaints()}")
        return status


@contextmanager
def _copy_of(database: Database) -> Iterator[Database]:
    copy = Database(f"{database.name}_copy", database.server_url)
    database.execute(f"CREATE DATABASE {copy.name} TEMPLATE {database.name}")
    try:
        yield copy
    finally:
        database.execute(f"DROP DATABASE {copy.name} WITH (FORCE)")
