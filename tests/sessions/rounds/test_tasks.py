"""Tools that tell how far they are: a task for each call, from its first report to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import AgentGraphError
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    Envelope,
    Session,
    Team,
    report_progress,
)
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import after, held, settled, until

TASKS = (
    EV_TASK_STARTED,
    EV_TASK_PROGRESS,
    EV_TASK_COMPLETED,
    EV_TASK_FAILED,
    EV_TASK_EXPIRED,
)
STARTED, PROGRESS, COMPLETED, FAILED, EXPIRED = (one.rpartition(".")[2] for one in TASKS)


def desk(*tools: Any, calls: Sequence[Any] | None = None, **fields: Any) -> Team:
    """Return a team of one, whose model calls its tools once and then only speaks."""
    turns = iter([[call(one.name) for one in tools]] if calls is None else calls)
    model = ScriptedModel(lambda _: next(turns, "a speaks"))
    one = Agent("a", model=model, tools=tools, default_tools=False)
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    return Team([one], rules, **{"name": "desk", "expectations": (), **fields})


async def told(session: Session) -> list[Envelope]:
    return [one for one in await session.history() if one.event_type in TASKS]


async def kinds(session: Session) -> list[str]:
    return [one.event_type.rpartition(".")[2] for one in await told(session)]


@tool
def count() -> str:
    """Count."""
    for number in (1, 2, 3):
        report_progress(f"at {number}", fraction=number / 4)
    return "counted"


@tool
async def acount() -> str:
    """Count."""
    for number in (1, 2, 3):
        report_progress(f"at {number}", fraction=number / 4)
        await asyncio.wait({asyncio.ensure_future(_nothing())})
    return "counted"


async def _nothing() -> None: ...


@pytest.mark.parametrize("one", [count, acount], ids=["sync", "async"])
async def test_a_call_that_reports_is_a_task_from_its_first_report_to_its_end(one: Any) -> None:
    async with held(desk(one)) as session:
        await after(session, "user", "go")
        assert await kinds(session) == [STARTED, PROGRESS, PROGRESS, PROGRESS, COMPLETED]
        tasks = await told(session)
        assert len({envelope.event_data["task_id"] for envelope in tasks}) == 1
        for envelope in tasks:
            data = envelope.event_data
            assert (data["agent"], data["round"], data["attempt"]) == ("a", 1, 1)
        reports = [e.event_data for e in tasks if e.event_type == EV_TASK_PROGRESS]
        assert [(r["message"], r["fraction"]) for r in reports] == [
            ("at 1", 0.25),
            ("at 2", 0.5),
            ("at 3", 0.75),
        ]
        # All of it stands before the packet of its round.
        packet = next(e for e in await session.history() if e.event_type == EV_PACKET)
        assert tasks[-1].sequence < packet.sequence


async def test_reports_are_in_the_log_while_the_tool_still_runs() -> None:
    gate = asyncio.Event()

    @tool
    async def slow() -> str:
        """Work."""
        report_progress("half")
        await gate.wait()
        return "done"

    async with held(desk(slow)) as session:
        await session.send("user", "go")
        seen = []
        async for envelope in session.watch():
            seen.append(envelope.event_type)
            if envelope.event_type == EV_TASK_PROGRESS:
                break
        assert not gate.is_set() and EV_PACKET not in seen
        gate.set()
        await settled(session)
        assert await kinds(session) == [STARTED, PROGRESS, COMPLETED]


async def test_reports_of_a_thread_are_in_the_log_while_it_still_runs() -> None:
    gate = threading.Event()

    @tool
    def slow() -> str:
        """Work."""
        report_progress("half")
        gate.wait(20)
        return "done"

    async with held(desk(slow)) as session:
        await session.send("user", "go")
        async for envelope in session.watch():
            if envelope.event_type == EV_TASK_PROGRESS:
                break
        gate.set()
        await settled(session)
        assert await kinds(session) == [STARTED, PROGRESS, COMPLETED]


async def test_a_call_that_reports_nothing_is_no_task() -> None:
    @tool
    def quiet() -> str:
        """Work."""
        return "done"

    async with held(desk(quiet)) as session:
        await after(session, "user", "go")
        assert await kinds(session) == []


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_task_of_a_tool_that_raises_has_failed(kind: str) -> None:
    def bad() -> str:
        """Fail."""
        report_progress("so far")
        raise RuntimeError("no")

    async def abad() -> str:
        """Fail."""
        return bad()

    async with held(desk(tool("bad")(bad if kind == "sync" else abad))) as session:
        await after(session, "user", "go")
        assert await kinds(session) == [STARTED, PROGRESS, FAILED]


async def test_calls_side_by_side_are_tasks_of_their_own() -> None:
    gate = asyncio.Event()

    @tool
    async def good() -> str:
        """Work."""
        report_progress("good")
        await gate.wait()
        return "done"

    @tool
    async def bad() -> str:
        """Fail."""
        report_progress("bad")
        raise RuntimeError("no")

    async with held(desk(good, bad)) as session:
        await session.send("user", "go")
        async for envelope in session.watch():
            if envelope.event_type == EV_TASK_FAILED:
                break
        assert COMPLETED not in await kinds(session)
        gate.set()
        await settled(session)
        ends: dict[str, str] = {}
        messages: dict[str, str] = {}
        for one in await told(session):
            messages.setdefault(one.event_data["task_id"], one.event_data.get("message", ""))
            messages[one.event_data["task_id"]] = (
                one.event_data.get("message") or messages[one.event_data["task_id"]]
            )
            ends[one.event_data["task_id"]] = one.event_type
        assert {messages[key]: end for key, end in ends.items()} == {
            "good": EV_TASK_COMPLETED,
            "bad": EV_TASK_FAILED,
        }


async def test_a_task_that_is_cut_off_by_the_deadline_has_expired_and_begins_again() -> None:
    hangs = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        report_progress("begun")
        if not hangs.is_set():
            hangs.set()
            await asyncio.Event().wait()
        return "done"

    clock = FakeClock()
    async with held(desk(hang, calls=[call("hang"), call("hang")]), clock=clock) as session:
        await session.send("user", "go")
        await hangs.wait()
        clock.advance(181)
        await settled(session)
        assert await kinds(session) == [STARTED, PROGRESS, EXPIRED, STARTED, PROGRESS, COMPLETED]
        tasks = await told(session)
        assert [one.event_data["attempt"] for one in tasks] == [1, 1, 1, 2, 2, 2]
        assert len({one.event_data["task_id"] for one in tasks}) == 1  # the same call, run again


async def test_a_thread_that_outlives_its_round_reports_to_nobody() -> None:
    begun, gate, over = threading.Event(), threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        """Work."""
        report_progress("begun")
        begun.set()
        gate.wait(20)
        report_progress("too late")
        over.set()
        return "done"

    clock = FakeClock()
    team = desk(slow, calls=[call("slow"), "instead", "more"])
    async with held(team, clock=clock) as session:
        await session.send("user", "go")
        await asyncio.to_thread(begun.wait, 20)
        clock.advance(181)
        await settled(session)
        gate.set()
        await asyncio.to_thread(over.wait, 20)
        await after(session, "user", "more")
        assert await kinds(session) == [STARTED, PROGRESS, EXPIRED]


async def test_the_task_of_a_round_that_fails_has_ended_with_its_call() -> None:
    turns = [call("count"), RuntimeError("down"), "at last"]
    async with held(desk(count, calls=turns)) as session:
        await after(session, "user", "go")
        log = [one.event_type for one in await session.history()]
        assert log.index(EV_TASK_COMPLETED) < log.index(EV_ROUND_FAILED)
        assert (await kinds(session)).count(COMPLETED) == 1


async def test_a_task_that_a_close_breaks_off_has_expired_before_the_end() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        report_progress("begun")
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with held(desk(hang)) as session:
        await session.send("user", "go")
        await begun.wait()
        await until(lambda: session.state.sequence >= 4)
        await session.close()
        assert await kinds(session) == [STARTED, PROGRESS, EXPIRED]
        assert (await session.history())[-1].event_type == EV_SESSION_CLOSED


async def test_a_task_waits_with_its_call_for_a_human() -> None:
    @tool
    def ask() -> str:
        """Ask."""
        report_progress("asking")
        return str(interrupt("may I?"))

    async with held(desk(ask)) as session:
        state = await after(session, "user", "go")
        assert state.status == "waiting_decision"
        assert await kinds(session) == [STARTED, PROGRESS]
        (asked,) = state.interrupts
        await session.decide(asked, "yes")
        await settled(session)
        assert (await kinds(session))[-1] == COMPLETED
        assert (await kinds(session)).count(COMPLETED) == 1


async def test_speakers_side_by_side_end_their_own_tasks() -> None:
    gate = asyncio.Event()

    @tool
    async def slow() -> str:
        """Work."""
        report_progress("slow")
        await gate.wait()
        return "done"

    @tool
    async def fast() -> str:
        """Work."""
        report_progress("fast")
        return "done"

    def one(name: str, of: Any) -> Agent:
        turns = iter([call(of.name)])
        model = ScriptedModel(lambda _: next(turns, f"{name} speaks"))
        return Agent(name, model=model, tools=[of], default_tools=False)

    rules = TransitionGraph(
        "c",
        [
            Transition(FromSpeaker("c"), ParallelTarget(("a", "b"), "user")),
            Transition(FromSpeaker("user"), "c"),
        ],
        HumanTarget(),
    )
    first = Agent("c", model=ScriptedModel(["go"]), default_tools=False)
    async with held(Team([one("a", slow), one("b", fast), first], rules)) as session:
        await session.send("user", "hello")
        await until(lambda: session.state.spoken == ("b",))
        ended = [
            e.event_data["agent"] for e in await told(session) if e.event_type == EV_TASK_COMPLETED
        ]
        assert ended == ["b"]
        gate.set()
        await settled(session)
        ended = [
            e.event_data["agent"] for e in await told(session) if e.event_type == EV_TASK_COMPLETED
        ]
        assert ended == ["b", "a"]


@pytest.mark.parametrize(
    "given",
    [
        (5, None),
        (None, None),
        (b"x", None),
        ("x", "half"),
        ("x", float("nan")),
        ("x", float("inf")),
        ("x", True),
        ("x" * 300_000, None),
    ],
    ids=lambda given: str(given)[:20],
)
async def test_a_report_that_no_log_can_hold_is_refused_in_the_tool(given: Any) -> None:
    met: list[str] = []

    @tool
    def bad() -> str:
        """Report."""
        with pytest.raises(AgentGraphError):
            report_progress(given[0], fraction=given[1])
        met.append("refused")
        return "done"

    async with held(desk(bad)) as session:
        state = await after(session, "user", "go")
        assert met == ["refused"] and state.status == "waiting_human"
        assert await kinds(session) == []


async def test_outside_of_a_round_there_is_nothing_to_report_to() -> None:
    with pytest.raises(AgentGraphError) as refused:
        report_progress("hello?")
    assert refused.value.code == "outside_round"


async def test_a_thousand_reports_are_all_there_in_order() -> None:
    @tool
    def busy() -> str:
        """Work."""
        for number in range(1_000):
            report_progress(str(number))
        return "done"

    async with held(desk(busy)) as session:
        await after(session, "user", "go")
        reports = [
            e.event_data["message"] for e in await told(session) if "message" in e.event_data
        ]
        assert reports == [str(number) for number in range(1_000)]
        numbers = [one.sequence for one in await session.history()]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_the_tools_of_a_graph_that_is_not_ours_can_report() -> None:
    from langchain.agents import create_agent

    turns = iter([call("count")])
    model = ScriptedModel(lambda _: next(turns, "a speaks"))
    foreign = create_agent(model, tools=[count], name="a")
    async with held(Team([foreign], sequence(["a"]))) as session:
        await after(session, "user", "go")
        assert await kinds(session) == [STARTED, PROGRESS, PROGRESS, PROGRESS, COMPLETED]
