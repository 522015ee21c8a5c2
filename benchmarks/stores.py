"""The stores that sessions are measured on, and what they keep by then."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Hub, Session, Team
from agentgraph.storage import LazySaver
from benchmarks.measure import bytes_in
from tests.postgres import new_database, new_server

__all__ = ["STORES", "Server", "Store", "new_store", "open_hub", "postgres_server"]

STORES = ("memory", "SQLite", "Postgres")


@dataclass(frozen=True, slots=True)
class Server:
    """A Postgres that runs as long as the benchmarks do."""

    url: str


@dataclass(frozen=True, slots=True)
class Store:
    """A new and empty store."""

    name: str
    url: str
    file: Path | None = None

    async def weigh(self, hub: Hub, session: Session) -> int:
        """Add up all values that are kept: of the log, of checkpoints, and the snapshot."""
        if self.file is not None:
            return _sqlite_bytes(self.file)
        if self.name == "Postgres":
            return _postgres_bytes(self.url)
        from agentgraph.sessions.envelopes.payload import encode_json

        kept = [session.state.to_dict(), *(one.to_dict() for one in await session.history())]
        saver = hub.saver
        assert isinstance(saver, InMemorySaver)
        return sum(len(encode_json(one)) for one in kept) + bytes_in(saver)

    def file_bytes(self) -> int:
        """Return the size of the file."""
        assert self.file is not None
        with sqlite3.connect(self.file) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return self.file.stat().st_size


@contextmanager
def postgres_server() -> Iterator[Server]:
    """Run the Postgres of the tests."""
    with new_server() as server:
        yield Server(server.url)


@contextmanager
def new_store(name: str, server: Server) -> Iterator[Store]:
    """Make a store for a while."""
    if name == "memory":
        yield Store(name, "memory")
    elif name == "SQLite":
        with TemporaryDirectory() as folder:
            file = Path(folder, "sessions.db")
            yield Store(name, f"sqlite:///{file}", file)
    else:
        with new_database(server.url) as database:
            yield Store(name, database.url)


@asynccontextmanager
async def open_hub(store: Store, *teams: Team) -> AsyncIterator[Hub]:
    """Open a hub, and let go of all its connections at the end."""
    async with await Hub.open(store.url, serve=teams) as hub:
        try:
            yield hub
        finally:
            saver = hub.saver
    if isinstance(saver, LazySaver):
        await saver.aclose()


def _sqlite_bytes(file: Path) -> int:
    connection = sqlite3.connect(file)
    connection.text_factory = bytes
    total = 0
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        name = table.decode()
        columns = [row[1].decode() for row in connection.execute(f"PRAGMA table_info({name})")]
        lengths = " + ".join(f"ifnull(length(CAST({one} AS BLOB)), 0)" for one in columns)
        found = connection.execute(f"SELECT ifnull(sum({lengths}), 0) FROM {name}")
        total += found.fetchone()[0]
    connection.close()
    return total


def _postgres_bytes(url: str) -> int:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    with psycopg.connect(url, autocommit=True) as connection:
        tables: list[Any] = connection.execute(query).fetchall()
        sizes = (
            connection.execute(
                f"SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {table} t".encode()
            ).fetchone()
            for (table,) in tables
        )
        return sum(int(size[0]) for size in sizes if size is not None)
