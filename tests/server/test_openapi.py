"""Whatever the OpenAPI document allows, and a lot that it does not, is answered as it says."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
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
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.requests import Request

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call
from agentgraph_server import Principal, create_app
from agentgraph_server.principals.auth import Auth, IssuerUnavailable
from agentgraph_server.settings import Settings
from tests.server.live_server import approve, serving_in_a_thread

BOUNDED = settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
HOSTILE = settings(BOUNDED, max_examples=20)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]


def turn(messages: list[Any]) -> Any:
    return call("approve") if messages[-1].type == "human" else "Decided."


def served() -> Agent[Any]:
    return Agent("a", model=ScriptedModel(turn, strict=False), tools=[approve])


DOCUMENT = create_app(served(), store="memory").openapi()
ROUTES = sorted(
    (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where an agent called `a` is, which asks a human and is then done."""
    with serving_in_a_thread(served()) as url:
        yield url


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address) as client:
        yield client


def real_values(client: httpx.Client, names: Collection[str]) -> dict[str, str]:
    """Return path parameters of things that are there; a session is a new one with a question."""
    values = {"name": "a", "thread_id": "t", "key": "tier", "sequence": "2"}
    if {"id", "run_id", "interrupt_id"} & {*names}:
        values["id"] = client.post("/sessions", json={"served": "a"}).json()["id"]
    if {"run_id", "interrupt_id"} & {*names}:
        path = f"/sessions/{values['id']}/messages"
        answer = client.post(path, json={"text": "hi"}, headers={"Prefer": "wait"}).json()
        values["run_id"] = answer["run_id"]
        values["interrupt_id"] = answer["interrupts"][0]["id"]
    return {name: values[name] for name in names}


def ask(address: str, method: str, path: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    is_wrong = mode is GenerationMode.NEGATIVE and "{" not in path and method == "POST"
    # Elsewhere what is wrong may be a parameter that is replaced below, or one that nobody reads.
    checks = [*CHECKS, negative_data_rejection] if is_wrong else CHECKS

    @BOUNDED
    @given(case=schema[path][method].as_strategy(generation_mode=mode), is_real=st.booleans())
    def send(case: schemathesis.Case[Any], is_real: bool) -> None:
        if is_real or "name" in case.path_parameters:
            with httpx.Client(base_url=address) as client:
                case.path_parameters.update(real_values(client, case.path_parameters))
        if path == "/sessions/{id}/events":
            case.query = {**(case.query or {}), "live": "false"}  # it has no end otherwise
        case.call_and_validate(checks=checks)

    send()


def can_be_wrong(method: str, path: str) -> bool:
    """Tell whether a request can be against the document: any text fits what is only a text."""
    operation = DOCUMENT["paths"][path][method.lower()]
    schemas = [parameter["schema"] for parameter in operation.get("parameters", ())]
    return "requestBody" in operation or any({*schema} - {"title", "type"} for schema in schemas)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_requests_by_the_document_are_answered_by_it(address: str, method: str, path: str) -> None:
    ask(address, method, path, GenerationMode.POSITIVE)


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for method, path in ROUTES if can_be_wrong(method, path)],
)
def test_requests_against_the_document_are_answered_by_it(
    address: str, method: str, path: str
) -> None:
    ask(address, method, path, GenerationMode.NEGATIVE)


def test_document_has_a_schema_for_every_body_answer_and_problem() -> None:
    for method, path in ROUTES:
        operation = DOCUMENT["paths"][path][method.lower()]
        contents = [operation.get("requestBody", {"content": {}})["content"]]
        for status, response in operation["responses"].items():
            content = response.get("content", {})
            contents.append(content)
            expected = {"application/problem+json"} if status >= "400" else content.keys()
            assert content.keys() == expected, (method, path, status)
            assert content or status == "204", (method, path, status)
        for content in contents:
            for media_type, value in content.items():
                assert value.get("schema"), (method, path, media_type)


def failing(request: Request) -> Principal:
    raise RuntimeError("no answer of the directory")


def without_issuer(request: Request) -> Principal:
    raise IssuerUnavailable("the issuer does not answer")


@pytest.mark.parametrize(
    ("auth", "client", "code"),
    [
        (lambda request: None, "127.0.0.1", "unauthorized"),
        (lambda request: Principal("not legal"), "127.0.0.1", "principal"),
        (lambda request: Principal("ann"), "127.0.0.1", "limit_reached"),
        (failing, "127.0.0.1", "auth_failed"),
        (without_issuer, "127.0.0.1", "issuer_unavailable"),
        (None, "192.0.2.1", "forbidden"),
    ],
)
async def test_what_is_answered_before_a_route_is_documented_on_each(
    auth: Auth | None, client: str, code: str
) -> None:
    app = create_app(served(), store="memory", auth=auth, settings=Settings(requests_per_minute=1))
    transport = httpx.ASGITransport(app, client=(client, 1))
    codes: dict[str, list[str]] = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
        await asking.get("/served")  # that is all of the minute
        for method, path in ROUTES:
            if path == "/ready" and auth is not None:
                continue  # this machine may ask it without a principal
            answer = await asking.request(method, path)
            if answer.is_success:
                continue
            operation = DOCUMENT["paths"][path][method.lower()]
            response = operation["responses"][str(answer.status_code)]
            names = {"WWW-Authenticate", "Retry-After"} & {*response.get("headers", {})}
            assert {name for name in names if name in answer.headers} == names, (method, path)
            codes.setdefault(answer.json()["code"], []).append(path)
    paths = {path for _, path in ROUTES}
    assert codes.keys() == {code}
    is_open = {"/health", "/ok", "/ready"} if auth is not None else set()
    assert {*codes[code]} == paths - is_open


def test_document_names_each_operation_and_says_what_it_is() -> None:
    operations = [DOCUMENT["paths"][path][method.lower()] for method, path in ROUTES]
    ids = [operation["operationId"] for operation in operations]
    assert len({*ids}) == len(ids)
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    for operation in operations:
        assert {*operation["tags"]} <= tags
        assert 3 < len(operation["summary"]) < 80, operation["summary"]
        assert operation["description"].startswith(operation["summary"])


def test_links_lead_to_operations() -> None:
    created = DOCUMENT["paths"]["/sessions"]["post"]["responses"]["201"]["links"]
    sent = DOCUMENT["paths"]["/sessions/{id}/messages"]["post"]["responses"]["202"]["links"]
    assert created["read_session"]["parameters"] == {"id": "$response.body#/id"}
    assert sent["read_run"]["parameters"] == {"run_id": "$response.body#/run_id"}


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


@HOSTILE
@given(body=prompts | anything, kind=st.sampled_from(["completion", "stream-completion"]))
def test_hostile_prompts_are_answered(client: httpx.Client, body: object, kind: str) -> None:
    answer = post(client, f"/agents/a/{kind}", body)

    check(answer)
    assert "event: error" not in answer.text


@HOSTILE
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


@HOSTILE
@given(content=st.binary(max_size=200), kind=st.sampled_from(["application/json", "text/plain"]))
def test_hostile_bytes_are_answered(client: httpx.Client, content: bytes, kind: str) -> None:
    check(client.post("/agents/a/completion", content=content, headers={"Content-Type": kind}))


@pytest.mark.parametrize("depth", [50, 90, 110, 500, 5_000, 400_000])
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
