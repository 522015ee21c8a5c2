"""A few of the kills of `make soak`: what is bought is bought once, what is rejected is undone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one

import pytest

from tests.guards.processes.soak import KINDS, MODULE, Shop, faults, played
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen(MODULE) as kept:
        yield kept


@pytest.mark.parametrize("kind", KINDS[1::2], ids=" ".join)
@pytest.mark.parametrize("is_rejected", [True, False], ids=["rejected", "bought"])
def test_shop_survives_the_kills_of_its_processes(
    child: Pen, tmp_path: Path, is_rejected: bool, kind: tuple[str, str, str]
) -> None:
    shop = Shop(*kind, tmp_path, looks_up=True, resends=is_rejected, is_rejected=is_rejected)
    played(child, shop, Random(0), {})
    assert list(faults(shop)) == []
