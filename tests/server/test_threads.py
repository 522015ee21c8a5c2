"""Conversations: read, deleted, shared by agents; and the agents themselves."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, __version__
from agentgraph.errors import ConfigurationError
from agentgraph.testing import ScriptedModel, call
from agentgraph_server import create_app
from tests.server.live_server import approve, lookup, problem_of, serving, solo

THREAD = "/agents/Solo/threads/t"
HI = {"prompt": "hi", "thread_id": "t"}


async def test_thread_shows_its_messages() -> None:
    agent = solo(call("lookup", order="A7"), "It is lost.", tools=[lookup])
    async with serving(agent) as client:
        await client.post("/agents/Solo/completion", json=HI)
        thread = (await client.get(THREAD)).json()

    assert (thread["thread_id"], thread["busy"], thread["interrupts"]) == ("t", False, [])
    messages = thread["messages"]
    assert [m["type"] for m in messages] == ["human", "ai", "tool", "ai"]
    assert [m["text"] for m in messages] == ["hi", "", "A7 is lost", "It is lost."]
    (asked,) = messages[1]["tool_calls"]
    assert (asked["name"], asked["args"]) == ("lookup", {"order": "A7"})
    assert messages[2]["tool_call_id"] == asked["id"]
    assert messages[2]["status"] == "success"
    assert all(m["id"] for m in messages)


async def test_thread_shows_what_it_waits_for() -> None:
    async with serving(solo(call("approve"), tools=[approve])) as client:
        answer = (await client.post("/agents/Solo/completion", json=HI)).json()
        thread = (await client.get(THREAD)).json()

    assert thread["interrupts"] == answer["interrupts"] != []


async def test_thread_that_is_not_there_is_said_to_be_so() -> None:
    async with serving(solo()) as client:
        answer = await client.get(THREAD)

    problem = problem_of(answer, 404)
    assert problem["code"] == "unknown_thread"
    assert "'t'" in problem["detail"]


async def test_deleted_thread_is_gone_and_can_be_begun_anew() -> None:
    agent = solo("hello", "anew")
    async with serving(agent) as client:
        await client.post("/agents/Solo/completion", json=HI)
        deleted = await client.delete(THREAD)
        gone = await client.get(THREAD)
        anew = await client.post("/agents/Solo/completion", json=HI)

    assert (deleted.status_code, deleted.content) == (204, b"")
    problem_of(gone, 404)
    assert anew.json()["text"] == "anew"
    assert isinstance(agent.model, ScriptedModel)
    assert [m.text for m in agent.model.requests[1].messages[1:]] == ["hi"]


async def test_thread_can_be_deleted_twice() -> None:
    async with serving(solo("hello")) as client:
        await client.post("/agents/Solo/completion", json=HI)
        answers = [await client.delete(THREAD) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]


async def test_two_agents_are_served_side_by_side() -> None:
    one, two = (
        Agent(name, f"Is {name}.", model=ScriptedModel([name]), checkpointer=InMemorySaver())
        for name in ("one", "two")
    )
    async with serving(one, two) as client:
        texts = [
            (await client.post(f"/agents/{name}/completion", json={"prompt": "hi"})).json()["text"]
            for name in ("one", "two")
        ]
        listed = (await client.get("/agents")).json()
        health = (await client.get("/health")).json()

    assert texts == ["one", "two"]
    assert [(card["name"], card["description"]) for card in listed] == [
        ("one", "Is one."),
        ("two", "Is two."),
    ]
    assert health == {"status": "ok", "version": __version__, "agents": ["one", "two"]}


async def test_agent_is_described_with_its_tools_its_sub_agents_and_its_graph() -> None:
    sub = Agent("Sub", "Looks things up.", model=ScriptedModel([]), tools=[lookup])
    expert = Agent("Expert", "Knows.", model=ScriptedModel([]))
    native = {"type": "web_search"}
    root = Agent(
        "Root",
        "Front desk",
        model=ScriptedModel([]),
        tools=[approve, native],
        agents=[sub, expert.as_tool()],
    )

    async with serving(root) as client:
        card = (await client.get("/agents/Root")).json()
        (listed,) = (await client.get("/agents")).json()

    assert (card["name"], card["description"]) == ("Root", "Front desk")
    assert [(t["name"], t["description"]) for t in card["tools"]] == [
        ("approve", "Ask a human."),
        ("Expert", "Knows."),
        ("web_search", ""),
    ]
    (below,) = card["agents"]
    assert (below["name"], below["description"]) == ("Sub", "Looks things up.")
    assert [t["name"] for t in below["tools"]] == ["lookup"]
    assert "subgraph Sub" in card.pop("mermaid")
    assert listed == card


@pytest.mark.parametrize(
    ("agents", "why"),
    [
        ([], "nothing to serve"),
        ([solo("a"), solo("b")], "two that are served are called 'Solo'"),
        (["Solo"], "'Solo' cannot be served"),
    ],
    ids=["none", "twice", "no agent"],
)
def test_what_cannot_be_served_is_refused(agents: list[Agent], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        create_app(*agents)


def test_all_that_cannot_be_served_is_told_at_once() -> None:
    strange: list[Agent] = [solo("a"), solo("b"), "Solo"]  # type: ignore[list-item]  # that is why

    with pytest.raises(ConfigurationError) as refused:
        create_app(*strange)

    assert len(refused.value.faults) == 2
