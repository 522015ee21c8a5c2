"""Checkpoint savers by URL: opened on first use, on the event loop that uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgraph.storage.first_read import with_first_read
from agentgraph.storage.lazy import LazySaver
from agentgraph.storage.memory import MemorySaver
from agentgraph.storage.notes import Note
from agentgraph.storage.schemes import MEMORY, SchemeRegistry
from agentgraph.storage.store import Claim, Saver, Store
from agentgraph.storage.threaded import BoundSaver, original_of, until_written, with_async_methods

__all__ = [
    "MEMORY",
    "BoundSaver",
    "Claim",
    "LazySaver",
    "Note",
    "Saver",
    "SchemeRegistry",
    "default_saver",
    "lasting_url",
    "open_saver",
    "original_of",
    "register_saver",
    "until_written",
    "with_async_methods",
    "with_first_read",
]


def default_saver() -> BaseCheckpointSaver[str]:
    """Return the environment's saver: Postgres if `POSTGRES_URL` is set, else memory."""
    return open_saver(os.environ.get("POSTGRES_URL") or MEMORY)


def lasting_url() -> str:
    """Return the URL of a lasting store: `POSTGRES_URL`, else a file in the working directory."""
    return os.environ.get("POSTGRES_URL") or "sqlite:///agentgraph.db"


def open_saver(url: str) -> BaseCheckpointSaver[str]:
    """Return a saver for `memory`, `sqlite:///file.db` or `postgresql://…`; it connects on use.

    All callers in a process with the same URL get the same saver; only `memory` is a new saver each
    time.
    """
    is_shared = isinstance(url, str) and url != MEMORY
    return _shared_saver(url) if is_shared else _savers.open(url)


def register_saver(scheme: str, opener: Callable[[str], BaseCheckpointSaver[str]]) -> None:
    """Register `opener` for the URLs of a scheme that is not built in.

    A URL that was opened before keeps its saver.
    """
    _savers.register(scheme, opener)


@cache
def _shared_saver(url: str) -> BaseCheckpointSaver[str]:
    """Return one saver per store: its connections and the order of its threads are shared."""
    return _savers.open(url)


# Drivers are imported on first use: each takes longer to import than all of this package.


def _open_sqlite(path: str) -> AbstractAsyncContextManager[Store]:
    from agentgraph.storage.sqlite import open_sqlite

    return open_sqlite(path)


def _open_postgres(url: str) -> AbstractAsyncContextManager[Store]:
    from agentgraph.storage.postgres import open_postgres

    return open_postgres(url)


_savers: SchemeRegistry[BaseCheckpointSaver[str]] = SchemeRegistry(
    MemorySaver,
    sqlite=lambda path: LazySaver(lambda: _open_sqlite(path)),
    postgres=lambda url: LazySaver(lambda: _open_postgres(url)),
)
