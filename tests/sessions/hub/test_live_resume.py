"""Streams of sessions that break and go on: nothing is missing, nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from agentgraph import Agent, Envelope, Hub, Session, Team
from agentgraph.sessions.hub.hub import LEASE_S
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.single.team import teams_of
from agentgraph.storage import open_saver
from agentgraph.stream import AnyEvent, ResetEvent, TokenEvent
from agentgraph.testing import ScriptedModel, call
from tests.postgres import Database
from tests.sessions.talk import PATIENCE_S, agent

Item = Envelope | AnyEvent


def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def looking() -> Agent:
    """Return an agent that calls a tool twice, with words in between."""
    words = "Both are there, as they were before."
    return agent("a", call("look", at="x"), call("look", at="y"), words, tools=[look])


def shown(item: Item) -> tuple[str, str, str]:
    """Return what a client has of an item: its place, its name, its data."""
    if isinstance(item, Envelope):
        return item.cursor, item.event_type, item.text
    return item.cursor, item.type, item.to_json().decode()


async def read_until_rest(session: Session, after: int | str = 0) -> list[Item]:
    """Read a stream until the answer is there."""
    items: list[Item] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(session.stream(after)) as stream:
        async for item in stream:
            items.append(item)
            if isinstance(item, Envelope) and item.event_type == "ag.packet":
                return items
    return items


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "postgres":
        database: Database = request.getfixturevalue("postgres")
        return database.url
    return "memory" if request.param == "memory" else f"sqlite:///{tmp_path}/a.db"


@asynccontextmanager
async def two_hubs(url: str, served: Agent | Team) -> AsyncIterator[tuple[Hub, Hub]]:
    """Open two hubs on one store; the first one runs what is opened there."""
    log = MemoryLog()
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            if url == "memory":
                hub = Hub(log, open_saver("memory"), teams_of([served]), LEASE_S)
                await hub.start(None)
            else:
                hub = await Hub.open(url, serve=[served])
            opened.append(await stack.enter_async_context(hub))
        yield opened[0], opened[1]


@asynccontextmanager
async def hubs(url: str, *agents: Agent) -> AsyncIterator[list[Hub]]:
    """Open a hub for each agent on one store."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(await Hub.open(url, serve=[served]))
            for served in agents
        ]


async def test_a_stream_goes_on_after_every_item_of_it() -> None:
    async with hubs("memory", looking()) as (hub,):
        session = await hub.session("a")
        whole = asyncio.create_task(read_until_rest(session))
        await session.ask("go")
        items = [shown(item) for item in await whole]
        assert len(items) > 10
        assert len({cursor for cursor, _, _ in items}) == len(items)
        for place, (cursor, _, _) in enumerate(items[:-1]):
            rest = await read_until_rest(session, cursor)
            assert [shown(item) for item in rest] == items[place + 1 :]


class Written(ScriptedModel):
    """A model that writes each piece when it is told to."""

    def __init__(self, *pieces: str) -> None:
        super().__init__([])
        self._text = pieces
        self._may_write = asyncio.Semaphore(0)

    def write(self, count: int = 1) -> None:
        """Let it write some more pieces."""
        for _ in range(count):
            self._may_write.release()

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for piece in self._text:
            await self._may_write.acquire()
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece, id="m"))


PIECES = [f"w{n} " for n in range(12)]


def writing(model: Written) -> Agent:
    return Agent("a", model=model, default_tools=False)


def tokens_of(items: Sequence[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, TokenEvent)]


async def read(stream: AsyncIterator[Item], tokens: int) -> list[Item]:
    """Read on until so many tokens have come."""
    items: list[Item] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(tokens_of(items)) < tokens:
            items.append(await anext(stream))
    return items


async def test_another_hub_of_the_store_goes_on_where_a_stream_was_cut(url: str) -> None:
    model = Written(*PIECES)
    async with two_hubs(url, writing(model)) as (one, two):
        here = await one.session("a")
        there = await two.get(here.id)
        stream = here.stream()
        first = [await anext(stream)]
        await here.send("user", "go")
        for place in range(len(PIECES)):
            model.write()
            first += await read(stream, 1)
            await stream.aclose()
            session = there if place % 2 == 0 else here
            stream = session.stream(first[-1].cursor)
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(first[-1], Envelope) or first[-1].event_type != "ag.packet":
                first.append(await anext(stream))
        await stream.aclose()
    assert "".join(tokens_of(first)) == "".join(PIECES)
    assert not [item for item in first if isinstance(item, ResetEvent)]
    cursors = [item.cursor for item in first]
    assert len({*cursors}) == len(cursors)
    assert [item.sequence for item in first if isinstance(item, Envelope)] == [1, 2, 3]
