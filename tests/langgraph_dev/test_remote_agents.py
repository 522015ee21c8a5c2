"""A `RemoteGraph` as a sub-agent, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk.client import LangGraphClient

from agentgraph import Agent, Reply, Team, sequence
from agentgraph.errors import ConfigurationError, ModelError
from agentgraph.stream import AIMessageEvent, Event, TokenEvent, ToolResponseEvent, ToolUsageEvent
from agentgraph.testing import ScriptedModel, call


def boss(remote: Any, *turns: Any, **fields: Any) -> Agent:
    """Return an agent that hands over at once, unless it has other turns."""
    model = ScriptedModel(turns or [call("transfer_to_clerk")])
    return Agent("boss", model=model, agents=[remote], **fields)


@asynccontextmanager
async def connected(graph: str, url: str) -> AsyncIterator[RemoteGraph]:
    """Return a remote graph whose connections end with the test; it does not try twice."""
    async with LangGraphClient(httpx.AsyncClient(base_url=url, timeout=30)) as client:
        yield RemoteGraph(graph, client=client, name="clerk")


@pytest.fixture
async def clerk(langgraph_dev: str) -> AsyncIterator[RemoteGraph]:
    async with connected("clerk", langgraph_dev) as remote:
        yield remote


def types(reply: Reply) -> list[str]:
    return [message.type for message in reply.messages]


async def test_a_remote_agent_takes_over_and_keeps_the_conversation(clerk: RemoteGraph) -> None:
    agent = boss(clerk)
    first = await agent.ainvoke("look A7", thread_id="keeps")
    assert (first.text, first.agent) == ("clerk: A7 is lost", "boss/clerk")
    assert types(first) == ["ai", "tool", "ai", "tool", "ai"]
    assert first.usage.by_agent["boss/clerk"].total_tokens > 0
    second = await agent.ainvoke("and then", thread_id="keeps")
    assert (second.text, types(second)) == ("clerk heard look A7 | and then", ["ai"])
    assert len(await agent.ahistory("keeps")) == 8


async def test_the_server_is_sent_each_message_once(clerk: RemoteGraph) -> None:
    agent = boss(clerk, call("transfer_to_clerk"), "Back at the desk.")
    await agent.ainvoke("one", thread_id="once")
    await agent.ainvoke("@boss two", thread_id="once")
    reply = await agent.ainvoke("@clerk three", thread_id="once")
    assert reply.text == "clerk heard one | @boss two | @clerk three"
    client: Any = clerk.client
    stored = [
        thread
        for thread in await client.threads.search(limit=1000)
        if reply.text in str(thread["values"])
    ]
    ids = [message["id"] for message in stored[0]["values"]["messages"]]
    assert len(stored) == 1
    assert ids == [message.id for message in await agent.ahistory("once")]


async def test_tokens_and_tools_of_a_remote_agent_are_told(clerk: RemoteGraph) -> None:
    agent = boss(clerk)
    events: list[Event] = [event async for event in agent.astream("look A7")]
    theirs = [event for event in events if event.agent == "boss/clerk"]
    kinds = (ToolUsageEvent, ToolResponseEvent, AIMessageEvent)
    used, answered, said = [event for event in theirs if isinstance(event, kinds)]
    assert isinstance(used, ToolUsageEvent) and used.args == {"order": "A7"}
    assert isinstance(answered, ToolResponseEvent) and answered.content == "A7 is lost"
    assert isinstance(said, AIMessageEvent) and said.text == "clerk: A7 is lost"
    tokens = [event.text for event in theirs if isinstance(event, TokenEvent)]
    assert "".join(tokens) == said.text
    assert len(tokens) > 1


async def test_langgraphs_own_streams_have_what_a_remote_agent_does(clerk: RemoteGraph) -> None:
    parts = boss(clerk).graph.astream(
        {"messages": [HumanMessage("look A7")]},
        {"configurable": {"thread_id": "streams"}},
        stream_mode=["messages", "custom"],
    )
    texts, custom = [], []
    async for mode, data in parts:
        if mode == "custom":
            custom.append(data)
        elif isinstance(data[0], AIMessage):
            texts.append(str(data[0].text))
    assert {"looked_up": "A7"} in custom
    assert "".join(texts) == "clerk: A7 is lost"


@pytest.mark.parametrize("mode", ["sticky", "delegate"])
async def test_a_question_of_a_remote_agent_is_decided_in_another_process(
    clerk: RemoteGraph, mode: Any
) -> None:
    saver, thread = InMemorySaver(), f"asks {mode}"

    def fresh(*turns: Any) -> Agent:
        return boss(clerk, *turns, handoff=mode, checkpointer=saver)

    waiting = await fresh(call("transfer_to_clerk")).ainvoke("twice", thread_id=thread)
    (question,) = waiting.interrupts
    assert (question.payload, question.agent) == ({"refund": "one"}, "boss/clerk")
    between = await fresh("?").aresume(thread, {question.id: "yes"})
    (question,) = between.interrupts
    assert question.payload == {"refund": "two"}
    reply = await fresh("Both are done.").aresume(thread, {question.id: "no"})
    if mode == "delegate":
        assert reply.text == "Both are done."
        answers = [m.text for m in reply.messages if isinstance(m, ToolMessage)]
        assert answers == ["clerk: refund of two: no"]
    else:
        answers = [m.text for m in reply.messages if isinstance(m, ToolMessage)]
        assert answers == ["refund of one: yes", "refund of two: no"]
        assert reply.text == "clerk: refund of two: no"


async def test_a_message_instead_of_a_decision_leaves_the_thread_usable(
    clerk: RemoteGraph,
) -> None:
    agent = boss(clerk, call("transfer_to_clerk"), "Here.")
    waiting = await agent.ainvoke("refund A7", thread_id="instead")
    assert waiting.interrupts
    reply = await agent.ainvoke("@clerk forget it", thread_id="instead")
    assert reply.text == "clerk heard refund A7 | @clerk forget it"
    assert (await agent.ainvoke("@boss hello", thread_id="instead")).text == "Here."


async def test_each_delegation_has_a_remote_thread_of_its_own(clerk: RemoteGraph) -> None:
    calls = [call("transfer_to_clerk", reason="first"), call("transfer_to_clerk", reason="second")]
    agent = boss(clerk, calls, "Done.", handoff="delegate")
    reply = await agent.ainvoke("hello", thread_id="both")
    answers = [m.text for m in reply.messages if isinstance(m, ToolMessage)]
    assert answers == ["clerk heard hello"] * 2
    assert reply.text == "Done."


async def stored(clerk: RemoteGraph, text: str) -> list[str]:
    """Return the ids of the server's threads that have a text."""
    client: Any = clerk.client
    threads = await client.threads.search(limit=1000)
    return [thread["thread_id"] for thread in threads if text in str(thread["values"])]


