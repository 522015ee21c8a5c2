"""An exception's text is for the model and the operator: no client reads it, on any route."""

from __future__ import annotations

import json
import logging
import re
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import ToolMessage

from agentgraph import Agent, Flow, Guards, Team, sequence
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import lookup, serving
from tests.server.test_sessions import events_of, opened

BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}=*")
MARKER, PASSWORD = "MARKER", "pass-word-9"
SECRET = f"cannot connect to postgresql://admin:{PASSWORD}@db/{MARKER}"


def refund() -> str:
    """Refund."""
    raise ConnectionError(SECRET)


def failed_answer() -> ToolMessage:
    """Refund, in another way."""
    return ToolMessage(SECRET, tool_call_id="", artifact=SECRET, status="error")


def agent(name: str = "Solo", **fields: Any) -> Agent[Any]:
    """Make an agent two of whose tools fail; what its model reads of that is in its requests."""
    turns: list[Any] = [call("refund"), call("failed_answer"), call("lookup", order="7"), "Sorry."]
    tools: list[Any] = [refund, failed_answer, lookup]
    return Agent(name, model=ScriptedModel(turns), tools=tools, **fields)


def everywhere(text: str) -> bool:
    """Tell whether a text has the marker, also in what is Base64 in it."""
    words = text.replace("\\", '"').split('"')
    decoded = [b64decode(word[: len(word) // 4 * 4]) for word in words if BASE64.fullmatch(word)]
    return MARKER in text or any(MARKER.encode() in data for data in decoded)


async def all_of(client: httpx.AsyncClient, id: str) -> str:
    """Return all that the server gives of a session."""
    paths = ["", "/log", "/state", "/audit", "/runs", "/decisions", "/explain/2"]
    answers = [(await client.get(f"/sessions/{id}{path}")).text for path in paths]
    events = await events_of(client, f"/sessions/{id}/events?live=false")
    for run in (await client.get(f"/sessions/{id}/runs")).json():
        answers.append((await client.get(f"/runs/{run['id']}")).text)
        events += await events_of(client, f"/runs/{run['id']}/events")
    return json.dumps([answers, events])


@asynccontextmanager
async def talked(served: Any, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, str, str]]:
    """Serve and say something; yield the client, the session and all that was given of it."""
    async with serving(served, **settings) as client:
        id = await opened(client, served.name)
        events = await events_of(client, f"/sessions/{id}/messages", text="Refund order 7")
        yield client, id, json.dumps(events) + await all_of(client, id)


def solo() -> Agent[Any]:
    return agent()


def team() -> Team:
    return Team([agent("a"), Agent("b", model=ScriptedModel(["Done."]))], sequence(["a", "b"]))


def delegating() -> Agent[Any]:
    model = ScriptedModel([call("transfer_to_Solo"), "Sorry."])
    return Agent("Boss", model=model, agents=[agent()], handoff="delegate")


@pytest.mark.parametrize("make", [solo, team, delegating])
async def test_tool_s_exception_is_on_no_route(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = make()
    with caplog.at_level(logging.INFO):
        async with talked(served) as (_, _, given):
            pass

    assert not everywhere(given)
    assert "The tool failed." in given
    assert "7 is lost" in given
    assert "ConnectionError" in caplog.text
    assert MARKER in caplog.text
    assert PASSWORD not in caplog.text


async def test_model_reads_what_its_tool_raised() -> None:
    served = agent()
    async with talked(served):
        assert isinstance(served.model, ScriptedModel)
        assert MARKER in str(served.model.requests)


async def test_errors_are_shown_where_the_setting_says_so() -> None:
    async with talked(agent(), expose_errors=True) as (_, _, given):
        assert everywhere(given)
        assert "The tool failed." not in given


async def test_framework_s_own_words_for_a_call_stay() -> None:
    guards = Guards(tool_limit={"lookup": 1})
    model = ScriptedModel([call("lookup", order="1"), call("lookup", order="2"), "Sorry."])
    served = Agent("Solo", model=model, tools=[lookup], guards=guards)
    async with serving(served) as client:
        answer = await client.post("/agents/Solo/completion", json={"prompt": "hi"})
        thread = await client.get(answer.headers["content-location"])

    texts = [m["text"] for m in thread.json()["messages"] if m["type"] == "tool"]
    assert texts[0] == "1 is lost"
    assert texts[1].startswith("Not executed: ")


async def test_agents_routes_do_not_tell_it_either() -> None:
    async with serving(agent()) as client:
        body = {"prompt": "hi", "thread_id": "t"}
        events = await events_of(client, "/agents/Solo/stream-completion", **body)
        thread = (await client.get("/agents/Solo/threads/t")).text

    assert MARKER not in json.dumps(events) + thread
    assert "The tool failed." in thread


class Odd(Exception):
    """An error whose class is foreign."""


async def test_model_s_failure_is_told_by_its_class_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = Agent("Solo", model=ScriptedModel([Odd(SECRET)] * 9))
    with caplog.at_level(logging.INFO):
        async with serving(served, api_keys=["one"]) as client:
            client.headers["X-API-Key"] = "one"
            id = await opened(client)
            body = {"text": "a prompt that nobody logs"}
            said = await client.post(f"/sessions/{id}/messages", json=body)
            run_id = said.json()["run_id"]
            events = await events_of(client, f"/runs/{run_id}/events")
            run = (await client.get(f"/runs/{run_id}")).json()
            given = json.dumps([events, run]) + await all_of(client, id)

    assert not everywhere(given)
    assert run["status"] == "error"
    assert "Odd" in run["error"]["message"]
    causes = [record for record in caplog.records if record.exc_info and "Odd" in caplog.text]
    (cause, *_) = [record for record in causes if getattr(record, "run", None) == run_id]
    assert getattr(cause, "session", None) == id
    assert str(getattr(cause, "principal", None)).startswith("default/key-")
    assert "nobody logs" not in caplog.text


async def test_function_of_a_flow_that_raises_is_told_without_secrets() -> None:
    worker = Agent("worker", model=ScriptedModel(["Done."] * 9))
    lead = Agent("lead", model=ScriptedModel(["plan"] * 9))

    def broken(*_: object) -> str:
        raise Odd(SECRET)

    flow = Flow("page", supervisor=lead, work=[worker], plan=broken)
    async with talked(flow) as (_, _, given):
        assert PASSWORD not in given
        assert "Odd" in given
