"""What a stream tells of graphs that are not ours, and of models that name themselves late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import ModelError
from agentgraph.graphs.compiled import AnyGraph
from agentgraph.running import Run
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    Event,
    InterruptEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from agentgraph.telling import EventEmitter
from agentgraph.testing import Fault, ScriptedModel, call


def lookup(order: str) -> str:
    """Look an order up."""
    return f"{order} is lost"


def approve() -> str:
    """Ask a human."""
    return str(interrupt("may I?"))


class LateNames(BaseChatModel):
    """Give an id with the first chunk only, as some providers do."""

    @property
    def _llm_type(self) -> str:
        return "late-names"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("one two"))])

    async def _astream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="one", id="msg_1"))
        yield ChatGenerationChunk(message=AIMessageChunk(content=" two"))


async def told(agent: Agent, said: str = "hi") -> list[Event]:
    return [event async for event in agent.astream(said)]


def with_peer(*turns: Any) -> Agent:
    peer = create_agent(ScriptedModel(list(turns)), [lookup], name="peer")
    model = ScriptedModel([call("transfer_to_peer")])
    return Agent("boss", model=model, agents=[peer])


async def test_tools_of_a_foreign_graph_are_told_as_they_run() -> None:
    events = await told(with_peer(call("lookup", order="A7"), "It is lost."))

    seen = [e for e in events if isinstance(e, ToolUsageEvent | ToolResponseEvent | AIMessageEvent)]
    asked, answered, said = seen
    assert isinstance(asked, ToolUsageEvent)
    assert isinstance(answered, ToolResponseEvent)
    assert isinstance(said, AIMessageEvent)
    assert (asked.agent, asked.tool, asked.args) == ("boss/peer", "lookup", {"order": "A7"})
    assert (answered.content, answered.status) == ("A7 is lost", "success")
    assert asked.call_id == answered.call_id != ""
    assert (said.agent, said.text) == ("boss/peer", "It is lost.")


async def test_failure_of_a_foreign_graph_is_typed_and_told_with_its_path() -> None:
    events: list[Event] = []

    with pytest.raises(ModelError, match="peer"):
        async for event in with_peer(Fault.rate_limit()).astream("hi"):
            events.append(event)  # noqa: PERF401 - what was told before the error counts

    assert [(e.agent, e.code) for e in events if isinstance(e, ErrorEvent)] == [
        ("boss/peer", "model")
    ]


async def test_text_of_an_agent_inside_a_foreign_graph_is_told_once() -> None:
    leaf = Agent("leaf", model=ScriptedModel(["Only once."]))
    builder: AnyGraph = StateGraph(MessagesState)
    builder.add_node("leafy", leaf.graph)
    builder.add_edge(START, "leafy")
    wrap = builder.compile(name="wrap")
    boss = Agent("boss", model=ScriptedModel([call("transfer_to_wrap")]), agents=[wrap])

    events = await told(boss)

    assert [e.text for e in events if isinstance(e, AIMessageEvent)] == ["Only once."]


async def test_tokens_have_the_id_of_their_message_also_where_the_first_alone_has_one() -> None:
    events = await told(Agent("late", model=LateNames()))

    tokens = [e for e in events if isinstance(e, TokenEvent)]
    [said] = [e for e in events if isinstance(e, AIMessageEvent)]
    assert [e.text for e in tokens] == ["one", " two"]
    assert {e.message_id for e in tokens} == {said.message_id} == {"msg_1"}


async def test_question_names_who_asks_at_depth_two() -> None:
    leaf = Agent("leaf", model=ScriptedModel([call("approve")]), tools=[approve])
    mid = Agent("mid", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf])
    top = Agent("top", model=ScriptedModel([call("transfer_to_mid")]), agents=[mid])

    events = await told(top)
    [question] = await top.ainterrupts(events[0].thread_id)

    assert [e.agent for e in events if isinstance(e, InterruptEvent)] == ["top/mid/leaf"]
    assert question.agent == "top/mid/leaf"


async def test_question_of_each_delegate_names_its_own() -> None:
    def clerk(name: str) -> Agent:
        return Agent(name, model=ScriptedModel([call("approve")]), tools=[approve])

    both = [call("transfer_to_one"), call("transfer_to_two")]
    boss = Agent(
        "boss",
        model=ScriptedModel([both]),
        agents=[clerk("one"), clerk("two")],
        handoff="delegate",
    )

    reply = await boss.ainvoke("hi")

    assert sorted(q.agent for q in reply.interrupts) == ["boss/one", "boss/two"]


async def test_event_that_nobody_waited_for_leaves_no_gap() -> None:
    queue: asyncio.Queue[Event] = asyncio.Queue(1)
    teller = EventEmitter(Run("r", "t"), "solo", queue.put)
    await teller.emit(TokenEvent(text="first"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(teller.emit(TokenEvent(text="given up")), 0.01)

    first = await queue.get()
    await teller.emit(TokenEvent(text="second"))
    second = await queue.get()

    assert (first.sequence, second.sequence) == (1, 2)
