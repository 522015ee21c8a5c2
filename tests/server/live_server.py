"""Agents served over TCP on loopback, and what the tests of the server say to them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn
from httpx_sse import EventSource, aconnect_sse
from langgraph.types import interrupt

from agentgraph import Agent, Flow
from agentgraph.clock import clock
from agentgraph.engines import Engine
from agentgraph.testing import ScriptedModel
from agentgraph_server import create_app
from agentgraph_server.principals.auth import Auth
from agentgraph_server.settings import Settings

PATIENCE_S = 10.0


class Told(NamedTuple):
    """An event as it came over the wire."""

    name: str
    data: dict[str, Any]


@asynccontextmanager
async def serving(
    *served: Any,
    store: str = "memory",
    api_keys: Sequence[str] | None = None,
    auth: Auth | None = None,
    engine: Engine | None = None,
    sndbuf: int | None = None,
    **settings: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve agents on this loop, to a client that knows their address."""
    server, listening = _server(
        *served, store=store, auth=auth, engine=engine, api_keys=api_keys, **settings
    )
    if sndbuf is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    await until(lambda: server.started or running.done())
    try:
        async with httpx.AsyncClient(base_url=_url(listening), timeout=PATIENCE_S) as client:
            yield client
    finally:
        server.should_exit = True
        await running


@contextmanager
def serving_in_a_thread(
    *agents: Agent | Flow[Any], api_keys: Sequence[str] | None = None
) -> Iterator[str]:
    """Serve agents beside a test that blocks; yield their address."""
    server, listening = _server(*agents, store="memory", auth=None, api_keys=api_keys)
    url = _url(listening)  # before it is closed
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()


def _server(
    *served: Any, store: str, auth: Auth | None, engine: Engine | None = None, **settings: Any
) -> tuple[uvicorn.Server, socket.socket]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()  # who comes before the server has started waits
    app = create_app(*served, store=store, engine=engine, auth=auth, settings=_settings(**settings))
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    return _Server(config), listening


def _settings(**values: Any) -> Settings:
    return Settings(**{name: value for name, value in values.items() if value is not None})


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are the test runner's

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await clock().sleep(0.005)


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()
    return f"http://{host}:{port}"


async def until(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds; give up loudly."""
    deadline = clock().monotonic() + patience_s
    while not holds():
        if clock().monotonic() > deadline:
            raise AssertionError(f"it does not hold after {patience_s} s")
        await clock().sleep(0.002)


@asynccontextmanager
async def streaming(
    client: httpx.AsyncClient, path: str, **body: Any
) -> AsyncIterator[AsyncIterator[Told]]:
    """Post a body and read events as they come."""
    accept = {"Accept": "text/event-stream"}
    async with aconnect_sse(client, "POST", path, json=body, headers=accept) as source:
        assert source.response.status_code == 200, await source.response.aread()
        yield _events(source)


async def _events(source: EventSource) -> AsyncIterator[Told]:
    async for sse in source.aiter_sse():
        assert not sse.id
        yield Told(sse.event, json.loads(sse.data))


async def told(client: httpx.AsyncClient, path: str, **body: Any) -> list[Told]:
    """Return all events that a body brings about."""
    async with streaming(client, path, **body) as events:
        return [event async for event in events]


def names(events: Sequence[Told]) -> list[str]:
    """Return the names of events in their order, several tokens in a row as one."""
    return [
        one.name
        for i, one in enumerate(events)
        if one.name != "token" or not i or events[i - 1].name != "token"
    ]


def problem_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Return the problem that an answer is."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


class Gated:
    """A tool that works until it is let go, and notes when it was cut off."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.cut_off_at: float | None = None

    async def work(self) -> str:
        """Work for a long time."""
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cut_off_at = clock().monotonic()
            raise
        return "worked"


def lookup(order: str) -> str:
    """Look an order up."""
    return f"{order} is lost"


def approve() -> str:
    """Ask a human."""
    return f"a human said {interrupt({'question': 'may I?'})}"


def solo(*turns: Any, **fields: Any) -> Agent:
    """Make an agent that says these turns, one after the other."""
    return Agent("Solo", model=ScriptedModel(list(turns)), **fields)
