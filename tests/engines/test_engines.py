"""Who drives sessions: the hub itself, or an engine that wakes others; looking wakes nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt

from agentgraph import Agent, Hub
from agentgraph.engines import Engine, LocalEngine, open_engine, register_engine
from agentgraph.errors import ConfigurationError, StorageError
from agentgraph.testing import ScriptedModel, call


class Elsewhere:
    """An engine whose workers are elsewhere; it notes what it was told."""

    drives = False

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.is_open = False
        self.wakes: list[tuple[str, bool]] = []
        self.on_wake: Callable[[], None] = lambda: None

    async def open(self) -> None:
        self.is_open = True

    def wake(self, key: str, *, is_new: bool) -> None:
        self.wakes.append((key, is_new))
        self.on_wake()

    async def check(self) -> None:
        if not self.is_open:
            raise StorageError("the engine is not open")

    async def aclose(self) -> None:
        self.is_open = False

    @property
    def fresh(self) -> list[str]:
        return [key for key, is_new in self.wakes if is_new]


def approve() -> str:
    """Ask a human."""
    return f"a human said {interrupt('may I?')}"


def asking() -> Agent[Any]:
    return Agent("Solo", model=ScriptedModel([call("approve"), "Done.", "Again."]), tools=[approve])


async def test_server_appends_and_wakes_and_a_worker_drives(tmp_path: Path) -> None:
    url, engine = f"sqlite:///{tmp_path}/a.db", Elsewhere()
    async with await Hub.open(url, serve=[asking()], engine=engine) as server:
        session = await server.session("Solo", id="s")
        assert engine.is_open
        receipt = await session.send("user", "go")
        assert engine.fresh == [session.key]
        assert (await session.refresh()).sequence == 1  # nobody drives yet
        async with await Hub.open(url, serve=[asking()]) as worker:
            answer = await session.answer(receipt.id)
            assert answer.interrupts
            decision = await session.decide(answer.interrupts[0].id, "yes")
            assert (await session.answer(decision.id)).text == "Done."
            assert server.drivers.at_work() == []
            assert (await worker.get("s")).state.sequence == answer.sequence + 2
    assert engine.fresh == [session.key] * 2
    assert not engine.is_open


async def test_looking_wakes_nobody(tmp_path: Path) -> None:
    url, engine = f"sqlite:///{tmp_path}/a.db", Elsewhere()
    async with await Hub.open(url, serve=[asking()]) as worker:
        await (await worker.session("Solo", id="s")).ask("go")
    async with await Hub.open(url, serve=[asking()], engine=engine) as server:
        session = await server.get("s")
        await session.refresh()
        await session.history()
        await session.settled()
        await session.questions()
        await session.runs()
        stream = session.stream()
        await anext(stream)
        await stream.aclose()
        await server.sessions()
        assert engine.wakes == []


async def test_looking_at_a_resting_session_begins_no_driver() -> None:
    async with await Hub.open("memory", serve=[asking()]) as hub:
        session = await hub.session("Solo", id="s")
        await session.ask("go")
        hub.drivers.dismiss(session.key)
        await hub.get("s")
        stream = session.stream()
        await anext(stream)
        await stream.aclose()

        assert hub.drivers.get(session.key) is None


async def test_fork_begins_when_it_is_looked_at() -> None:
    agent = Agent("Solo", model=ScriptedModel(["One.", "Two."]))
    async with await Hub.open("memory", serve=[agent]) as hub:
        session = await hub.session("Solo")
        await session.ask("first")
        fork = await session.fork(2)  # before the answer
        state = await fork.settled()

        assert state.status == "waiting_human"
        assert (await fork.history())[-1].text == "Two."


async def test_wakes_that_were_lost_are_made_up(tmp_path: Path) -> None:
    url, engine, lost = f"sqlite:///{tmp_path}/a.db", Elsewhere(), Elsewhere()
    async with await Hub.open(url, serve=[asking()], engine=lost) as server:
        session = await server.session("Solo", id="s")
        await session.send("user", "go")
    woken = asyncio.Event()
    engine.on_wake = woken.set
    async with await Hub.open(url, serve=[asking()], engine=engine):
        await woken.wait()

    assert engine.wakes[0] == (session.key, False)


def test_engines_are_opened_by_their_urls() -> None:
    register_engine("elsewhere", Elsewhere)
    engine: Engine = open_engine("elsewhere://host")

    assert isinstance(open_engine("local"), LocalEngine)
    assert isinstance(engine, Elsewhere)
    assert engine.url == "elsewhere://host"


@pytest.mark.parametrize("url", ["", "lokal", "remote://user:secret@host", "://", "local://a", 3])
def test_unknown_engine_is_refused_without_its_secrets(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="write local") as refused:
        open_engine(url)

    assert refused.value.code == "engine"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["", "local", "A", "a b"])
def test_scheme_that_is_none_is_refused(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be registered"):
        register_engine(scheme, Elsewhere)


@pytest.mark.parametrize("engine", ["local", object(), Elsewhere])
async def test_hub_refuses_what_is_no_engine(engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="open_engine"):
        await Hub.open("memory", engine=engine)
