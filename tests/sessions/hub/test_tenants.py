"""Tenants: an id names one session of each, and none of them meets those of another."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import interrupt

from agentgraph import Team
from agentgraph.errors import ConfigurationError, SessionError
from agentgraph.routing import sequence
from agentgraph.sessions import Hub, Session, open_log
from agentgraph.sessions.log import SessionQuery
from agentgraph.sessions.log.sqlite.log import SQLiteLog
from agentgraph.sessions.log.tables import POSTGRES, SQLITE, VERSIONS
from agentgraph.sessions.state.record import id_of, session_key, tenant_of
from agentgraph.testing import call
from tests.postgres import Database
from tests.sessions.log.sessions_to_store import Writer, envelope
from tests.sessions.talk import after, agent, dialogue, settled, talk

TENANTS = st.sampled_from(["default", "acme", "a"]) | st.from_regex(
    r"[a-zA-Z0-9_-]{1,52}", fullmatch=True
)
IDS = st.lists(st.sampled_from(["default", "acme", "a", "/", "ü", " "]), min_size=1).map("".join)


def desk(*turns: Any, **fields: Any) -> Team:
    return Team([agent("a", *turns, **fields)], dialogue("a"), name="desk")


def ask(what: str) -> str:
    """Ask a human for a decision."""
    return f"decided: {interrupt({'question': what})}"


# Keys.


@given(st.tuples(TENANTS, IDS), st.tuples(TENANTS, IDS))
def test_no_two_sessions_have_one_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (session_key(*one) == session_key(*other)) is (one == other)


@given(TENANTS, IDS | st.text(min_size=1))
def test_a_key_tells_tenant_and_id(tenant: str, id: str) -> None:
    key = session_key(tenant, id)
    assert (tenant_of(key), id_of(key)) == (tenant, id)


def test_keys_begin_with_the_tenant_where_the_id_alone_would_not_do() -> None:
    assert session_key("acme", "42") == "acme/42"
    assert session_key("default", "42") == "42"
    assert session_key("default", "a b/42") == "a b/42"
    assert session_key("default", "acme/42") == "default/acme/42"


# Sessions.


async def hold(hub: Hub, *places: tuple[str, str]) -> list[Session]:
    """Open a session at each place, in which its place is said."""
    sessions = []
    for tenant, id in places:
        session = await hub.session("desk", id=id, tenant=tenant)
        await after(session, "user", f"{tenant} {id}")
        sessions.append(session)
    return sessions


async def test_the_same_id_in_two_tenants_is_two_sessions(log_url: str) -> None:
    places = [("default", "acme/42"), ("acme", "42"), ("default", "42"), ("other", "42")]
    async with await Hub.open(log_url, serve=[desk()]) as hub:
        for session, (tenant, id) in zip(await hold(hub, *places), places, strict=True):
            assert (session.id, session.record.tenant) == (id, tenant)
            assert session.record.session_id == id
            assert await talk(session) == [("user", f"{tenant} {id}"), ("a", "a speaks")]
            assert {one.session_id for one in await session.history()} == {id}
            assert session.state.session_id == id
            assert await hub.get(id, tenant=tenant) is session
            assert await hub.session("desk", id=id, tenant=tenant) is session


async def test_a_session_of_another_tenant_is_unknown(log_url: str) -> None:
    async with await Hub.open(log_url, serve=[desk()]) as hub:
        await hold(hub, ("acme", "42"))
        for tenant, id in [("default", "42"), ("default", "acme/42"), ("other", "42")]:
            with pytest.raises(SessionError) as refused:
                await hub.get(id, tenant=tenant)
            assert refused.value.code == "unknown_session"


async def test_lists_show_ids_within_their_tenants(log_url: str) -> None:
    async with await Hub.open(log_url, serve=[desk()]) as hub:
        await hold(hub, ("acme", "1"), ("default", "acme/1"), ("acme", "2/2"), ("default", "3"))
        listed = [(one.tenant, one.session_id) for one in await hub.sessions()]
        assert listed == [("acme", "1"), ("default", "acme/1"), ("acme", "2/2"), ("default", "3")]
        own = await hub.sessions(tenant="acme", limit=1)
        assert [one.session_id for one in own] == ["1"]
        rest = await hub.sessions(tenant="acme", after="1")
        assert [one.session_id for one in rest] == ["2/2"]
        rest = await hub.sessions(after=listed[1][1], tenant="default")
        assert [one.session_id for one in rest] == ["3"]
        (last,) = await hub.sessions(after=own[0].key, limit=1)
        assert last.session_id == "acme/1"


async def test_a_fork_stays_in_its_tenant() -> None:
    async with await Hub.open(serve=[desk()]) as hub:
        (session,) = await hold(hub, ("acme", "42"))
        fork = await session.fork(session.state.sequence)
        assert fork.record.tenant == "acme"
        assert await hub.get(fork.id, tenant="acme") is fork
        assert await talk(fork) == await talk(session)


async def test_an_inner_session_stays_in_its_tenant(log_url: str) -> None:
    inner = Team([agent("x")], sequence(["x"]), name="inner")
    outer = Team([agent("a"), inner], sequence(["a", "inner"]), name="outer")
    async with await Hub.open(log_url, serve=[outer]) as hub:
        for tenant in ("acme", "default"):
            session = await hub.session(outer, id="acme/o", tenant=tenant)
            await after(session, "user", "hello")
            assert ("inner", "x speaks") in await talk(session)
            _, below = await hub.log.sessions(SessionQuery(tenant=tenant))
            assert (below.parent, below.tenant) == ("acme/o", tenant)


@pytest.mark.parametrize("log_url", ["sqlite", "postgres"], indirect=True)
async def test_a_question_is_answered_in_another_hub(log_url: str) -> None:
    team = desk(call("ask", what="may I?"), "done", tools=[ask])
    async with await Hub.open(log_url, serve=[team]) as hub:
        session = await hub.session(team, id="42", tenant="acme")
        await after(session, "user", "go")
    async with await Hub.open(log_url, serve=[team]) as hub:
        session = await hub.get("42", tenant="acme")
        (question,) = session.state.interrupts
        await session.decide(question, "yes")
        await settled(session)
        assert (await talk(session))[-1] == ("a", "done")


@pytest.mark.parametrize("tenant", ["", "a/b", "a b", "ü", "x" * 53, None, 7])
async def test_illegal_names_of_tenants_are_refused(tenant: Any) -> None:
    async with await Hub.open(serve=[desk()]) as hub:
        for asked in (hub.session("desk", tenant=tenant), hub.get("42", tenant=tenant)):
            with pytest.raises(ConfigurationError, match="tenant="):
                await asked
        if tenant is not None:
            with pytest.raises(ConfigurationError, match="tenant="):
                await hub.sessions(tenant=tenant)


# Stores of a version without tenants.

EARLIER = ["42", "acme/42", "a b/42", "o/2/inner", "x" * 53 + "/1"]


async def earlier_rows(folder: Path) -> dict[str, list[Sequence[Any]]]:
    """Return the rows of sessions as the first version wrote them."""
    path = str(folder / "rows.db")
    log = SQLiteLog(path)
    await log.open()
    for id in EARLIER:
        writer = Writer(log, id)
        await writer.begin(envelope(1, session_id=id, key="k"))
    await log.close()
    rows: dict[str, list[Sequence[Any]]] = {}
    with closing(sqlite3.connect(path)) as connection:
        for table in ("sessions", "envelopes", "keys"):
            columns = "session_id, team, creator, created_at, status, runnable, head, said, record"
            columns = {"sessions": columns, "keys": "session_id, digest, envelope_id"}.get(
                table, "session_id, sequence, envelope_id, said, data"
            )
            found = connection.execute(f"SELECT {columns} FROM agentgraph_{table}").fetchall()
            ids = {session_key("default", id): id for id in EARLIER}
            rows[f"agentgraph_{table} ({columns})"] = [(ids[key], *rest) for key, *rest in found]
    return rows


async def check_earlier(url: str) -> None:
    log = open_log(url)
    await log.open()
    for id in EARLIER:
        key = session_key("default", id)
        stored = await log.load(key)
        assert stored is not None
        assert (stored.record.session_id, stored.record.tenant) == (id, "default")
        assert [one.session_id for one in await log.read(key)] == [id]
    assert await log.load("acme/42") is None
    assert [one.session_id for one in await log.sessions()] == EARLIER
    await log.close()


async def test_an_earlier_file_goes_on_with_its_ids(tmp_path: Path) -> None:
    path = tmp_path / "earlier.db"
    rows = await earlier_rows(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in (VERSIONS, *SQLITE[0]):
            connection.execute(statement)
        connection.execute("INSERT INTO agentgraph_migrations VALUES (1)")
        for place, values in rows.items():
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {place} VALUES ({marks})", values)

    await check_earlier(f"sqlite:///{path}")


async def test_an_earlier_database_goes_on_with_its_ids(tmp_path: Path, postgres: Database) -> None:
    rows = await earlier_rows(tmp_path)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for statement in (VERSIONS, *POSTGRES[0]):
            connection.execute(statement.encode())
        connection.execute("INSERT INTO agentgraph_migrations VALUES (1)")
        for place, values in rows.items():
            for row in values:
                marks = ", ".join(["%s"] * len(row))
                if "runnable" in place:
                    row = [*row[:5], bool(row[5]), *row[6:]]
                connection.execute(f"INSERT INTO {place} VALUES ({marks})".encode(), row)

    await check_earlier(postgres.url)
