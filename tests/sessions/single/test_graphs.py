"""Compiled graphs of others in sessions of one: they keep what their threads would keep."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph import Agent, Hub, Team, sequence
from agentgraph.errors import ConfigurationError, SessionError
from agentgraph.testing import ScriptedModel, call
from tests.sessions.single.test_conformance import shapes


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def prebuilt(saver: Any) -> Any:
    model = ScriptedModel([call("add", a=1, b=2), "three", "again"])
    return create_agent(model, [add], name="clerk", checkpointer=saver)


class Counted(MessagesState):
    count: Annotated[int, operator.add]
    last: str
    hidden: str


class Texts(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def counter(saver: Any) -> Any:
    def answer(state: Counted) -> dict[str, Any]:
        text = f"{state.get('count', 0)} {state.get('last')} {state.get('hidden')}"
        own = {"count": 1, "last": str(state["messages"][-1].content), "hidden": text}
        return {"messages": [AIMessage(text)], **own}

    graph = StateGraph(Counted, input_schema=Texts, output_schema=Texts)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver, name="counter")


class Modelled(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    words: list[str] = []


def modelled(saver: Any) -> Any:
    def answer(state: Modelled) -> dict[str, Any]:
        word = str(state.messages[-1].content)
        return {"messages": [AIMessage(" ".join(state.words))], "words": [*state.words, word]}

    graph = StateGraph(Modelled)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver, name="modelled")


@dataclass
class Listed:
    messages: Annotated[list[AnyMessage], add_messages]
    words: Annotated[list[str], operator.add] = field(default_factory=list)


def listed(saver: Any) -> Any:
    def answer(state: Listed) -> dict[str, Any]:
        word = str(state.messages[-1].content)
        return {"messages": [AIMessage(" ".join(state.words))], "words": [word]}

    graph = StateGraph(Listed)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver, name="listed")


def counting(reducer: Any) -> Callable[[Any], Any]:
    """Return a graph whose messages have a reducer of the user's, or none."""
    channel: Any = list[AnyMessage] if reducer is None else Annotated[list[AnyMessage], reducer]
    own_state: Any = TypedDict("own_state", {"messages": channel})

    def answer(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{len(state['messages'])} messages")]}

    def make(saver: Any) -> Any:
        graph = StateGraph(own_state)
        graph.add_node("answer", answer)
        graph.add_edge(START, "answer")
        return graph.compile(checkpointer=saver, name="counting")

    return make


def last_three(messages: list[AnyMessage], new: list[AnyMessage]) -> list[AnyMessage]:
    return [*messages, *new][-3:]


def forgetful(saver: Any) -> Any:
    def answer(state: MessagesState) -> dict[str, Any]:
        messages = state["messages"]
        text = AIMessage(f"{len(messages)} messages")
        if len(messages) < 5:
            return {"messages": [text]}
        kept = [messages[-1], text]
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *kept]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver, name="forgetful")


def with_nested_memory(saver: Any) -> Any:
    def answer(state: Counted) -> dict[str, Any]:
        return {"messages": [AIMessage(f"nested {state.get('count', 0)}")], "count": 1}

    nested = StateGraph(Counted)
    nested.add_node("answer", answer)
    nested.add_edge(START, "answer")
    graph = StateGraph(MessagesState)
    graph.add_node("inner", nested.compile(checkpointer=True))
    graph.add_edge(START, "inner")
    return graph.compile(checkpointer=saver, name="outer")


