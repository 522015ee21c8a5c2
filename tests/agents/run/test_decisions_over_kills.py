"""Processes are killed on a decision: it is on record, counts, and cannot be made otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.run.killed_deciders import PLACES
from tests.postgres import Database
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

MODULE = "tests.agents.run.killed_deciders"
SIGKILL = 9
DURABILITIES = ("sync", "async", "exit")

STORES = ("sqlite", "postgres")
CASES = [
    *(("sqlite", place, durability) for place in PLACES for durability in DURABILITIES),
    *(("postgres", *pair) for pair in zip(PLACES, DURABILITIES, strict=True)),
]

durable = pytest.mark.parametrize("durability", DURABILITIES)


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen(MODULE) as kept:
        yield kept


def url_of(store: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{folder}/a.db"
    database: Database = request.getfixturevalue("postgres")
    return database.url


class Thread:
    """A thread on which one process after the other runs an agent."""

    def __init__(self, child: Pen, url: str, folder: Path, **fields: Any) -> None:
        self._child, self._world = child, folder / "world"
        self.order = {"url": url, "world": str(self._world), **fields}

    def play(self, do: str, **more: Any) -> dict[str, Any]:
        """Have a process run to its end; return what it has told."""
        self._child.begin(**self.order, do=do, **more)
        told = self._child.until("text", "refused", "open", "ended")
        assert "ended" not in told, self._child.complaints()
        assert self._child.until("ended")["ended"] == 0, self._child.complaints()
        return told

    def die(self, kill: str, **more: Any) -> None:
        """Have a process kill itself once it has acted on a decision."""
        self._child.begin(**self.order, do="decide", kill=kill, **more)
        assert self._child.until("ended")["ended"] == SIGKILL, self._child.complaints()

    def acts(self) -> set[str]:
        return set(self._world.read_text().splitlines())


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_decision_that_was_acted_on_before_a_kill_counts(
    child: Pen, tmp_path: Path, case: tuple[str, str, str], request: pytest.FixtureRequest
) -> None:
    store, place, durability = case
    url = url_of(store, request, tmp_path)
    thread = Thread(child, url, tmp_path, place=place, durability=durability)
    [question] = thread.play("ask")["asked"].values()
    thread.die("tea", decisions={question: "yes"}, sender="ann")

    assert thread.play("look")["open"] == []
    told = thread.play("decide", decisions={question: "no"}, sender="bob")
    assert (told["refused"], told["decision"], told["sender"]) == ("already_decided", "yes", "ann")
    assert told["decided_at"].endswith("+00:00")
    do = "decide" if CASES.index(case) % 2 else "continue"
    told = thread.play(do, decisions={question: "yes"})
    assert told["text"] == "tea: yes"
    assert thread.acts() == {"tea: yes"}


@pytest.mark.parametrize(("place", "durability"), [*zip(PLACES, DURABILITIES, strict=True)])
def test_of_several_questions_those_without_a_decision_stay_open_over_a_kill(
    child: Pen, tmp_path: Path, place: str, durability: str
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    items = ["tea", "milk"]
    thread = Thread(child, url, tmp_path, place=place, durability=durability, items=items)
    asked = thread.play("ask")["asked"]
    tea, milk = (asked[f"pay for {item}?"] for item in items)
    thread.die("tea", decisions={tea: "yes"})

    assert thread.play("look")["open"] == [milk]
    refused = thread.play("decide", decisions={tea: "no", milk: "no"})
    assert refused["refused"] == "already_decided"
    assert thread.play("decide", decisions={milk: "no"})["text"] == "tea: yes milk: no"
    assert thread.acts() == {"tea: yes", "milk: no"}


@durable
def test_run_that_was_killed_on_one_of_two_decisions_goes_on_to_the_other_question(
    child: Pen, tmp_path: Path, durability: str
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    thread = Thread(child, url, tmp_path, durability=durability, items=["tea", "milk"])
    asked = thread.play("ask")["asked"]
    thread.die("tea", decisions={asked["pay for tea?"]: "yes"})

    assert [*thread.play("continue")["asked"]] == ["pay for milk?"]
    assert thread.play("continue")["refused"] == "waits_for_decisions"


@durable
@pytest.mark.parametrize("store", STORES)
def test_of_two_processes_that_decide_at_once_one_counts(
    child: Pen, tmp_path: Path, store: str, durability: str, request: pytest.FixtureRequest
) -> None:
    url = url_of(store, request, tmp_path)
    thread = Thread(child, url, tmp_path, durability=durability)
    [question] = thread.play("ask")["asked"].values()
    with pen(MODULE) as other:
        for process, answer in ((child, "yes"), (other, "no")):
            order = {"do": "decide", "decisions": {question: answer}, "sender": answer}
            process.begin(**thread.order, **order)
        told = [process.until("text", "refused", "ended") for process in (child, other)]
        for process in (child, other):
            assert process.until("ended")["ended"] == 0, process.complaints()
    [lost] = [one for one in told if "refused" in one]
    [won] = [one for one in told if "text" in one]
    assert lost["refused"] == "already_decided"
    assert won["text"] == f"tea: {lost['decision']}" and lost["sender"] == lost["decision"]
    assert thread.acts() == {won["text"]}
