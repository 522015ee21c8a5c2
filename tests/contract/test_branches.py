"""Branches of one run begin equal, run apart, ask anew, and never run each other's effects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cells import AFTER_EFFECT, BEFORE_DISPATCH, COMMITTED, INSIDE, UNSEEN, Subject
from tests.contract.ledger import Ledger
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

SIGKILL = 9
KILLS = pytest.mark.parametrize("kill", [BEFORE_DISPATCH, INSIDE, AFTER_EFFECT, COMMITTED])
STORES = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen("tests.contract.branches") as one:
        yield one


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return str(request.getfixturevalue("postgres").url)


class Branches:
    """Processes, one after the other, on one store."""

    def __init__(self, child: Pen, url: str, folder: Path, subject: Subject) -> None:
        self._child, self.ledger = child, Ledger(str(folder / "ledger"))
        names = [subject.operation, subject.home, subject.durability]
        self._order: dict[str, Any] = {"url": url, "ledger": self.ledger.path, "subject": names}

    def play(self, status: int = 0, **order: Any) -> None:
        """Have a process run to its end, or to the instant at which it is killed."""
        self._child.begin(**self._order, **order)
        assert self._child.until("ended")["ended"] == status, self._child.complaints()

    def payments(self, item: str) -> list[str]:
        """Return the keys under which something was paid for."""
        return [entry.key for entry in self.ledger.entries("paid") if entry.item == item]

    def check_apart(self) -> None:
        """Check that the branch began as the other one, and that the other one stayed as it was."""
        pairs = [entry.data for entry in self.ledger.entries("begins", "beside")]
        assert pairs and all(one == other for one, other in pairs)


@STORES
@KILLS
@pytest.mark.parametrize("durability", ["round", "step"])
def test_a_fork_that_is_killed_pays_once_and_under_keys_of_its_own(
    child: Pen, url: str, tmp_path: Path, kill: str, durability: str
) -> None:
    runs = Branches(child, url, tmp_path, Subject("effect", "team", durability))
    runs.play()
    runs.play(SIGKILL, run="branch", kill=kill)
    runs.play(run="branch")
    assert len(runs.payments("tea")) == 1  # before the fork
    for item in ("milk", "jam"):
        assert len(runs.payments(item)) == len(set(runs.payments(item))) == 2
    runs.check_apart()


@STORES
@pytest.mark.parametrize("kill", [UNSEEN, INSIDE])
def test_a_fork_asks_anew_and_takes_another_decision(
    child: Pen, url: str, tmp_path: Path, kill: str
) -> None:
    runs = Branches(child, url, tmp_path, Subject("asked effect", "team", "round"))
    runs.play(decides="approve")
    assert [entry.data for entry in runs.ledger.entries("acted")] == ["approve"]
    status = SIGKILL if kill == UNSEEN else 0  # a refused payment is none
    runs.play(status, run="branch", kill=kill, decides="refuse")
    runs.play(run="branch", decides="refuse")
    assert {entry.data for entry in runs.ledger.entries("acted")} == {"approve", "refuse"}
    assert len(runs.payments("milk")) == 1
    assert "refused milk" in str(runs.ledger.entries("end")[-1].data)
    runs.check_apart()


@STORES
@KILLS
@pytest.mark.parametrize("durability", ["round", "step"])
def test_a_rewound_session_pays_again_once_and_uses_no_key_again(
    child: Pen, url: str, tmp_path: Path, kill: str, durability: str
) -> None:
    runs = Branches(child, url, tmp_path, Subject("effect", "alone", durability))
    runs.play(greets=False)
    runs.play(SIGKILL, run="branch", kill=kill)
    runs.play(run="branch")
    for item in ("tea", "milk", "jam"):
        assert len(runs.payments(item)) == len(set(runs.payments(item))) == 2


@STORES
@pytest.mark.parametrize("operation", ["interrupt", "asked effect"])
def test_a_copied_thread_takes_a_decision_of_its_own(
    child: Pen, url: str, tmp_path: Path, operation: str
) -> None:
    runs = Branches(child, url, tmp_path, Subject(operation, "thread", "sync"))
    runs.play(SIGKILL, kill=UNSEEN)
    runs.play(run="branch", decides="refuse")
    assert runs.payments("milk") == []
    assert "refused milk" in str(runs.ledger.entries("end")[-1].data)
    runs.check_apart()
    runs.play(decides="approve", greets=False)
    assert len(runs.payments("milk")) == 1
    assert "paid milk" in str(runs.ledger.entries("end")[-1].data)


@STORES
def test_a_copied_thread_runs_nothing_again_that_was_recorded_and_pays_under_keys_of_its_own(
    child: Pen, url: str, tmp_path: Path
) -> None:
    runs = Branches(child, url, tmp_path, Subject("effect", "thread", "sync"))
    runs.play(SIGKILL, kill=AFTER_EFFECT)
    runs.play(run="branch")
    runs.check_apart()
    assert len(runs.payments("tea")) == 1
    runs.play(greets=False)  # its own payment is looked up
    for item in ("milk", "jam"):
        assert len(runs.payments(item)) == len(set(runs.payments(item))) == 2
