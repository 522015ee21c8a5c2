"""A session's log: how fast it grows, and how fast a session is opened again."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import psycopg

from agentgraph import Team
from agentgraph.sessions import packet_envelope
from agentgraph.sessions.log import Log, open_log
from agentgraph.sessions.log.rows import envelope_rows, state_columns
from agentgraph.sessions.rounds.admission import begin_log
from agentgraph.sessions.rounds.round import Round
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team.inner_session import open_session
from benchmarks.ag2_channel import open_channel, open_store
from benchmarks.ag2_channel import open_hub as open_their_hub
from benchmarks.measure import Row
from benchmarks.sessions import team_of_two
from benchmarks.stores import STORES, Server, Store, new_store, open_hub

__all__ = ["log_rows"]

PAGES_AT_ONCE = 100
PACKETS, REPETITIONS = 5_001, 2  # in the end the session waits for a human again
THEIR_SQLITE_PACKETS = 500
BARE_SHARE = 0.7
"""How much of a bare loop's appends per second those of a log may be, at the least."""
FLAT = 1.25
SELECT_GOAL = 3
FOLD_GOAL = 0.7
"""How much of the time in which AG2's hub opens its channel a session may take without snapshot."""
FIRST_ENVELOPE = "folded from its first envelope"
OPENINGS, EARLIER_OPENINGS = 5, 30
EDGE = 500
SESSION = "long"
PACKET: dict[str, Any] = {
    "routing": {"kind": "text", "tool": None},
    "context_updates": {"set": {}, "delete": []},
    "body": "I have looked it up: it left on Monday and should be with you by Thursday. " * 3,
}

Measure: TypeAlias = Callable[[Store], Awaitable[list[float]]]


@dataclass(slots=True)
class Pace:
    """The seconds of each append, the fastest of the repetitions."""

    seconds: list[float]

    @property
    def per_ms(self) -> float:
        """Thousands of appends in a second."""
        return len(self.seconds) / sum(self.seconds) / 1000

    def edge(self, which: slice) -> float:
        """Return the microseconds of an append at one end."""
        part = self.seconds[which]
        return sum(part) / len(part) * 1e6


async def log_rows(server: Server) -> list[Row]:
    """Measure appending to one session's log, and opening it, beside AG2's."""
    theirs, their_opening = await _theirs(None, PACKETS)
    with TemporaryDirectory() as folder:
        on_disk, _ = await _theirs(Path(folder, "ag2.db"), THEIR_SQLITE_PACKETS)
    peers = {"memory": theirs, "SQLite": on_disk}
    rows: list[Row] = []
    for name in STORES:
        plain, bare = await _beside_bare_loop(name, server)
        whole = await _fastest(name, server, _commit)
        rows += _append_rows(name, plain, whole, peers.get(name))
        if bare is not None:
            rows.append(_bare_row(name, plain, bare))
    for name in ("SQLite", "Postgres"):
        rows += _opening_rows(name, await _openings(name, server), their_opening)
    return rows


def _opening_rows(name: str, openings: Openings, theirs: float) -> list[Row]:
    def row(how: str, found: float, goal: float | None) -> Row:
        what = f"a session of 5,000 envelopes {how}, {name} / AG2's hub opened, memory"
        return Row(what, found, theirs, goal)

    what = f"a session of 5,000 envelopes opened, from its snapshot, {name} / one SELECT by its key"
    return [
        Row(what, openings.snapshot, openings.select, SELECT_GOAL),
        row("opened, from its last milestone", openings.milestone, FOLD_GOAL),
        row(f"opened, {FIRST_ENVELOPE}", openings.first_envelope, FOLD_GOAL),
        row("open, its last envelope explained", openings.explanation, FOLD_GOAL),
    ]


def _append_rows(name: str, plain: Pace, whole: Pace, theirs: Pace | None) -> list[Row]:
    peer = nan if theirs is None else theirs.per_ms
    what, beside = f"packets appended to one log, {name}", "" if theirs is None else " / AG2's hub"
    decided = f"packets decided, folded and appended, {name}{beside}"
    edges = [plain.edge(slice(-EDGE, None)), plain.edge(slice(EDGE))]
    return [
        Row(f"{what}{beside}", plain.per_ms, peer, None, "k/s"),
        Row(f"{what}: the last 500 / the first 500", *edges, FLAT, "µs"),
        Row(decided, whole.per_ms, peer, None, "k/s"),
    ]


