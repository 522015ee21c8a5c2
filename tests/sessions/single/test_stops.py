"""Cancelling and rewinding in a session of one: its conversation is what a thread's would be."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import interrupt

from agentgraph.sessions import EV_CANCELLED, EV_PACKET, Hub
from agentgraph.testing import call
from tests.sessions.hub.test_cancel import Work
from tests.sessions.talk import PATIENCE_S, after, agent, of_type, settled, shown


def texts(messages: Any) -> list[tuple[str, str]]:
    return [(m.type, str(m.text)) for m in messages if m.text]


async def test_a_cancelled_run_leaves_its_messages_and_the_session_goes_on(log_url: str) -> None:
    work = Work()
    one = agent("b", call("look"), call("dig"), "so", tools=work.tools())
    async with await Hub.open(log_url, serve=[one]) as hub:
        session = await hub.session(one)
        await session.send("user", "dig, please")
        async with asyncio.timeout(PATIENCE_S):
            await work.begun.wait()
            await session.cancel()
        assert work.ends == ["cancelled"]
        (envelope,) = await of_type(session, EV_CANCELLED)
        data = envelope.event_data
        assert [m["type"] for m in data["messages"]][:3] == ["ai", "tool", "ai"]
        assert data["steps"] == {"b": []} and data["usage"]["b"]["total_tokens"] > 0
        assert session.state.status == "waiting_human"
        results = [m.text for m in await session.messages() if isinstance(m, ToolMessage)]
        assert results[0] == "a map"
        await after(session, "user", "elsewhere")
        prompt = shown(one)
        assert "a map" in prompt and "Outcome unknown" in prompt and "elsewhere" in prompt
        assert (await of_type(session, EV_PACKET))[-1].text == "so"


async def test_a_question_is_taken_back_with_its_run() -> None:
    def ask() -> str:
        """Ask."""
        return f"you said {interrupt('may I?')}"

    one = agent("b", call("ask"), "so", tools=[ask])
    async with await Hub.open(serve=[one]) as hub:
        session = await hub.session(one)
        state = await after(session, "user", "hello")
        assert state.interrupts
        await session.cancel()
        assert session.state.interrupts == {}
        await after(session, "user", "never mind")
        assert "Outcome unknown" in shown(one)


async def test_an_answer_is_given_again_without_the_first_one(log_url: str) -> None:
    one = agent("b", "first answer", "second answer", "third answer", "fourth answer")
    async with await Hub.open(log_url, serve=[one]) as hub:
        session = await hub.session(one)
        await after(session, "user", "hello")
        text = next(e for e in await session.history() if e.text == "hello")
        await session.rewind(text.sequence)
        await settled(session)
        assert texts(await session.messages()) == [("human", "hello"), ("ai", "second answer")]
        await after(session, "user", "more")
        assert "first answer" not in shown(one) and "second answer" in shown(one)
        await session.rewind(text.sequence - 1)
        await after(session, "user", "good evening")
        assert texts(await session.messages()) == [
            ("human", "good evening"),
            ("ai", "fourth answer"),
        ]
        assert "hello" not in shown(one)


async def test_a_window_is_read_in_the_live_branch(log_url: str) -> None:
    one = agent("b", history=4)
    async with await Hub.open(log_url, serve=[one]) as hub:
        session = await hub.session(one)
        for number in range(12):
            await after(session, "user", f"keep {number}")
            end = session.state.sequence
            await after(session, "user", f"drop {number}")
            await session.rewind(end)
        await after(session, "user", "last")
        assert "drop" not in shown(one) and "keep 11" in shown(one)
        assert not any("drop" in text for _, text in texts(await session.messages()))
        assert len(await session.messages()) == 26
