"""Decisions of humans over the wire, at once or as a stream, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import approve, lookup, names, problem_of, serving, solo, told

RESUME = "/agents/Solo/resume"


def asking() -> Agent:
    calls = [call("approve"), call("lookup", order="A7")]
    return solo(calls, "All is decided.", tools=[approve, lookup])


async def ask(client: httpx.AsyncClient, agent: str = "Solo") -> str:
    """Let an agent ask on thread t, and return the id of its question."""
    body = {"prompt": "hi", "thread_id": "t"}
    answer = await client.post(f"/agents/{agent}/completion", json=body)
    question: str = answer.json()["interrupts"][0]["id"]
    return question


async def test_decision_goes_on_and_is_answered() -> None:
    async with serving(asking()) as client:
        decisions = {await ask(client): "yes"}
        answer = await client.post(RESUME, json={"thread_id": "t", "decisions": decisions})
        thread = (await client.get("/agents/Solo/threads/t")).json()

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-location"] == "/agents/Solo/threads/t"
    assert answer.json()["text"] == "All is decided."
    assert answer.json()["interrupts"] == thread["interrupts"] == []
    texts = [m["text"] for m in thread["messages"] if m["type"] == "tool"]
    assert texts == ["a human said yes", "A7 is lost"]


async def test_decision_is_told_as_a_stream_to_whoever_accepts_one() -> None:
    async with serving(asking()) as client:
        decisions = {await ask(client): "yes"}
        events = await told(client, RESUME, thread_id="t", decisions=decisions)

    assert names(events) == ["tool_response", "token", "ai_message", "message", "done"]
    assert events[0].data["content"] == "a human said yes"
    assert events[-2].data["text"] == "All is decided."
    assert [e.data["sequence"] for e in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_unknown_interrupt_is_refused_with_what_is_awaited(accept: str) -> None:
    async with serving(asking()) as client:
        question = await ask(client)
        body = {"thread_id": "t", "decisions": {"nonsense": 1}}
        refused = await client.post(RESUME, json=body, headers={"Accept": accept})
        body = {"thread_id": "t", "decisions": {question: "yes"}}
        answer = await client.post(RESUME, json=body)

    if accept == "application/json":
        problem = problem_of(refused, 409)
        assert problem["code"] == "unknown_interrupt"
        assert question in problem["detail"]
    else:
        assert "event: error" in refused.text
        assert '"code":"unknown_interrupt"' in refused.text
        assert refused.text.rstrip().splitlines()[-2] == "event: done"
    assert answer.json()["text"] == "All is decided."


async def test_decision_on_an_unknown_thread_is_refused() -> None:
    async with serving(asking()) as client:
        body = {"thread_id": "nowhere", "decisions": {"a": 1}}
        refused = await client.post(RESUME, json=body)

    assert problem_of(refused, 409)["code"] == "unknown_interrupt"


async def test_question_outlives_the_server(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/a.db"

    def tree() -> Agent:
        def turn(messages: list[Any]) -> Any:
            decided = messages[-1].text.startswith("a human said")
            return "It is done." if decided else call("approve")

        sub = Agent("Sub", model=ScriptedModel(turn), tools=[approve])
        model = ScriptedModel([call("transfer_to_Sub")])
        return Agent("Root", model=model, agents=[sub])

    async with serving(tree(), store=store) as client:
        question = await ask(client, "Root")
    async with serving(tree(), store=store) as client:
        thread = (await client.get("/agents/Root/threads/t")).json()
        body = {"thread_id": "t", "decisions": {question: "yes"}}
        answer = await client.post("/agents/Root/resume", json=body)

    assert [i["id"] for i in thread["interrupts"]] == [question]
    assert (answer.json()["text"], answer.json()["agent"]) == ("It is done.", "Root/Sub")


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        ("10" * 20, "64 bits"),
        ("[" * 200 + "]" * 200, "nested"),
        ('{"a": ["\\ud800"]}', "half a character"),
        ('{"\\udfff": 1}', "half a character"),
    ],
    ids=["huge number", "deep", "surrogate", "surrogate key"],
)
async def test_decision_that_no_checkpoint_can_hold_is_refused(decision: str, why: str) -> None:
    async with serving(asking()) as client:
        question = await ask(client)
        text = f'{{"thread_id": "t", "decisions": {{"{question}": {decision}}}}}'
        json_type = {"Content-Type": "application/json"}
        refused = await client.post(RESUME, content=text, headers=json_type)
        body = {"thread_id": "t", "decisions": {question: 2**63 - 1}}
        answer = await client.post(RESUME, json=body)

    problem = problem_of(refused, 422)
    assert [error["pointer"] for error in problem["errors"]] == ["#/decisions"]
    assert why in problem["errors"][0]["detail"]
    assert answer.json()["text"] == "All is decided."


async def test_decisions_are_given_one_after_the_other() -> None:
    agent = solo([call("approve"), call("approve")], "All is decided.", tools=[approve])
    async with serving(agent) as client:
        begun = await client.post("/agents/Solo/completion", json={"prompt": "hi"})
        first, second = [i["id"] for i in begun.json()["interrupts"]]
        thread_id = begun.json()["thread_id"]
        body = {"thread_id": thread_id, "decisions": {first: "yes"}}
        between = await client.post(RESUME, json=body)
        body = {"thread_id": thread_id, "decisions": {second: "no"}}
        end = await client.post(RESUME, json=body)

    assert [i["id"] for i in between.json()["interrupts"]] == [second]
    assert end.json()["text"] == "All is decided."
