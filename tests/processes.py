"""Other processes that share a store with this one, and what they hold."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.storage import LazySaver, open_saver
from agentgraph.testing import ScriptedModel, call
from tests.postgres import Database

ROOT = Path(__file__).parents[1]
PATIENCE_S = 40

OTHER = """
import asyncio, sys
from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call

async def work() -> str:
    "Work until a line comes in."
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return "worked"

async def many() -> None:
    await asyncio.gather(*(agent.ainvoke("theirs", thread_id=str(n)) for n in range(50)))

def echo(messages):
    return " ".join(m.text for m in messages if m.type == "human")

def turn(messages):
    return call("work") if messages[-1].text == "work" else echo(messages)

model = ScriptedModel(turn)
agent = Agent("a", model=model, tools=[work], checkpointer=sys.argv[1], durability="sync")
if sys.argv[2] == "many":
    asyncio.run(many())
elif sys.argv[2] == "forget":
    asyncio.run(agent.aforget("t"))
else:
    print(agent.invoke(sys.argv[2], thread_id="t").text, flush=True)
"""


@contextmanager
def other(url: str, said: str) -> Iterator[subprocess.Popen[str]]:
    """Run an agent in another process."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, url, said],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@contextmanager
def working(url: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process be in the middle of a turn on the thread `t`."""
    with other(url, "work") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process


def in_another(url: str, said: str) -> str:
    with other(url, said) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        return out.strip()


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def echo(messages: list[BaseMessage]) -> str:
    return " ".join(m.text for m in messages if m.type == "human")


def solo(url: str) -> Agent:
    return Agent("a", model=ScriptedModel(echo), checkpointer=url)


def once(tool: str) -> Any:
    return lambda messages: call(tool) if messages[-1].text == "old" else echo(messages)


def asking(url: str) -> Agent:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    return Agent("a", model=ScriptedModel(once("ask")), tools=[ask], checkpointer=url)


def lazy(url: str) -> LazySaver:
    saver = open_saver(url)
    assert isinstance(saver, LazySaver)
    return saver


async def is_free(url: str, thread_id: str = "t") -> bool:
    """Tell whether a stranger could take a thread."""
    stranger = LazySaver(lazy(url)._connect)
    try:
        claim = await stranger.atake(thread_id)
        if claim is not None:
            await claim.release()
        return claim is not None
    finally:
        await stranger.aclose()


class Refusals:
    """Count how often a thread was asked for in vain."""

    def __init__(self, saver: LazySaver, monkeypatch: pytest.MonkeyPatch) -> None:
        self._atake = saver.atake
        self.seen = asyncio.Event()
        monkeypatch.setattr(saver, "atake", self._noted)

    async def _noted(self, thread_id: str) -> Any:
        claim = await self._atake(thread_id)
        if claim is None:
            self.seen.set()
        return claim


def states(postgres: Database) -> dict[str, int]:
    query = "SELECT json_object_agg(state, n) FROM (SELECT state, count(*) AS n FROM "
    query += "pg_stat_activity WHERE datname = %s AND backend_xmin IS NULL GROUP BY state) AS s"
    found = postgres.execute(query, postgres.name)[0][0]
    return dict(found) if isinstance(found, dict) else dict(json.loads(str(found)))
