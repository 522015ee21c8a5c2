"""The three stores of sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from agentgraph.sessions.log import Log, open_log
from tests.postgres import Database

OpenLog: TypeAlias = Callable[[], Awaitable[Log]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of the test's own."""
    if request.param == "memory":
        return "memory"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    database: Database = request.getfixturevalue("postgres")
    return database.url


@pytest.fixture
async def opened(log_url: str) -> AsyncIterator[OpenLog]:
    """Open a log of that store, each time another; memory has but one."""
    logs: list[Log] = []

    async def opened() -> Log:
        if logs and log_url == "memory":
            return logs[0]
        log = open_log(log_url)
        logs.append(log)
        await log.open()
        return log

    yield opened
    for log in logs:
        await log.close()


@pytest.fixture
async def log(opened: OpenLog) -> Log:
    """An open log."""
    return await opened()
