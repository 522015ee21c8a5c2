"""Two servers on one store: one turn at a time on a thread, whoever is asked."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call
from tests.postgres import Database
from tests.server.live_server import PATIENCE_S, Gated, problem_of, serving, solo, told

ROOT = Path(__file__).parents[2]
COMPLETION = "/agents/Solo/completion"
STREAM = "/agents/Solo/stream-completion"
RESUME = "/agents/Solo/resume"
THREAD = "/agents/Solo/threads/t"
HI = {"prompt": "hi", "thread_id": "t"}

SERVER = """
import socket, sys
from pathlib import Path
import uvicorn
from agentgraph_server import create_app
from tests.server.test_two_servers import paying

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen()
print(listening.getsockname()[1], flush=True)
app = create_app(paying(Path(sys.argv[2])), store=sys.argv[1])
uvicorn.Server(uvicorn.Config(app, log_config=None)).run([listening])
"""


def paying(book: Path) -> Agent:
    """Make an agent that pays once a human agrees, and writes that in a book."""

    def pay() -> str:
        """Pay."""
        answer = interrupt("may I?")
        with book.open("a") as entries:
            entries.write("paid\n")
        return f"paid: {answer}"

    def turn(messages: list[object]) -> object:
        return call("pay") if "pay!" in str(messages[-1]) else "done"

    return Agent("Solo", model=ScriptedModel(turn), tools=[pay])  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a.db"
    database: Database = request.getfixturevalue("postgres")
    return database.url


@contextmanager
def _process(store: str, book: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, store, str(book)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'server'}"},
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def second(store: str, book: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server in another process, to a client that knows its address."""
    with _process(store, book) as url:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S * 3) as client:
            while not await _answers(client):
                pass
            yield client


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("path", [COMPLETION, STREAM])
async def test_thread_that_the_other_server_runs_is_refused(
    store: str, path: str, gated: Gated, tmp_path: Path
) -> None:
    agent = solo(call("work"), "worked", tools=[gated.work])
    async with serving(agent, store=store) as one, second(store, tmp_path / "book") as two:
        first = asyncio.create_task(one.post(path, json=HI))
        await gated.begun.wait()
        refused = [
            await two.post(COMPLETION, json=HI),
            await two.post(STREAM, json=HI),
            await two.post(RESUME, json={"thread_id": "t", "decisions": {"a": 1}}),
            await two.delete(THREAD),
        ]
        beside = await two.post(COMPLETION, json={"prompt": "hi", "thread_id": "other"})
        gated.go.set()
        assert (await first).status_code == 200
        after = await two.post(COMPLETION, json=HI)
        messages = (await two.get(THREAD)).json()["messages"]

    for answer in refused:
        assert problem_of(answer, 409)["code"] == "thread_busy"
        assert int(answer.headers["retry-after"]) > 0
    assert [beside.status_code, after.status_code] == [200, 200]
    assert [m["text"] for m in messages] == ["hi", "", "worked", "worked", "hi", "done"]


async def test_thread_is_free_to_the_other_server_as_soon_as_its_end_was_read(
    store: str, tmp_path: Path
) -> None:
    async with (
        serving(solo(*["hello"] * 20), store=store) as one,
        second(store, tmp_path / "book") as two,
    ):
        for _ in range(10):
            events = await told(one, STREAM, **HI)
            assert events[-1].name == "done"
            assert (await two.post(COMPLETION, json=HI)).status_code == 200
            assert (await one.post(COMPLETION, json=HI)).status_code == 200


async def test_decision_that_both_servers_get_is_executed_once(store: str, tmp_path: Path) -> None:
    book = tmp_path / "book"
    async with serving(paying(book), store=store) as one, second(store, book) as two:
        for n in range(5):
            begun = await one.post(COMPLETION, json={"prompt": "pay!", "thread_id": str(n)})
            (question,) = begun.json()["interrupts"]
            body = {"thread_id": str(n), "decisions": {question["id"]: "yes"}}
            answers = await asyncio.gather(*(c.post(RESUME, json=body) for c in (one, two)))

            won, lost = sorted(answers, key=lambda answer: answer.status_code)
            assert won.json()["text"] == "done"
            assert lost.status_code == 409, lost.text
            assert lost.json()["code"] in ("thread_busy", "already_decided")
            assert book.read_text().splitlines() == ["paid"] * (n + 1)
