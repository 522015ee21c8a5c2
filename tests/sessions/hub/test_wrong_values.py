"""Values of wrong types: each public call refuses them in a typed error that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Hub, Session, Team, sequence
from agentgraph.errors import AgentGraphError, ConfigurationError
from tests.sessions.talk import PATIENCE_S, agent, dialogue

Call = Callable[[Any], Any]

WRONG: list[Any] = [
    *(5, -1, 1.5, float("nan"), True, object(), b"x", "", "no such"),
    *([], ["no such"], [5], [[]], {}, {"a": 1}, {1: 2}, lambda: 0, Path("here.db")),
]


def team() -> Team:
    return Team([agent("a")], dialogue("a"), name="team")


def fields(call: Callable[..., Any], *names: str) -> list[Call]:
    """Return the calls with a wrong value for one of their fields each."""

    def with_field(name: str) -> Call:
        return lambda value: call(**{name: value})

    return [*map(with_field, names)]


async def check(calls: Iterable[Call], values: Iterable[Any] = tuple(WRONG)) -> None:
    """Make each call with each value: it is taken, or refused in a typed error."""
    calls = [*calls]
    for value in values:
        for make in calls:
            try:
                result = make(value)
                if isawaitable(result):
                    async with asyncio.timeout(PATIENCE_S):
                        await result
            except AgentGraphError as error:
                assert error.code and str(error)


async def test_hubs_are_opened_by_values_of_their_types() -> None:
    async def opened(**values: Any) -> None:
        hub = await Hub.open(**values)
        await hub.aclose()

    strange = [*WRONG, "nosuch://x", "sqlite://", "postgresql:", "file:x"]
    await check(fields(opened, "url", "serve", "clock", "lease_s", "store"), strange)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (5, "a store is a URL, and no int: write memory, sqlite:///file.db or postgresql://"),
        (Path("a.db"), "a store is a URL, and no PosixPath: write memory, sqlite:///file.db"),
        ("nosuch://secret", "the scheme 'nosuch' is not known: write memory, sqlite:///file.db"),
    ],
)
async def test_a_store_that_is_not_known_is_told_in_words(url: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as refused:
        await Hub.open(url)
    assert "secret" not in str(refused.value)


async def test_all_faults_of_a_hub_are_told_at_once() -> None:
    strange: Any = 5
    with pytest.raises(ConfigurationError) as refused:
        await Hub.open(strange, serve=[strange], clock=strange, lease_s=-1, store=strange)
    store, served, langgraph_store, clock, lease_s = refused.value.faults
    assert store.startswith("a store is a URL")
    assert served.startswith("5 cannot be served")
    assert langgraph_store.startswith("store=5")
    assert (clock.partition(":")[0], lease_s.partition(":")[0]) == ("clock=5", "lease_s=-1")


async def test_sessions_are_opened_and_listed_by_values_of_their_types(log_url: str) -> None:
    async with await Hub.open(log_url, serve=[served := team()]) as hub:

        def session(**values: Any) -> Any:
            return hub.session(served, **values)

        names = "creator id participants context ttl expectations required_acks invite_timeout"
        await check(fields(session, *names.split(), "tenant", "metadata", "run_context"))
        filters = "status served creator tenant metadata limit after"
        await check(fields(hub.sessions, *filters.split()))
        await check([hub.session, hub.get, hub.forget, hub.register])
        await check(fields(lambda tenant: hub.get("s", tenant=tenant), "tenant"))


async def test_sessions_take_values_of_their_types(log_url: str) -> None:
    async with await Hub.open(log_url, serve=[served := team()]) as hub:
        session = await hub.session(served)
        await check(calls_of(session))
        assert (await session.ask("hello")).text == "a speaks"


def calls_of(session: Session) -> list[Call]:
    """Return the calls of a session that take a value, except those that wait for more."""

    def send(**values: Any) -> Any:
        return session.send("user", "hi", **values)

    def without_text(call: Callable[[Any], Any]) -> Call:
        return lambda value: call("no reason" if isinstance(value, str) else value)

    names = ("audience", "causation_id", "idempotency_key", "metadata", "priority", "admitted")
    return [
        *fields(send, *names),
        *fields(lambda **values: session.ask("hi", **values), "sender", "reader", *names[:-1]),
        *fields(lambda **values: session.set_context("k", 1, **values), "sender", "public"),
        *fields(lambda **values: session.delete_context("k", **values), "sender", "public"),
        *fields(lambda **values: session.decide("x", 1, **values), "sender"),
        *fields(lambda **values: session.explain(1, **values), "reader"),
        *fields(lambda **values: session.answer("x", **values), "reader"),
        *fields(session.history, "after", "reader"),
        *fields(session.messages, "reader"),
        *fields(session.watch, "after", "reader"),
        *fields(session.stream, "after", "reader"),
        lambda value: session.send(value, "hi"),
        lambda value: session.send("user", value),
        lambda value: session.set_context(value, 1),
        lambda value: session.set_context("k", value),
        lambda value: session.on(value, print),
        lambda value: session.on("*", value),
        lambda value: session.decide(value, 1),
        *(session.answer, session.delete_context, session.release, session.rewind, session.fork),
        *(session.join, session.reject, session.can_send, session.explain),
        lambda value: session.leave(value),
        without_text(session.cancel),
        lambda value: None if isinstance(value, str) else session.close(value),
    ]


async def test_teams_take_values_of_their_types() -> None:
    members, rules = [agent("a")], sequence(["a"])
    names = "name humans supervisor aliases phase_map view guards expectations durability summarize"

    def made(**values: Any) -> None:
        Team(members, rules, **values)

    await check(fields(made, *names.split(), "store", "failure_target", "escalations"))
    await check([lambda value: Team(value, rules) and None])
    await check([lambda value: Team(members, value) and None])
    await check([team().arun, lambda value: team().aresume(value, {})])
    await check([lambda value: team().aresume("x", value)])
    await check(fields(lambda **values: team().arun("hi", **values), "creator", "context"))


async def test_all_faults_of_a_session_are_told_at_once() -> None:
    strange: Any = {
        "participants": ["a", "a", "human"],
        "ttl": "soon",
        "invite_timeout": [],
        "required_acks": "two",
        "metadata": 5,
        "expectations": [
            5,
            {},
            {"name": "nosuch", "seconds": "x", "on_violation": "y", "applies_to": 5},
            {"name": "turn_within", "seconds": 1, "applies_to": ["nobody"]},
            {"name": "turn_within", "seconds": 1, "soon": True},
        ],
    }
    async with await Hub.open(serve=[served := team()]) as hub:
        with pytest.raises(ConfigurationError) as refused:
            await hub.session(served, **strange)
    assert refused.value.code == "session"
    assert list(refused.value.faults) == [
        "'a' is an agent, which takes part anyway: give the names of people",
        "nobody can be called 'human', which means whoever is no agent: give a name",
        "required_acks='two': give a number from 1 on, or None for all",
        "metadata=5: give an object",
        "5 is no expectation: give an Expectation, or a mapping of its fields",
        "the expectation {} has no 'name' and has no 'seconds': its fields are name, seconds, "
        "on_violation, applies_to",
        "there is no expectation 'nosuch': use turn_within, reply_within, max_silence, acks_within",
        "there is no handler 'y': use audit, warn, notify, auto_close",
        "nosuch: seconds='x': give a number above 0",
        "nosuch: applies_to=5: give a list of names",
        "the expectation {'name': 'turn_within', 'seconds': 1, 'soon': True} knows no 'soon': "
        "its fields are name, seconds, on_violation, applies_to",
        "applies_to: 'nobody' takes no part: there are a, human, user",
        "ttl='soon' is no duration: write '30s', '15m', '2h', '7d', or seconds",
        "invite_timeout=[] is no duration: write '30s', '15m', '2h', '7d', or seconds",
    ]


@pytest.mark.parametrize(
    ("people", "text"),
    [
        (["a"], "'a' is an agent"),
        (["a", "a"], "'a' is an agent"),
        (["A"], "'A' and 'a' are one name"),
        (["bob", "Bob"], "'Bob' and 'bob' are one name"),
        (["x y", "x y"], "nobody can be called 'x y'"),
        ([5, 5], "nobody can be called 5"),
    ],
)
async def test_each_fault_of_a_name_is_told_once(people: Any, text: str) -> None:
    async with await Hub.open(serve=[served := team()]) as hub:
        with pytest.raises(ConfigurationError) as refused:
            await hub.session(served, participants=people)
        (fault,) = refused.value.faults
        assert fault.startswith(text)
        session = await hub.session(served, participants=["bob", "bob", "user"])
        assert session.record.invited == ("bob",)
