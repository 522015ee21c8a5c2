"""The page of the peers tells what their probes found, and nothing else."""

from __future__ import annotations

import json

from benchmarks.contract.page import PAGE, RESULTS, page_of
from benchmarks.contract.probes import PROBES
from benchmarks.contract.registry import CONTESTANTS, PROPERTIES

LONGEST_PAGE = 130


def test_the_page_is_made_of_the_results() -> None:
    page = PAGE.read_text("utf-8")
    assert page == page_of(json.loads(RESULTS.read_text("utf-8")))
    assert page.count("\n") <= LONGEST_PAGE


def test_each_peer_has_a_result_for_each_property_and_its_versions() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    assert [*results] == [contestant.key for contestant in CONTESTANTS]
    assert list(PROBES) == list(PROPERTIES)
    for contestant in CONTESTANTS:
        found = results[contestant.key]
        assert list(found["versions"]) == list(contestant.packages)
        assert list(found["probes"]) == list(PROPERTIES)
        verdicts = {probe["verdict"] for probe in found["probes"].values()}
        assert verdicts <= {"held", "broken", "not offered"}
