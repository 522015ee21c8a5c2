"""Limits of each principal: requests and tokens in a minute, runs at once; 429 beyond them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from agentgraph.errors import ConfigurationError
from agentgraph.remote import Principal
from agentgraph.testing import FakeClock, call
from agentgraph_server import create_app
from agentgraph_server.principals import limits as limits_module
from agentgraph_server.principals.limits import LimitReached, Limits
from agentgraph_server.settings import Settings
from tests.server.live_server import Gated, approve, problem_of, serving, solo
from tests.server.principals.test_current_principal import by_header
from tests.server.test_sessions import asked, opened

ANN, BOB = Principal("ann"), Principal("bob")


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock().installed() as clock:
        yield clock


@asynccontextmanager
async def asking(
    agent: Any, store: str = "memory", **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve on this task, which has the clock of the test."""
    app = create_app(agent, store=store, auth=by_header, settings=Settings(**settings))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server") as client,
    ):
        client.headers["x-user"] = "ann"
        yield client


async def test_requests_of_a_minute_are_limited_for_each_principal(clock: FakeClock) -> None:
    async with asking(solo(), requests_per_minute=30) as client:
        for _ in range(30):
            assert (await client.get("/served")).status_code == 200
        refused = await client.get("/served")
        problem = problem_of(refused, 429)
        assert problem["code"] == "limit_reached" and "30 requests" in problem["detail"]
        assert refused.headers["retry-after"] == "2"
        for other in ({"x-user": "bob"}, {"x-tenant": "other"}):
            assert (await client.get("/served", headers=other)).status_code == 200
        assert (await client.get("/health")).status_code == 200
        clock.advance(2)
        assert (await client.get("/served")).status_code == 200
        problem_of(await client.get("/served"), 429)
        clock.advance(600)
        answers = [(await client.get("/served")).status_code for _ in range(31)]
        assert answers == [200] * 30 + [429]


async def test_who_is_nobody_takes_nothing_from_the_others(clock: FakeClock) -> None:
    async with asking(solo(), requests_per_minute=1) as client:
        for _ in range(3):
            problem_of(await client.get("/served", headers={"x-user": "not legal"}), 403)
        assert (await client.get("/served")).status_code == 200


def answer_of(tokens: int) -> AIMessage:
    usage = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
    return AIMessage("ok", usage_metadata=usage)


async def test_a_run_that_has_used_too_much_is_the_last_for_a_while(clock: FakeClock) -> None:
    async with asking(
        solo(answer_of(300), answer_of(1), answer_of(1)), tokens_per_minute=100
    ) as client:
        id = await opened(client)
        await asked(client, id, "hi")
        refused = await client.post(f"/sessions/{id}/messages", json={"text": "hi"})
        assert "100 tokens in a minute" in problem_of(refused, 429)["detail"]
        assert refused.headers["retry-after"] == "121"
        assert (await client.get(f"/sessions/{id}/log")).status_code == 200
        clock.advance(121)
        await asked(client, id, "hi")


async def test_runs_at_once_are_limited_until_one_ends(gated: Gated) -> None:
    agent = solo(call("work"), "Worked.", "Hello.", tools=[gated.work])
    async with serving(agent, auth=by_header, runs_at_once=1) as client:
        client.headers["x-user"] = "ann"
        first, second = await opened(client), await opened(client)
        begun = await client.post(f"/sessions/{first}/messages", json={"text": "work"})
        await gated.begun.wait()
        refused = await client.post(f"/sessions/{second}/messages", json={"text": "hi"})
        assert "1 runs at once" in problem_of(refused, 429)["detail"]
        assert refused.headers["retry-after"] == "1"
        log = (await client.get(f"/sessions/{second}/log")).json()
        assert [one["event_type"] for one in log] == ["ag.session.opened"]
        gated.go.set()
        await client.get(f"/runs/{begun.json()['run_id']}/events")
        answer = await _soon(client, f"/sessions/{second}/messages")
        assert answer.json()["text"] == "Hello."


