"""What is paid for by processes that are killed in the middle of a call: never more than may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards.metered_models import PAID
from tests.guards.processes.killed_spenders import spent
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def kept() -> Iterator[Pen]:
    with pen("tests.guards.processes.killed_spenders") as kept:
        yield kept


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the test's own, that outlives its processes."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return str(request.getfixturevalue("postgres").url)


def killed(kept: Pen, calls: int, **order: Any) -> str | None:
    """Kill a process in the middle of its nth call; return why it ended before, if it did."""
    kept.begin(**order, dies_in=calls)
    told = kept.until("begun", "status", "ended")
    assert "ended" not in told, kept.complaints()
    if "status" in told:
        kept.until("ended")
        return str(told["reason"])
    kept.kill()
    return None


def ended(kept: Pen, **order: Any) -> str:
    """Let a process bring it to its end; return why that came."""
    kept.begin(**order)
    told = kept.until("status", "ended")
    assert "status" in told, kept.complaints()
    reason = str(told["reason"])
    kept.until("ended")
    return reason


def order_of(url: str, tmp_path: Path, calls: int, **fields: Any) -> dict[str, Any]:
    """Return the order to go on with what these calls may pay for."""
    order = {"run": "play", "url": url, "till": str(tmp_path / "till"), "looks": 1}
    return {**order, "budget": calls * PAID, **fields}


@pytest.mark.parametrize(("kind", "calls"), [("turns", 4), ("parallel", 5)])
@pytest.mark.parametrize("durability", ["round", "step"])
def test_a_session_whose_every_round_is_killed_once_never_overspends(
    kept: Pen, url: str, tmp_path: Path, durability: str, kind: str, calls: int
) -> None:
    order = order_of(url, tmp_path, 40, durability=durability, kind=kind)
    # A process begins with the round that killed the last one, and dies in the next.
    reason = killed(kept, 2, **order)
    for _ in range(30):
        reason = reason or killed(kept, calls, **order)
    assert reason == "cost_budget"
    assert order["budget"] / 3 < spent(order["till"]) <= order["budget"]


@pytest.mark.parametrize("durability", ["round", "step"])
def test_a_round_that_is_killed_again_and_again_never_overspends(
    kept: Pen, url: str, tmp_path: Path, durability: str
) -> None:
    order = order_of(url, tmp_path, 20, durability=durability, looks=30)
    reason = None
    for _ in range(4):
        reason = reason or killed(kept, 3, **order)
    assert (reason or ended(kept, **order)) == "cost_budget"
    assert order["budget"] / 3 < spent(order["till"]) <= order["budget"]


def test_the_budget_of_a_stage_holds_over_the_kills_of_its_process(
    kept: Pen, url: str, tmp_path: Path
) -> None:
    order = order_of(url, tmp_path, 20, stage=True)
    reason = killed(kept, 2, **order)
    for _ in range(30):
        reason = reason or killed(kept, 6, **order)
    assert reason == "cost_budget"
    assert spent(order["till"], "alice") <= order["budget"]
    assert spent(order["till"]) > order["budget"] / 2


def test_a_session_that_nobody_kills_spends_what_it_may(
    kept: Pen, url: str, tmp_path: Path
) -> None:
    order = order_of(url, tmp_path, 40)
    assert ended(kept, **order) == "cost_budget"
    assert order["budget"] * 0.8 < spent(order["till"]) <= order["budget"]


@pytest.mark.parametrize(("workers", "looks", "calls"), [(0, 100, 2), (4, 2, 3), (4, 2, 6)])
def test_an_agent_that_is_killed_in_the_middle_of_calls_never_overspends(
    kept: Pen, url: str, tmp_path: Path, workers: int, looks: int, calls: int
) -> None:
    order = order_of(url, tmp_path, 40, run="answer", looks=looks, workers=workers)
    reason = None
    for _ in range(30):
        reason = reason or killed(kept, calls, **order)
    assert reason == "cost_budget"
    assert order["budget"] / 4 < spent(order["till"]) <= order["budget"]


def test_an_agent_that_nobody_kills_spends_what_it_may(kept: Pen, url: str, tmp_path: Path) -> None:
    order = order_of(url, tmp_path, 24, run="answer", looks=100)
    assert ended(kept, **order) == "cost_budget"
    assert order["budget"] / 2 < spent(order["till"]) <= order["budget"]
