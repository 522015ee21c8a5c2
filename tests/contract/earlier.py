"""Stores with runs that an earlier version has begun and not ended: this one goes on with them.

`python -m tests.contract.earlier` writes them into `tests/contract/stores/`, with the version whose
`agentgraph` is on the path. Write them anew with a released version, never with the one under test:

    git worktree add /tmp/earlier <its tag> && cp -r tests/contract /tmp/earlier/tests/
    cd /tmp/earlier && PYTHONPATH=. python -m tests.contract.earlier
"""

from __future__ import annotations

import gzip
import signal
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tests.contract.cells import AFTER_EFFECT, INSIDE, MEMORYLESS, UNSEEN, Cell, Subject
from tests.contract.ledger import Ledger
from tests.contract.matrix import MODULE
from tests.sessions.kills import Pen, pen

STORES = Path(__file__).with_name("stores")
BEGUN = tuple(
    Cell(Subject(*subject), instant, MEMORYLESS, "sqlite")
    for *subject, instant in (
        ("effect", "thread", "sync", AFTER_EFFECT),
        ("interrupt", "thread", "async", UNSEEN),
        ("sub-agent", "thread", "sync", INSIDE),
        ("effect", "alone", "step", AFTER_EFFECT),
        ("interrupt", "team", "round", UNSEEN),
        ("effect", "flow", "sync", AFTER_EFFECT),
        ("compensation", "flow", "sync", INSIDE),
    )
)


STORED_AT = 1_795_187_100.0
"""A minute after the runs were begun: their time limits are counted from then."""


def name_of(cell: Cell) -> str:
    """Return the name of the files in which a run is stored."""
    subject = cell.subject
    return f"{subject.operation}-{subject.home}-{subject.durability}".replace(" ", "-")


def begin(child: Pen, cell: Cell, folder: Path) -> None:
    """Begin a run in a process that is killed, and store what it leaves."""
    subject = cell.subject
    names = [subject.operation, subject.home, subject.durability]
    file, ledger = folder / f"{name_of(cell)}.db", folder / f"{name_of(cell)}.ledger"
    decides = "reject" if subject.is_undone else "approve"
    order = {"url": f"sqlite:///{file}", "ledger": str(ledger), "subject": names}
    child.begin(**order, kill=cell.instant, decides=decides)
    assert child.until("ended")["ended"] == signal.SIGKILL, child.complaints()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
    packed = gzip.compress(file.read_bytes(), mtime=0)
    STORES.mkdir(exist_ok=True)
    (STORES / f"{file.name}.gz").write_bytes(packed)
    (STORES / ledger.name).write_bytes(ledger.read_bytes())


def unpack(cell: Cell, folder: Path) -> tuple[str, Ledger]:
    """Unpack a stored run; return the URL of its store, and its ledger."""
    file, ledger = folder / f"{name_of(cell)}.db", folder / f"{name_of(cell)}.ledger"
    file.write_bytes(gzip.decompress((STORES / f"{file.name}.gz").read_bytes()))
    ledger.write_bytes((STORES / ledger.name).read_bytes())
    return f"sqlite:///{file}", Ledger(str(ledger))


if __name__ == "__main__":
    with pen(MODULE) as process, tempfile.TemporaryDirectory() as name:
        for each in BEGUN:
            begin(process, each, Path(name))
