"""A short cut of `make contract`: each way to work, instant, restart and store, once at least."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.cells import INSTANTS, RESTARTS, STORES, SUBJECTS, Cell, cells, sample
from tests.contract.checks import faults
from tests.contract.matrix import Bench, bench

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("cells"), postgres_url) as one:
        yield one


@pytest.mark.parametrize("cell", sample(), ids=str)
def test_what_the_contract_promises_holds_after_a_kill(played: Bench, cell: Cell) -> None:
    outcome = played.play(cell)
    assert outcome.is_reached, "list the cell as senseless, or mend its subject"
    assert faults(outcome) == []


def test_the_short_cut_has_each_row_and_each_column() -> None:
    chosen = sample()
    assert {cell.subject for cell in chosen} == set(SUBJECTS)
    pairs = {(cell.instant, cell.restart) for cell in chosen}
    assert pairs == {(instant, restart) for instant in INSTANTS for restart in RESTARTS}
    assert {cell.store for cell in chosen} == set(STORES)
    assert set(chosen) <= set(cells())
