"""A reader who holds a run back uses up none of its time, and nobody is blamed for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from agentgraph import Agent
from agentgraph.clock import clock
from agentgraph.errors import ModelError
from agentgraph.guards import Deadlines, Guards
from agentgraph.stream import Event, FinalStateEvent
from agentgraph.testing import FakeClock, Fault, ScriptedModel, call

STEP_S, STAGE_S, WORKFLOW_S = 10.0, 30.0, 60.0
WORDS = 200
TEXT = "word " * WORDS


class Hanging(BaseChatModel):
    """A model that stops in the middle of its answer."""

    @property
    def _llm_type(self) -> str:
        return "hanging"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Hanging:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(WORDS):
            yield ChatGenerationChunk(message=AIMessageChunk(content="word ", id="hung"))
        await clock().sleep(1e6)


@pytest.fixture
def time() -> Iterator[FakeClock]:
    with FakeClock().installed() as time:
        yield time


def guards() -> Guards:
    return Guards.interactive(deadlines=Deadlines(STEP_S, STAGE_S, WORKFLOW_S))


async def settled() -> None:
    """Let everybody go on until they wait for somebody else."""
    for _ in range(500):
        await clock().sleep(0)


async def read_with_a_pause(events: AsyncIterator[Event], time: FakeClock) -> list[Event]:
    """Read ten events, wait for longer than anything may take, and read the rest."""
    read: list[Event] = []
    async for event in events:
        read.append(event)
        if len(read) == 10:
            await settled()
            time.advance(2 * WORKFLOW_S)
            await settled()
    return read


def text_of(events: list[Event]) -> str:
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert final.close_reason is None
    return final.text


async def test_a_reader_who_pauses_for_longer_than_all_deadlines_gets_the_whole_answer(
    time: FakeClock,
) -> None:
    def note() -> str:
        """Note it."""
        return "noted"

    said = AIMessage(TEXT, tool_calls=[{"name": "note", "args": {}, "id": "1"}])
    leaf = Agent("Leaf", model=ScriptedModel([said, "That is all."]), tools=[note])
    root = Agent(
        "Root", model=ScriptedModel([call("transfer_to_Leaf")]), agents=[leaf], guards=guards()
    )

    events = await read_with_a_pause(root.astream("hi"), time)

    assert text_of(events) == "That is all."
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_parallel_branches_behind_one_reader_are_all_left_their_time(time: FakeClock) -> None:
    children = [Agent(name, model=ScriptedModel([TEXT])) for name in ("One", "Two")]
    both = [call("transfer_to_One"), call("transfer_to_Two")]
    root = Agent(
        "Root",
        model=ScriptedModel([both, "Both are done."]),
        agents=children,
        handoff="delegate",
        guards=guards(),
    )

    events = await read_with_a_pause(root.astream("hi"), time)

    assert text_of(events) == "Both are done."


async def test_slow_readers_do_not_open_the_breaker_for_others(time: FakeClock) -> None:
    agent = Agent("Solo", model=ScriptedModel(lambda _: TEXT), guards=guards())

    for _ in range(6):
        await read_with_a_pause(agent.astream("hi"), time)

    assert (await agent.ainvoke("hi")).text == TEXT


async def test_a_model_that_hangs_after_a_pause_is_cut_off_at_its_deadline(time: FakeClock) -> None:
    agent = Agent("Solo", model=Hanging(), guards=guards())
    reading = asyncio.ensure_future(read_with_a_pause(agent.astream("hi"), time))
    await time.asleep()

    time.advance(STEP_S - 0.5)
    await settled()
    assert not reading.done()
    time.advance(1)

    with pytest.raises(ModelError, match="by the deadline of the step"):
        await reading


async def test_a_stage_without_a_limit_is_held_to_the_one_around_it(time: FakeClock) -> None:
    unlimited = Guards.interactive(deadlines=Deadlines(None, None, None))
    policy = Guards.interactive(
        deadlines=Deadlines(None, STAGE_S, None), stages={"Leaf": unlimited}
    )
    leaf = Agent("Leaf", model=ScriptedModel([Fault.delay(1e6, "late")]))
    mid = Agent("Mid", model=ScriptedModel([call("transfer_to_Leaf")]), agents=[leaf])
    root = Agent(
        "Root", model=ScriptedModel([call("transfer_to_Mid")]), agents=[mid], guards=policy
    )
    answering = asyncio.ensure_future(root.ainvoke("hi"))
    await time.asleep()

    time.advance(STAGE_S + 1)

    assert (await answering).close_reason == "deadline:stage"