GRAPHS = [prebuilt, counter, modelled, listed, forgetful, with_nested_memory]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
async def test_a_graph_keeps_what_its_thread_keeps(
    make: Callable[[Any], Any], tmp_path: Path
) -> None:
    texts = ["a", "b", "c", "d"] if make is not prebuilt else ["a", "b"]
    on_thread = make(InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    expected = []
    for text in texts:
        result = await on_thread.ainvoke({"messages": [HumanMessage(text)]}, config)
        expected.append((result["messages"][-1].text, shapes(result["messages"])))
    seen = []
    served = make(None)
    for text in texts:  # each turn in another hub: nothing is kept in memory
        url = f"sqlite:///{tmp_path / 'sessions.db'}"
        async with await Hub.open(url, serve=[served]) as hub:
            session = await hub.session(served, id="t")
            answer = await session.ask(text)
            seen.append((answer.text, shapes(await session.messages())))
    assert seen == expected


@pytest.mark.parametrize("reducer", [operator.add, last_three, None])
async def test_messages_with_a_reducer_of_the_users_are_kept_too(reducer: Any) -> None:
    on_thread = counting(reducer)(InMemorySaver())
    served = counting(reducer)(None)
    config: Any = {"configurable": {"thread_id": "t"}}
    async with await Hub.open(serve=[served]) as hub:
        session = await hub.session(served)
        for text in "abcd":
            result = await on_thread.ainvoke({"messages": [HumanMessage(text)]}, config)
            answer = await session.ask(text)
            assert answer.text == result["messages"][-1].text
            assert shapes(await session.messages())[-2:] == shapes(result["messages"])[-2:]


@pytest.mark.parametrize("moment", ["interrupt_before", "interrupt_after"])
async def test_a_graph_that_waits_where_nobody_is_asked_is_refused(moment: str) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [AIMessage("yes")]})
    graph.add_edge(START, "answer")
    served = graph.compile(name="clerk", **{moment: ["answer"]})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"call interrupt\(…\) in a node"):
        await Hub.open(serve=[served])
    with pytest.raises(ConfigurationError, match=r"call interrupt\(…\) in a node"):
        Team([served], sequence(["clerk"]))
    middle = Agent("middle", agents=[served], model=ScriptedModel([]))
    lead = Agent("lead", agents=[middle], model=ScriptedModel([]))
    around = StateGraph(MessagesState)
    around.add_node("inner", graph.compile(**{moment: ["answer"]}))  # type: ignore[arg-type]
    around.add_edge(START, "inner")
    for above, name in ((lead, "clerk"), (around.compile(name="around"), "around")):
        with pytest.raises(ConfigurationError, match=f"the graph '{name}' is compiled with inter"):
            await Hub.open(serve=[above])
        with pytest.raises(ConfigurationError, match=f"the graph '{name}' is compiled with inter"):
            Team([above], sequence([above.name]))


async def test_a_graph_asks_and_goes_on() -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"they said {interrupt('sure?')}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    served = graph.compile(name="clerk")
    async with await Hub.open(serve=[served]) as hub:
        session = await hub.session("clerk")
        first = await session.ask("pay")
        assert [question.payload for question in first.interrupts] == ["sure?"]
        await session.decide(first.interrupts[0].id, "yes")
        assert (await session.answer(first.run_id)).text == "they said yes"


async def test_a_graph_that_fails_leaves_the_session_open() -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].content == "fail":
            raise ValueError("no")
        return {"messages": [AIMessage(f"{len(state['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    served = graph.compile(name="clerk")
    async with await Hub.open(serve=[served]) as hub:
        session = await hub.session(served)
        with pytest.raises(SessionError, match="ValueError") as raised:
            await session.ask("fail")
        assert raised.value.code == "error"
        assert (await session.ask("well?")).text == "2"


def test_what_cannot_be_served_is_refused_at_once() -> None:
    class Numbers(TypedDict):
        number: int

    graph = StateGraph(Numbers)
    graph.add_node("answer", lambda state: state)
    graph.add_edge(START, "answer")
    unnamed = StateGraph(MessagesState)
    unnamed.add_node("answer", lambda state: state)
    unnamed.add_edge(START, "answer")

    async def open_hub() -> None:
        served: list[Any] = [graph.compile(name="numbers"), unnamed.compile(), "desk"]
        await Hub.open(serve=served)

    with pytest.raises(ConfigurationError) as raised:
        asyncio.run(open_hub())
    text = str(raised.value)
    assert "'numbers' has no channel `messages`" in text
    assert "a compiled graph has no name" in text
    assert "'desk' cannot be served" in text


async def test_a_served_graph_is_guarded_and_its_session_stays_open() -> None:
    stuck = [call("add", a=1, b=2)] * 20
    served = create_agent(ScriptedModel([*stuck]), [add], name="clerk")
    async with await Hub.open(serve=[served]) as hub:
        session = await hub.session(served)
        answer = await session.ask("go")
        assert (answer.close_reason, answer.status) == ("loop_detector", "waiting_human")
        assert "`add` was called" in answer.text
