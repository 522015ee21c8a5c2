"""What a guard of a user remembers survives the kills of processes, on threads and in sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.processes.killed_counters import MOST, looked
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

SIGKILL = 9


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen("tests.guards.processes.killed_counters") as kept:
        yield kept


@pytest.mark.parametrize("dies_in", [2, 3, 4])
@pytest.mark.parametrize("run", ["answer", "speak", "patch"])
def test_calls_of_killed_processes_count(
    child: Pen, tmp_path: Path, run: str, dies_in: int
) -> None:
    order = {"run": run, "url": str(tmp_path / "store.db"), "desk": str(tmp_path / "desk")}
    kills = 0
    for _ in range(12):
        child.begin(**order, dies_in=dies_in)
        told = child.until("text", "ended")
        ended = told if "ended" in told else child.until("ended")
        if "text" in told:
            assert ended["ended"] == 0, child.complaints()
            break
        assert ended["ended"] == SIGKILL, child.complaints()
        kills += 1
    assert kills
    if "text" not in told:  # each process gets so far, and no further
        child.begin(**order)
        assert "text" in child.until("text", "ended"), child.complaints()
        child.until("ended")
    assert looked(order["desk"]) == MOST
