"""What each durability promises of a thread whose process is killed, at any step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.run.killed_steps import INSTANTS, STEPS
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(240)

SIGKILL = 9
TAKEN = [part for n in range(1, STEPS + 1) for part in (["ai", ""], ["tool", f"step {n}"])]
WHOLE = [["human", "go"], *TAKEN, ["ai", "done"]]


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen("tests.agents.run.killed_steps") as kept:
        yield kept


def told(child: Pen, **order: Any) -> dict[str, Any]:
    child.begin(**order)
    result = child.until("messages", "ended")
    assert "messages" in result, child.complaints()
    assert child.until("ended")["ended"] == 0, child.complaints()
    return result


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("instant", INSTANTS)
def test_thread_is_as_it_was_at_a_step_that_its_durability_promises(
    child: Pen, tmp_path: Path, instant: str, durability: str
) -> None:
    order = {"url": f"sqlite:///{tmp_path}/a.db", "durability": durability}
    child.begin(**order, kill=instant)
    assert child.until("ended")["ended"] == SIGKILL, child.complaints()

    messages = told(child, **order, do="look")["messages"]

    what, _, number = instant.partition(" ")
    if what == "end":  # the run has returned
        assert messages == WHOLE
        return
    assert messages == WHOLE[: len(messages)]
    if durability == "sync":  # each step before the one that was killed
        assert len(messages) == 2 * int(number) + (what == "model")
    if durability == "exit":
        assert messages == []
    after = told(child, **order, do="continue")
    # Nothing of an input that was stored need be shown before its first step.
    has_begun = bool(messages) or (durability == "async" and after["text"] == "done")
    assert after["text"] == ("done" if has_begun else "not_cut_off")
    assert after["messages"] == (WHOLE if has_begun else [])
