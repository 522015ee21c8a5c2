"""A turn as server-sent events: which, in what order, with which fields."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentgraph import Agent, Guards
from agentgraph.guards import StepLimit
from agentgraph.testing import Fault, ScriptedModel, Turn, call
from tests.server.live_server import (
    Gated,
    Told,
    approve,
    lookup,
    names,
    serving,
    solo,
    streaming,
    told,
)

STREAM = "/agents/Solo/stream-completion"
STAMP = {"agent", "thread_id", "run_id", "sequence"}
FIELDS = {
    "token": {"text", "message_id"},
    "tool_usage": {"tool", "args", "call_id"},
    "tool_response": {"tool", "content", "call_id", "status"},
    "ai_message": {"text", "message_id"},
    "routing": {"kind", "source", "target", "reason"},
    "guard": {"decision"},
    "interrupt": {"id", "payload", "response_schema"},
    "error": {"code", "message"},
    "message": {"text", "usage", "close_reason"},
    "done": set[str](),
}


def deep() -> Agent:
    looking = Turn("Let me look.", [call("lookup", order="A7")])
    leaf = Agent("Leaf", model=ScriptedModel([looking, "It is lost."]), tools=[lookup])
    mid = Agent("Mid", model=ScriptedModel([call("transfer_to_Leaf")]), agents=[leaf])
    transfer = call("transfer_to_Mid", reason="money")
    return Agent("Root", model=ScriptedModel([transfer]), agents=[mid])


def check_fields(events: list[Told]) -> None:
    for event in events:
        assert event.data.keys() == STAMP | FIELDS[event.name], event
    assert [e.data["sequence"] for e in events] == list(range(1, len(events) + 1))
    assert len({e.data["thread_id"] for e in events}) == 1
    assert len({e.data["run_id"] for e in events}) == 1


async def ask(agent: Agent, prompt: str = "hi", **body: Any) -> list[Told]:
    async with serving(agent) as client:
        return await told(client, f"/agents/{agent.name}/stream-completion", prompt=prompt, **body)


async def test_all_that_happens_two_levels_down_is_told_in_order() -> None:
    events = await ask(deep(), thread_id="t")

    check_fields(events)
    assert names(events) == [
        "routing",
        "routing",
        "token",
        "ai_message",
        "tool_usage",
        "tool_response",
        "token",
        "ai_message",
        "message",
        "done",
    ]
    assert {e.data["thread_id"] for e in events} == {"t"}


async def test_events_say_whose_they_are() -> None:
    events = await ask(deep())

    agents = dict.fromkeys((e.name, e.data["agent"]) for e in events)
    assert list(agents)[:3] == [
        ("routing", "Root"),
        ("routing", "Root/Mid"),
        ("token", "Root/Mid/Leaf"),
    ]
    assert {e.data["agent"] for e in events[2:]} == {"Root/Mid/Leaf"}


async def test_routing_says_from_whom_to_whom_and_why() -> None:
    events = await ask(deep())

    routed = [e.data for e in events if e.name == "routing"]
    assert [(d["kind"], d["source"], d["target"], d["reason"]) for d in routed] == [
        ("transfer", "Root", "Mid", "money"),
        ("transfer", "Mid", "Leaf", ""),
    ]


async def test_each_text_comes_as_tokens_once_as_a_message_once_and_the_last_as_the_answer() -> (
    None
):
    events = await ask(deep())

    tokens = [e.data for e in events if e.name == "token"]
    said = [e.data for e in events if e.name == "ai_message"]
    answers = [e.data["text"] for e in events if e.name == "message"]
    assert [d["text"] for d in said] == ["Let me look.", "It is lost."]
    assert answers == ["It is lost."]
    for message in said:
        mine = [d["text"] for d in tokens if d["message_id"] == message["message_id"]]
        assert "".join(mine) == message["text"]
        assert len(mine) == 3
    assert len(tokens) == 6


async def test_tool_is_told_with_its_arguments_and_its_answer() -> None:
    events = await ask(deep())

    usage, response = [e.data for e in events if e.name.startswith("tool_")]
    assert (usage["tool"], usage["args"]) == ("lookup", {"order": "A7"})
    assert (response["content"], response["status"]) == ("A7 is lost", "success")
    assert usage["call_id"] == response["call_id"] != ""


async def test_answer_tells_what_each_agent_has_used() -> None:
    events = await ask(deep())

    usage = events[-2].data["usage"]
    assert set(usage["by_agent"]) == {"Root", "Root/Mid", "Root/Mid/Leaf"}
    parts = usage["by_agent"].values()
    assert usage["total_tokens"] == sum(part["total_tokens"] for part in parts) > 0


async def test_done_comes_last_and_has_no_text() -> None:
    events = await ask(solo("hello"))

    assert [e.name for e in events] == ["token", "ai_message", "message", "done"]
    assert events[-1].data.keys() == STAMP


async def test_question_to_a_human_is_told_before_an_empty_answer() -> None:
    events = await ask(solo(call("approve"), tools=[approve]))

    check_fields(events)
    assert names(events) == ["tool_usage", "interrupt", "message", "done"]
    assert events[1].data["payload"] == {"question": "may I?"}
    assert events[1].data["id"]
    assert events[2].data["text"] == ""


async def test_guard_that_ends_the_run_is_told_with_its_reason() -> None:
    guards = Guards.interactive(steps=StepLimit(1))

    events = await ask(solo(call("lookup", order="A7"), tools=[lookup], guards=guards))

    check_fields(events)
    assert names(events) == ["tool_usage", "tool_response", "guard", "message", "done"]
    assert events[2].data["decision"]["guard"] == "max_steps"
    assert events[3].data["close_reason"] == "max_steps"


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (Fault.server_error(), ["error", "done"]),
        (Fault.cut("This is going to be long."), ["token", "error", "done"]),
    ],
    ids=["before tokens", "after tokens"],
)
async def test_failing_model_is_told_as_an_error_then_done(
    turn: Fault, expected: list[str]
) -> None:
    events = await ask(solo(turn, guards=None))

    check_fields(events)
    assert names(events) == expected
    assert events[-2].data["code"] == "model"


async def test_thread_is_begun_and_told_when_none_is_given() -> None:
    async with serving(solo("hello", "again")) as client:
        first = await told(client, STREAM, prompt="hi")
        second = await told(client, STREAM, prompt="hi")

    assert first[0].data["thread_id"] != second[0].data["thread_id"]
    assert len(first[0].data["thread_id"]) >= 32


@pytest.mark.parametrize("kind", ["completion", "stream-completion"])
async def test_answer_says_where_its_thread_is(kind: str) -> None:
    async with serving(solo("hello", "again")) as client:
        answer = await client.post(f"/agents/Solo/{kind}", json={"prompt": "hi"})
        at = answer.headers["content-location"]
        thread = await client.get(at)

    assert thread.status_code == 200
    assert at == f"/agents/Solo/threads/{thread.json()['thread_id']}"
    assert [m["text"] for m in thread.json()["messages"]] == ["hi", "hello"]


async def test_stream_is_not_cached_and_has_no_event_ids() -> None:
    async with serving(solo("hello")) as client:
        answer = await client.post(STREAM, json={"prompt": "hi"})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    lines = answer.text.splitlines()
    assert {line.partition(":")[0] for line in lines if line} == {"event", "data"}


async def test_first_event_comes_while_the_turn_is_under_way(gated: Gated) -> None:
    agent = solo(Turn("Let me see.", [call("work")]), "Done.", tools=[gated.work])
    async with (
        serving(agent) as client,
        streaming(client, STREAM, prompt="hi") as events,
    ):
        first = await anext(events)
        await gated.begun.wait()
        gated.go.set()
        rest = [event async for event in events]

    assert first.data["text"] == "Let"
    assert rest[-1].name == "done"


def odd(text: str = "") -> dict[str, object]:
    """Return what is no JSON."""
    return {"nan": math.nan, "bytes": b"\xff", "half": "\ud800", "line": "a\r\n\r\nb\u2028c"}


async def test_values_that_are_no_json_break_neither_an_event_nor_a_line() -> None:
    arguments = call("odd", text="a\r\n\r\nevent: done\u2028\x85")

    events = await ask(solo(arguments, "half \ud800", tools=[odd]))

    assert names(events)[:2] == ["tool_usage", "tool_response"]
    assert events[0].data["args"]["text"] == "a\r\n\r\nevent: done\u2028\x85"
    assert "a" in events[1].data["content"]
    assert [e.name for e in events].count("done") == 1
    assert events[-1].name == "done"