async def _soon(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Send as soon as the slot of the run before is free."""
    while True:
        answer = await client.post(path, json={"text": "hi"}, headers={"Prefer": "wait"})
        if answer.status_code != 429:
            return answer


async def test_a_run_that_waits_for_a_human_or_is_refused_takes_no_slot() -> None:
    agent = solo(call("approve"), "Done.", tools=[approve])
    async with serving(agent, auth=by_header, runs_at_once=1) as client:
        client.headers["x-user"] = "ann"
        id = await opened(client)
        for _ in range(2):
            wrong = {"text": "hi", "audience": ["nobody"]}
            problem_of(await client.post(f"/sessions/{id}/messages", json=wrong), 422)
        question = (await asked(client, id, "go"))["interrupts"][0]["id"]
        path = f"/sessions/{id}/decisions/{question}"
        while True:
            body = {"decision": True}
            decided = await client.post(path, json=body, headers={"Prefer": "wait"})
            if decided.status_code != 429:
                break
        assert decided.json()["text"] == "Done."


KINDS = ["completion", "stream-completion"]
BUSY = {"prompt": "work", "thread_id": "busy"}


async def turn(client: httpx.AsyncClient, kind: str, **body: Any) -> httpx.Response:
    return await client.post(f"/agents/Solo/{kind}", json=body)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_is_one_of_the_runs_at_once_until_it_ends(kind: str, gated: Gated) -> None:
    agent = solo(call("work"), "Worked.", "Hello.", "And you?", tools=[gated.work])
    async with serving(agent, auth=by_header, runs_at_once=1) as client:
        client.headers["x-user"] = "ann"
        first = asyncio.create_task(turn(client, kind, **BUSY))
        await gated.begun.wait()
        refused = await turn(client, kind, prompt="hi", thread_id="other")
        assert "1 runs at once" in problem_of(refused, 429)["detail"]
        assert refused.headers["retry-after"] == "1"
        id = (await client.get("/sessions")).json()[0]["id"]
        message = await client.post(f"/sessions/{id}/messages", json={"text": "hi"})
        problem_of(message, 429)
        assert (await client.get("/agents/Solo/threads/other")).status_code == 404
        assert len((await client.get("/sessions")).json()) == 1  # nothing is stored of it
        gated.go.set()
        assert (await first).status_code == 200
        for text in ("Hello.", "And you?"):  # at once: the answer of a turn frees its slot
            assert text in (await turn(client, kind, prompt="hi", thread_id="other")).text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_leaves_its_turn_frees_the_slot(kind: str, gated: Gated) -> None:
    agent = solo(call("work"), "Hello.", tools=[gated.work])
    async with serving(agent, auth=by_header, runs_at_once=1) as client:
        client.headers["x-user"] = "ann"
        first = asyncio.create_task(turn(client, kind, **BUSY))
        await gated.begun.wait()
        first.cancel()
        while (answer := await turn(client, kind, prompt="hi")).status_code == 429:
            pass
        assert answer.status_code == 200


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_turn_has_used_counts(kind: str, clock: FakeClock) -> None:
    agent = solo(answer_of(300), answer_of(1), answer_of(1))
    async with asking(agent, tokens_per_minute=100) as client:
        assert (await turn(client, kind, prompt="hi")).status_code == 200
        refused = await turn(client, kind, prompt="hi")
        assert "100 tokens in a minute" in problem_of(refused, 429)["detail"]
        assert refused.headers["retry-after"] == "121"
        clock.advance(121)
        assert (await turn(client, kind, prompt="hi")).status_code == 200


@pytest.mark.parametrize("is_earlier", [True, False])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_turn_that_goes_on_with_a_decision_is_limited_too(
    accept: str, is_earlier: bool, clock: FakeClock, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    agent = solo(call("approve"), answer_of(300), answer_of(1), tools=[approve])
    if is_earlier:
        reply = await agent.replace(checkpointer=store).ainvoke("go", thread_id="t")
        asked = reply.interrupts[0].id
    async with asking(agent, store=store, runs_at_once=1, tokens_per_minute=100) as client:
        client.headers["x-tenant"] = "default"
        if not is_earlier:
            first = (await turn(client, "completion", prompt="go", thread_id="t")).json()
            asked = first["interrupts"][0]["id"]
        client.headers["accept"] = accept
        decided = await turn(client, "resume", thread_id="t", decisions={asked: True})
        assert decided.status_code == 200, decided.text
        refused = await turn(client, "completion", prompt="hi")
        assert "100 tokens in a minute" in problem_of(refused, 429)["detail"]
        clock.advance(200)
        assert (await turn(client, "completion", prompt="hi")).status_code == 200


async def test_a_decision_of_a_turn_is_one_of_the_runs_at_once(gated: Gated) -> None:
    agent = solo(call("approve"), call("work"), "Done.", tools=[approve, gated.work])
    async with serving(agent, auth=by_header, runs_at_once=1) as client:
        client.headers["x-user"] = "ann"
        asked = (await turn(client, "completion", prompt="go", thread_id="t")).json()
        decisions = {asked["interrupts"][0]["id"]: True}
        id = await opened(client)
        deciding = asyncio.create_task(turn(client, "resume", thread_id="t", decisions=decisions))
        await gated.begun.wait()
        message = await client.post(f"/sessions/{id}/messages", json={"text": "hi"})
        problem_of(message, 429)
        gated.go.set()
        assert (await deciding).json()["text"] == "Done."


def test_accounts_are_bounded_however_many_ask(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_module, "MOST_REMEMBERED", 100)
    limits = Limits(requests_per_minute=1, tokens_per_minute=1, runs_at_once=1)
    for n in range(1_000):
        principal = Principal(f"p{n}")
        limits.count_request(principal)
        limits.begin_run(principal)
        limits.end_run(principal, 5)
    assert len(limits._requests._buckets) == len(limits._tokens._buckets) == 100
    assert limits._runs == {}
    with pytest.raises(LimitReached):
        limits.count_request(principal)


@given(st.lists(st.tuples(st.sampled_from([ANN, BOB]), st.floats(0, 30)), max_size=60))
def test_nobody_has_more_than_the_limit_and_one_burst(
    requests: list[tuple[Principal, float]],
) -> None:
    with FakeClock().installed() as clock:
        limits = Limits(requests_per_minute=10)
        counts = {ANN: 0, BOB: 0}
        for principal, pause in requests:
            clock.advance(pause)
            try:
                limits.count_request(principal)
                counts[principal] += 1
            except LimitReached as error:
                clock.advance(error.retry_after_s)
                limits.count_request(principal)  # what it was told holds
                counts[principal] += 1
        assert max(counts.values()) <= 10 + clock.monotonic() / 6 + 1e-6


def test_a_limit_is_a_number_from_one_on() -> None:
    with pytest.raises(ConfigurationError, match="runs_at_once"):
        Settings(runs_at_once=0)
