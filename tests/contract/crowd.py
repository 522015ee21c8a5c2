"""Twelve processes that decide one question at the same time, each otherwise.

As a script it takes one order, a line of JSON: it imports everything once, forks a process for each
decider, and lets all of them go once each has read the question. They decide through an agent, a
flow or a hub of their own, and on a thread every other one through a server.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import httpx

from agentgraph import Hub
from agentgraph.errors import AgentGraphError
from agentgraph.sessions import open_log
from agentgraph.storage import open_saver
from agentgraph_server import create_app
from tests.contract.cells import Subject
from tests.contract.child import LEASE_S, THREAD
from tests.contract.ledger import Ledger
from tests.contract.site import Site
from tests.contract.subjects import Till, runner_of, served_of

ROOT = Path(__file__).parents[2]
DECIDERS = 12
PATIENCE_S = 100


def crowd(url: str, ledger: str, subject: Subject) -> None:
    """Have twelve processes decide the open question; what they hear is in the ledger."""
    names = [subject.operation, subject.home, subject.durability]
    order = json.dumps({"url": url, "ledger": ledger, "subject": names})
    path = f"{ROOT}:{ROOT / 'server'}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.crowd", order],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-6_000:]


class Decider:
    """One of the processes."""

    def __init__(self, number: int, till: Till, url: str) -> None:
        self._number, self._till, self._url = number, till, url
        self._ledger = till.site.ledger

    async def decide(self, ready: int, start: int) -> None:
        """Read the question, wait until all have, and decide it."""
        self._barrier = ready, start
        if self._till.subject.home in ("alone", "team"):
            await self._in_session()
        else:
            await self._on_thread(runner_of(self._till, self._url))

    async def _wait(self) -> None:
        ready, start = self._barrier
        os.write(ready, b".")
        await asyncio.to_thread(os.read, start, 1)

    async def _on_thread(self, runner: Any) -> None:
        [question] = await runner.ainterrupts(THREAD)
        decisions = {question.id: f"approve {self._number}"}
        await self._wait()
        if self._number % 2 and self._till.subject.home == "thread":
            await self._through_server(runner, decisions)
            return
        try:
            reply = await runner.aresume(THREAD, decisions)
            self._note("accepted", reply.text)
        except AgentGraphError as error:
            self._note("refused", f"{error.code}: {error}")

    async def _through_server(self, runner: Any, decisions: dict[str, str]) -> None:
        app = create_app(runner, store=self._url)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        body = {"thread_id": THREAD, "decisions": decisions}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            while True:
                answer = await client.post(f"/agents/{runner.name}/resume", json=body)
                if answer.json().get("code") != "thread_busy":
                    break
        self._note("accepted" if answer.status_code == 200 else "refused", answer.text)

    async def _in_session(self) -> None:
        served = served_of(self._till)
        hub = Hub(open_log(self._url), open_saver(self._url), [served], LEASE_S)
        await hub.start(None)
        async with hub:
            session = await hub.session(served, id=THREAD, ttl=None)
            [question] = (await session.settled()).interrupts
            await self._wait()
            try:
                await session.decide(question, f"approve {self._number}")
                self._note("accepted", "")
            except AgentGraphError as error:
                self._note("refused", f"{error.code}: {error}")
            await session.settled()

    def _note(self, what: str, text: str) -> None:
        self._ledger.write(what, f"approve {self._number}", data=text)


def main(url: str, ledger: str, subject: list[str]) -> int:
    """Fork the deciders, and return 1 if one of them fails."""
    till = Till(Subject(*subject), Site(Ledger(ledger), subject[0]))
    (all_ready, ready), (start, go) = os.pipe(), os.pipe()
    children = [_forked(Decider(n, till, url), ready, start, go) for n in range(DECIDERS)]
    os.close(ready)
    waiting = DECIDERS
    while waiting and (dots := os.read(all_ready, waiting)):
        waiting -= len(dots)
    os.close(go)
    failures = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    return int(failures > 0 or waiting > 0)


def _forked(decider: Decider, ready: int, start: int, go: int) -> int:
    child = os.fork()
    if child:
        return child
    os.close(go)  # whoever waits at `start` goes on once nobody holds this end
    status = 1
    try:
        asyncio.run(decider.decide(ready, start))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