@pytest.mark.parametrize("mode", ["sticky", "delegate"])
async def test_a_thread_is_forgotten_on_the_server_too(clerk: RemoteGraph, mode: Any) -> None:
    thread, secret = f"forgets {mode}", f"a secret, {mode}"
    calls = [call("transfer_to_clerk"), call("transfer_to_clerk")]
    agent = boss(clerk, calls, "Done.", "Done again.", handoff=mode)
    await agent.ainvoke(secret, thread_id=thread)
    await agent.ainvoke("and more", thread_id=thread)
    other = boss(clerk)  # another program, say, with a thread of the same id
    await other.ainvoke(f"not mine: {secret}", thread_id=thread)
    theirs = await stored(clerk, f"not mine: {secret}")
    assert len(await stored(clerk, secret)) == (2 if mode == "sticky" else 3)
    await agent.aforget(thread)
    assert await agent.ahistory(thread) == []
    assert await stored(clerk, secret) == theirs
    await agent.aforget(thread)  # there is nothing left


async def test_a_question_on_the_server_is_forgotten_too(clerk: RemoteGraph) -> None:
    above = Agent("chief", model=ScriptedModel([call("transfer_to_boss")]), agents=[boss(clerk)])
    assert (await above.ainvoke("refund Z9", thread_id="forgets a question")).interrupts
    assert len(await stored(clerk, "refund Z9")) == 1
    await above.aforget("forgets a question")
    assert await stored(clerk, "refund Z9") == []


async def test_a_thread_is_forgotten_here_while_its_server_is_away(
    clerk: RemoteGraph, caplog: pytest.LogCaptureFixture
) -> None:
    saver = InMemorySaver()
    await boss(clerk, checkpointer=saver).ainvoke("for later", thread_id="away")
    async with connected("clerk", "http://127.0.0.1:9") as gone:
        agent = boss(gone, checkpointer=saver)
        await agent.aforget("away")
        assert await agent.ahistory("away") == []
    assert "the threads of boss/clerk on its server are not deleted" in caplog.text
    assert "cannot be reached" in caplog.text
    assert len(await stored(clerk, "for later")) == 1


