"""One question takes one decision: of twelve processes, on each store, through hubs and servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.cells import UNSEEN, Subject
from tests.contract.crowd import DECIDERS, crowd
from tests.contract.ledger import Ledger
from tests.contract.matrix import MODULE
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

ASKING = [
    Subject("interrupt", "thread", "async"),
    Subject("asked effect", "thread", "sync"),
    Subject("interrupt", "flow", "sync"),
    Subject("interrupt", "alone", "round"),
    Subject("asked effect", "team", "step"),
]


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen(MODULE) as one:
        yield one


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("subject", ASKING, ids=str)
def test_one_of_twelve_decisions_is_acted_on_and_the_others_hear_of_it(
    child: Pen, request: pytest.FixtureRequest, tmp_path: Path, subject: Subject, store: str
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if store == "postgres":
        url = request.getfixturevalue("postgres").url
    ledger = Ledger(str(tmp_path / "ledger"))
    names = [subject.operation, subject.home, subject.durability]
    child.begin(url=url, ledger=ledger.path, subject=names, kill=UNSEEN)
    assert child.until("ended")["ended"] == 9, child.complaints()
    assert ledger.entries("acted") == []

    crowd(url, ledger.path, subject)

    accepted = [entry.item for entry in ledger.entries("accepted")]
    refused = [str(entry.data) for entry in ledger.entries("refused")]
    assert (len(accepted), len(refused)) == (1, DECIDERS - 1)
    assert [entry.data for entry in ledger.entries("acted")] == accepted
    assert [entry.item for entry in ledger.entries("paid")].count("milk") == 1
    assert [text for text in refused if "decided" not in text] == []
