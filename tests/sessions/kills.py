"""Sessions whose processes are killed, at a write or while a round runs, and what comes of them."""

from __future__ import annotations

import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one
from typing import Any

import psycopg
from langchain_core.messages import AnyMessage

from agentgraph.clock import SystemClock
from agentgraph.sessions import (
    EV_CANCELLED,
    EV_DECISION,
    EV_INTERRUPT,
    EV_PACKET,
    EV_REWOUND,
    EV_ROUND_FAILED,
    EV_TEXT,
    Envelope,
    SessionState,
    open_log,
)
from agentgraph.sessions.log import StoredSession
from agentgraph.sessions.single.memory import messages_in
from agentgraph.sessions.state.fold import fold_all
from tests.sessions.crashing import PURCHASES, REASON, SAID, STOPS, Ledger

ROOT = Path(__file__).parents[2]
PATIENCE_S = 50


class Pen:
    """A process that plays sessions in children, one at a time."""

    def __init__(self, module: str = "tests.sessions.crashing") -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the pen
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._child: int | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, **order: Any) -> None:
        """Begin a child."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(order)}\n".encode())
        self._process.stdin.flush()
        self._child = int(self.until("pid")["pid"])

    def until(self, *keys: str) -> dict[str, Any]:
        """Return the next thing told of one of these kinds."""
        while True:
            told = self.told(PATIENCE_S)
            assert told is not None, f"the child told nothing: {self.complaints()}"
            if any(key in told for key in keys):
                return told

    def signal(self, number: int) -> None:
        """Send the child a signal; it keeps its number until the next one begins."""
        assert self._child is not None
        os.kill(self._child, number)

    def freeze(self) -> None:
        """Stop the child, and wait until each of its threads has: the signal reaches one first."""
        self.signal(signal.SIGSTOP)
        until = _now() + PATIENCE_S
        while not all(_is_stopped(task) for task in Path(f"/proc/{self._child}/task").iterdir()):
            assert _now() < until, "the child does not stop"

    def kill(self) -> None:
        """Kill the child, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.until("ended")

    def complaints(self) -> str:
        """Return what the children have complained of."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-6_000:]

    def close(self) -> None:
        """End the process, and a child that is left."""
        if self._child is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            if stream is not None:
                stream.close()

    def told(self, seconds: float) -> dict[str, Any] | None:
        """Return the next thing told, None if nothing is within some seconds."""
        try:
            told = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        assert told is not None, f"the process has ended: {self.complaints()}"
        return told

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)


def _is_stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def pen(module: str = "tests.sessions.crashing") -> Iterator[Pen]:
    """Keep a pen for a while."""
    kept = Pen(module)
    try:
        yield kept
    finally:
        kept.close()


@dataclass(frozen=True)
class AtWrite:
    """A kill just before or after a write to the log."""

    when: str
    number: int


@dataclass(frozen=True)
class InRound:
    """A kill some part of a round's length after one began."""

    nth: int
    part: float


Kill = AtWrite | InRound


@dataclass
class Played:
    """A session that was played to its end."""

    url: str
    ledger: str
    session: str
    kind: str
    kills: Counter[str] = field(default_factory=Counter)
    writes: int = 0
    """The writes of its last process."""
    round_s: float = 0.0
    """How long a round took in the last process that began one, on average."""


def played(
    pen: Pen,
    url: str,
    ledger: str,
    session: str,
    kind: str,
    durability: str,
    *kills: Kill,
    round_s: float = 0.05,
) -> Played:
    """Play a session to its end; its first processes are killed, one after the other."""
    result = Played(url, ledger, session, kind)
    order: dict[str, Any] = {"url": url, "ledger": ledger, "session": session, "kind": kind}
    left = list(kills)
    for _ in range(len(kills) + 8):
        kill = left.pop(0) if left else None
        deadly = (kill.when, kill.number) if isinstance(kill, AtWrite) else None
        pen.begin(**order, durability=durability, deadly=deadly)
        if _is_closed(pen, result, kill if isinstance(kill, InRound) else None, round_s):
            return result
    raise AssertionError(f"{session} does not come to its end: {pen.complaints()}")


