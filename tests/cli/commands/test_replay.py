"""`agentgraph replay`: whether a log still comes to the state that is stored."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Session, Team
from agentgraph.sessions import open_log
from tests.cli.conversations import run
from tests.cli.stored_sessions import ask, clerk, desk, hold, tear


def changed(path: Path, change: Callable[[dict[str, Any]], None], *, is_whole: bool = True) -> None:
    """Change what is stored of the state; it is whole if its checksum does not tell."""
    with closing(sqlite3.connect(path)) as file:
        [(text,)] = file.execute("SELECT snapshot FROM agentgraph_sessions").fetchall()
        state = json.loads(text)
        if is_whole:
            del state["checksum"]  # as a store of before has it
        change(state)
        file.execute("UPDATE agentgraph_sessions SET snapshot = ?", (json.dumps(state),))
        file.commit()


@pytest.mark.parametrize(("team", "end"), [(desk, "closed"), (clerk, "waiting_decision")])
def test_log_comes_to_the_stored_state(url: str, team: Callable[[], Team], end: str) -> None:
    hold(url, team(), ask)
    head = run("log", url, "s", "--json").stdout.count("\n")

    result = run("replay", url, "s")

    told = f"the {head} envelopes of 's' come to the state that is stored: {end}\n"
    assert (result.exit_code, result.stdout) == (0, told)


def test_fork_comes_to_its_own_state(url: str) -> None:
    async def forked(session: Session) -> None:
        await ask(session)
        names.append((await session.fork(5)).id)

    names: list[str] = []
    hold(url, desk(), forked)

    assert run("replay", url, names[0]).stdout.startswith(f"the 5 envelopes of '{names[0]}' come")


def test_fields_that_differ_are_named(url: str, folder: Path) -> None:
    hold(url, desk(), ask)
    changed(folder / "desk.db", lambda state: state.update(turn_count=9, context_vars={}))

    result = run("replay", url, "s")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "the 14 envelopes of 's' do not come to the state that is stored:",
        "  turn_count: stored 9, folded 5",
        '  context_vars: stored {}, folded {"tier":"gold"}',
    ]


def test_order_of_keys_is_no_difference(url: str, folder: Path) -> None:
    def turn_round(state: dict[str, Any]) -> None:
        state["said"] = dict(reversed(state["said"].items()))

    hold(url, desk(), ask)
    changed(folder / "desk.db", turn_round)

    assert run("replay", url, "s").exit_code == 0


def test_a_state_that_was_altered_is_not_taken_for_the_stored_one(url: str, folder: Path) -> None:
    hold(url, desk(), ask)
    changed(folder / "desk.db", lambda state: state.update(turn_count=9), is_whole=False)

    result = run("replay", url, "s")

    assert (result.exit_code, "no state is stored that can be read" in result.stdout) == (1, True)


def test_state_that_cannot_be_read_is_a_difference(url: str, folder: Path) -> None:
    hold(url, desk(), ask)
    changed(folder / "desk.db", lambda state: state.update(sequence=3))

    result = run("replay", url, "s")

    assert result.exit_code == 1
    assert result.stdout.endswith("but no state is stored that can be read\n")


def test_session_that_goes_on_is_replayed_and_not_taken(url: str) -> None:
    async def looked_at(session: Session) -> None:
        log = open_log(url)
        await log.open()
        try:
            await ask(session)
            before = await log.load("s")
            assert before is not None
            result = await asyncio.to_thread(run, "replay", url, "s")
            assert result.stdout.startswith(f"the {before.head} envelopes of 's' come to")
            assert await log.load("s") == before  # nobody has taken it
        finally:
            await log.close()

    hold(url, clerk(), looked_at)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sqlite:///desk.db", "nobody"], "there is no session 'nobody'"),
        (["sqlite:///none.db", "s"], "there is no file 'none.db'"),
        (["memory", "s"], "give the store as sqlite:///file.db or postgresql://…; what is in"),
    ],
    ids=["session", "file", "memory"],
)
def test_what_cannot_be_replayed_is_one_sentence(arguments: list[str], told: str, url: str) -> None:
    hold(url, clerk(), ask)

    result = run("replay", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"agentgraph: {told}")
    assert result.stderr.count("\n") == 1


def test_torn_session_is_no_difference_but_a_fault(url: str, folder: Path) -> None:
    hold(url, desk(), ask)
    tear(folder / "desk.db", 5)

    result = run("replay", url, "s")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("agentgraph: session 's' cannot be read at sequence 5 (")
