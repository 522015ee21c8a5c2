"""The stores of the command line: logs that are read, and where `chat` keeps a conversation."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from agentgraph.agents import Agent
from agentgraph.errors import ConfigurationError, Quarantined, SessionError
from agentgraph.sessions.log import Log, MemoryLog, StoredSession, open_log
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.storage import lasting_url

_BATCH = 200
_SQLITE = "sqlite:///"
_DURABLE_PREFIXES = (_SQLITE, "postgresql://", "postgres://")
_POSTGRES = re.compile(
    r"(postgres(?:ql)?://)(?:[^@/?#]*@)?([\w.,:\[\]-]*(?:/[\w.-]*)?)(?:\?[^@]*)?"
)


@asynccontextmanager
async def log_reader(url: str) -> AsyncIterator[Log]:
    """Open the log of a store without a hub: no agents are needed, and no session is leased.

    Raises `ConfigurationError` for a URL of another kind or a file that does not exist.
    """
    log = _log_at(url)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


async def stored_session(log: Log, session_id: str) -> StoredSession:
    """Return a session as the log has stored it; raise `SessionError` where there is none."""
    snapshot = await log.load(session_id)
    if snapshot is None:
        raise SessionError(f"there is no session {session_id!r}", code="unknown_session")
    return snapshot


async def envelopes_of(
    log: Log, session_id: str, after: int = 0, upto: int | None = None
) -> AsyncIterator[Envelope]:
    """Yield the envelopes of a session; raise `Quarantined` at one that cannot be read.

    All before the torn one are yielded: its batch is read again, one by one.
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


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """An agent with its store, and the store's name, without the password of its URL."""

    agent: Agent
    store_name: str

    @property
    def lasts(self) -> bool:
        """Whether another process finds the conversation again."""
        return self.store_name != "memory"


def with_store(agent: Agent, url: str | None) -> StoredAgent:
    """Return the agent with a store: the one of `url`, its own, the environment's, or a file here.

    Raises `ConfigurationError` for a URL of another kind.
    """
    if url is None and agent.checkpointer is not None:
        return StoredAgent(agent, _name_of(agent.checkpointer))
    url = url or lasting_url()
    if url != "memory" and not url.startswith(_DURABLE_PREFIXES):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError("--store: write memory, sqlite:///file.db or postgresql://…")
    return StoredAgent(agent.replace(checkpointer=url), _name_of(url))


def _log_at(url: str) -> Log:
    """Return the log of a URL, not yet open; never create a file."""
    if not url.startswith(_DURABLE_PREFIXES):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError(
            "give the store as sqlite:///file.db or postgresql://…; "
            "what is in memory only its own process can read"
        )
    if url.startswith(_SQLITE) and not _has_sessions(url.removeprefix(_SQLITE)):
        return MemoryLog()  # empty, like the file: opening that as a log would add tables to it
    return open_log(url)


def _has_sessions(path: str) -> bool:
    """Tell whether a file has the tables of sessions."""
    import sqlite3

    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path!r}")
    query = "SELECT 1 FROM sqlite_master WHERE name = 'agentgraph_sessions'"
    try:
        with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as file:
            return file.execute(query).fetchone() is not None
    except sqlite3.Error:
        return True  # the log that opens it says what is wrong


def _name_of(checkpointer: object) -> str:
    """Return the name of a store as it may be shown: of a Postgres URL without its password."""
    if not isinstance(checkpointer, str):
        name = type(checkpointer).__name__
        return "memory" if name == "InMemorySaver" else f"the agent's own {name}"
    if not checkpointer.startswith("postgres"):
        return checkpointer
    safe = _POSTGRES.fullmatch(checkpointer)
    return f"{safe[1]}{safe[2]}" if safe else "postgresql://…"
