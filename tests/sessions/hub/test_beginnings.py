"""Inputs that are answered at once, or not at all: one at a time, whichever hub begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from langchain_core.tools import tool
from langgraph.types import interrupt

from agentgraph import Agent, Hub, Session
from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError, SessionClosed, SessionError
from agentgraph.sessions import EV_DECISION, EV_TEXT
from agentgraph.stream import TokenEvent
from agentgraph.testing import ScriptedModel, call

OpenHub: TypeAlias = Callable[[Agent[Any]], Awaitable[Hub]]


@tool
def ask(question: str) -> str:
    """Ask a human."""
    return f"they said {interrupt(question)}"


def desk(*turns: Any, **fields: Any) -> Agent[Any]:
    return Agent("desk", model=ScriptedModel(turns), default_tools=False, **fields)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return str(request.getfixturevalue("postgres").url)


@pytest.fixture
async def opened(url: str) -> AsyncIterator[OpenHub]:
    """Open hubs on one store."""
    async with AsyncExitStack() as stack:

        async def opened(agent: Agent[Any]) -> Hub:
            return await stack.enter_async_context(await Hub.open(url, serve=[agent]))

        yield opened


class Working:
    """A tool that works until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def work(self) -> str:
        """Work."""
        self.begun.set()
        await self.go.wait()
        return "worked"


async def refused(begin: Awaitable[object]) -> str:
    with pytest.raises(SessionError) as error:
        await begin
    return error.value.code


async def texts(session: Session) -> list[str]:
    return [str(message.text) for message in await session.messages()]


async def test_nothing_begins_while_a_run_is_under_way(opened: OpenHub) -> None:
    working = Working()
    one = await opened(desk(call("work"), "done", tools=[working.work]))
    other = await opened(desk("never"))
    session = await one.session("desk", id="s")
    receipt = await session.begin("user", "go")
    await working.begun.wait()

    elsewhere = await other.get("s")
    codes = [await refused(of.begin("user", "and?")) for of in (session, elsewhere)]
    odd = [await refused(of.begin_decided("user", {"a": 1})) for of in (session, elsewhere)]
    working.go.set()
    answer = await session.answer(receipt.id)

    assert (codes, odd) == (["busy"] * 2, ["unknown_interrupt"] * 2)
    assert answer.text == "done"
    assert await texts(session) == ["go", "", "worked", "done"]


async def test_hub_that_begins_runs_it_also_where_another_had_the_session(opened: OpenHub) -> None:
    one, other = await opened(desk("one", "one again")), await opened(desk("other"))
    session = await one.session("desk", id="s")
    await session.ask("hi")
    elsewhere = await other.get("s")
    second = await elsewhere.answer((await elsewhere.begin("user", "and?")).id)
    back = await one.get("s")
    third = await back.answer((await back.begin("user", "well?")).id)

    assert (second.text, third.text) == ("other", "one again")
    assert await texts(back) == ["hi", "one", "and?", "other", "well?", "one again"]


async def test_of_many_inputs_at_once_one_begins(opened: OpenHub) -> None:
    working = Working()
    hubs = [await opened(desk(call("work"), "done", tools=[working.work])) for _ in range(2)]
    await hubs[0].session("desk", id="s")
    handles = [await hub.get("s") for hub in hubs]
    begun = [handles[n % 2].begin("user", f"hi {n}") for n in range(10)]

    outcomes = await asyncio.gather(*begun, return_exceptions=True)
    working.go.set()
    receipts = [one for one in outcomes if not isinstance(one, BaseException)]
    answer = await handles[0].answer(receipts[0].id)

    assert len(receipts) == 1
    assert {getattr(one, "code", "begun") for one in outcomes} == {"begun", "busy"}
    said = [e for e in await handles[0].history() if e.event_type == EV_TEXT]
    assert (len(said), answer.text) == (1, "done")


