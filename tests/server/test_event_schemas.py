"""What streams have is what the OpenAPI document says: each event of real runs is held to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema_rs
import pytest
from langchain_core.messages import AIMessage

from agentgraph import Agent, Flow, Guards, Team, sequence
from agentgraph.stream import ErrorEvent, Event, RoutingEvent, TokenEvent
from agentgraph.testing import ScriptedModel, Turn, call
from agentgraph_server import create_app
from agentgraph_server.openapi import EVENTS_BY_NAME
from tests.server.live_server import approve, lookup, serving, solo
from tests.server.test_sessions import events_of, opened

DOCUMENT = create_app(solo(), store="memory").openapi()
Sent = tuple[str, dict[str, Any], str]


def faults_of(name: str, data: dict[str, Any]) -> list[str]:
    """Return what the document has against an event of a stream."""
    forms = DOCUMENT["components"]["schemas"]["StreamEvent"]["oneOf"]
    item = {"event": name, "data": json.dumps(data), "id": "1"}
    fitting = [form for form in forms if jsonschema_rs.is_valid(form["properties"]["event"], name)]
    if len(fitting) != 1 or not jsonschema_rs.is_valid(without_content(fitting[0]), item):
        return [f"{name} fits {len(fitting)} forms"]
    reference = fitting[0]["properties"]["data"]["contentSchema"]["$ref"]
    schema = {"$ref": reference, "components": DOCUMENT["components"]}
    validator = jsonschema_rs.Draft202012Validator(closed(schema))
    return [f"{name}: {error.message}" for error in validator.iter_errors(data)]


def without_content(form: dict[str, Any]) -> dict[str, Any]:
    properties = {**form["properties"], "data": {"type": "string"}}
    return {**form, "properties": properties}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that refuses fields which the document does not have."""
    components = {
        name: {**part, "additionalProperties": False} if "properties" in part else part
        for name, part in schema["components"]["schemas"].items()
    }
    return {**schema, "components": {"schemas": components}}


def worker() -> Agent[Any]:
    turns: list[Any] = [Turn("Let me see.", [call("lookup", order="7")]), "It is lost."]
    return Agent("Solo", model=ScriptedModel(turns), tools=[lookup])


def asking() -> Agent[Any]:
    return Agent("Solo", model=ScriptedModel([call("approve"), "Done."]), tools=[approve])


def guarded() -> Agent[Any]:
    turns: list[Any] = [call("lookup", order="1"), call("lookup", order="2"), "Done."]
    guards = Guards(tool_limit={"lookup": 1})
    return Agent("Solo", model=ScriptedModel(turns), tools=[lookup], guards=guards)


def failing() -> Agent[Any]:
    return Agent("Solo", model=ScriptedModel([ValueError("no")] * 9))


def handing_over() -> Agent[Any]:
    below = Agent("below", model=ScriptedModel(["I am below."]))
    return Agent("Boss", model=ScriptedModel([call("transfer_to_below")]), agents=[below])


def reasoning() -> Agent[Any]:
    blocks = [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Yes."}]
    return Agent("Solo", model=ScriptedModel([AIMessage(content=blocks)]))  # type: ignore[arg-type]


def team() -> Team:
    writer = Agent("writer", model=ScriptedModel(["A draft."]))
    editor = Agent("editor", model=ScriptedModel(["A page."]))
    return Team([writer, editor], sequence(["writer", "editor"]), name="page")


def flow() -> Flow[Any]:
    lead = Agent("lead", model=ScriptedModel(["never"] * 9))
    return Flow("report", supervisor=lead, work=[Agent("a", model=ScriptedModel(["Done."] * 9))])


MAKES = [worker, asking, guarded, failing, handing_over, reasoning, team, flow]


@pytest.mark.parametrize("make", MAKES)
async def test_events_of_a_session_are_as_documented(make: Any) -> None:
    served = make()
    async with serving(served) as client:
        id = await opened(client, served.name)
        events = await events_of(client, f"/sessions/{id}/messages", text="@7 where is it?")
        events += await events_of(client, f"/sessions/{id}/events?live=false")

    check(events)
    assert {"ag.msg.text", "done"} <= {name for name, _, _ in events}


@pytest.mark.parametrize("make", [make for make in MAKES if make is not team])
async def test_events_of_a_turn_are_as_documented(make: Any) -> None:
    served = make()
    async with serving(served) as client:
        path = f"/agents/{served.name}/stream-completion"
        events = await events_of(client, path, prompt="where is it?")

    check(events)


def check(events: Sequence[Sent]) -> None:
    faults = [fault for name, data, _ in events for fault in faults_of(name, data)]
    assert faults == []
    names = {name for name, _, _ in events if "." not in name}
    assert names <= {*EVENTS_BY_NAME, "done"}


def examples() -> Iterator[Event]:
    yield TokenEvent(text="a", round=1, attempt=1)
    yield RoutingEvent(kind="help", source="a", target="b")
    yield ErrorEvent(code="a", message="b", public="c")


@pytest.mark.parametrize("event", [*examples()])
def test_event_fits_its_schema_and_a_damaged_one_does_not(event: Event) -> None:
    data = event.to_dict()

    assert faults_of(event.type, data) == []
    assert faults_of(event.type, {**data, "invented": 1})
    assert faults_of(event.type, {name: data[name] for name in data if name != "agent"})


def test_every_event_of_the_framework_is_in_the_document() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    titles = {form["title"] for form in schemas["StreamEvent"]["oneOf"]}
    assert titles == {*EVENTS_BY_NAME, "done", "envelope", "other"}
    for name, kind in EVENTS_BY_NAME.items():
        assert kind.__name__ in schemas
        assert f"`{name}`" in DOCUMENT["info"]["description"]


def test_event_of_one_s_own_has_a_form() -> None:
    stamp = Event(agent="a").to_dict()
    assert faults_of("weather", stamp) == []
    assert faults_of("ag.msg.text", stamp)
