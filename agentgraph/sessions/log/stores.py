"""From a URL to a log."""

from __future__ import annotations

from agentgraph.errors import ConfigurationError
from agentgraph.sessions.log.memory import MemoryLog
from agentgraph.sessions.log.protocol import Log


def open_log(url: str | None) -> Log:
    """Return the log of `memory`, `sqlite:///file.db` or `postgresql://…`; `open` connects."""
    if url is None or url == "memory":
        return MemoryLog()
    scheme = url.partition("://")[0] if "://" in url else ""
    # A driver is imported by those who use it.
    if scheme == "sqlite" and url.startswith("sqlite:///"):
        from agentgraph.sessions.log.sqlite import SQLiteLog

        return SQLiteLog(url.removeprefix("sqlite:///"))
    if scheme in ("postgresql", "postgres"):
        from agentgraph.sessions.log.postgres import PostgresLog

        return PostgresLog(url)
    # Not the rest of it: that may hold a password.
    told = f"a store with the scheme {scheme!r} is not known" if scheme else "a store is a URL"
    raise ConfigurationError(f"{told}: write memory, sqlite:///file.db or postgresql://…")