def _bare_row(name: str, ours: Pace, bare: Pace) -> Row:
    ratio = ours.per_ms / bare.per_ms
    note = f"≥ {BARE_SHARE:g}: {'pass' if ratio >= BARE_SHARE else '**miss**'}"
    what = f"packets appended to one log, {name} / a bare loop that commits the same rows"
    return Row(what, ours.per_ms, bare.per_ms, None, "k/s", note)


async def _beside_bare_loop(name: str, server: Server) -> tuple[Pace, Pace | None]:
    """Measure appends, and in alternation with them a loop that commits the same rows."""
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    for _ in range(REPETITIONS):
        with new_store(name, server) as store:
            ours.append(await _append(store))
        if name != "memory":
            with new_store(name, server) as store:
                bare.append(await _append_bare(store))
    return _fastest_of(ours), _fastest_of(bare) if bare else None


async def _fastest(name: str, server: Server, measure: Measure) -> Pace:
    found: list[list[float]] = []
    for _ in range(REPETITIONS):
        with new_store(name, server) as store:
            found.append(await measure(store))
    return _fastest_of(found)


def _fastest_of(found: list[list[float]]) -> Pace:
    return Pace([min(times) for times in zip(*found, strict=True)])


async def _append(store: Store) -> list[float]:
    """Append envelopes that are ready, with the states they lead to."""
    record, pages = _told()
    seconds: list[float] = []
    async with _open_log(store) as log:
        await log.create(record, pages[0].envelopes, pages[0].state)
        for before, page in pairwise(pages):
            began = perf_counter()
            await log.append(SESSION, page.envelopes, before.state.sequence, page.state)
            seconds.append(perf_counter() - began)
    return seconds


async def _append_bare(store: Store) -> list[float]:
    """Write the same rows with the driver alone, one transaction for each append."""
    record, pages = _told()
    async with _open_log(store) as log:
        await log.create(record, pages[0].envelopes, pages[0].state)
    updates = [_update(before.state.sequence, page) for before, page in pairwise(pages)]
    if store.file is not None:
        return await _sqlite_loop(store.file, updates)
    return await _postgres_loop(store.url, updates)


class Update(NamedTuple):
    """What one append writes: the values of the session's row, and of each envelope's."""

    session: tuple[object, ...]
    envelopes: list[tuple[object, ...]]


def _update(head: int, page: Page) -> Update:
    columns = state_columns(page.state, None)
    rows = envelope_rows(page.envelopes, head)
    values = [columns[name] for name in ("status", "runnable", "due_at", "snapshot")]
    return Update(
        (*values, len(rows), len(rows), SESSION, head),
        [(SESSION, row.sequence, row.envelope_id, row.sequence, row.data) for row in rows],
    )


_SET = """
UPDATE agentgraph_sessions SET status = {0}, runnable = {0}, due_at = {0}, snapshot = {0},
    head = head + {0}, said = said + {0}
WHERE session_id = {0} AND head = {0}
"""
_ADD = """
INSERT INTO agentgraph_envelopes (session_id, sequence, envelope_id, said, data)
VALUES ({0}, {0}, {0}, {0}, {0})
"""


