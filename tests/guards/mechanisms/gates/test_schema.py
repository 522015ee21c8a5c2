"""A gate's schema: a pydantic model or a JSON Schema, for the text or for the calls of tools."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from agentgraph import Guards
from agentgraph.errors import ConfigurationError
from agentgraph.guards import Gate, Subject
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import solo

ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "sum": {"type": "number", "maximum": 100}},
    "required": ["id", "sum"],
}


class Refund(BaseModel):
    amount: int


def faults_of(schema: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        Gate(schema)
    return caught.value.faults


async def test_a_json_schema_judges_the_text() -> None:
    gate = Gate(ORDER)
    assert (await gate.check(Subject(text='{"id": 1, "sum": 20}'), "post")).passed

    result = await gate.check(Subject(text='{"id": "secret", "sum": 200}'), "post")
    assert result.failure_class == "schema_failure"
    assert "2 faults against Order" in result.cause
    assert "id: " in result.cause and "sum: " in result.cause
    assert "secret" not in result.cause and "200" not in result.cause


async def test_a_text_that_is_no_json_does_not_fit_a_json_schema() -> None:
    result = await Gate(ORDER).check(Subject(text="an order"), "post")
    assert not result.passed and "Invalid JSON" in result.cause


async def test_a_json_schema_judges_the_calls_of_one_tool() -> None:
    gate = Gate({"order": ORDER, "refund": Refund})
    good, bad = {"id": 1, "sum": 2}, {"id": "one"}

    assert (await gate.check_call(Subject(tool="order", args=good))).passed
    assert not (await gate.check_call(Subject(tool="order", args=bad))).passed
    assert not (await gate.check_call(Subject(tool="refund", args=good))).passed
    assert (await gate.check_call(Subject(tool="other", args=bad))).passed


async def test_the_correction_has_all_faults_of_a_document() -> None:
    model = ScriptedModel(['{"id": "x"}', '{"id": 1, "sum": 2}'])
    reply = await solo(model, guards=Guards(gates=Gate(ORDER))).ainvoke("order")

    assert reply.text == '{"id": 1, "sum": 2}'
    correction = str(model.requests[1].messages[-1].text)
    assert 'id: the value is not of type "integer"' in correction
    assert '"sum" is a required property' in correction


async def test_a_call_that_misses_its_json_schema_is_answered_with_its_faults() -> None:
    runs: list[object] = []

    def order(id: Any, sum: Any = None) -> str:
        """Order."""
        runs.append(id)
        return "ordered"

    model = ScriptedModel([call("order", id="x"), call("order", id=1, sum=2), "Done."])
    agent = solo(model, order, guards=Guards(gates=Gate({"order": ORDER})))

    assert (await agent.ainvoke("order")).text == "Done."
    assert runs == [1]
    assert "id: the value" in str(model.requests[1].messages[-1].text)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objekt"}, "this is no JSON Schema: type: "),
        ({"properties": {"a": {"type": 5}}}, "this is no JSON Schema: properties.a.type: "),
        ({"$ref": "#/nowhere"}, "this is no JSON Schema"),
        ({"$ref": "http://localhost:1/schema"}, "this is no JSON Schema"),
        ({"refund": {"type": "objekt"}}, "Gate(schema={'refund': …}): this is no JSON Schema"),
        ({"refund": {"kind": "object"}}, "'kind' is no keyword of it"),
        ({"refund": "object"}, "give a pydantic model, a JSON Schema"),
        ({"type": "object", "refund": Refund}, "give a pydantic model, a JSON Schema"),
        ({"type": "object", "propertys": {}}, "'propertys' is no keyword of it; as schemas by"),
        ("object", "give a pydantic model, a JSON Schema"),
        ({"items": {"type": "string"}}, "schemas of tools with these names too"),
    ],
)
def test_what_is_no_schema_is_refused_with_what_to_give(schema: Any, words: str) -> None:
    [fault] = faults_of(schema)
    assert words in fault


@pytest.mark.parametrize(
    ("schema", "tools"),
    [
        ({"type": Refund}, {"type"}),
        ({"properties": Refund, "items": Refund}, {"properties", "items"}),
        ({"properties": {"type": "object"}}, {"properties"}),
        ({"properties": {"refund": {"type": "object"}}}, None),
        ({"type": "array", "items": {"type": "string"}}, None),
        ({"enum": ["yes", "no"]}, None),
        ({"$defs": {"x": {"type": "string"}}, "$ref": "#/$defs/x"}, None),
        (Refund, None),
        ({}, set()),
    ],
)
def test_tools_with_the_names_of_keywords_are_told_from_a_json_schema(
    schema: Any, tools: set[str] | None
) -> None:
    names = Gate(schema).tools
    assert (None if names is None else set(names)) == tools