def _is_closed(pen: Pen, result: Played, kill: InRound | None, round_s: float) -> bool:
    """Wait for a child's end, or kill it at the instant; tell whether it has closed its session."""
    rounds: list[float] = []
    status, where = None, "at a write"
    kill_at = float("inf")
    while True:
        told = pen.told(min(PATIENCE_S, max(0.0, kill_at - _now())))
        if told is None:
            assert kill_at < float("inf"), f"the child told nothing: {pen.complaints()}"
            kill_at, where = float("inf"), "in a round"
            pen.signal(signal.SIGKILL)
        elif "round" in told:
            rounds.append(told["at"])
            if kill is not None and len(rounds) == kill.nth:
                kill_at = _now() + kill.part * round_s
        elif "writes" in told:
            kill_at, status, result.writes = float("inf"), told["status"], told["writes"]
            if rounds:
                result.round_s = (told["at"] - rounds[0]) / len(rounds)
        elif told.get("ended") == signal.SIGKILL:
            result.kills[where] += 1
            return False
        elif "ended" in told:
            assert told["ended"] == 0, pen.complaints()
            return status == "closed"


async def faults(result: Played) -> list[str]:
    """Return what is wrong with a session that was killed."""
    log = open_log(result.url)
    await log.open()
    try:
        stored = await log.load(result.session)
        assert stored is not None
        envelopes = await log.read(result.session)
        left = await log.inbox(result.session)
        unfinished = await log.unfinished_sessions(0.0)
        messages = await messages_in(log, result.session, envelopes)
    finally:
        await log.close()
    found = [*_wrong_log(stored, envelopes), *_wrong_rounds(result, envelopes)]
    found += _wrong_ledger(result)
    if result.kind.startswith("single"):
        found += _wrong_messages(messages)
    found += _wrong_audiences(result, envelopes)
    if left:
        found.append(f"{len(left)} wait in the inbox")
    if result.session in unfinished:
        found.append("it counts as unfinished")
    if stored.owner is not None:
        found.append("it was not given back")
    rows = checkpoint_rows(result.url, result.session)
    if rows:
        found.append(f"{rows} rows of checkpoints are left")
    return found


def _wrong_log(stored: StoredSession, envelopes: list[Envelope]) -> Iterator[str]:
    if [one.sequence for one in envelopes] != [*range(1, stored.head + 1)]:
        yield f"sequences {[one.sequence for one in envelopes]}"
    state = fold_all(SessionState.initial(stored.record), envelopes)
    if stored.state != state:
        yield f"the state {stored.state} is not what the log folds to, {state}"
    if (state.status, state.pending_close_reason) != ("closed", REASON):
        yield f"{state.status}: {state.pending_close_reason}"
    twice = [key for key, n in Counter(one.envelope_id for one in envelopes).items() if n > 1]
    if twice:
        yield f"ids that are there twice: {twice}"
    if envelopes[-1].event_type != "ag.session.closed":
        yield f"{envelopes[-1].event_type} comes last"


def turns_of(kind: str) -> list[tuple[int, tuple[str, ...]]]:
    """Return who speaks in which rounds."""
    if kind.startswith("single"):  # every other round is the user's
        return list(enumerate([("alice",), (), ("alice",)], 1))
    if kind == "cancelled":  # the second round is, and the third one is the user's
        return list(enumerate([("alice",), (), (), *_LAP], 1))
    if kind == "rewound":  # from the second round to before the first one
        return list(enumerate([("alice",), (), (), *_LAP, (), *_LAP], 1))
    if not kind.endswith("parallel"):
        return list(enumerate([("alice",), ("bob",), ("carol",), (), *_LAP], 1))
    return list(enumerate([("alice",), ("bob", "carol"), ("alice",), (), *_BOTH], 1))


_LAP: list[tuple[str, ...]] = [("alice",), ("bob",), ("carol",)]
_BOTH: list[tuple[str, ...]] = [("alice",), ("bob", "carol"), ("alice",)]


