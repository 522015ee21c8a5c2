"""Processes are killed while they act or undo: in the end each thing is done, or undone, once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.guards.escalating_agents import ANSWER
from tests.guards.processes.killed_agents import ITEMS, KILLED, World
from tests.sessions.kills import Pen, pen

PAID = [f"pay {item}" for item in ITEMS]
UNDONE = [f"undo {item}" for item in reversed(ITEMS)]
REASON = {"reject": "escalation", "abort": "loop_detector", "fail": "round_failed"}

WAYS = pytest.mark.parametrize("way", ["reject", "abort"])
DURABILITIES = pytest.mark.parametrize("durability", ["round", "step"])
HANGS = pytest.mark.parametrize(
    "hang", [f"undo {item} {when}" for item in reversed(ITEMS) for when in ("before", "after")]
)


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen("tests.guards.processes.killed_agents") as kept:
        yield kept


class Runs:
    """Runs on one store, each in a process of its own."""

    def __init__(self, child: Pen, folder: Path, run: str, way: str, **fields: Any) -> None:
        self._child = child
        self.path = folder / "runs.db"
        self.world = World(str(folder / "world.db"))
        order = {"url": f"sqlite:///{self.path}", "world": self.world.path, "way": way}
        self._order = {"run": run, **order, **fields}

    def play(self, **more: Any) -> dict[str, Any]:
        """Have a process run to its end; return what it has told."""
        self._child.begin(**self._order, **more)
        told = self._child.until("reason", "ended")
        assert "reason" in told, self._child.complaints()
        assert self._child.until("ended")["ended"] == 0, self._child.complaints()
        return told

    def die(self, **more: Any) -> None:
        """Have a process kill itself."""
        self._child.begin(**self._order, **more)
        assert self._child.until("ended")["ended"] == KILLED, self._child.complaints()

    def kill(self, hang: str, **more: Any) -> None:
        """Have a process run to where it hangs, and kill it there."""
        self._child.begin(**self._order, hang=hang, **more)
        told = self._child.until("hangs", "ended")
        assert told.get("hangs") == hang, self._child.complaints()
        self._child.kill()


def killed_while_undoing(runs: Runs, hang: str, way: str) -> dict[str, Any]:
    """Kill an agent's process while it undoes; return how it is gone on with."""
    if way == "abort":
        runs.kill(hang)
        return {"says": "and now?"}
    [question] = runs.play()["asked"]
    runs.kill(hang, decides=question)
    return {"decides": question}


@WAYS
@HANGS
def test_what_an_agent_was_undoing_when_it_was_killed_is_undone_once_and_in_order(
    child: Pen, tmp_path: Path, hang: str, way: str
) -> None:
    runs = Runs(child, tmp_path, "agent", way)
    goes_on = killed_while_undoing(runs, hang, way)
    told = runs.play(**goes_on)
    assert runs.world.done() == [*PAID, *UNDONE]
    # Only what was under way is tried again, under the same key.
    under_way = hang.rpartition(" ")[0]
    expected = 1 + hang.endswith("after")
    assert runs.world.tries().count(under_way) == expected
    assert len(runs.world.tries()) == len(PAID) + len(UNDONE) + expected - 1
    if way == "reject":  # the decision is given again: it has been carried out
        assert (told["reason"], told["asked"]) == ("escalation", [])
    else:  # the new message is answered, once all is undone
        assert (told["text"], told["reason"]) == (ANSWER, None)


@WAYS
def test_a_new_message_comes_after_what_is_still_to_be_undone(
    child: Pen, tmp_path: Path, way: str
) -> None:
    runs = Runs(child, tmp_path, "agent", way)
    killed_while_undoing(runs, "undo jam before", way)
    told = runs.play(says="and now?")
    # Its answer is in doubt too, where answers are.
    text, questions = ("", 1) if way == "reject" else (ANSWER, 0)
    assert (told["text"], told["reason"], len(told["asked"])) == (text, None, questions)
    assert runs.world.done() == [*PAID, *UNDONE]


def test_a_process_may_be_killed_at_each_of_them(child: Pen, tmp_path: Path) -> None:
    runs = Runs(child, tmp_path, "agent", "reject")
    [question] = runs.play()["asked"]
    for item in reversed(ITEMS):
        runs.kill(f"undo {item} before", decides=question)
        runs.kill(f"undo {item} after", decides=question)
    assert runs.play(decides=question)["reason"] == "escalation"
    assert runs.world.done() == [*PAID, *UNDONE]


def audited(path: Path) -> list[dict[str, Any]]:
    """Return what guards have written to a session's log."""
    query = "SELECT data FROM agentgraph_envelopes WHERE session_id = 's' ORDER BY sequence"
    with closing(sqlite3.connect(path)) as file:
        rows = [json.loads(row[0]) for row in file.execute(query)]
    found = [one.get("event_data", one) for one in rows]
    return [one for one in found if one.get("kind") in ("effect", "undoing", "decision")]


