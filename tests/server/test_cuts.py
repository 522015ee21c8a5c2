"""A client that is cut at every event goes on, on any server of the store, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import Database
from tests.server.cuts import Way, cut_all


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a.db"
    database: Database = request.getfixturevalue("postgres")
    return database.url


@pytest.mark.parametrize("way", ["same", "other", "kill"])
async def test_nothing_is_missing_or_comes_twice_or_is_false(store: str, way: Way) -> None:
    assert await cut_all(store, {way: 2}) == []
