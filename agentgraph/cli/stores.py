"""Stores as the command line opens them: for a conversation, or only to read sessions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from agentgraph.agents import Agent
from agentgraph.errors import ConfigurationError, Quarantined
from agentgraph.sessions.log import Log, MemoryLog, open_log
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.storage import lasting_url

_BATCH = 200
_SQLITE = "sqlite:///"
_LASTING = (_SQLITE, "postgresql://", "postgres://")


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Log]:
    """Open a store, without a hub: nobody's agents are needed, and no session is taken."""
    log = _log_at(url)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


async def envelopes_of(
    log: Log, session_id: str, after: int = 0, upto: int | None = None
) -> AsyncIterator[Envelope]:
    """Yield what there is of a session; where it is torn, what comes before is not withheld."""
    batch = _BATCH
    while upto is None or after < upto:
        limit = batch if upto is None else min(batch, upto - after)
        try:
            found = await log.read(session_id, after, limit)
        except Quarantined:
            if batch == 1:
                raise
            batch = 1
            continue
        if not found:
            return
        for envelope in found:
            after = envelope.sequence
            yield envelope


def _log_at(url: str) -> Log:
    if not url.startswith(_LASTING):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError(
            "give the store as sqlite:///file.db or postgresql://…; "
            "what is in memory only its own process can read"
        )
    if url.startswith(_SQLITE) and not _keeps_sessions(url.removeprefix(_SQLITE)):
        return MemoryLog()  # as empty
    return open_log(url)


def _keeps_sessions(path: str) -> bool:
    """Tell whether a file has sessions; another one is not to be given tables."""
    import sqlite3

    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path!r}")
    known = "SELECT 1 FROM sqlite_master WHERE name = 'agentgraph_sessions'"
    try:
        with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as file:
            return file.execute(known).fetchone() is not None
    except sqlite3.Error:
        return True  # whoever opens it says what is wrong


_KNOWN = ("sqlite:///", "postgresql://", "postgres://")
_POSTGRES = re.compile(
    r"(postgres(?:ql)?://)(?:[^@/?#]*@)?([\w.,:\[\]-]*(?:/[\w.-]*)?)(?:\?[^@]*)?"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """An agent with its store, and the store's name, which is fit to be shown."""

    agent: Agent
    place: str

    @property
    def lasts(self) -> bool:
        """Whether another process finds the conversation again."""
        return self.place != "memory"


def keep(agent: Agent, url: str | None) -> Kept:
    """Choose the store: the one asked for, the agent's own, the environment's, or a file here."""
    if url is None and agent.checkpointer is not None:
        return Kept(agent, _name_of(agent.checkpointer))
    url = url or lasting_url()
    if url != "memory" and not url.startswith(_KNOWN):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError("--store: write memory, sqlite:///file.db or postgresql://…")
    return Kept(agent.replace(checkpointer=url), _name_of(url))


def _name_of(checkpointer: object) -> str:
    if not isinstance(checkpointer, str):
        name = type(checkpointer).__name__
        return "memory" if name == "InMemorySaver" else f"the agent's own {name}"
    if not checkpointer.startswith("postgres"):
        return checkpointer
    safe = _POSTGRES.fullmatch(checkpointer)
    return f"{safe[1]}{safe[2]}" if safe else "postgresql://…"