@pytest.mark.parametrize("way", REASON)
@DURABILITIES
@pytest.mark.parametrize("hang", ["undo jam before", "undo milk before", "undo tea after"])
def test_what_a_team_was_undoing_when_it_was_killed_is_undone_once_and_in_order(
    child: Pen, tmp_path: Path, hang: str, durability: str, way: str
) -> None:
    runs = Runs(child, tmp_path, "team", way, durability=durability, decides="reject")
    runs.kill(hang)
    told = runs.play()
    assert (told["status"], told["reason"]) == ("closed", REASON[way])
    assert runs.world.done() == [*PAID, *UNDONE]
    assert [one for one in runs.world.tries() if one.startswith("pay")] == PAID
    entries = [one["entry"] for one in audited(runs.path) if one["kind"] == "effect"]
    items = {one["key"]: one["args"]["item"] for one in entries if one["state"] == "started"}
    last = {items[one["key"]]: one["state"] for one in entries}
    assert last == dict.fromkeys(ITEMS, "compensated")


@DURABILITIES
def test_a_team_may_be_killed_at_each_of_them(child: Pen, tmp_path: Path, durability: str) -> None:
    runs = Runs(child, tmp_path, "team", "abort", durability=durability)
    for item in reversed(ITEMS):
        runs.kill(f"undo {item} before")
    assert runs.play()["reason"] == "loop_detector"
    assert runs.world.done() == [*PAID, *UNDONE]


@DURABILITIES
@pytest.mark.parametrize(
    "hang", ["think", "look", "undo jam before", "undo milk after", "undo tea after"]
)
def test_what_a_team_inside_of_another_did_is_undone_with_all_else(
    child: Pen, tmp_path: Path, hang: str, durability: str
) -> None:
    runs = Runs(child, tmp_path, "team", "inside", durability=durability)
    runs.kill(hang)
    told = runs.play()
    assert (told["status"], told["reason"]) == ("closed", "loop_detector")
    assert runs.world.done() == [*PAID, *UNDONE]
    assert [one for one in runs.world.tries() if one.startswith("pay")] == PAID


@DURABILITIES
def test_what_was_done_is_undone_where_a_round_kills_its_process_each_time(
    child: Pen, tmp_path: Path, durability: str
) -> None:
    runs = Runs(child, tmp_path, "team", "crash", durability=durability)
    for _ in range(5):
        runs.die()
    told = runs.play()
    assert (told["status"], told["reason"]) == ("closed", "round_failed")
    assert runs.world.done() == [*PAID, *UNDONE]


def test_undoing_that_kills_its_process_each_time_is_given_up_too(
    child: Pen, tmp_path: Path
) -> None:
    runs = Runs(child, tmp_path, "team", "crash")
    for _ in range(5):
        runs.die()
    for _ in range(5):
        runs.kill("undo jam before")
    told = runs.play(hang="undo jam before")
    assert (told["status"], told["reason"]) == ("closed", "round_failed")
    assert runs.world.done() == PAID


# Actions


@DURABILITIES
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_action_in_which_a_process_died_is_looked_up(
    child: Pen, tmp_path: Path, when: str, durability: str
) -> None:
    runs = Runs(child, tmp_path, "team", "lookup", durability=durability)
    runs.kill(f"pay milk {when}")
    told = runs.play()
    assert (told["status"], told["reason"]) == ("closed", "terminated")
    assert runs.world.tries() == PAID
    assert {one["kind"] for one in audited(runs.path)} == {"effect"}


@DURABILITIES
def test_what_a_replayed_action_has_led_to_it_leads_to_again(
    child: Pen, tmp_path: Path, durability: str
) -> None:
    runs = Runs(child, tmp_path, "team", "unknown", durability=durability)
    runs.kill("think")
    told = runs.play()
    assert told["context"] == dict.fromkeys(ITEMS, "paid")
    assert (runs.world.tries(), told["reason"]) == (PAID, "terminated")


@pytest.mark.parametrize("decision", ["approve", "reject"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_where_it_cannot_be_looked_up_a_human_is_asked_and_nothing_is_done_blindly(
    child: Pen, tmp_path: Path, when: str, decision: str
) -> None:
    runs = Runs(child, tmp_path, "team", "unknown")
    runs.kill(f"pay milk {when}")
    told = runs.play()
    assert (told["status"], told["asked"]) == ("waiting_decision", ["saga"])
    told = runs.play(decides=decision)
    tries = ["pay tea", *(["pay milk"] if when == "after" else [])]
    if decision == "approve":
        assert runs.world.tries() == [*tries, "pay jam"]
        assert told["reason"] == "terminated"
    else:
        assert runs.world.tries() == [*tries, "undo milk", "undo tea"]
        assert told["reason"] == "saga"
