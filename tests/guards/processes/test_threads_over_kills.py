"""Agents on threads are killed around an action: it is done once, known to the next run, undone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards.escalating_agents import ANSWER
from tests.guards.processes.killed_agents import ITEMS, World
from tests.guards.processes.killed_threads import INSTANTS, PLACES
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

SIGKILL = 9
DURABILITIES = ("async", "exit", "sync")
PAID = [f"pay {item}" for item in ITEMS]

durable = pytest.mark.parametrize("durability", DURABILITIES)
everywhere = pytest.mark.parametrize("place", PLACES)
around = pytest.mark.parametrize("instant", INSTANTS)
both_ways = pytest.mark.parametrize("says", ["go", None], ids=["message", "continue"])


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen("tests.guards.processes.killed_threads") as kept:
        yield kept


class Thread:
    """A thread in a file, on which one process after the other runs an agent."""

    def __init__(self, child: Pen, folder: Path, **fields: Any) -> None:
        self._child = child
        self.world = World(str(folder / "world.db"))
        url = f"sqlite:///{folder / 'threads.db'}"
        self._order = {"run": "play", "url": url, "world": self.world.path, **fields}

    def die(self, kill: str, **more: Any) -> None:
        """Have a process kill itself at an instant."""
        self._child.begin(**self._order, kill=kill, **more)
        assert self._child.until("ended")["ended"] == SIGKILL, self._child.complaints()

    def play(self, **more: Any) -> dict[str, Any]:
        """Have a process run to its end; return what it has told."""
        self._child.begin(**self._order, **more)
        told = self._child.until("reason", "ended")
        assert "reason" in told, self._child.complaints()
        assert self._child.until("ended")["ended"] == 0, self._child.complaints()
        return told


def answers(told: dict[str, Any]) -> list[str]:
    """Return what the calls were answered."""
    return [text for kind, text in told["messages"] if kind == "tool"]


@durable
@around
@both_ways
def test_action_in_which_an_agent_was_killed_is_looked_up(
    child: Pen, tmp_path: Path, says: str | None, instant: str, durability: str
) -> None:
    thread = Thread(child, tmp_path, durability=durability, looks_up=True)
    thread.die(f"{instant} milk")
    told = thread.play(says=says)
    # A new message is told that it was not done, and its model goes on without it.
    left_out = ["pay milk"] if instant == "before" and "Not executed" in str(answers(told)) else []
    assert thread.world.tries() == [paid for paid in PAID if paid not in left_out]
    assert told["text"] == ANSWER
    assert "Outcome unknown" not in str(answers(told))


@durable
@pytest.mark.parametrize("instant", ["before", "after"])
@both_ways
def test_outcome_that_cannot_be_looked_up_is_shown_as_unknown(
    child: Pen, tmp_path: Path, says: str | None, instant: str, durability: str
) -> None:
    thread = Thread(child, tmp_path, durability=durability)
    thread.die(f"{instant} milk")
    told = thread.play(says=says)
    assert thread.world.tries().count("pay milk") == (instant == "after")
    assert thread.world.tries().count("pay tea") == 1
    is_told = any("nknown" in text or "nobody knows" in text for text in answers(told))
    assert is_told or told["asked"]


@pytest.mark.parametrize("durability", ["async", "exit"])
@pytest.mark.parametrize("place", PLACES[1:])
@pytest.mark.parametrize("at_once", [False, True])
def test_action_of_any_agent_of_a_tree_is_done_once(
    child: Pen, tmp_path: Path, at_once: bool, place: str, durability: str
) -> None:
    thread = Thread(
        child, tmp_path, durability=durability, place=place, looks_up=True, at_once=at_once
    )
    thread.die("after milk")
    told = thread.play(says=None)
    tries = thread.world.tries()
    assert sorted(tries) == sorted(set(tries)) and set(tries) >= {"pay tea", "pay milk"}
    assert "paid for tea" in str(answers(told)) and "paid for milk" in str(answers(told))


@durable
@everywhere
@pytest.mark.parametrize("instant", ["after", "think"])
def test_what_a_killed_run_has_done_is_undone_with_the_next_one(
    child: Pen, tmp_path: Path, instant: str, place: str, durability: str
) -> None:
    thread = Thread(child, tmp_path, durability=durability, place=place)
    thread.die(f"{instant} milk")
    assert len(thread.play(says="doubt", has_doubts=True)["asked"]) == 1
    told = thread.play(decides="reject", has_doubts=True)
    assert told["reason"] == "escalation"
    tries = thread.world.tries()
    paid = [each.removeprefix("pay ") for each in tries if each.startswith("pay")]
    undone = [each.removeprefix("undo ") for each in tries if each.startswith("undo")]
    assert paid[:2] == ["tea", "milk"]
    assert undone == paid[::-1]


@durable
def test_what_several_killed_runs_have_done_is_undone_once(
    child: Pen, tmp_path: Path, durability: str
) -> None:
    thread = Thread(child, tmp_path, durability=durability)
    thread.die("after tea")
    thread.die("after milk", has_doubts=True)
    assert len(thread.play(says="doubt", has_doubts=True)["asked"]) == 1
    thread.die("undone milk", decides="reject", has_doubts=True)
    thread.play(says="doubt", has_doubts=True)
    assert [each for each in thread.world.done() if each.startswith("undo")] == [
        f"undo {each.removeprefix('pay ')}"
        for each in reversed(thread.world.done())
        if each.startswith("pay")
    ]


@durable
def test_what_an_answered_run_has_done_stays_done(
    child: Pen, tmp_path: Path, durability: str
) -> None:
    thread = Thread(child, tmp_path, durability=durability)
    assert thread.play()["text"] == ANSWER
    assert len(thread.play(says="doubt", has_doubts=True)["asked"]) == 1
    assert thread.play(decides="reject", has_doubts=True)["reason"] == "escalation"
    assert thread.world.tries() == PAID
