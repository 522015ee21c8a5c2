"""The server as a process: what it is bound to, and how it ends."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from agentgraph.clock import clock
from tests.server.live_server import PATIENCE_S, Told, names, streaming, until

SERVER = """
import asyncio, sys
from pathlib import Path
from agentgraph import Agent
from agentgraph.testing import ScriptedModel, Turn, call
from agentgraph_server import serve

folder = Path(sys.argv[1])

def lookup() -> str:
    "Look an order up."
    return "A7 is lost"

async def work() -> str:
    "Work until told to stop."
    (folder / "begun").touch()
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return "worked"

def turn(messages):
    if messages[-1].text == "go":
        return Turn("Let me see.", [call("lookup"), call("work")])
    return " | ".join(m.text for m in messages if m.type == "tool")

agent = Agent("Solo", model=ScriptedModel(turn), tools=[lookup, work])
host, store = sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else f"sqlite:///{folder}/a.db"
serve(agent, host=host, port=0, store=store)
"""
GO = {"prompt": "go", "thread_id": "t"}
SOON_S = 5.0


class Process:
    """A server in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        script, self._log = folder / "server.py", folder / "log"
        script.write_text(SERVER)
        with self._log.open("w") as log:
            command = [sys.executable, str(script), str(folder), *(arguments or ("127.0.0.1",))]
            self.popen = subprocess.Popen(command, stderr=log, stdout=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def port(self) -> int:
        running = re.compile(r"running on http://[\w.]+:(\d+)")
        await until(lambda: running.search(self.log) or self.popen.poll() is not None, 30)
        found = running.search(self.log)
        assert found, self.log
        return int(found[1])

    async def end(self) -> int:
        """Wait for its end, and return its exit status."""
        return await asyncio.to_thread(self.popen.wait, PATIENCE_S)


@asynccontextmanager
async def process(
    folder: Path, *arguments: str
) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    server = Process(folder, *arguments)
    try:
        url = f"http://127.0.0.1:{await server.port()}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            yield server, client
    finally:
        server.popen.kill()
        server.popen.wait()


@pytest.mark.parametrize("told_by", [signal.SIGTERM, signal.SIGINT])
async def test_stream_is_told_of_the_end_and_its_work_is_known_to_the_next_server(
    tmp_path: Path, told_by: signal.Signals
) -> None:
    events: list[Told] = []
    async with process(tmp_path) as (server, client):
        async with streaming(client, "/agents/Solo/stream-completion", **GO) as stream:
            async for event in stream:
                events.append(event)
                if event.name == "tool_response":
                    await until((tmp_path / "begun").exists)
                    told_at = clock().monotonic()
                    server.popen.send_signal(told_by)
        status = await server.end()
        lasted = clock().monotonic() - told_at
    (tmp_path / "log").unlink()
    async with process(tmp_path) as (_, client):
        thread = (await client.get("/agents/Solo/threads/t")).json()
        body = {"prompt": "and?", "thread_id": "t"}
        answer = (await client.post("/agents/Solo/completion", json=body)).json()

    assert names(events)[-3:] == ["tool_response", "error", "done"]
    assert events[-2].data["code"] == "shutdown"
    assert [e.data["sequence"] for e in events] == list(range(1, len(events) + 1))
    assert {e.data["run_id"] for e in events} == {events[0].data["run_id"]}
    assert status == 0
    assert lasted < SOON_S
    assert "A7 is lost" in [m["text"] for m in thread["messages"]]
    assert answer["text"].startswith("A7 is lost | Outcome unknown")


async def test_answer_under_way_is_waited_for(tmp_path: Path) -> None:
    async with process(tmp_path) as (server, client):
        answering = asyncio.create_task(client.post("/agents/Solo/completion", json=GO))
        await until((tmp_path / "begun").exists)
        server.popen.send_signal(signal.SIGTERM)
        await until(lambda: "Shutting down" in server.log)
        (tmp_path / "go").touch()
        answer = await answering
        status = await server.end()

    assert answer.json()["text"] == "A7 is lost | worked"
    assert status == 0


async def test_server_is_bound_to_this_machine(tmp_path: Path) -> None:
    async with process(tmp_path) as (_, client):
        near = await client.get("/health")
        other_address = f"http://127.0.0.2:{client.base_url.port}/health"
        with pytest.raises(httpx.ConnectError):
            await client.get(other_address)

    assert near.status_code == 200


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["0.0.0.0"], "set AGENTGRAPH_API_KEYS, or serve on 127.0.0.1"),
        (["127.0.0.1", "sqlite:////nowhere/at/all/a.db"], "StorageError"),
    ],
    ids=["open to others", "no store"],
)
async def test_server_that_cannot_serve_ends_and_says_why(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    server = Process(tmp_path, *arguments)

    assert await server.end() != 0
    assert says in server.log
    assert "running on" not in server.log
