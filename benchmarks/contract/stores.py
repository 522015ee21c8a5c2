"""The stores that peers keep their runs in: a folder with files, or a database of a Postgres."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks.contract.processes import Store

__all__ = ["FILES", "postgres"]


def _make_files(world: Path) -> str:
    folder = world / "store"
    folder.mkdir()
    return str(folder)


def _copy_files(source: str, world: Path) -> str:
    return str(shutil.copytree(source, world / "store"))


FILES = Store(_make_files, _copy_files)


def postgres(server_url: str) -> Store:
    """Return stores that are databases of a server."""

    def make(world: Path, template: str = "template1") -> str:
        name = f"contract_{secrets.token_hex(6)}"
        with psycopg.connect(server_url, autocommit=True) as connection:
            # A killed process's connection stays for a moment, and a template must have none.
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                (template,),
            )
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return urlsplit(server_url)._replace(path=f"/{name}").geturl()

    def copy(source: str, world: Path) -> str:
        return make(world, urlsplit(source).path.lstrip("/"))

    return Store(make, copy)
