"""`agentgraph audit`: who acted in a session, what it cost, what was decided and done."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentgraph import (
    Agent,
    FromSpeaker,
    Guards,
    HumanTarget,
    Session,
    Team,
    Transition,
    TransitionGraph,
    effect,
    sequence,
)
from agentgraph.guards import CostBudget, CostVelocity
from agentgraph.testing import ScriptedModel, call
from tests.cli.conversations import run
from tests.cli.stored_sessions import ask, clerk, hold, tear


def release(room: str) -> None:
    """Give a room back."""


@effect(compensate=release)
def book(room: str) -> str:
    """Book a room."""
    return "booked"


def look(order: str) -> str:
    """Look an order up."""
    return "nothing"


def regulated() -> Team:
    """A team whose first agent books a room, and then goes round in a circle."""
    same = [call("look", order="A")] * 7
    agent = Agent("host", model=ScriptedModel([call("book", room="12"), *same]), tools=[book, look])
    policy = Guards.regulated(velocity=None, budget=CostBudget(tokens=100_000))
    return Team([agent], sequence(["host"]), guards=policy)


async def ask_and_reject(session: Session) -> None:
    await session.send("user", "book me a room")
    [question] = (await session.settled()).interrupts
    await session.decide(question, {"type": "reject", "message": "enough"})
    await session.settled()


def audited(url: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records, and what they come to."""
    *records, total = map(json.loads, run("audit", url, "s", "--json").stdout.splitlines())
    return records, total


def test_run_is_told_with_its_decisions_and_what_was_undone(url: str) -> None:
    hold(url, regulated(), ask_and_reject)

    result = run("audit", url, "s")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "   2 user says: book me a room"
    assert [line.split(" (key")[0] for line in lines if "host:book" in line][:-1] == [
        "   3 host host:book: started",
        "   4 host host:book: done",
        "  10 host host:book: compensated",
    ]
    corrected = lines.index(next(line for line in lines if "loop_detector: correct" in line))
    assert 'cycle ["look"]' in lines[corrected + 1]
    assert any("loop_detector: escalate" in line for line in lines)
    assert any("asks a human: `look` was called 7 times" in line for line in lines)
    assert any('user decides: {"type": "reject", "message": "enough"}' in line for line in lines)
    assert "closed: loop_detector" in result.stdout
    began, ended = lines[-8:-6]
    assert began.startswith("began      20") and began.endswith(" UTC")
    assert ended.startswith("ended      20") and ended.endswith(" UTC: loop_detector")
    assert lines[-6:] == [
        "path       host",
        "steps      8 model calls, 0 hops",
        f"spend      {audited(url)[1]['spend']['total_tokens']:,} tokens",
        f"             host: {audited(url)[1]['spend']['total_tokens']:,}",
        "decisions  2 by guards, 1 by humans",
        "effects    host:book compensated",
    ]


def test_audit_comes_to_what_the_models_have_used(url: str) -> None:
    model = ScriptedModel([call("look", order="A"), "It is on its way."])
    other = ScriptedModel(["Indeed."])
    team = Team(
        [Agent("desk", model=model, tools=[look]), Agent("checker", model=other)],
        sequence(["desk", "checker"]),
    )
    hold(url, team, ask)

    records, total = audited(url)

    used = [one["data"]["total_tokens"] for one in records if one["kind"] == "settled"]
    assert total["path"] == ["desk", "checker"]
    assert total["steps"] == 3
    assert total["spend"]["total_tokens"] == sum(used) > 0
    assert [*total["usage"]["by_agent"]] == ["desk", "checker"]
    assert [one["data"]["tool"] for one in records if one["kind"] == "tool"] == ["look"]
    assert (records[0]["kind"], records[-1]["kind"]) == ("input", "end")
    assert total["decisions"] == []


def test_decision_is_told_with_what_it_rests_on(url: str) -> None:
    fast = CostVelocity(tokens_per_min=1, fast_s=1, slow_s=2, min_elapsed_s=0)
    model = ScriptedModel([*(call("look", order=name) for name in "ABC"), "never"])
    policy = Guards.interactive(velocity=fast)
    desk = Agent("desk", model=model, tools=[look])
    hold(url, Team([desk], sequence(["desk"]), guards=policy), ask)

    lines = run("audit", url, "s").stdout.splitlines()

    decided = next(n for n, line in enumerate(lines) if "cost_velocity: abort" in line)
    assert "tokens per min over 1 s" in lines[decided]
    assert "ceiling 1.0, fast " in lines[decided + 1]


def test_question_of_a_tool_and_the_answer_to_it_are_told(url: str) -> None:
    async def decided(session: Session) -> None:
        [question] = (await ask(session)).interrupts
        await session.decide(question, "yes")
        await session.settled()

    hold(url, clerk(), decided)

    told = run("audit", url, "s").stdout

    assert 'clerk asks a human: {"pay": 5}' in told
    assert "user decides: yes" in told


def test_each_input_is_a_run_of_its_own(url: str) -> None:
    async def twice(session: Session) -> None:
        await session.send("user", "once")
        await session.settled()
        await session.send("user", "and again")
        await session.settled()

    rules = TransitionGraph("desk", [Transition(FromSpeaker("user"), "desk")], HumanTarget())
    hold(url, Team([Agent("desk", model=ScriptedModel(["one", "two"]))], rules), twice)

    records, total = audited(url)

    runs = list(dict.fromkeys(one["run"] for one in records))
    assert len(runs) == 2
    assert total["steps"] == 2


@pytest.mark.parametrize(
    ("session", "told"),
    [("nobody", "agentgraph: there is no session 'nobody'"), ("s", "agentgraph: session 's'")],
)
def test_what_cannot_be_read_is_told_in_a_line(
    url: str, folder: Any, session: str, told: str
) -> None:
    hold(url, clerk(), ask)
    tear(folder / "desk.db", 2)

    result = run("audit", url, session)

    assert result.exit_code == 2
    assert result.stderr.startswith(told)
    assert result.stderr.count("\n") == 1
