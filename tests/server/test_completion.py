"""A turn at once: the whole answer as JSON."""

from __future__ import annotations

import math

from langgraph.types import interrupt
from pydantic import BaseModel

from agentgraph import Agent, Guards
from agentgraph.guards import StepLimit
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import approve, lookup, problem_of, serving, solo, told

COMPLETION = "/agents/Solo/completion"


class Verdict(BaseModel):
    """What was found."""

    lost: bool
    reason: str


async def test_completion_is_the_answer_that_the_stream_gives() -> None:
    turns = [call("lookup", order="A7"), "It is lost."]
    async with serving(solo(*turns, *turns, tools=[lookup])) as client:
        answer = (await client.post(COMPLETION, json={"prompt": "hi", "thread_id": "t"})).json()
        events = await told(client, "/agents/Solo/stream-completion", prompt="hi", thread_id="u")

    final = next(e.data for e in events if e.name == "message")
    assert answer["text"] == final["text"] == "It is lost."
    assert answer["usage"].keys() == final["usage"].keys()
    assert answer["usage"] == final["usage"]
    assert answer["agent"] == final["agent"] == "Solo"
    assert (answer["thread_id"], final["thread_id"]) == ("t", "u")
    assert answer["close_reason"] is final["close_reason"] is None
    assert answer["interrupts"] == []
    assert answer["output"] is None


async def test_answer_of_a_sub_agent_says_whose_it_is_and_what_each_used() -> None:
    sub = Agent("Sub", model=ScriptedModel(["sub answers"]))
    root = Agent("Root", model=ScriptedModel([call("transfer_to_Sub")]), agents=[sub])

    async with serving(root) as client:
        answer = (await client.post("/agents/Root/completion", json={"prompt": "hi"})).json()

    assert (answer["text"], answer["agent"]) == ("sub answers", "Root/Sub")
    assert answer["usage"]["by_agent"].keys() == {"Root", "Root/Sub"}


async def test_thread_is_begun_when_none_is_given_and_goes_on_when_it_is() -> None:
    agent = solo("hello", "again")
    async with serving(agent) as client:
        first = (await client.post(COMPLETION, json={"prompt": "hi"})).json()
        body = {"prompt": "and?", "thread_id": first["thread_id"]}
        second = (await client.post(COMPLETION, json=body)).json()

    assert second["thread_id"] == first["thread_id"]
    assert isinstance(agent.model, ScriptedModel)
    assert [m.text for m in agent.model.requests[1].messages[1:]] == ["hi", "hello", "and?"]


async def test_answer_in_a_form_is_told_as_an_object() -> None:
    agent = solo(call("Verdict", lost=True, reason="rain"), response_format=Verdict)

    async with serving(agent) as client:
        answer = (await client.post(COMPLETION, json={"prompt": "hi"})).json()

    assert answer["output"] == {"lost": True, "reason": "rain"}


async def test_question_to_a_human_is_in_the_answer() -> None:
    async with serving(solo(call("approve"), tools=[approve])) as client:
        answer = (await client.post(COMPLETION, json={"prompt": "hi"})).json()

    assert answer["text"] == ""
    assert [i["payload"] for i in answer["interrupts"]] == [{"question": "may I?"}]
    assert answer["interrupts"][0]["id"]


async def test_guard_that_ends_the_run_is_the_close_reason() -> None:
    guards = Guards.interactive(steps=StepLimit(1))
    agent = solo(call("lookup", order="A7"), tools=[lookup], guards=guards)

    async with serving(agent) as client:
        answer = await client.post(COMPLETION, json={"prompt": "hi"})

    assert answer.status_code == 200
    assert answer.json()["close_reason"] == "max_steps"


async def test_model_that_writes_half_a_character_is_answered() -> None:
    async with serving(solo("half \ud800", "half \ud800")) as client:
        answer = await client.post(COMPLETION, json={"prompt": "hi", "thread_id": "t"})
        events = await told(client, "/agents/Solo/stream-completion", prompt="hi")
        thread = await client.get("/agents/Solo/threads/t")

    assert answer.status_code == thread.status_code == 200
    final = next(e.data for e in events if e.name == "message")
    assert answer.json()["text"] == final["text"]
    assert "half" in thread.json()["messages"][-1]["text"]


async def test_question_that_is_no_json_is_told_all_the_same() -> None:
    def ask() -> str:
        """Ask a human something strange."""
        return str(interrupt({"nan": math.nan, "bytes": b"\xff", "set": {1}}))

    async with serving(solo(call("ask"), tools=[ask])) as client:
        answer = await client.post(COMPLETION, json={"prompt": "hi", "thread_id": "t"})
        thread = await client.get("/agents/Solo/threads/t")

    payload = answer.json()["interrupts"][0]["payload"]
    assert (payload["nan"], payload["bytes"], payload["set"]) == (None, "_w==", [1])
    assert thread.json()["interrupts"][0]["payload"] == payload


async def test_turn_that_failed_is_a_problem_and_leaves_the_thread_free() -> None:
    async with serving(solo(ValueError("odd"), "hello")) as client:
        failed = await client.post(COMPLETION, json={"prompt": "hi", "thread_id": "t"})
        again = await client.post(COMPLETION, json={"prompt": "hi", "thread_id": "t"})

    problem_of(failed, 502)
    assert again.json()["text"] == "hello"
