"""A few of the kills of `make soak-flows`: no finished work again, no effect twice, all undone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one
from typing import Any

import pytest

from tests.flow.killed_flows import TOPOLOGIES, WORKERS
from tests.flow.soak import MODULE, Story, faults, finish, played
from tests.postgres import Database
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

SIGKILL = 9
KINDS = [*zip(TOPOLOGIES, ("rejected", "replanned", "aborted", "asked", "approved"), strict=True)]


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen(MODULE) as kept:
        yield kept


def unkilled(child: Pen, story: Story) -> Story:
    """Return the same flow, played without a kill."""
    folder = story.folder.parent / "unkilled"
    model = Story(story.topology, story.end, folder, looks_up=story.looks_up)
    finish(child, model)
    return model


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_killed_flow_comes_to_the_end_of_an_unkilled_one(
    child: Pen, tmp_path: Path, kind: tuple[str, str]
) -> None:
    story = Story(*kind, tmp_path / "t")
    played(child, story, Random(7), {}, most=3)
    assert [*faults(story, unkilled(child, story))] == []


@pytest.mark.parametrize("instant", ["before", "after", "answered", "finished"])
def test_worker_that_is_killed_goes_on_where_it_was(
    child: Pen, tmp_path: Path, instant: str
) -> None:
    story = Story("supervisor", "finished", tmp_path / "t")
    for name in WORKERS[:3]:
        child.begin(**story.order, kill=f"{instant} {name}")
        assert child.until("ended")["ended"] == SIGKILL, child.complaints()
    finish(child, story)
    assert [*faults(story, unkilled(child, story))] == []


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_what_is_stored_late_is_done_again_and_all_of_it_is_undone(
    child: Pen, tmp_path: Path, durability: str
) -> None:
    story = Story("sop", "aborted", tmp_path / "t", durability=durability)
    child.begin(**story.order, kill="answered b")
    assert child.until("ended")["ended"] == SIGKILL, child.complaints()
    paid_before = [item for what, item, _ in story.books.acts() if what == "pay"]
    assert paid_before == ["a1", "b1"]
    finish(child, story)
    acts = story.books.acts()
    paid = [(item, key) for what, item, key in acts if what == "pay"]
    assert sorted(paid) == sorted((item, key) for what, item, key in acts if what == "undo")
    assert story.told["done"]["status"] == "aborted"
    assert durability != "exit" or [item for item, _ in paid].count("a1") == 2


@pytest.mark.parametrize("end", ["rejected", "aborted"])
def test_undoing_goes_on_in_another_process(child: Pen, tmp_path: Path, end: str) -> None:
    story = Story("hierarchical", end, tmp_path / "t")
    for instant in ("undoing a", "undone y", "undoing x"):
        child.begin(**story.order, kill=instant)
        story.kills += child.until("ended")["ended"] == SIGKILL
    assert story.kills == 3
    finish(child, story)
    assert [*faults(story, unkilled(child, story))] == []


def test_flows_on_postgres_survive_kills(child: Pen, tmp_path: Path, postgres: Database) -> None:
    story = Story("debate", "aborted", tmp_path / "t", postgres.url)
    played(child, story, Random(3), {}, most=3)
    assert [*faults(story, unkilled(child, story))] == []


def play(child: Pen, story: Story, **changes: Any) -> dict[str, Any]:
    """Have a process go on to the end of the flow; return what it has told."""
    child.begin(**{**story.order, **changes})
    told = child.until("done", "ended")
    assert "done" in told, child.complaints()
    child.until("ended")
    return told


def kept_and_undone(story: Story) -> tuple[list[str], list[str]]:
    """Return the keys of what was paid for and not undone, and of what was undone."""
    acts = story.books.acts()
    undone = [key for what, _, key in acts if what == "undo"]
    return [key for what, _, key in acts if what == "pay" and key not in undone], undone


def test_new_input_takes_over_what_a_cut_off_flow_has_done(child: Pen, tmp_path: Path) -> None:
    story = Story("sop", "finished", tmp_path / "t")
    child.begin(**story.order, kill="after b")
    assert child.until("ended")["ended"] == SIGKILL
    told = play(child, story, end="rejected", says="anew")
    kept, undone = kept_and_undone(story)
    paid = [key for what, _, key in story.books.acts() if what == "pay"]
    assert (kept, undone, len(paid)) == ([], paid[::-1], 5)
    replaced = "report was cut off before the end, and a new task took its place."
    assert told["messages"][:3] == ["go", replaced, "anew"]


def test_new_input_that_is_answered_undoes_nothing(child: Pen, tmp_path: Path) -> None:
    story = Story("supervisor", "finished", tmp_path / "t")
    child.begin(**story.order, kill="answered c")
    assert child.until("ended")["ended"] == SIGKILL
    assert play(child, story, says="anew")["done"]["status"] == "finished"
    kept, undone = kept_and_undone(story)
    assert (len(kept), undone) == (6, [])
    # A later one that is rejected undoes its own effects only.
    play(child, story, end="rejected", says="and again")
    kept, undone = kept_and_undone(story)
    assert (len(kept), len(undone)) == (6, 3)


def test_flow_that_waits_is_replaced_and_its_effects_are_undone_with_the_new_input(
    child: Pen, tmp_path: Path
) -> None:
    story = Story("handoff", "rejected", tmp_path / "t")
    [question] = play(child, story, waits=True)["asked"]
    play(child, story, says="anew")
    kept, undone = kept_and_undone(story)
    assert (kept, len(undone)) == ([], 6)
    assert play(child, story, decides={question: "approve"})["refused"] == "unknown_interrupt"


def test_flow_that_is_not_undone_yet_is_undone_before_a_new_input(
    child: Pen, tmp_path: Path
) -> None:
    story = Story("sop", "rejected", tmp_path / "t")
    child.begin(**story.order, kill="undoing b")
    assert child.until("ended")["ended"] == SIGKILL
    play(child, story, end="finished", says="anew")
    acts = [what for what, _, _ in story.books.acts() if what in ("pay", "undo")]
    assert acts == [*["pay"] * 3, *["undo"] * 3, *["pay"] * 3]


def test_input_that_was_stored_and_not_begun_is_not_lost(child: Pen, tmp_path: Path) -> None:
    story = Story("sop", "finished", tmp_path / "t")
    play(child, story)
    child.begin(**story.order, says="more", kill="stored")
    assert child.until("ended")["ended"] == SIGKILL
    told = play(child, story, end="rejected", says="anew")
    kept, undone = kept_and_undone(story)
    assert (len(kept), len(undone)) == (3, 3)  # what was answered before stays
    assert [text for text in told["messages"] if text in ("go", "more", "anew")] == [
        "go",
        "more",
        "anew",
    ]


@pytest.mark.parametrize("topology", ["supervisor", "handoff"])
def test_one_of_two_decisions_counts(child: Pen, tmp_path: Path, topology: str) -> None:
    story = Story(topology, "rejected", tmp_path / "t")
    [question] = play(child, story, waits=True)["asked"]
    with pen(MODULE) as other:
        for process, decision in ((child, "approve"), (other, "reject")):
            process.begin(**story.order, decides={question: decision})
        told = [process.until("done", "ended") for process in (child, other)]
        for process in (child, other):
            process.until("ended")
    refused = [one.get("refused") for one in told]
    assert sorted(map(str, refused)) == ["None", "already_decided"]
    is_approved = refused[0] is None
    kept, undone = kept_and_undone(story)
    assert (len(kept), len(undone)) == ((3, 0) if is_approved else (0, 3))


@pytest.mark.parametrize("place", ["agent", "delegate", "tool", "team", "alone"])
def test_flow_in_its_place_is_undone_over_kills(child: Pen, tmp_path: Path, place: str) -> None:
    story = Story("sop", "rejected", tmp_path / "t")
    order = {**story.order, "run": "seated", "place": place}
    for instant in ("answered b", "undone b", "undoing a"):
        child.begin(**order, kill=instant)
        assert child.until("ended")["ended"] == SIGKILL, child.complaints()
    play(child, story, run="seated", place=place)
    acts = story.books.acts()
    paid = [key for what, _, key in acts if what == "pay"]
    kept, undone = kept_and_undone(story)
    assert (len(paid), kept) == (3, [])
    assert [*dict.fromkeys(undone)] == paid[::-1]
