"""What breaks is told without a trace of what it held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx
import pytest

from agentgraph import Agent
from agentgraph.errors import ModelError
from agentgraph.patching import insert_node
from agentgraph.testing import Fault, ScriptedModel, call
from agentgraph_server import create_app
from tests.server.live_server import names, problem_of, serving, solo, told

SECRET = "sk-very-secret"
HI = {"prompt": "hi", "thread_id": "t"}
TRACES = ("Traceback", 'File "', ".py", "line ")


def divide(state: object) -> None:
    raise ZeroDivisionError(SECRET)


def broken() -> Agent:
    patch = insert_node("divide", divide, after="continue_conversation", before="call_model")
    return solo("never", patcher=patch)


def failing_model() -> Agent:
    return solo(ValueError(SECRET))


def cut_model() -> Agent:
    return solo(Fault.cut("This is going to be long.", ValueError(SECRET)))


def cancelled() -> Agent:
    def give_up(state: object) -> None:
        raise asyncio.CancelledError(SECRET)

    patch = insert_node("give_up", give_up, after="continue_conversation", before="call_model")
    return solo("never", patcher=patch)


CASES = pytest.mark.parametrize(
    ("make", "status", "code", "events"),
    [
        (failing_model, 502, "model", ["error", "done"]),
        (cut_model, 502, "model", ["token", "error", "done"]),
        (broken, 500, "error", ["error", "done"]),
        (cancelled, 500, "error", ["error", "done"]),
    ],
)


@CASES
async def test_failure_is_a_problem(
    make: Callable[[], Agent], status: int, code: str, events: list[str]
) -> None:
    async with serving(make()) as client:
        answer = await client.post("/agents/Solo/completion", json=HI)
        thread = await client.get("/agents/Solo/threads/t")

    assert problem_of(answer, status)["code"] == code
    for said in (answer.text, thread.text):
        assert SECRET not in said
        assert not any(trace in said for trace in TRACES)


@CASES
async def test_failure_in_a_stream_is_an_error_then_done(
    make: Callable[[], Agent], status: int, code: str, events: list[str]
) -> None:
    async with serving(make()) as client:
        failed = await told(client, "/agents/Solo/stream-completion", **HI)
        busy = (await client.get("/agents/Solo/threads/t")).json()["busy"]

    assert names(failed) == events
    assert failed[-2].data["code"] == code
    assert SECRET not in str(failed)
    assert not any(trace in str(failed) for trace in TRACES)
    assert not busy


async def test_the_provider_s_words_are_for_the_operator_and_not_for_users() -> None:
    agent = solo(*[ValueError("the quota of the account is used up")] * 3)
    async with serving(agent) as client:
        answer = await client.post("/agents/Solo/completion", json=HI)
        events = await told(client, "/agents/Solo/stream-completion", **HI)
    with pytest.raises(ModelError, match="ValueError: the quota of the account is used up"):
        await agent.ainvoke("hi")

    failed = "the model of agent 'Solo' failed: ValueError"
    assert problem_of(answer, 502)["detail"] == failed
    assert events[-2].data["message"] == failed


@pytest.mark.parametrize("delegated", [False, True])
async def test_failing_tool_is_answered_and_the_turn_goes_on(delegated: bool) -> None:
    def refund() -> str:
        """Refund."""
        raise ValueError("no such order")

    agent = solo(call("refund"), "Sorry.", tools=[refund])
    if delegated:
        model = ScriptedModel([call("transfer_to_Solo"), "Sorry."])
        agent = Agent("Boss", model=model, agents=[agent], handoff="delegate")
    async with serving(agent) as client:
        events = await told(client, f"/agents/{agent.name}/stream-completion", **HI)

    (failed, *_) = [e.data for e in events if e.name == "tool_response"]
    assert failed["status"] == "error"
    assert not any(trace in failed["content"] for trace in TRACES)
    assert names(events)[-2:] == ["message", "done"]


async def test_what_broke_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(broken()) as client:
        with caplog.at_level(logging.ERROR, "agentgraph"):
            await told(client, "/agents/Solo/stream-completion", **HI)

    (record,) = [r for r in caplog.records if r.name == "agentgraph"]
    assert record.exc_info
    assert record.exc_info[0] is ZeroDivisionError


async def test_store_that_is_lost_is_a_problem() -> None:
    app = create_app(solo("hello"), store="sqlite:////nowhere/at/all/a.db")
    transport = httpx.ASGITransport(app)  # without its start, which would have noticed
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [
            await client.post("/agents/Solo/completion", json=HI),
            await client.get("/agents/Solo/threads/t"),
            await client.delete("/agents/Solo/threads/t"),
        ]

    for answer in answers:
        assert problem_of(answer, 503)["code"] == "storage"