def _wrong_rounds(result: Played, envelopes: list[Envelope]) -> Iterator[str]:
    said = [one.text for one in envelopes if one.event_type == EV_TEXT]
    if said != list(SAID):
        yield f"was said: {said}"
    packets = [one for one in envelopes if one.event_type == EV_PACKET]
    spoken = [(one.event_data["round"], one.sender_id) for one in packets]
    due = [(number, name) for number, names in turns_of(result.kind) for name in names]
    if sorted(spoken) != due:
        yield f"packets: {spoken}, expected {due}"
    asker = {"asked": "bob", "asked-parallel": "bob", "single-asked": "alice"}.get(result.kind)
    questions = sum(len(PURCHASES[name]) for _, name in due if name == asker)
    counts = Counter(one.event_type for one in envelopes)
    if (counts[EV_INTERRUPT], counts[EV_DECISION]) != (questions, questions):
        yield f"asked {counts[EV_INTERRUPT]}, decided {counts[EV_DECISION]} of {questions}"
    stops = (counts[EV_CANCELLED], counts[EV_REWOUND])
    if stops != (result.kind in STOPS, result.kind == "rewound"):
        yield f"cancelled and rewound: {stops}"
    if counts[EV_ROUND_FAILED]:
        told = [one.event_data for one in envelopes if one.event_type == EV_ROUND_FAILED]
        yield f"rounds failed: {told}"


def _wrong_audiences(result: Played, envelopes: list[Envelope]) -> Iterator[str]:
    """Yield which turns may be seen by others than those who may see what they answer."""
    packets = [one for one in envelopes if one.event_type == EV_PACKET]
    public = [one.sequence for one in envelopes if one.text == SAID[1]]
    for packet in packets:
        is_private = result.kind.startswith("private") and packet.sequence < public[0]
        if is_private != (packet.audience is not None):
            yield f"the audience of {packet.sequence}: {packet.audience}"
        if packet.audience is not None and "alice" not in packet.audience:
            yield f"alice may not see {packet.sequence}"


def _wrong_messages(messages: list[AnyMessage]) -> Iterator[str]:
    """Yield what is wrong with the conversation of a session of one."""
    calls = len(PURCHASES["alice"])
    turn = ["human", "ai", *["tool"] * calls, "ai"]
    if [message.type for message in messages] != turn * len(SAID):
        yield f"messages: {[(message.type, message.text) for message in messages]}"
    results = {message.text for message in messages if message.type == "tool"}
    if results != {"paid"}:
        yield f"results of tools: {results}"


def _wrong_ledger(result: Played) -> Iterator[str]:
    due = [
        (number, item)
        for number, names in turns_of(result.kind)
        for name in names
        for item in PURCHASES[name]
    ]
    entries = Ledger(result.ledger).entries()
    paid = [(number, what) for number, what, _ in entries]
    if paid != sorted(due):
        yield f"paid: {paid}, expected {sorted(due)}"
    if result.kind.startswith("once") and any(times > 1 for _, _, times in entries):
        yield f"paid more than once: {entries}"


def checkpoint_rows(url: str, thread_id: str) -> int:
    """Count what is kept of a thread."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)) as file:
            query = " UNION ALL ".join(f"SELECT thread_id FROM {name}" for name in _SQLITE)
            counted = f"SELECT count(*) FROM ({query}) WHERE thread_id = ?"
            return int(file.execute(counted, (thread_id,)).fetchone()[0])
    with psycopg.connect(url, autocommit=True) as connection:
        query = " UNION ALL ".join(f"SELECT thread_id FROM {name}" for name in _POSTGRES)
        counted = f"SELECT count(*) FROM ({query}) AS kept WHERE thread_id = %s"
        row = connection.execute(counted.encode(), (thread_id,)).fetchone()
        return int(row[0]) if row is not None else 0


_SQLITE = ("checkpoints", "writes")
_POSTGRES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


def spread(random: Random, kind: str, writes: int) -> list[Kill]:
    """Return a few kills, at instants that are drawn."""
    rounds = {"asked": 2, "asked-parallel": 2, "single": 2, "single-asked": 1}.get(
        kind, 6
    )  # in one process
    kills: list[Kill] = []
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.25:
            kills.append(AtWrite(random.choice(("before", "after")), random.randint(1, writes)))
        else:
            kills.append(InRound(random.randint(1, rounds), random.random() * 1.2))
    return kills


_now = SystemClock().monotonic