async def _sqlite_loop(file: Path, updates: list[Update]) -> list[float]:
    """Await each commit of a thread of its own: a commit must not block the event loop."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    set_head, add = _SET.format("?"), _ADD.format("?")

    def commit(update: Update) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(set_head, update.session)
        connection.executemany(add, update.envelopes)
        connection.execute("COMMIT")

    loop, seconds = asyncio.get_running_loop(), list[float]()
    with ThreadPoolExecutor(1) as thread, closing(connection):
        for update in updates:
            began = perf_counter()
            await loop.run_in_executor(thread, commit, update)
            seconds.append(perf_counter() - began)
    return seconds


async def _postgres_loop(url: str, updates: list[Update]) -> list[float]:
    set_head, add = _SET.format("%s").encode(), _ADD.format("%s").encode()
    seconds: list[float] = []
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection, connection.cursor() as cursor:
        for session, envelopes in updates:
            began = perf_counter()
            await cursor.execute(set_head, session)
            for values in envelopes:
                await cursor.execute(add, values)
            await connection.commit()
            seconds.append(perf_counter() - began)
    return seconds


async def _commit(store: Store) -> list[float]:
    """Commit packets as rounds do."""
    team = team_of_two()
    seconds: list[float] = []
    async with _open_log(store) as log:
        session = await open_session(log, team, team.record(SESSION, creator="user", humans=()))
        await session.say("Begin.", sender="user")
        for _ in range(PACKETS):
            began = perf_counter()
            round = Round.begin(session, session.state.due[0])
            assert round is not None
            await round.commit(PACKET, ())
            seconds.append(perf_counter() - began)
        assert session.state.turn_count == PACKETS
    return seconds


@cache
def _told() -> tuple[SessionRecord, list[Page]]:
    """Return a session, and the pages of its log: what is appended, and the state after it."""
    team = team_of_two()
    record = team.record(SESSION, creator="user", humans=())
    rules = team.rules_of(record)
    pages = [Page(SessionState.initial(record), rules)]
    begin_log(pages[0], record)
    draft = packet_envelope(PACKET["body"])
    for number in range(PACKETS):
        page = Page(pages[-1].state, rules)
        page.say(page.state.due[0] if number else "user", draft)
        pages.append(page)
    return record, pages


class Openings(NamedTuple):
    """The milliseconds in which a hub that has not seen a session yet opens it, and explains."""

    select: float
    """One SELECT of what opening needs, by the driver alone."""
    snapshot: float
    milestone: float
    first_envelope: float
    explanation: float


async def _openings(name: str, server: Server) -> Openings:
    """Measure a session of 4,999 envelopes, so that its last milestone is as old as it can be."""
    team = team_of_two()
    record, pages = _told()
    pages = pages[:-3]  # all three have spoken once less
    with new_store(name, server) as store:
        async with _open_log(store) as log:
            await log.create(record, pages[0].envelopes, pages[0].state)
            for before, page in pairwise(pages[::PAGES_AT_ONCE] + pages[-1:]):
                head = before.state.sequence
                added = [e for each in pages for e in each.envelopes if e.sequence > head]
                count = page.state.sequence - head
                await log.append(SESSION, added[:count], head, page.state)
        turns = pages[-1].state.turn_count
        select = await _select(store)
        snapshot = await _opening(store, team, turns)
        explanation = await _opening(store, team, turns, explains=True)
        _lose(store, "UPDATE agentgraph_sessions SET snapshot = NULL")
        milestone = await _opening(store, team, turns)
        _lose(store, "DELETE FROM agentgraph_milestones")
        first_envelope = await _opening(store, team, turns)
    return Openings(select, snapshot, milestone, first_envelope, explanation)


async def _select(store: Store) -> float:
    query = f"SELECT record, snapshot FROM agentgraph_sessions WHERE session_id = '{SESSION}'"
    times: list[float] = []
    if store.file is not None:
        with closing(sqlite3.connect(store.file, check_same_thread=False)) as file:
            for _ in range(OPENINGS):
                began = perf_counter()
                await asyncio.to_thread(lambda: file.execute(query).fetchone())
                times.append(perf_counter() - began)
        return min(times) * 1000
    async with await psycopg.AsyncConnection.connect(store.url, autocommit=True) as database:
        for _ in range(OPENINGS):
            began = perf_counter()
            await (await database.execute(query.encode())).fetchone()
            times.append(perf_counter() - began)
    return min(times) * 1000


async def _opening(store: Store, team: Team, turns: int, *, explains: bool = False) -> float:
    times: list[float] = []
    for _ in range(OPENINGS):
        async with open_hub(store, team) as hub:
            # The hub is in use, as the connection of the SELECT is: it has opened another session.
            other = await hub.session(team)
            gc.collect()
            for _ in range(EARLIER_OPENINGS):
                await hub.get(other.id)
                await other.settled()
            began = perf_counter()
            session = await hub.get(SESSION)
            if explains:
                began = perf_counter()
                await session.explain(session.state.sequence)
            times.append(perf_counter() - began)
            assert session.state.turn_count == turns
    return min(times) * 1000


def _lose(store: Store, statement: str) -> None:
    if store.file is None:
        with psycopg.connect(store.url) as database:
            database.execute(statement.encode())
    else:
        with sqlite3.connect(store.file) as file:
            file.execute(statement)
        file.close()


@asynccontextmanager
async def _open_log(store: Store) -> AsyncIterator[Log]:
    log = open_log(store.url)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


async def _theirs(file: Path | None, packets: int) -> tuple[Pace, float]:
    """Post packets in one channel of AG2's; then open its hub again: in milliseconds."""
    store = open_store(file)
    seconds: list[float] = []
    async with open_channel(store) as channel:
        for number in range(packets):
            began = perf_counter()
            await channel.post(number, PACKET)
            seconds.append(perf_counter() - began)
    openings: list[float] = []
    for _ in range(OPENINGS):
        gc.collect()
        began = perf_counter()
        hub = await open_their_hub(store)
        openings.append(perf_counter() - began)
        await hub.close()
    return Pace(seconds), min(openings) * 1000
