"""Webhooks: a run that has ended is told, to a real receiver, at least once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentgraph import Agent, Hub
from agentgraph.sessions.hub.webhooks import MOST_TRIES, Webhooks
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.server.live_server import Gated, problem_of, serving, solo, until
from tests.server.test_sessions import opened

HERE = ("127.0.0.1",)


class Receiver:
    """A server that notes what it gets, and answers with the next status."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.statuses: list[int] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        self.heads.append(head)
        status = self.statuses.pop(0) if self.statuses else 204
        writer.write(f"HTTP/1.1 {status} Fine\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"http://127.0.0.1:{port}/runs?of=us"
    async with server:
        yield receiver


async def say(client: httpx.AsyncClient, id: str, text: str, webhook: str) -> httpx.Response:
    body = {"text": text, "webhook": webhook}
    return await client.post(f"/sessions/{id}/messages", json=body)


async def test_a_run_that_has_ended_is_told_once() -> None:
    async with receiving() as receiver, serving(solo("Hello."), webhook_hosts=HERE) as client:
        id = await opened(client)
        begun = await say(client, id, "hi", receiver.url)
        assert begun.status_code == 202
        await until(lambda: receiver.bodies)
        run = (await client.get(f"/runs/{begun.json()['run_id']}")).json()
    assert receiver.bodies == [run]
    assert run["status"] == "success"
    assert receiver.heads[0].startswith("POST /runs?of=us HTTP/1.1\r\n")
    assert "content-type: application/json" in receiver.heads[0].lower()


async def test_runs_that_are_cancelled_or_withdrawn_are_told_too(gated: Gated) -> None:
    agent = solo(call("work"), "worked", tools=[gated.work])
    async with receiving() as receiver, serving(agent, webhook_hosts=HERE) as client:
        id = await opened(client)
        first = (await say(client, id, "work", receiver.url)).json()["run_id"]
        await gated.begun.wait()
        second = (await say(client, id, "more", receiver.url)).json()["run_id"]
        assert receiver.bodies == []
        for run_id in (second, first):
            assert (await client.post(f"/runs/{run_id}/cancel")).status_code == 204
            await until(lambda: run_id in [run["id"] for run in receiver.bodies])  # noqa: B023
    assert {run["id"]: run["status"] for run in receiver.bodies} == {
        first: "cancelled",
        second: "cancelled",
    }


async def test_a_receiver_that_fails_is_asked_again_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    agent = Agent("Solo", model=ScriptedModel(lambda messages: "ok"))
    async with (
        receiving() as receiver,
        await Hub.open(serve=[agent], clock=clock) as hub,
    ):
        receiver.statuses = [500, 503]
        webhooks = Webhooks(hub, hosts=HERE)
        webhooks.start()
        session = await hub.session("Solo")
        answer = await session.ask("hi")
        await webhooks.add(session, answer.run_id, receiver.url, reader=None)
        for count in (1, 2, 3):
            await until(lambda: len(receiver.bodies) >= count)  # noqa: B023
            await asyncio.wait_for(session.ask("again"), 10)
            clock.advance(60.0)
        assert [run["id"] for run in receiver.bodies] == [answer.run_id] * 3
        clock.advance(100_000.0)
        assert len(receiver.bodies) == 3
        webhooks.stop()
    assert receiver.url not in caplog.text


async def test_a_webhook_that_was_accepted_is_called_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    async with receiving() as receiver:
        agent = Agent("Solo", model=ScriptedModel(lambda messages: "ok"))
        async with await Hub.open(store, serve=[agent]) as hub:
            session = await hub.session("Solo", id="s")
            answer = await session.ask("hi")
            await Webhooks(hub, hosts=HERE).add(session, answer.run_id, receiver.url, reader=None)
        assert receiver.bodies == []
        async with serving(agent, store=store, webhook_hosts=HERE):
            await until(lambda: receiver.bodies)
    assert [run["id"] for run in receiver.bodies] == [answer.run_id]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://localhost/",
        "http://10.0.0.7/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://0.0.0.0/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://user:pass@example.com/",
        "https://",
        "http://example.com:port/",
        "http://exämple.com/",
        "nothing",
    ],
)
async def test_addresses_that_are_not_of_the_internet_are_refused(url: str) -> None:
    async with serving(solo("never")) as client:
        id = await opened(client)
        problem = problem_of(await say(client, id, "hi", url), 422)
        assert problem["code"] == "webhook"
        assert "pass" not in problem["detail"].replace("password", "")
        assert (await client.get(f"/sessions/{id}/runs")).json() == []


async def test_hosts_that_are_not_allowed_are_refused() -> None:
    async with serving(solo("never"), webhook_hosts=("hooks.example.com",)) as client:
        id = await opened(client)
        problem_of(await say(client, id, "hi", "https://example.com/"), 422)


async def test_a_name_with_a_private_address_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    async def post(url: str, address: str, body: bytes) -> int:
        calls.append(address)
        return 204

    addresses = ["10.0.0.7"]

    async def getaddrinfo(host: str, port: int, **kwargs: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    async with await Hub.open(serve=[solo("Hello.")]) as hub:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
        webhooks = Webhooks(hub, post=post)
        webhooks.start()
        session = await hub.session("Solo")
        answer = await session.ask("hi")
        await webhooks.add(session, answer.run_id, "https://rebinding.example/", reader=None)
        table: Any = hub.log
        await until(lambda: [hook.tries for hook in table.webhooks._webhooks.values()] == [1])
        webhooks.stop()
    assert calls == []


def test_a_webhook_is_not_tried_for_ever() -> None:
    assert 3 <= MOST_TRIES <= 20
