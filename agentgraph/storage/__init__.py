"""From a URL to checkpoint savers: opened lazily, on the loop that uses them, closed with it."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from functools import cache

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph.errors import ConfigurationError
from agentgraph.storage.lazy import LazySaver
from agentgraph.storage.store import Claim, Store

__all__ = ["Claim", "LazySaver", "default_saver", "lasting_url", "open_saver"]


def default_saver() -> BaseCheckpointSaver[str]:
    """Return the environment's saver: Postgres if `POSTGRES_URL` is set, else memory."""
    return open_saver(os.environ.get("POSTGRES_URL") or "memory")


def lasting_url() -> str:
    """Return where threads outlive their process: `POSTGRES_URL`, else a file in this folder."""
    return os.environ.get("POSTGRES_URL") or "sqlite:///agentgraph.db"


def open_saver(url: str) -> BaseCheckpointSaver[str]:
    """Return a saver for `memory`, `sqlite:///file.db` or `postgresql://…`; it connects on use."""
    return InMemorySaver() if url == "memory" else _shared(url)


@cache
def _shared(url: str) -> LazySaver:
    """Return one saver per store: its connections and the order of its threads are shared."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme == "sqlite" and url.startswith("sqlite:///"):
        return LazySaver(lambda: _sqlite(url.removeprefix("sqlite:///")))
    if scheme in ("postgresql", "postgres"):
        return LazySaver(lambda: _postgres(url))
    # Not the rest of it: that may hold a password.
    told = f"a store with the scheme {scheme!r} is not known" if scheme else "a store is a URL"
    raise ConfigurationError(f"{told}: write memory, sqlite:///file.db or postgresql://…")


# A driver is imported by those who use it: each takes longer to import than all of this package.


def _sqlite(path: str) -> AbstractAsyncContextManager[Store]:
    from agentgraph.storage.sqlite import open_sqlite

    return open_sqlite(path)


def _postgres(url: str) -> AbstractAsyncContextManager[Store]:
    from agentgraph.storage.postgres import open_postgres

    return open_postgres(url)
