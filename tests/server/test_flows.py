"""Flows served over HTTP: their outcomes, their stages as events, their questions and threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.testing import ScriptedModel, call
from agentgraph_server import create_app
from tests.flow.planned_work import flow_of, plan, verdict, worker
from tests.server.live_server import names, problem_of, serving, told

STREAM = "/agents/report/stream-completion"


class Page(BaseModel):
    title: str


async def test_outcome_of_a_flow_is_answered() -> None:
    page = call("Page", title="Tides")
    flow = flow_of(plan("a"), "ok", verdict(), page, outcome=Page)
    async with serving(flow) as client:
        answer = await client.post("/agents/report/completion", json={"prompt": "go"})
        body = answer.json()
        assert (answer.status_code, body["agent"]) == (200, "report")
        assert body["output"] == {"title": "Tides"}
        assert body["usage"]["total_tokens"] > 0
        assert body["close_reason"] is None
        thread = (await client.get(answer.headers["content-location"])).json()
    assert [message["type"] for message in thread["messages"]] == ["human", "ai"]


async def test_stages_are_streamed_as_events() -> None:
    async with serving(flow_of(plan("a"), "ok", verdict())) as client:
        events = await told(client, STREAM, prompt="go")
    stages = [event.data for event in events if event.name == "stage"]
    fields = {"agent", "thread_id", "run_id", "sequence"}
    own = {"stage", "status", "attempt", "worker", "verdict"}
    assert all(stage.keys() == fields | own for stage in stages)
    assert [(stage["stage"], stage["status"]) for stage in stages if not stage["worker"]] == [
        (stage, status)
        for stage in ("plan", "fan_out", "fan_in", "validate", "finalize")
        for status in ("started", "finished")
    ]
    assert [stage["status"] for stage in stages if stage["worker"] == "a"] == [
        "started",
        "finished",
    ]
    assert names(events)[-2:] == ["message", "done"]
    assert events[-2].data["text"] == "ok"
    assert [event.data["sequence"] for event in events] == [*range(1, len(events) + 1)]


async def test_aborted_flow_is_answered_with_its_reason() -> None:
    bad = verdict(False, 0.9, "wrong")
    turns = [turn for name in "abc" for turn in (plan("a"), name, bad)]
    async with serving(flow_of(*turns)) as client:
        body = (await client.post("/agents/report/completion", json={"prompt": "go"})).json()
    assert body["close_reason"] == "validate"
    assert "wrong" in body["text"]


async def test_flow_that_waits_is_resumed_by_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'served.db'}"
    prompt = {"prompt": "go", "thread_id": "t"}
    async with serving(flow_of(plan("a"), "unsure", verdict(True, 0.1)), store=store) as client:
        body = (await client.post("/agents/report/completion", json=prompt)).json()
        [question] = body["interrupts"]
        thread = (await client.get("/agents/report/threads/t")).json()
        assert [asked["id"] for asked in thread["interrupts"]] == [question["id"]]
    decisions = {"thread_id": "t", "decisions": {question["id"]: {"type": "approve"}}}
    async with serving(flow_of(), store=store) as client:
        events = await told(client, "/agents/report/resume", **decisions)
        assert events[-2].data["text"] == "unsure"
        again = await client.post("/agents/report/resume", json=decisions)
        assert problem_of(again, 409 if again.status_code == 409 else 422)
        assert (await client.delete("/agents/report/threads/t")).status_code == 204
        problem_of(await client.get("/agents/report/threads/t"), 404)


async def test_flow_is_described_with_its_workers() -> None:
    desk = Agent("desk", model=ScriptedModel(["hi"]))
    async with serving(flow_of(work=[worker("a"), len]), desk) as client:
        cards = (await client.get("/agents")).json()
        detail = (await client.get("/agents/report")).json()
    assert [card["name"] for card in cards] == ["report", "desk"]
    assert [below["name"] for below in detail["agents"]] == ["a"]
    assert "validate_gate" in detail["mermaid"]


def test_agent_and_flow_of_one_name_are_not_served_together() -> None:
    with pytest.raises(ConfigurationError, match="two that are served are called 'report'"):
        create_app(flow_of(), Agent("report"), store="memory")
