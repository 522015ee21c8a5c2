"""A client that goes away ends what it has asked for, and nothing that finished is lost."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import pytest

from agentgraph import Agent
from agentgraph.clock import clock
from agentgraph.testing import ScriptedModel, Turn, call
from tests.server.live_server import (
    PATIENCE_S,
    Gated,
    approve,
    lookup,
    problem_of,
    serving,
    solo,
    streaming,
    told,
    until,
)

STREAM = "/agents/Solo/stream-completion"
COMPLETION = "/agents/Solo/completion"
HI = {"prompt": "hi", "thread_id": "t"}
AT_ONCE_S = 1.0


async def sent(client: httpx.AsyncClient, path: str, **body: object) -> socket.socket:
    """Send a request on a connection of its own, and do not wait for the answer."""
    host, port = client.base_url.host, client.base_url.port
    connection = socket.socket()
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    await loop.sock_sendall(connection, head.encode() + content)
    return connection


async def cut_off(gated: Gated, connection: socket.socket) -> float:
    """Close a connection, and return how long the run went on."""
    await gated.begun.wait()
    gone_at = clock().monotonic()
    connection.close()
    await until(lambda: gated.cut_off_at)
    assert gated.cut_off_at is not None
    return gated.cut_off_at - gone_at


@pytest.mark.parametrize("path", [COMPLETION, STREAM])
async def test_run_is_cancelled_at_once(gated: Gated, path: str) -> None:
    agent = solo(call("work"), "hello", tools=[gated.work])
    async with serving(agent) as client:
        lasted = await cut_off(gated, await sent(client, path, **HI))

    assert lasted < AT_ONCE_S


@pytest.mark.parametrize("path", [COMPLETION, STREAM])
async def test_thread_is_free_afterwards(gated: Gated, path: str) -> None:
    agent = solo(call("work"), "hello", tools=[gated.work])
    async with serving(agent) as client:
        await cut_off(gated, await sent(client, path, **HI))
        answer = await client.post(COMPLETION, json=HI)

    assert answer.status_code == 200
    assert answer.json()["text"] == "hello"


@pytest.mark.parametrize("path", [COMPLETION, STREAM])
async def test_what_finished_is_known_to_the_next_turn(gated: Gated, path: str) -> None:
    calls = [call("lookup", order="A7"), call("work")]
    agent = solo(calls, "hello", tools=[lookup, gated.work])
    async with serving(agent) as client:
        connection = await sent(client, path, **HI)
        await gated.begun.wait()
        messages: list[str] = []
        while "A7 is lost" not in messages:
            thread = (await client.get("/agents/Solo/threads/t")).json()
            messages = [m["text"] for m in thread["messages"]]
        assert thread["busy"]
        await cut_off(gated, connection)
        await client.post(COMPLETION, json={**HI, "prompt": "and?"})

    assert isinstance(agent.model, ScriptedModel)
    seen = agent.model.requests[-1].messages
    answers = [m.text for m in seen if m.type == "tool"]
    assert answers[0] == "A7 is lost"
    assert answers[1].startswith("Outcome unknown")
    assert [m.text for m in seen if m.type == "human"] == ["hi", "and?"]


async def test_stream_left_in_its_middle_ends_the_run(gated: Gated) -> None:
    agent = solo(Turn("Let me see.", [call("work")]), "hello", tools=[gated.work])
    async with serving(agent) as client:
        async with streaming(client, STREAM, **HI) as events:
            first = await anext(events)
            await gated.begun.wait()
            left_at = clock().monotonic()
        await until(lambda: gated.cut_off_at)
        answer = await client.post(COMPLETION, json=HI)

    assert first.name == "token"
    assert gated.cut_off_at is not None
    assert gated.cut_off_at - left_at < AT_ONCE_S
    assert answer.json()["text"] == "hello"


async def test_run_of_a_sub_agent_is_cancelled_too(gated: Gated) -> None:
    sub = Agent("Sub", model=ScriptedModel([call("work"), "hello"]), tools=[gated.work])
    boss = Agent(
        "Solo",
        model=ScriptedModel([call("transfer_to_Sub"), "never"]),
        agents=[sub],
        handoff="delegate",
    )
    async with serving(boss) as client:
        lasted = await cut_off(gated, await sent(client, STREAM, **HI))

    assert lasted < AT_ONCE_S


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_resume_is_cancelled_and_can_be_given_again(gated: Gated, accept: str) -> None:
    calls = [call("approve"), call("work")]
    agent = solo(calls[0], calls[1], "hello", tools=[approve, gated.work])
    async with serving(agent) as client:
        asked = (await client.post(COMPLETION, json=HI)).json()["interrupts"][0]["id"]
        body = {"thread_id": "t", "decisions": {asked: "yes"}}
        if accept == "application/json":
            await cut_off(gated, await sent(client, "/agents/Solo/resume", **body))
        else:
            async with streaming(client, "/agents/Solo/resume", **body):
                await gated.begun.wait()
            await until(lambda: gated.cut_off_at)
        answer = await client.post(COMPLETION, json=HI)

    assert answer.json()["text"] == "hello"
    assert isinstance(agent.model, ScriptedModel)
    texts = [m.text for m in agent.model.requests[-1].messages if m.type == "tool"]
    assert texts[0] == "a human said yes"


async def test_others_are_not_disturbed(gated: Gated) -> None:
    def turn(messages: list[object]) -> object:
        return call("work") if "work" in str(messages[-1]) else "hello"

    agent = Agent("Solo", model=ScriptedModel(turn), tools=[gated.work])  # type: ignore[arg-type]
    async with serving(agent) as client:
        connection = await sent(client, STREAM, prompt="work", thread_id="one")
        await gated.begun.wait()
        async with streaming(client, STREAM, prompt="hi", thread_id="two") as events:
            first = await anext(events)
            await cut_off(gated, connection)
            rest = [event.name async for event in events]

    assert first.name == "token"
    assert rest[-1] == "done"


async def test_client_that_is_gone_before_its_turn_begins_leaves_no_hold() -> None:
    async with serving(solo(*["hello"] * 30)) as client:
        for _ in range(20):
            (await sent(client, STREAM, **HI)).close()
        await until_free(client)
        events = await told(client, STREAM, **HI)

    assert events[-1].name == "done"


async def until_free(client: httpx.AsyncClient) -> None:
    deadline = clock().monotonic() + 5
    while (await client.delete("/agents/Solo/threads/t")).status_code == 409:
        assert clock().monotonic() < deadline


async def test_answer_that_the_server_cannot_wait_for_is_a_problem(gated: Gated) -> None:
    agent = solo(call("work"), tools=[gated.work])
    async with httpx.AsyncClient(timeout=PATIENCE_S) as other:
        async with serving(agent) as client:
            address = client.base_url.join(COMPLETION)
            answering = asyncio.create_task(other.post(address, json=HI))
            await gated.begun.wait()
        answer = await answering

    assert problem_of(answer, 503)["code"] == "shutdown"
    assert gated.cut_off_at
