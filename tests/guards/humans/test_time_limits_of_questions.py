"""An escalation that nobody decides in time is denied, and undone, though nobody looks at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Agent, Hub
from agentgraph.guards import Escalation, MemorySink
from agentgraph.sessions import EV_DECISION
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.guards.escalating_agents import PLACES, Till, asked, clerk, tree, unsure
from tests.guards.guarded_agents import audited
from tests.guards.humans.test_humans_in_teams import Desk
from tests.guards.processes.killed_agents import ITEMS, World
from tests.sessions.kills import pen
from tests.sessions.talk import of_type, settled, until

TTL_S = 60.0

everywhere = pytest.mark.parametrize("place", PLACES)


def brief(sink: MemorySink | None = None) -> Any:
    """Return guards whose questions have a time limit."""
    critic = unsure("doubt").escalation.critic
    return unsure("doubt", sink, escalation=Escalation(0.85, critic, ttl_s=TTL_S))


# On a thread: the next call that runs


@everywhere
@pytest.mark.parametrize("way", ["message", "continue"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_next_call_on_a_thread_denies_what_is_overdue_and_undoes_it(
    place: str, way: str, durability: Any, tmp_path: Path
) -> None:
    till, sink = Till(), MemorySink()
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    worker = clerk(till, "doubt")
    agent = tree(place, worker, guards=brief(sink), checkpointer=url, durability=durability)
    with FakeClock().installed() as clock:
        await asked(agent)
        clock.advance(TTL_S + 1)
        if way == "continue":
            reply = await agent.acontinue("t")
            assert (reply.close_reason, reply.interrupts) == ("escalation_timeout", ())
        else:
            guards = unsure("", MemorySink())
            reply = await agent.replace(guards=guards).ainvoke("Are you there?", thread_id="t")
            assert reply.close_reason is None
    assert till.tries == ["pay tea", "give back tea"]
    if way == "continue":
        assert audited(sink)[-1][1:] == ("escalation_timeout", "deny")


async def test_decision_that_comes_too_late_for_one_question_denies_the_other(
    tmp_path: Path,
) -> None:
    """Of two questions only one is decided, when both are overdue."""
    till = Till()
    workers = [clerk(till, "doubt", name).replace(name=name) for name in ("ann", "bob")]
    calls = [call(f"transfer_to_{worker.name}") for worker in workers]
    boss = Agent("boss", model=ScriptedModel([calls]), agents=workers, handoff="delegate")
    escalation = Escalation(0.85, lambda subject: 0.2, ttl_s=TTL_S)
    boss = boss.replace(guards=unsure("", escalation=escalation))
    with FakeClock().installed() as clock:
        reply = await boss.ainvoke("go", thread_id="t")
        assert len(reply.interrupts) == 2
        clock.advance(TTL_S + 1)
        reply = await boss.aresume("t", {reply.interrupts[0].id: "approve"})
    assert (reply.close_reason, reply.interrupts) == ("escalation_timeout", ())
    assert sorted(till.tries) == ["give back ann", "give back bob", "pay ann", "pay bob"]


async def test_question_that_is_in_time_is_dropped_by_a_message() -> None:
    till = Till()
    agent = clerk(till, "doubt").replace(guards=brief())
    with FakeClock().installed() as clock:
        await asked(agent)
        clock.advance(TTL_S)
        await agent.ainvoke("Are you there?", thread_id="t")
    assert till.tries == ["pay tea"]


def test_several_processes_deny_and_undo_an_overdue_question_once(tmp_path: Path) -> None:
    module = "tests.guards.processes.killed_threads"
    world = World(str(tmp_path / "world.db"))
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    order = {"run": "play", "url": url, "world": world.path, "has_doubts": True}
    with pen(module) as first, pen(module) as second:
        first.begin(**order)
        assert len(first.until("asked", "ended")["asked"]) == 1, first.complaints()
        first.until("ended")
        for child in (first, second):
            child.begin(**order, says="doubt", later_s=1e6)
        for child in (first, second):
            assert "asked" in child.until("asked", "ended"), child.complaints()
            child.until("ended")
    undone = [f"undo {item}" for item in reversed(ITEMS)]
    assert world.tries() == [*(f"pay {item}" for item in ITEMS), *undone]


# In a session: the hub, though nobody looks


@everywhere
@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_hub_denies_what_is_overdue_and_undoes_it_though_nobody_looks(
    place: str, is_elsewhere: bool, tmp_path: Path
) -> None:
    till, sink = Till(), MemorySink()
    desk = Desk(tmp_path, place, "doubt", till, sink=sink, escalation=brief().escalation)
    clock = FakeClock()
    async with desk.hub(clock=clock) as session:
        await desk.asked(session)
        if not is_elsewhere:
            await passed(clock, lambda: till.left == [])
    if is_elsewhere:
        clock.advance(TTL_S + 1)
        team = desk.team()
        async with await Hub.open(desk.url, serve=[team], clock=clock):
            await until(lambda: till.left == [])
    assert till.tries == ["pay tea", "give back tea"]
    async with desk.hub(clock=clock) as session:
        state = await settled(session)
        assert (state.status, state.pending_close_reason) == ("closed", "escalation_timeout")
        [denial] = await of_type(session, EV_DECISION)
        assert denial.sender_id == "ag.hub"
    assert audited(sink)[-1][1:] == ("escalation_timeout", "deny")


async def test_hub_denies_what_is_overdue_in_a_session_of_one(tmp_path: Path) -> None:
    till = Till()
    agent = clerk(till, "doubt").replace(guards=brief())
    clock = FakeClock()
    async with await Hub.open(f"sqlite:///{tmp_path / 's.db'}", serve=[agent], clock=clock) as hub:
        session = await hub.session("clerk", id="s")
        await session.send("user", "pay for tea")
        assert (await settled(session)).status == "waiting_decision"
        await passed(clock, lambda: till.left == [])
        assert (await settled(session)).status == "waiting_human"
    assert till.tries == ["pay tea", "give back tea"]


async def test_two_hubs_deny_and_undo_an_overdue_question_once(tmp_path: Path) -> None:
    till = Till()
    desk = Desk(tmp_path, "root", "doubt", till, escalation=brief().escalation)
    clock = FakeClock()
    async with desk.hub(clock=clock) as session:
        await desk.asked(session)
        async with await Hub.open(desk.url, serve=[desk.team()], clock=clock):
            await passed(clock, lambda: till.left == [])
            await settled(session)
    assert till.tries == ["pay tea", "give back tea"]


async def passed(clock: FakeClock, is_reached: Callable[[], bool]) -> None:
    """Let a minute pass in steps of a second, and wait until something is reached."""
    for _ in range(int(TTL_S) + 2):
        await clock.asleep()
        assert not is_reached()
        clock.advance(1)
    await until(is_reached)
