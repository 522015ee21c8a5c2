"""Whatever the OpenAPI document allows, and a lot that it does not, is answered without a 5xx."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
)

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import approve, serving_in_a_thread

BOUNDED = settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ROUTES = {
    ("GET", "/agents"),
    ("GET", "/agents/{name}"),
    ("POST", "/agents/{name}/completion"),
    ("POST", "/agents/{name}/stream-completion"),
    ("POST", "/agents/{name}/resume"),
    ("GET", "/agents/{name}/threads/{thread_id}"),
    ("DELETE", "/agents/{name}/threads/{thread_id}"),
    ("GET", "/health"),
}


def turn(messages: list[Any]) -> Any:
    return call("approve") if messages[-1].type == "human" else "Decided."


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where an agent called `a` is, which asks a human and is then done."""
    agent = Agent("a", model=ScriptedModel(turn, strict=False), tools=[approve])
    with serving_in_a_thread(agent) as url:
        yield url


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address) as client:
        yield client


def ask(address: str, method: str, path: str, mode: GenerationMode) -> None:
    operation = schemathesis.openapi.from_url(f"{address}/openapi.json")[path][method]
    # Version 3.1 of OpenAPI has no word for what an event of a stream is.
    checks = [not_a_server_error, content_type_conformance]
    checks += [] if "stream" in path else [response_schema_conformance]

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case[Any]) -> None:
        if "name" in case.path_parameters:
            case.path_parameters["name"] = "a"
        case.call_and_validate(checks=checks)

    send()


@pytest.mark.parametrize(("method", "path"), sorted(ROUTES))
def test_requests_by_the_document_are_answered_by_it(address: str, method: str, path: str) -> None:
    ask(address, method, path, GenerationMode.POSITIVE)


@pytest.mark.parametrize(
    ("method", "path"), sorted((m, p) for m, p in ROUTES if m == "POST" or "thread_id" in p)
)
def test_requests_against_the_document_are_answered_by_it(
    address: str, method: str, path: str
) -> None:
    ask(address, method, path, GenerationMode.NEGATIVE)


def test_document_has_all_routes_and_what_they_take(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()

    routes = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    prompt = document["components"]["schemas"]["Prompt"]
    stream = document["paths"]["/agents/{name}/stream-completion"]["post"]["responses"]
    assert routes >= ROUTES
    assert prompt["properties"].keys() == {"prompt", "thread_id"}
    assert prompt["required"] == ["prompt"]
    assert stream["200"]["content"].keys() == {"text/event-stream"}
    assert "application/problem+json" in stream["409"]["content"]


odd_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
text = odd_text | st.sampled_from(["t", "\x00", "\ud800", "\udfff\ud800", "../..", "x" * 200_000])
leaf = st.none() | st.booleans() | st.integers() | st.floats() | text
anything = st.recursive(
    leaf | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
prompts = st.fixed_dictionaries(
    {"prompt": text | anything},
    optional={"thread_id": text | st.just("t") | anything, "more": anything},
)


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code


def post(client: httpx.Client, path: str, body: object) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return client.post(path, content=json.dumps(body), headers=headers)


@BOUNDED
@given(body=prompts | anything, kind=st.sampled_from(["completion", "stream-completion"]))
def test_hostile_prompts_are_answered(client: httpx.Client, body: object, kind: str) -> None:
    answer = post(client, f"/agents/a/{kind}", body)

    check(answer)
    assert "event: error" not in answer.text


@BOUNDED
@given(decision=anything, more=st.dictionaries(text, anything, max_size=2))
def test_hostile_decisions_are_answered(
    client: httpx.Client, decision: object, more: dict[str, object]
) -> None:
    asked = post(client, "/agents/a/completion", {"prompt": "hi"}).json()
    (question,) = asked["interrupts"]

    decisions = {question["id"]: decision, **more}
    check(
        post(client, "/agents/a/resume", {"thread_id": asked["thread_id"], "decisions": decisions})
    )


@BOUNDED
@given(content=st.binary(max_size=200), kind=st.sampled_from(["application/json", "text/plain"]))
def test_hostile_bytes_are_answered(client: httpx.Client, content: bytes, kind: str) -> None:
    check(client.post("/agents/a/completion", content=content, headers={"Content-Type": kind}))


@pytest.mark.parametrize("depth", [90, 110, 500, 5_000, 400_000])
def test_deep_values_are_answered(client: httpx.Client, depth: int) -> None:
    asked = post(client, "/agents/a/completion", {"prompt": "hi"}).json()
    (question,) = asked["interrupts"]
    deep = "[" * depth + "]" * depth
    start = json.dumps({"thread_id": asked["thread_id"]})[:-1]

    content = f'{start}, "decisions": {{"{question["id"]}": {deep}}}}}'
    headers = {"Content-Type": "application/json"}
    answer = client.post("/agents/a/resume", content=content, headers=headers)

    check(answer)
    assert (answer.status_code == 200) == (depth < 100)
