"""A run that an earlier version has begun goes on with this one, as one of its own would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.cells import Cell
from tests.contract.checks import faults
from tests.contract.earlier import BEGUN, STORED_AT, unpack
from tests.contract.matrix import MODULE, Outcome
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen(MODULE) as one:
        yield one


@pytest.mark.parametrize("cell", BEGUN, ids=str)
def test_a_run_of_an_earlier_version_goes_on(child: Pen, tmp_path: Path, cell: Cell) -> None:
    url, ledger = unpack(cell, tmp_path)
    subject = cell.subject
    names = [subject.operation, subject.home, subject.durability]
    decides = "reject" if subject.is_undone else "approve"
    order = {"url": url, "ledger": ledger.path, "subject": names}
    child.begin(**order, decides=decides, now=STORED_AT)
    assert child.until("ended")["ended"] == 0, child.complaints()
    assert faults(Outcome(cell, ledger.entries())) == []
