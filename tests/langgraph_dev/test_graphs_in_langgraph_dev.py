"""The graphs of an agent and of a team, loaded and run by `langgraph dev`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient


@pytest.fixture
async def client(langgraph_dev: str) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=langgraph_dev) as client:
        yield client


PUBLIC = {"messages", "current_active_agent"}


async def new_thread(client: LangGraphClient) -> str:
    return str((await client.threads.create())["thread_id"])


async def say(client: LangGraphClient, thread: str, text: str, served: str = "desk") -> Any:
    """Run an input to its end; return the state."""
    given: Any = {"messages": [{"role": "user", "content": text}]}
    return await client.runs.wait(thread, served, input=given)


def last_text(values: Any) -> str:
    return str(values["messages"][-1]["content"])


async def assistant(client: LangGraphClient, served: str) -> str:
    (found,) = await client.assistants.search(graph_id=served)
    return str(found["assistant_id"])


async def test_an_agent_and_a_team_are_loaded_described_and_drawn(client: LangGraphClient) -> None:
    desk, team = await assistant(client, "desk"), await assistant(client, "team")
    for served in (desk, team):
        schemas: Any = await client.assistants.get_schemas(served)
        assert "messages" in schemas["input_schema"]["properties"]
        assert "messages" in schemas["output_schema"]["properties"]
    flat, deep = await asyncio.gather(
        client.assistants.get_graph(desk), client.assistants.get_graph(desk, xray=True)
    )
    nodes = {node["id"] for node in flat["nodes"]}
    assert {"render_system_prompt", "router", "call_model", "call_tools", "billing"} <= nodes
    assert {"router", "billing:call_model"} <= {node["id"] for node in deep["nodes"]}
    flat, deep = await asyncio.gather(
        client.assistants.get_graph(team), client.assistants.get_graph(team, xray=True)
    )
    assert {"admit", "one", "two"} <= {node["id"] for node in flat["nodes"]}
    inner = {"admit", "one:call_model", "two:call_model"}
    assert inner <= {node["id"] for node in deep["nodes"]}


async def streamed(client: LangGraphClient, served: str, text: str) -> dict[str, list[Any]]:
    """Return what a run streams, by mode."""
    parts: dict[str, list[Any]] = {}
    given: Any = {"messages": [{"role": "user", "content": text}]}
    async for part in client.runs.stream(
        await new_thread(client),
        served,
        input=given,
        stream_mode=["values", "updates", "messages-tuple", "custom"],
    ):
        parts.setdefault(part.event, []).append(part.data)
    return parts


async def test_an_agent_streams_in_the_modes_of_langgraph(client: LangGraphClient) -> None:
    desk, team = await asyncio.gather(
        streamed(client, "desk", "look A7"), streamed(client, "team", "hello")
    )
    assert last_text(desk["values"][-1]) == "desk: A7 is lost"
    assert {key for values in desk["values"] for key in values} <= PUBLIC
    assert desk["custom"] == [{"looked_up": "A7"}]
    assert [name for part in desk["updates"] for name in part][-1] == "call_model"
    tokens = [chunk["content"] for chunk, _ in desk["messages"] if chunk["type"] != "tool"]
    assert "".join(tokens) == "desk: A7 is lost"
    assert last_text(team["values"][-1]).startswith("two heard")
    assert {"admit", "one", "two"} <= {name for part in team["updates"] for name in part}


@pytest.mark.parametrize("served", ["desk", "team"])
async def test_a_question_waits_until_it_is_decided(client: LangGraphClient, served: str) -> None:
    thread = await new_thread(client)
    waiting = await say(client, thread, "refund A7", served)
    assert [question["value"] for question in waiting["__interrupt__"]] == [{"refund": "A7"}]
    state: Any = await client.threads.get_state(thread)
    assert state["next"] == ["call_tools" if served == "desk" else "one"]
    decided: Any = await client.runs.wait(thread, served, command={"resume": "yes"})
    assert "refund of A7: yes" in last_text(decided)


async def test_a_sub_agent_keeps_the_conversation_and_gives_it_back(
    client: LangGraphClient,
) -> None:
    thread = await new_thread(client)
    first = await say(client, thread, "billing")
    assert (last_text(first), first["current_active_agent"]) == ("billing heard billing", "billing")
    assert last_text(await say(client, thread, "again")) == "billing heard billing | again"
    assert last_text(await say(client, thread, "@desk hello")).startswith("desk heard")


async def test_a_user_travels_in_time(client: LangGraphClient) -> None:
    thread = await new_thread(client)
    await say(client, thread, "first")
    await say(client, thread, "second")
    history: Any = await client.threads.get_history(thread, limit=100)
    assert [last_text(state["values"]) for state in history if not state["next"]] == [
        "desk heard first | second",
        "desk heard first",
    ]
    before = next(state for state in history if state["next"] == ["call_model"])
    again: Any = await client.runs.wait(
        thread, "desk", input=None, checkpoint_id=before["checkpoint"]["checkpoint_id"]
    )
    assert last_text(again) == "desk heard first | second"
    edited: Any = await client.threads.update_state(
        thread,
        {"messages": [{"role": "user", "content": "look B8"}]},
        as_node="continue_conversation",
        checkpoint_id=before["checkpoint"]["checkpoint_id"],
    )
    fork: Any = await client.runs.wait(
        thread, "desk", input=None, checkpoint_id=edited["checkpoint"]["checkpoint_id"]
    )
    assert last_text(fork) == "desk: B8 is lost"
