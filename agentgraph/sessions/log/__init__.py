"""Where sessions are kept: one protocol, three stores."""

from typing import TYPE_CHECKING

from agentgraph.sessions.log.memory import MemoryLog
from agentgraph.sessions.log.protocol import (
    Changed,
    Grown,
    InboxMoved,
    Log,
    Stored,
    Summary,
    Waiting,
)
from agentgraph.sessions.log.stores import open_log

if TYPE_CHECKING:
    from agentgraph.sessions.log.postgres import PostgresLog
    from agentgraph.sessions.log.sqlite import SQLiteLog

__all__ = [
    "Changed",
    "Grown",
    "InboxMoved",
    "Log",
    "MemoryLog",
    "PostgresLog",
    "SQLiteLog",
    "Stored",
    "Summary",
    "Waiting",
    "open_log",
]


def __getattr__(name: str) -> object:
    # A driver is imported by those who use it.
    if name == "SQLiteLog":
        from agentgraph.sessions.log.sqlite import SQLiteLog

        return SQLiteLog
    if name == "PostgresLog":
        from agentgraph.sessions.log.postgres import PostgresLog

        return PostgresLog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
