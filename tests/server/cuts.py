"""Streams that are cut at every event, on real servers, some of which are killed meanwhile.

`python -m tests.server.cuts 200` cuts the streams of so many sessions, on SQLite and on Postgres.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

from agentgraph import Agent
from agentgraph.clock import clock
from agentgraph.sessions.log.live import Cursor
from agentgraph.testing import ScriptedModel, call

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0
TEXT = " ".join(f"word{n}" for n in range(12))

Way = Literal["same", "other", "kill"]

SERVER = """
import socket, sys
import uvicorn
from agentgraph_server import create_app
from tests.server.cuts import paced

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
app = create_app(paced(), store=sys.argv[1])
uvicorn.Server(uvicorn.Config(app, log_config=None)).run([listening])
"""


class Paced(ScriptedModel):
    """A model that takes its time between two pieces."""

    def __init__(self, turns: Callable[[Any], Any]) -> None:
        super().__init__(turns)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for chunk in super()._astream(*args, **kwargs):
            await clock().sleep(0.01)
            yield chunk


def paced() -> Agent:
    """Return an agent that looks something up, and then says the text."""

    def look_up() -> str:
        """Look it up."""
        return "there"

    def turn(messages: Any) -> Any:
        return TEXT if messages[-1].type == "tool" else call("look_up")

    return Agent("Solo", model=Paced(turn), tools=[look_up], default_tools=False)


class Servers:
    """Two servers on one store, each a process of its own; one that was killed is begun again."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._processes: list[subprocess.Popen[str]] = []
        self.clients: list[httpx.AsyncClient] = []

    async def begin(self) -> None:
        """Begin both."""
        for _ in range(2):
            process, client = await self._begun()
            self._processes.append(process)
            self.clients.append(client)

    async def kill(self, place: int) -> None:
        """Kill a server, and wait until it is gone."""
        self._processes[place].send_signal(signal.SIGKILL)
        self._processes[place].communicate()
        await self.clients[place].aclose()

    async def revive(self, place: int) -> None:
        """Begin another server in the place of one that was killed."""
        self._processes[place], self.clients[place] = await self._begun()

    async def close(self) -> None:
        """End both."""
        for process, client in zip(self._processes, self.clients, strict=True):
            process.kill()
            process.communicate()
            await client.aclose()

    async def _begun(self) -> tuple[subprocess.Popen[str], httpx.AsyncClient]:
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", SERVER, self._store],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'server'}"},
        )
        assert process.stdout is not None
        port = (await asyncio.to_thread(process.stdout.readline)).strip()
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        while True:
            try:
                if (await client.get("/health")).status_code == 200:
                    return process, client
            except httpx.TransportError:
                await clock().sleep(0.01)


@asynccontextmanager
async def two_servers(store: str) -> AsyncIterator[Servers]:
    """Run two servers for a while."""
    servers = Servers(store)
    try:
        await servers.begin()
        yield servers
    finally:
        await servers.close()


@dataclass
class Client:
    """What a client has of a session, whatever became of its connections."""

    sequences: list[int] = field(default_factory=list)
    text: str = ""
    names: list[str] = field(default_factory=list)
    last: str = ""
    faults: list[str] = field(default_factory=list)

    def take(self, sse: ServerSentEvent) -> None:
        """Note an event, and what is wrong with it."""
        data = json.loads(sse.data)
        self.names.append(sse.event)
        if self.last and Cursor.parse(sse.id) <= Cursor.parse(self.last):
            self.faults.append(f"{sse.event} {sse.id} comes after {self.last}")
        self.last = sse.id
        if sse.event == "reset":
            self.text = data["text"]
        elif sse.event == "token":
            self.text += data["text"]
        elif "outcome unknown" in sse.data:
            self.faults.append(f"a false word: {sse.data}")
        if "sequence" in data and "event_type" in data:
            self.sequences.append(data["sequence"])
        # After a turn has ended its live events are gone, and the packet has all of it.
        if sse.event == "ag.packet" and not data["event_data"]["body"].startswith(self.text):
            self.faults.append(f"the text was {self.text!r}")

    @property
    def is_done(self) -> bool:
        """Whether the answer is there."""
        return self.names[-1:] == ["ag.packet"]


async def cut_session(servers: Servers, way: Way, number: int) -> list[str]:
    """Read one session, one event a connection; return what was wrong."""
    made = await servers.clients[0].post("/sessions", json={"served": "Solo"})
    path = f"/sessions/{made.json()['id']}"
    client = Client()
    await servers.clients[0].post(f"{path}/messages", json={"text": "go"})
    is_killed, place = way != "kill", 0
    async with asyncio.timeout(PATIENCE_S):
        while not client.is_done:
            if not is_killed and len(client.names) > number % 15 + 2:
                is_killed, place = True, 1
                await servers.kill(0)
            elif way == "other":
                place = 1 - place
            await _read_one(servers.clients[place], f"{path}/events", client)
    if client.sequences != [*range(1, len(client.sequences) + 1)]:
        client.faults.append(f"sequences {client.sequences}")
    if way == "same" and client.text != TEXT:
        client.faults.append(f"the text was {client.text!r}")
    if "reset" in client.names and way != "kill":
        client.faults.append(f"a reset without need: {client.names}")
    if way == "kill" and place == 1:
        await servers.revive(0)
    run = (await servers.clients[1].get(f"{path}/runs")).json()[0]
    if run["status"] != "success":
        client.faults.append(f"the run: {run}")
    return client.faults


async def _read_one(http: httpx.AsyncClient, path: str, client: Client) -> None:
    headers = {"Last-Event-ID": client.last} if client.last else {}
    async with aconnect_sse(http, "GET", path, headers=headers) as source:
        assert source.response.status_code == 200, await source.response.aread()
        async for sse in source.aiter_sse():
            client.take(sse)
            return


async def cut_all(store: str, counts: dict[Way, int]) -> list[str]:
    """Cut the streams of many sessions; return what was wrong with which."""
    faults: list[str] = []
    async with two_servers(store) as servers:
        for way, count in counts.items():
            for number in range(count):
                wrong = await cut_session(servers, way, number)
                faults += [f"{way} {number}: {fault}" for fault in wrong]
    return faults


def main(arguments: Sequence[str]) -> int:
    from tests.postgres import Server, ways

    count = int(arguments[0]) if arguments else 200
    counts: dict[Way, int] = {"same": count // 4, "other": count // 2, "kill": count // 4}
    with tempfile.TemporaryDirectory() as folder:
        faults = asyncio.run(cut_all(f"sqlite:///{folder}/a.db", counts))
    server = Server(ways()[0])
    try:
        faults += asyncio.run(cut_all(server.url, counts))
    finally:
        server.remove()
    print(f"{2 * sum(counts.values())} sessions, {len(faults)} faults", *faults, sep="\n")  # noqa: T201
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
