"""One turn at a time on a thread; the others go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import pytest

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call
from agentgraph_server import create_app
from tests.server.live_server import Gated, problem_of, serving, solo, streaming, told

HI = {"prompt": "hi", "thread_id": "t"}
REQUESTS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "completion": ("POST", "/agents/Solo/completion", HI),
    "stream": ("POST", "/agents/Solo/stream-completion", HI),
    "resume": ("POST", "/agents/Solo/resume", {"thread_id": "t", "decisions": {"a": 1}}),
    "resume as a stream": (
        "POST",
        "/agents/Solo/resume",
        {"thread_id": "t", "decisions": {"a": 1}},
    ),
    "delete": ("DELETE", "/agents/Solo/threads/t", None),
}


def working(gated: Gated, *turns: Any) -> Agent:
    return solo(call("work"), *turns, tools=[gated.work])


@pytest.mark.parametrize("running", ["completion", "stream-completion"])
@pytest.mark.parametrize("kind", REQUESTS)
async def test_busy_thread_is_refused(gated: Gated, running: str, kind: str) -> None:
    async with serving(working(gated, "worked")) as client:
        first = asyncio.create_task(client.post(f"/agents/Solo/{running}", json=HI))
        await gated.begun.wait()
        accept = "text/event-stream" if "stream" in kind else "application/json"
        method, path, body = REQUESTS[kind]
        refused = await client.request(method, path, json=body, headers={"Accept": accept})
        busy = (await client.get("/agents/Solo/threads/t")).json()["busy"]
        gated.go.set()
        answer = await first

    problem = problem_of(refused, 409)
    assert problem["code"] == "thread_busy"
    assert "'t'" in problem["detail"]
    assert int(refused.headers["retry-after"]) > 0
    assert busy
    assert answer.status_code == 200
    assert "worked" in answer.text


async def test_other_threads_go_on(gated: Gated) -> None:
    async with (
        serving(working(gated, "beside", "worked")) as client,
        streaming(client, "/agents/Solo/stream-completion", **HI) as events,
    ):
        await gated.begun.wait()
        beside = {"prompt": "hi", "thread_id": "other"}
        answer = await client.post("/agents/Solo/completion", json=beside)
        gated.go.set()
        names = [event.name async for event in events]

    assert answer.json()["text"] == "beside"
    assert names[-1] == "done"


@pytest.mark.parametrize("kind", REQUESTS)
async def test_thread_of_one_agent_is_no_other_s(kind: str) -> None:
    two = Agent("Two", model=ScriptedModel(["two"]))
    async with serving(solo("hello", "again"), two) as client:
        await client.post("/agents/Two/completion", json=HI)
        accept = "text/event-stream" if "stream" in kind else "application/json"
        method, path, body = REQUESTS[kind]
        refused = await client.request(method, path, json=body, headers={"Accept": accept})
        shown = await client.get("/agents/Solo/threads/t")
        theirs = await client.get("/agents/Two/threads/t")

    problem = problem_of(refused, 409)
    assert problem["code"] == "other_agent"
    assert "'t' is one of 'Two'" in problem["detail"]
    assert problem_of(shown, 404)["code"] == "unknown_thread"
    assert [m["text"] for m in theirs.json()["messages"]] == ["hi", "two"]


async def turn_by_stream(client: httpx.AsyncClient) -> None:
    async with streaming(client, "/agents/Solo/stream-completion", **HI) as events:
        async for event in events:
            if event.name == "done":
                break
        again = await client.post("/agents/Solo/completion", json=HI)
    assert again.status_code == 200


async def turn_by_completion(client: httpx.AsyncClient) -> None:
    answer = await client.post("/agents/Solo/completion", json=HI)
    assert answer.status_code == 200


@pytest.mark.parametrize("turn", [turn_by_stream, turn_by_completion])
async def test_thread_is_free_as_soon_as_its_end_was_read(turn: Any, tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    async with serving(solo(*["hello"] * 100), store=store) as client:
        for _ in range(50):
            await turn(client)


@pytest.mark.parametrize("fault", [ValueError("odd"), ""], ids=["failed", "empty"])
async def test_thread_is_free_after_a_turn_that_came_to_nothing(fault: Any) -> None:
    async with serving(solo(fault, "hello")) as client:
        await told(client, "/agents/Solo/stream-completion", **HI)
        answer = await client.post("/agents/Solo/completion", json=HI)

    assert answer.status_code == 200


async def test_thread_is_free_before_its_end_is_told() -> None:
    app = create_app(solo("hello", "again"), store="memory")
    transport = httpx.ASGITransport(app)
    answers: list[httpx.Response] = []

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):

        async def send(message: MutableMapping[str, Any]) -> None:
            if b"event: done" in message.get("body", b""):
                answers.append(await client.post("/agents/Solo/completion", json=HI))

        await app(SCOPE, receiver(json.dumps(HI).encode()), send)

    assert [answer.status_code for answer in answers] == [200]


SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/agents/Solo/stream-completion",
    "raw_path": b"/agents/Solo/stream-completion",
    "query_string": b"",
    "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 80),
}


def receiver(body: bytes) -> Callable[[], Awaitable[MutableMapping[str, Any]]]:
    """Return what hands a body out, and then waits for a client that stays."""
    bodies = [body]

    async def receive() -> MutableMapping[str, Any]:
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    return receive
