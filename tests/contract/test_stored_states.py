"""What is torn is found when it is read, by a typed error, wherever a run was cut off."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.cells import Cell
from tests.contract.earlier import BEGUN, unpack
from tests.contract.matrix import MODULE
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

TEAR = "UPDATE {0} SET {1} = substr({1}, 1, length({1}) - 9) WHERE length({1}) > 40"
TYPED = r"^agentgraph\.[\w.]*(StorageError|DamagedSession): .*[Rr]estore"
COLUMNS = {
    "thread": [("checkpoints", "checkpoint"), ("checkpoints", "metadata")],
    "flow": [("checkpoints", "checkpoint")],
    "alone": [("agentgraph_envelopes", "data")],
    "team": [("agentgraph_envelopes", "data"), ("checkpoints", "checkpoint")],
}


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen(MODULE) as one:
        yield one


@pytest.mark.parametrize(
    ("cell", "place"),
    [(cell, place) for cell in BEGUN for place in COLUMNS[cell.subject.home]],
    ids=str,
)
def test_nobody_goes_on_from_what_is_torn(
    child: Pen, tmp_path: Path, cell: Cell, place: tuple[str, str]
) -> None:
    url, ledger = unpack(cell, tmp_path)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
        assert file.execute(TEAR.format(*place)).rowcount > 0
    paid = ledger.entries("paid")
    subject = cell.subject
    names = [subject.operation, subject.home, subject.durability]
    child.begin(url=url, ledger=ledger.path, subject=names)
    assert child.until("ended")["ended"] == 1
    assert re.search(TYPED, child.complaints(), re.MULTILINE), child.complaints()
    assert ledger.entries("paid") == paid