async def test_another_conversation_of_the_same_id_is_not_remembered(clerk: RemoteGraph) -> None:
    await boss(clerk).ainvoke("a secret", thread_id="again")
    agent = boss(clerk)
    reply = await agent.ainvoke("hello", thread_id="again")
    assert reply.text == "clerk heard hello"


async def test_an_agent_of_another_server_is_a_sub_agent(langgraph_dev: str) -> None:
    async with connected("desk", langgraph_dev) as remote:
        agent = boss(remote)
        reply = await agent.ainvoke("billing", thread_id="desk")
        assert (reply.text, reply.agent) == ("billing heard billing", "boss/clerk")
        again = await agent.ainvoke("again", thread_id="desk")
        assert again.text == "billing heard billing | again"


@pytest.mark.parametrize("graph", ["desk", "team"])
async def test_a_remote_agent_or_team_goes_on_after_a_question(
    langgraph_dev: str, graph: str
) -> None:
    async with connected(graph, langgraph_dev) as remote:
        agent = boss(remote)
        first = await agent.ainvoke("hello", thread_id=f"goes on {graph}")
        assert "heard" in first.text
        waiting = await agent.ainvoke("refund A7", thread_id=f"goes on {graph}")
        (question,) = waiting.interrupts
        reply = await agent.aresume(f"goes on {graph}", {question.id: "yes"})
        assert "refund of A7: yes" in reply.text
        assert (reply.agent, reply.interrupts) == ("boss/clerk", ())


async def test_a_remote_agent_speaks_in_a_team(clerk: RemoteGraph) -> None:
    first = Agent("first", model=ScriptedModel(["I begin."] * 2))
    team = Team([first, clerk], sequence(["first", "clerk"]))
    result = await team.arun("hello")
    assert result.text.startswith("clerk heard [user]: hello")
    assert [envelope.sender_id for envelope in result.envelopes if envelope.text][-1] == "clerk"
    graph = team.compile(InMemorySaver())
    config: Any = {"configurable": {"thread_id": "team"}}
    asked = await graph.ainvoke({"messages": [HumanMessage("refund A7")]}, config)
    (question,) = asked["__interrupt__"]
    done = await graph.ainvoke(Command(resume={question.id: "yes"}), config)
    assert "yes" in done["messages"][-1].text


FAILURES = {
    "ConnectError": ("clerk", "http://127.0.0.1:9", "hello"),
    "UnprocessableEntityError 422": ("nobody", "", "hello"),
    "NotFoundError 404": ("clerk", "/nowhere", "hello"),
    "RuntimeError": ("clerk", "", "fail"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_remote_agent_that_fails_leaves_the_thread_to_the_others(
    clerk: RemoteGraph, langgraph_dev: str, kind: str
) -> None:
    graph, url, text = FAILURES[kind]
    url = url if url.startswith("http") else f"{langgraph_dev}{url}"
    saver, thread = InMemorySaver(), f"fails {kind}"
    async with connected(graph, url) as remote:
        agent = boss(remote, call("transfer_to_clerk"), "I am here.", checkpointer=saver)
        with pytest.raises(ModelError, match=kind) as caught:
            await agent.ainvoke(text, thread_id=thread)
        assert langgraph_dev not in str(caught.value)
        reply = await agent.ainvoke("@boss hello", thread_id=thread)
        assert (reply.text, reply.agent) == ("I am here.", "boss")
    mended = boss(clerk, "?", checkpointer=saver)
    reply = await mended.ainvoke("@clerk back", thread_id=thread)
    assert reply.text == f"clerk heard {text} | @boss hello | @clerk back"


def test_a_remote_agent_is_asked_synchronously_on_several_loops(langgraph_dev: str) -> None:
    remote = RemoteGraph("clerk", url=langgraph_dev)
    agent = boss(remote)
    assert agent.invoke("one", thread_id="sync").text == "clerk heard one"
    assert asyncio.run(agent.ainvoke("two", thread_id="sync")).text == "clerk heard one | two"
    graph = boss(remote).graph.copy({"checkpointer": InMemorySaver()})
    config: Any = {"configurable": {"thread_id": "sync graph"}}
    result = graph.invoke({"messages": [HumanMessage("refund A7")]}, config)
    assert [question.value for question in result["__interrupt__"]] == [{"refund": "A7"}]
    result = graph.invoke(Command(resume="yes"), config)
    assert result["messages"][-1].text == "clerk: refund of A7: yes"


async def test_a_remote_graph_without_a_client_says_so() -> None:
    with pytest.raises(ConfigurationError, match="url="):
        await boss(RemoteGraph("clerk", sync_client=object())).ainvoke("hello")  # type: ignore[arg-type]
