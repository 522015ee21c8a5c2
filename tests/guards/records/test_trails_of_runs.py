"""The audit of a run, folded, gives back its path, its spend and its decisions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import Hub, Team, sequence
from agentgraph.guards import MemorySink, Record, Trail
from agentgraph.sessions import Envelope
from agentgraph.sessions.audit import audit_of
from agentgraph.sessions.state.record import SessionRecord
from tests.guards.records.random_agents import (
    NAMES,
    UNTOLD,
    Plan,
    Totals,
    TotalsGuard,
    World,
    answer_of,
    guards_of,
    plans,
    policies,
    told,
    trail_of,
    tree_of,
)

ANSWERS = st.lists(st.sampled_from(["approve", "edit", "reject", "respond"]), max_size=6)


@settings(max_examples=80)
@given(plans(), policies(), ANSWERS)
def test_whatever_an_agent_does_its_trail_tells(
    plan: Plan, policy: Mapping[str, Any], answers: list[str]
) -> None:
    world, sink, totals = World(), MemorySink(), TotalsGuard()
    agent = tree_of(plan, world, guards=guards_of(policy, sink, totals))
    heard = asyncio.run(told(agent, answers))
    trail = trail_of(sink)
    records = sink.read(sink.runs()[0])

    assert trail.path == world.path
    assert trail.steps == world.asked.total()
    assert Counter(one.agent for one in records if one.kind == "model") == world.asked
    assert (trail.spend.total_tokens, trail.spend.estimated_tokens) == (world.tokens, 0)
    if heard.end != "failed":
        assert heard.tokens == world.tokens
    decided = [one for one in trail.decisions if (one["guard"], one["action"]) not in UNTOLD]
    assert [dict(one) for one in decided] == [
        {name: value for name, value in one.items() if name != "agent"} for one in heard.decisions
    ]
    assert [one.data["decision"] for one in records if one.kind == "human"] == heard.humans
    assert (trail.end, trail.began_at is not None) == (heard.end, True)
    assert states(records) == {
        key: "compensated" if key in world.undone else "done" for key in world.paid
    }
    assert len(world.undone) == len(set(world.undone))
    assert [one.seq for one in records] == [*range(1, len(records) + 1)]
    assert totals.last == [totals_of(world, trail)]


def totals_of(world: World, trail: Trail) -> Totals:
    """Return what a guard has to know of what was done and decided."""
    tools = len(world.acted) - world.asked.total()
    decisions = tuple((str(one["guard"]), str(one["action"])) for one in trail.decisions)
    steps = world.asked.total()
    return Totals(steps, world.tokens, tools, trail.hops, decisions, limited=steps)


def states(records: list[Record]) -> dict[str, str]:
    """Return what became of each action that was begun."""
    kinds = ("effect", "compensated")
    last = {str(r.data["key"]): str(r.data["state"]) for r in records if r.kind in kinds}
    return {key: state for key, state in last.items() if state != "failed"}


@st.composite
def teams(draw: Any) -> tuple[list[Plan], list[str]]:
    """Draw agents, each with agents below, and the order in which they speak."""
    split = draw(st.integers(1, len(NAMES)))
    parts = [part for part in (NAMES[:split], NAMES[split:]) if part]
    members = [draw(plans(part)) for part in parts]
    names = [member.name for member in members]
    return members, [*names, *draw(st.lists(st.sampled_from(names), max_size=2))]


@settings(max_examples=40)
@given(teams(), policies(), ANSWERS)
def test_whatever_a_team_does_its_log_tells(
    given: tuple[list[Plan], list[str]], policy: Mapping[str, Any], answers: list[str]
) -> None:
    members, order = given
    world, sink, totals = World(), MemorySink(), TotalsGuard()
    guards = guards_of(policy, sink, totals)
    team = Team([tree_of(one, world) for one in members], sequence(order), guards=guards)

    record, envelopes = asyncio.run(held_by(team, answers))
    audit = audit_of(record, envelopes)
    kept, logged = trail_of(sink), audit.trail

    assert kept.path == logged.path == world.path
    assert kept.steps == logged.steps == world.asked.total()
    assert (kept.spend.total_tokens, kept.spend.estimated_tokens) == (world.tokens, 0)
    assert logged.spend.total_tokens == audit.usage.total_tokens == world.tokens
    used = {path: part.total_tokens for path, part in audit.usage.by_agent.items()}
    assert used == world.used
    decided = [dict(one) for one in logged.decisions if one["guard"] != "round"]
    assert [dict(one) for one in kept.decisions] == decided
    assert dict(Counter(kept.effects)) == dict(Counter(logged.effects))
    assert kept.end == logged.end != ""
    assert totals.last == [totals_of(world, kept)]


async def held_by(team: Team, answers: list[str]) -> tuple[SessionRecord, list[Envelope]]:
    """Hold a session, and answer whatever is asked in it."""
    left = list(answers)
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team, ttl=None, expectations=())
        await session.send("user", "go")
        state = await session.settled()
        while state.status == "waiting_decision":
            waiting = [key for key, one in state.interrupts.items() if "decision" not in one]
            await session.decide(waiting[0], answer_of(left.pop(0) if left else "reject"))
            state = await session.settled()
        return session.record, await session.history()
