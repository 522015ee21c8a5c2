"""A store of sessions, for those who only look: nothing is made that is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from agentgraph.errors import ConfigurationError, Quarantined
from agentgraph.sessions.envelope import Envelope
from agentgraph.sessions.log import Log, MemoryLog, open_log

__all__ = ["envelopes_of", "reading"]

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
