"""Where a conversation is kept, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent
from agentgraph.cli.stores import with_store
from tests.cli.conversations import DESK, piped, run


@pytest.mark.parametrize(
    ("own", "asked", "environment", "place"),
    [
        (None, None, None, "sqlite:///agentgraph.db"),
        (None, None, "postgresql://me:secret@host:5/db", "postgresql://host:5/db"),
        (None, "sqlite:///b.db", "postgresql://host/db", "sqlite:///b.db"),
        ("sqlite:///a.db", None, "postgresql://host/db", "sqlite:///a.db"),
        ("sqlite:///a.db", "memory", None, "memory"),
        (InMemorySaver(), None, None, "memory"),
        (None, "postgres://host/db?user=me&password=secret", None, "postgres://host/db"),
        (None, "postgresql://me:se@cret@host/db", None, "postgresql://…"),
        (None, "postgresql://me:secret?@host/db", None, "postgresql://…"),
        (None, "postgresql://host/db?password=p@secret", None, "postgresql://…"),
    ],
)
def test_store_is_chosen_and_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
    own: Any,
    asked: str | None,
    environment: str | None,
    place: str,
) -> None:
    if environment is not None:
        monkeypatch.setenv("POSTGRES_URL", environment)

    kept = with_store(Agent("a", checkpointer=own), asked)

    assert kept.store_name == place
    assert kept.lasts is (place != "memory")


def test_unknown_store_is_told_without_its_password() -> None:
    result = run("chat", DESK, "--store", "redis://me:secret@host")

    assert result.exit_code == 2
    assert result.stderr.startswith("agentgraph: --store: write memory, ")
    assert "secret" not in result.output


def test_store_that_cannot_be_opened_ends_the_chat(folder: Path) -> None:
    done = piped(folder, "hello", "--store", "sqlite:////nowhere/at/all/a.db")

    assert done.returncode == 2
    assert done.stderr.startswith("agentgraph: cannot open the SQLite file")


def test_memory_is_gone_at_the_end(folder: Path) -> None:
    done = piped(folder, "hello", "--store", "memory")

    assert "It was kept in memory, and is gone." in done.stdout
    assert not (folder / "agentgraph.db").exists()