async def test_of_many_decisions_one_is_made(opened: OpenHub) -> None:
    hubs = [await opened(desk(call("ask", question="may I?"), "done", tools=[ask]))]
    hubs.append(await opened(desk("done", tools=[ask])))
    session = await hubs[0].session("desk", id="s")
    (question,) = (await session.ask("go")).interrupts
    handles = [await hub.get("s") for hub in hubs]

    outcomes = await asyncio.gather(
        *(handles[n % 2].begin_decided("user", {question.id: "yes"}) for n in range(6)),
        return_exceptions=True,
    )
    receipts = [one for one in outcomes if not isinstance(one, BaseException)]
    answer = await handles[0].answer(receipts[0].id)

    codes = {getattr(one, "code", "begun") for one in outcomes}
    assert len(receipts) == 1
    assert codes <= {"begun", "busy", "already_decided"}
    assert answer.text == "done"
    assert await refused(handles[1].begin_decided("user", {question.id: "no"})) == "already_decided"
    decided = [e for e in await handles[0].history() if e.event_type == EV_DECISION]
    assert len(decided) == 1


async def test_decisions_are_carried_out_together(opened: OpenHub) -> None:
    calls = [call("ask", question="a?"), call("ask", question="b?")]
    hub = await opened(desk(calls, "done", tools=[ask]))
    session = await hub.session("desk")
    first, second = (await session.ask("go")).interrupts

    assert (
        await refused(session.begin_decided("user", {first.id: 1, "odd": 2})) == "unknown_interrupt"
    )
    receipt = await session.begin_decided("user", {second.id: "B", first.id: "A"})
    answer = await session.answer(receipt.id)

    assert (answer.text, answer.interrupts) == ("done", ())
    assert await texts(session) == ["go", "", "they said A", "they said B", "done"]


async def test_input_takes_an_open_question_back(opened: OpenHub) -> None:
    one = await opened(desk(call("ask", question="may I?"), tools=[ask]))
    other = await opened(desk("as you like", tools=[ask]))
    session = await one.session("desk", id="s")
    (question,) = (await session.ask("go")).interrupts
    elsewhere = await other.get("s")

    answer = await elsewhere.answer((await elsewhere.begin("user", "never mind")).id)
    late = await refused((await one.get("s")).decide(question.id, "yes"))

    assert (answer.text, answer.interrupts, late) == ("as you like", (), "unknown_interrupt")
    said = await texts(elsewhere)
    assert said[2].startswith("Outcome unknown")
    assert [said[0], *said[3:]] == ["go", "never mind", "as you like"]


async def test_nothing_begins_after_the_end_nor_by_a_stranger(opened: OpenHub) -> None:
    hub = await opened(desk("never"))
    session = await hub.session("desk")
    with pytest.raises(ConfigurationError, match="'bob' takes no part"):
        await session.begin("bob", "hi")
    await session.close()
    with pytest.raises(SessionClosed):
        await session.begin("user", "hi")


async def test_run_waits_for_a_reader_of_all_its_events() -> None:
    words = " ".join(str(n) for n in range(2_000))
    async with await Hub.open(serve=[desk(words)]) as hub:
        session = await hub.session("desk")
        with hub.live.all_events(session.key) as events:
            receipt = await session.begin("user", "count")
            for _ in range(200):
                await clock().sleep(0)
            state = session.state
            told = [await events.get() for _ in range(2_000)]
        answer = await session.answer(receipt.id)

    assert state.is_runnable
    tokens = [event for event in told if isinstance(event, TokenEvent)]
    assert (
        "".join(token.text for token in tokens) == answer.text[: sum(len(t.text) for t in tokens)]
    )
    assert [event.sequence for event in tokens] == [*range(1, len(tokens) + 1)]


async def test_messages_of_a_run_under_way_are_shown_without_an_outcome() -> None:
    working = Working()

    def look() -> str:
        """Look."""
        return "looked"

    agent = desk([call("look"), call("work")], "done", tools=[look, working.work])
    async with await Hub.open(serve=[agent]) as hub:
        session = await hub.session("desk")
        receipt = await session.begin("user", "go")
        await working.begun.wait()
        while "looked" not in (said := await texts(session)):
            await clock().sleep(0)
        working.go.set()
        await session.answer(receipt.id)
        after = await texts(session)

    assert said == ["go", "", "looked"]
    assert after == ["go", "", "looked", "worked", "done"]
