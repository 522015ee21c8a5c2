"""Live events on a hub that does not run the session: users' own classes, and who may see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from agentgraph import Agent, Envelope, Session, Team, sequence
from agentgraph.sessions.drivers import feed
from agentgraph.stream import AnyEvent, Event, ResetEvent, TokenEvent, emit
from agentgraph.testing import call
from tests.sessions.hub.test_live_resume import Item, Written, shown, two_hubs, writing
from tests.sessions.talk import PATIENCE_S, agent

SECRET = "the marker "


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Event):
    """An event of a module, which each process that imports it knows."""

    type: ClassVar[str] = "step"

    done: int
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Event):
    """An event as a newer version of its module has it."""

    type: ClassVar[str] = "measured"

    seconds: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Event):
    """An event with a field that its class fills in itself."""

    type: ClassVar[str] = "counted"

    words: str
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.words.split()))


def unknown_elsewhere() -> Event:
    """Return an event of a class that no other process can import."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Local(Event):
        type: ClassVar[str] = "local"

        words: str
        data: Any = None

    return Local(words="here", data={"n": [1, None]})


def of_older_version() -> Event:
    """Return an event as an older version of its module has it."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Older(Event):
        type: ClassVar[str] = "measured"

        seconds: float

    return Older(seconds=1.5)


def telling(*events: Event) -> Agent:
    async def work() -> str:
        """Work, and tell of it."""
        for event in events:
            await emit(event)
        return "worked"

    return agent("a", call("work"), "Done.", tools=[work])


async def own_events(session: Session, stream: AsyncIterator[Item], name: str) -> list[AnyEvent]:
    """Read a stream until the answer is there; return the events of a type."""
    events: list[AnyEvent] = []
    async with asyncio.timeout(PATIENCE_S):
        async for item in stream:
            if isinstance(item, Envelope):
                if item.event_type == "ag.packet":
                    break
            elif item.type == name:
                events.append(item)
    return events


@pytest.mark.parametrize(
    ("event", "is_known"),
    [
        (Step(done=1), True),
        (Step(done=2, notes={"a": ["x", "é"]}), True),
        (unknown_elsewhere(), False),
        (of_older_version(), False),
        (Counted(words="two words"), False),
    ],
    ids=["module", "nested", "local", "older", "own field"],
)
async def test_events_of_own_classes_are_told_on_another_hub(
    event: Event, is_known: bool, log_url: str
) -> None:
    async with two_hubs(log_url, telling(event, event)) as (one, two), AsyncExitStack() as stack:
        here = await one.session("a")
        there = await two.get(here.id)
        streams = [
            await stack.enter_async_context(aclosing(session.stream())) for session in (here, there)
        ]
        for stream in streams:
            await anext(stream)
        await here.send("user", "go")
        told = [
            await own_events(session, stream, event.type)
            for session, stream in zip((here, there), streams, strict=True)
        ]
    assert len(told[0]) == 2
    assert [shown(item) for item in told[0]] == [shown(item) for item in told[1]]
    assert all(type(item) is type(event) for item in told[0])
    if is_known:
        assert told[0] == told[1]


def in_private(model: Written) -> Team:
    """Return a team whose first agent writes when it is told to."""
    return Team([writing(model), agent("b")], sequence(["a", "b"]), name="team")


class Readers:
    """What readers on another hub are told of a session."""

    def __init__(self, session: Session, *names: str) -> None:
        self.items: dict[str, list[Item]] = {name: [] for name in names}
        self._session = session
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Readers:
        self._tasks = [asyncio.create_task(self._read(name)) for name in self.items]
        await self.until(lambda: all(self.items.values()))  # the begin of the session is for all
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _read(self, name: str) -> None:
        async with aclosing(self._session.stream(reader=name)) as stream:
            async for item in stream:
                self.items[name].append(item)
                self._news.set()

    async def until(self, holds: Any) -> None:
        """Wait until something holds of what was read."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await self._news.wait()
                self._news.clear()

    def have_told(self, count: int, *names: str) -> bool:
        """Tell whether readers were told so many pieces of text, each or in a reset."""
        return all(self.text(name).count(SECRET) >= count for name in names)

    def text(self, name: str) -> str:
        """Return what a reader knows of the turn: a reset replaces what was told before."""
        text = ""
        for item in self.items[name]:
            if isinstance(item, ResetEvent):
                text = item.text
            elif isinstance(item, TokenEvent):
                text += item.text
        return text


@pytest.mark.parametrize("is_reset", [False, True], ids=["tokens", "reset"])
async def test_a_reader_on_another_hub_is_told_nothing_of_what_is_private(
    is_reset: bool, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_ENTRIES", 6 if is_reset else feed.MOST_ENTRIES)
    model = Written(*[SECRET] * 20)
    async with two_hubs(log_url, in_private(model)) as (one, two):
        here = await one.session("team")
        there = await two.get(here.id)
        async with Readers(here, "user") as beside:
            if is_reset:  # who comes later gets the words of the feed's past at once
                await here.send("user", SECRET, audience=["a"])
                model.write(15)
                await beside.until(lambda: beside.have_told(15, "user"))
            async with Readers(there, "user", "a", "b") as readers:
                if not is_reset:
                    await here.send("user", SECRET, audience=["a"])
                    model.write(15)
                await readers.until(lambda: readers.have_told(15, "user", "a"))
                model.write(5)
                await here.settled()
                last = len(await here.history())
                await readers.until(lambda: is_read(readers.items["user"], last))
                resets = [i for i in readers.items["a"] if isinstance(i, ResetEvent)]
                assert bool(resets) == is_reset
                shown_to_b = str([shown(item) for item in readers.items["b"]])
                assert SECRET.strip() not in shown_to_b
                assert not [i for i in readers.items["b"] if getattr(i, "agent", "") == "a"]


def is_read(items: Sequence[Item], sequence: int) -> bool:
    """Tell whether a reader has come to an envelope."""
    return any(isinstance(item, Envelope) and item.sequence == sequence for item in items)
