"""What a session comes to whose processes are killed: what it would have come to without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one

import pytest

from tests.sessions.crashing import Ledger
from tests.sessions.kills import (
    AtWrite,
    InRound,
    Pen,
    Played,
    checkpoint_rows,
    faults,
    pen,
    played,
)

DURABILITIES = ("round", "step")


@pytest.fixture(scope="module")
def kept() -> Iterator[Pen]:
    with pen() as kept:
        yield kept


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the test's own, that outlives its processes."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return str(request.getfixturevalue("postgres").url)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(
    "kind",
    [
        "turns",
        "parallel",
        "asked-parallel",
        "once",
        "cancelled",
        "rewound",
        "private",
        "single",
        "single-asked",
    ],
)
async def test_a_session_survives_the_kills_of_its_processes(
    kept: Pen, url: str, tmp_path: Path, kind: str, durability: str
) -> None:
    ledger = str(tmp_path / "ledger")
    whole = played(kept, url, ledger, "whole", kind, durability)
    assert whole.round_s > 0
    drawn = Random(f"{url[:6]} {kind} {durability}")
    at_write = AtWrite(drawn.choice(("before", "after")), drawn.randint(1, 5))
    # Within the first half of the round: it is under way, also where the machine is fast by now.
    last = 1 if kind == "single-asked" else 2  # in one process
    in_round = InRound(drawn.randint(1, last), drawn.random() / 2)
    killed = played(
        kept,
        url,
        str(tmp_path / "other-ledger"),
        "killed",
        kind,
        durability,
        in_round,
        at_write,
        round_s=whole.round_s,
    )
    assert (await faults(whole), await faults(killed)) == ([], [])
    assert killed.kills.total() == 2, killed.kills


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_what_a_session_leaves_that_was_killed_as_it_closed_is_cleared_away(
    kept: Pen, url: str, tmp_path: Path, durability: str
) -> None:
    result = Played(url, str(tmp_path / "other"), "killed", "turns")
    order = {"ledger": result.ledger, "session": "killed", "kind": "turns"}
    kept.begin(url=url, **order, durability=durability, deadly=("ended", 0))
    assert kept.until("ended")["ended"] == 9
    assert "it was not given back" in await faults(result)
    if durability == "step":
        assert checkpoint_rows(url, "killed") > 0
    # Another session's process clears it away.
    played(kept, url, str(tmp_path / "third"), "another", "turns", durability)
    assert await faults(result) == []


def test_what_runs_again_pays_again_under_the_same_key(kept: Pen, url: str, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger")
    order = {"url": url, "ledger": ledger, "session": "s", "kind": "turns", "durability": "round"}
    for _ in range(2):
        kept.begin(**order, poison=False, deadly=("before", 5))  # the first packet
        assert kept.until("ended")["ended"] == 9
    assert Ledger(ledger).entries() == [(1, "milk", 2), (1, "tea", 2)]
