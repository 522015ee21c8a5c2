"""The stores of the command line: logs to read, and the store of a `chat` conversation."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from agentgraph.agents import Agent
from agentgraph.errors import ConfigurationError, Quarantined, SessionError
from agentgraph.flow import Flow
from agentgraph.guards import JSONLSink, SQLiteSink
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import Log, MemoryLog, StoredSession, open_log
from agentgraph.storage import lasting_url

A = TypeVar("A", bound=Agent[Any] | Flow[Any])

_BATCH = 200
_SQLITE = "sqlite:///"
_SQLITE_HEAD = b"SQLite format 3\0"
_URL = re.compile(r"\w+://")
_DURABLE_PREFIXES = (_SQLITE, "postgresql://", "postgres://")
_POSTGRES = re.compile(
    r"(postgres(?:ql)?://)(?:[^@/?#]*@)?([\w.,:\[\]-]*(?:/[\w.-]*)?)(?:\?[^@]*)?"
)


@asynccontextmanager
async def log_reader(url: str) -> AsyncIterator[Log]:
    """Open the log of a store without a hub: no agents are needed, and no session gets an owner.

    Raises `ConfigurationError` for an unknown kind of URL, or a file that does not exist.
    """
    log = _log_at(url)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


async def stored_session(log: Log, session_id: str) -> StoredSession:
    """Return a session as the log stores it; raise `SessionError` if it is unknown."""
    snapshot = await log.load(session_id)
    if snapshot is None:
        raise SessionError(f"there is no session {session_id!r}", code="unknown_session")
    return snapshot


async def envelopes_of(
    log: Log, session_id: str, after: int = 0, upto: int | None = None
) -> AsyncIterator[Envelope]:
    """Yield the envelopes of a session; raise `Quarantined` at an unreadable one.

    All envelopes before it are yielded: its batch is read again, one by one.
    """
    batch = _BATCH
    while upto is None or after < upto:
        limit = batch if upto is None else min(batch, upto - after)
        try:
            envelopes = await log.read(session_id, after, limit)
        except Quarantined:
            if batch == 1:
                raise
            batch = 1
            continue
        if not envelopes:
            return
        for envelope in envelopes:
            after = envelope.sequence
            yield envelope


def audit_sink(url: str) -> JSONLSink | SQLiteSink | None:
    """Return the sink of audit records at the path of a file, or at a SQLite URL; else None.

    None too for a SQLite file without the table of a sink.
    """
    path = Path(url.removeprefix(_SQLITE))
    if not path.is_file() or (_URL.match(url) and not url.startswith(_SQLITE)):
        return None
    with path.open("rb") as file:
        is_sqlite = file.read(len(_SQLITE_HEAD)) == _SQLITE_HEAD
    if not is_sqlite:
        return None if url.startswith(_SQLITE) else JSONLSink(path)
    return SQLiteSink(path) if _has_table(str(path), "agentgraph_audit") else None


@dataclass(frozen=True, slots=True)
class StoredAgent(Generic[A]):
    """An agent or flow with a store, and the store's name, without the password of its URL."""

    agent: A
    store_name: str

    @property
    def lasts(self) -> bool:
        """Whether another process can find the conversation again."""
        return self.store_name != "memory"


def with_store(agent: A, url: str | None) -> StoredAgent[A]:
    """Return the agent with a store: that of `url`, its own, the environment's, or a local file.

    Raises `ConfigurationError` for an unknown kind of URL.
    """
    if url is None and agent.checkpointer is not None:
        return StoredAgent(agent, _name_of(agent.checkpointer))
    url = url or lasting_url()
    if url != "memory" and not url.startswith(_DURABLE_PREFIXES):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError("--store: write memory, sqlite:///file.db or postgresql://…")
    return StoredAgent(cast(A, agent.replace(checkpointer=url)), _name_of(url))


def _log_at(url: str) -> Log:
    """Return the log of a URL, not yet open; no file is created."""
    if not url.startswith(_DURABLE_PREFIXES):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError(
            "give the store as sqlite:///file.db or postgresql://…; "
            "what is in memory only its own process can read"
        )
    if url.startswith(_SQLITE) and not _has_sessions(url.removeprefix(_SQLITE)):
        return MemoryLog()  # opening the file as a log would add tables to it
    return open_log(url)


def _has_sessions(path: str) -> bool:
    """Tell whether a file has the tables of sessions."""
    import sqlite3

    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path!r}")
    try:
        return _has_table(path, "agentgraph_sessions")
    except sqlite3.Error:
        return True  # the log reports the error when it opens the file


def _has_table(path: str, name: str) -> bool:
    import sqlite3

    query = "SELECT 1 FROM sqlite_master WHERE name = ?"
    with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as file:
        return file.execute(query, (name,)).fetchone() is not None


def _name_of(checkpointer: object) -> str:
    """Return the name of a store for display: a Postgres URL without its password."""
    if not isinstance(checkpointer, str):
        name = type(checkpointer).__name__
        return "memory" if name == "InMemorySaver" else f"the agent's own {name}"
    if not checkpointer.startswith("postgres"):
        return checkpointer
    safe = _POSTGRES.fullmatch(checkpointer)
    return f"{safe[1]}{safe[2]}" if safe else "postgresql://…"
