"""Where sessions are stored: one protocol, three stores, and a registry for stores of your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph.errors import ConfigurationError
from agentgraph.sessions.log.memory import MemoryLog
from agentgraph.sessions.log.protocol import (
    ALL_SESSIONS,
    NO_BLOBS,
    AppendNotice,
    ChangeListener,
    InboxConflict,
    InboxEntry,
    Log,
    SessionQuery,
    SessionSummary,
    SharedBlobs,
    StoredSession,
)
from agentgraph.sessions.state.state import is_milestone_due
from agentgraph.storage import MEMORY, SchemeRegistry, register_saver

if TYPE_CHECKING:
    from agentgraph.sessions.log.postgres.log import PostgresLog
    from agentgraph.sessions.log.sqlite.log import SQLiteLog

__all__ = [
    "ALL_SESSIONS",
    "NO_BLOBS",
    "AppendNotice",
    "ChangeListener",
    "InboxConflict",
    "InboxEntry",
    "Log",
    "MemoryLog",
    "PostgresLog",
    "SQLiteLog",
    "SessionQuery",
    "SessionSummary",
    "SharedBlobs",
    "StoredSession",
    "is_milestone_due",
    "open_log",
    "register_log",
]


def open_log(url: str | None) -> Log:
    """Return the log of `memory`, `sqlite:///file.db` or `postgresql://…`; `open` connects.

    `ConfigurationError` for a log of your own that lacks methods.
    """
    log = _logs.open(MEMORY if url is None else url)
    if missing := [method for method in _METHODS if not callable(getattr(log, method, None))]:
        name, text = type(log).__name__, "add it, as agentgraph.sessions.log.Log describes it"
        raise ConfigurationError(
            [f"{name} has no {method!r}: {text}" for method in missing], code="log"
        )
    return log


def register_log(
    scheme: str,
    opener: Callable[[str], Log],
    *,
    saver: Callable[[str], BaseCheckpointSaver[str]] | None = None,
) -> None:
    """Have `open_log` and `Hub.open` call `opener` with each URL that begins with `scheme://`.

        register_log("redis", RedisLog)
        hub = await Hub.open("redis://localhost", serve=[team])

    `saver` makes the checkpoint saver of such a URL. Without it checkpoints are in memory: another
    process then runs an interrupted round again from its start, and asks its questions again.
    """
    _logs.register(scheme, opener)
    register_saver(scheme, saver or _memory_saver)


def _memory_saver(url: str) -> BaseCheckpointSaver[str]:
    return InMemorySaver()


_METHODS = [name for name in vars(Log) if not name.startswith("_")]

# Drivers are imported only when a log that needs them is opened.


def _open_sqlite(path: str) -> Log:
    from agentgraph.sessions.log.sqlite.log import SQLiteLog

    return SQLiteLog(path)


def _open_postgres(url: str) -> Log:
    from agentgraph.sessions.log.postgres.log import PostgresLog

    return PostgresLog(url)


_logs: SchemeRegistry[Log] = SchemeRegistry(MemoryLog, _open_sqlite, _open_postgres)


def __getattr__(name: str) -> object:
    if name == "SQLiteLog":
        from agentgraph.sessions.log.sqlite.log import SQLiteLog

        return SQLiteLog
    if name == "PostgresLog":
        from agentgraph.sessions.log.postgres.log import PostgresLog

        return PostgresLog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
