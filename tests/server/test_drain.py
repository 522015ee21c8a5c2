"""A server that is told to stop takes no new work, and hands over what it has to another one."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

from agentgraph import Agent, Hub
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import Gated, problem_of, solo, until
from tests.server.test_shutdown import Process, process

STREAM = {"Accept": "text/event-stream"}


@asynccontextmanager
async def at_work(
    folder: Path,
) -> AsyncIterator[tuple[Process, httpx.AsyncClient, str, list[ServerSentEvent]]]:
    """Run a server with a run under way, which a client follows; yield what it was told so far."""
    events: list[ServerSentEvent] = []

    async def follow(client: httpx.AsyncClient, id: str) -> None:
        async with aconnect_sse(client, "GET", f"/sessions/{id}/events", headers=STREAM) as source:
            async for event in source.aiter_sse():
                events.append(event)  # noqa: PERF401  # read while they come

    async with process(folder) as (server, client):
        id = (await client.post("/sessions", json={"served": "Solo"})).json()["id"]
        following = asyncio.create_task(follow(client, id))
        await client.post(f"/sessions/{id}/messages", json={"text": "go"})
        await until((folder / "begun").exists)
        await until(lambda: any(event.event == "tool_response" for event in events))
        server.popen.send_signal(signal.SIGTERM)
        await following
        yield server, client, id, events


async def test_run_under_way_gets_its_grace_and_new_work_is_refused(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (server, client, id, events):
        refused = [
            await client.post(f"/sessions/{id}/messages", json={"text": "more"}),
            await client.post("/agents/Solo/completion", json={"prompt": "more"}),
            await client.get(f"/sessions/{id}/events"),
            await client.get("/ready"),
        ]
        read = await client.get(f"/sessions/{id}/runs")
        (tmp_path / "go").touch()
        status = await server.end()

    for answer in refused:
        assert problem_of(answer, 503)["code"] == "shutdown"
    assert [answer.headers.get("retry-after") for answer in refused[:3]] == ["1"] * 3
    assert [run["status"] for run in read.json()] == ["running"]
    assert status == 0
    assert json.loads(events[-1].data)["code"] == "shutdown"
    assert events[-1].id == events[-2].id
    (tmp_path / "log").unlink()
    async with process(tmp_path) as (_, client):
        (run,) = (await client.get(f"/sessions/{id}/runs")).json()
        log = (await client.get(f"/sessions/{id}/log")).json()
    assert run["status"] == "success"
    assert log[-1]["event_data"]["body"] == "A7 is lost | worked"


async def test_stream_goes_on_at_another_server_where_it_was_told_to(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (server, _, id, events):
        (tmp_path / "go").touch()
        await server.end()
    (tmp_path / "log").unlink()
    async with process(tmp_path) as (_, client):
        headers = {**STREAM, "Last-Event-ID": events[-1].id}
        path = f"/sessions/{id}/events?live=false"
        async with aconnect_sse(client, "GET", path, headers=headers) as source:
            rest = [event async for event in source.aiter_sse()]

    envelopes = [event for event in (*events[:-1], *rest) if event.event.startswith("ag.")]
    assert [event.id for event in envelopes] == ["1", "2", "3"]


async def test_sessions_at_rest_are_handed_back_at_once(tmp_path: Path) -> None:
    def two_sessions() -> Agent[Any]:
        return Agent("Solo", model=ScriptedModel(_turn), tools=[gated.work])

    def _turn(messages: list[Any]) -> Any:
        return call("work") if messages[-1].text == "go" else "Hello."

    gated, url = Gated(), f"sqlite:///{tmp_path}/a.db"
    first = await Hub.open(url, serve=[two_sessions()])
    resting, running = [await first.session("Solo", id=id) for id in ("resting", "running")]
    await resting.ask("hi")
    receipt = await running.send("user", "go")
    await gated.begun.wait()
    draining = asyncio.create_task(first.drain(30))
    async with await Hub.open(url, serve=[two_sessions()]) as second:
        answer = await (await second.get("resting")).ask("again")
        assert answer.text == "Hello."
        assert not draining.done()
        gated.go.set()
        assert await draining == 0
        taken = await second.get("running")
        assert (await taken.answer(receipt.id)).text == "Hello."
        assert (await taken.ask("more")).text == "Hello."
        await first.aclose()


async def test_what_is_not_at_rest_in_time_goes_on_elsewhere(tmp_path: Path) -> None:
    gates: list[Gated] = [Gated(), Gated()]

    def working(gate: Gated) -> Agent[Any]:
        model = ScriptedModel(lambda messages: call("work") if is_first(messages) else "Done.")
        return Agent("Solo", model=model, tools=[gate.work])

    def is_first(messages: list[Any]) -> bool:
        return bool(messages[-1].type == "human")

    url = f"sqlite:///{tmp_path}/a.db"
    first = await Hub.open(url, serve=[working(gates[0])])
    session = await first.session("Solo", id="s")
    receipt = await session.send("user", "go")
    await gates[0].begun.wait()
    assert await first.drain(0) == 1
    assert gates[0].cut_off_at is not None
    gates[1].go.set()
    async with await Hub.open(url, serve=[working(gates[1])]) as second:
        answer = await (await second.get("s")).answer(receipt.id)
        assert answer.text == "Done."
        assert answer.envelopes[-1].event_data["attempt"] == 1  # a stop is no failed attempt
    await first.aclose()


async def test_hub_that_drains_takes_nothing_new(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with await Hub.open(url, serve=[solo("never")]) as draining:
        session = await draining.session("Solo", id="s")
        assert await draining.drain(30) == 0
        receipt = await session.send("user", "hi")
        async with await Hub.open(url, serve=[solo("Hello.")]) as other:
            assert (await (await other.get("s")).answer(receipt.id)).text == "Hello."
