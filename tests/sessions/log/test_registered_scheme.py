"""A log of your own: written against the protocol, registered with one call, opened by its URL."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph
from agentgraph.sessions import Hub, MemoryLog, Team, open_log, register_log
from agentgraph.sessions.log import Log
from agentgraph.storage import open_saver
from tests.sessions.talk import agent, settled


class CountingLog(MemoryLog):
    """A log that is in memory, and counts how often it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.openings = 0

    async def open(self) -> None:
        self.openings += 1


@pytest.fixture
def logs() -> dict[str, CountingLog]:
    """The logs of the scheme `counting`, each by its URL."""
    logs: dict[str, CountingLog] = {}

    def opener(url: str) -> Log:
        return logs.setdefault(url, CountingLog())

    register_log("counting", opener)
    return logs


def greeters() -> Team:
    rules = [Transition(FromSpeaker("user"), "a"), Transition(FromSpeaker("a"), HumanTarget())]
    return Team([agent("a", "good day", "good bye")], TransitionGraph("a", rules), name="greeters")


async def test_hub_stores_sessions_in_a_log_of_a_registered_scheme(
    logs: dict[str, CountingLog],
) -> None:
    async with await Hub.open("counting://here", serve=[greeters()]) as hub:
        session = await hub.session("greeters", id="s")
        await session.send("user", "hello")
        await settled(session)

    assert list(logs) == ["counting://here"]
    assert [said.text for said in await logs["counting://here"].tail("s", 9)] == [
        "hello",
        "good day",
    ]


async def test_next_hub_goes_on_with_the_sessions_of_such_a_log(
    logs: dict[str, CountingLog],
) -> None:
    team = greeters()
    async with await Hub.open("counting://here", serve=[team]) as hub:
        session = await hub.session(team, id="s")
        await session.send("user", "hello")
        await settled(session)

    async with await Hub.open("counting://here", serve=[team]) as hub:
        session = await hub.get("s")
        await session.send("user", "that is all")
        await settled(session)

    log = logs["counting://here"]
    assert log.openings == 2
    assert [said.text for said in await log.tail("s", 9)] == [
        "hello",
        "good day",
        "that is all",
        "good bye",
    ]


def test_saver_of_a_registered_scheme_is_one_for_each_url(logs: dict[str, CountingLog]) -> None:
    assert open_saver("counting://there") is open_saver("counting://there")
    assert open_saver("counting://there") is not open_saver("counting://elsewhere")


def test_refused_url_names_the_schemes_that_were_registered(logs: dict[str, CountingLog]) -> None:
    # Other tests of this process may have registered schemes too.
    with pytest.raises(ConfigurationError, match=r"or postgresql://…( or \S+)* or counting://…"):
        open_log("nowhere://here")


def test_log_that_lacks_methods_is_told_which() -> None:
    old_log: Any = type("OldLog", (MemoryLog,), {"milestone": None, "blobs": None})
    register_log("old", lambda url: old_log())

    with pytest.raises(ConfigurationError) as caught:
        open_log("old://here")

    for name in ("milestone", "blobs"):
        assert f"OldLog has no {name!r}: add it" in str(caught.value)
    assert caught.value.code == "log"


@pytest.mark.parametrize("scheme", ["memory", "sqlite", "postgresql", "Own", "own://", "", "1st"])
def test_scheme_that_is_built_in_or_malformed_is_refused(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be registered"):
        register_log(scheme, lambda url: MemoryLog())
