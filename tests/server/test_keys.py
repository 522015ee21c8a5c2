"""Who may ask: this machine alone, or whoever has a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.testing import ScriptedModel
from agentgraph_server import create_app
from agentgraph_server.server import make_server
from agentgraph_server.settings import Settings
from tests.server.live_server import problem_of, serving, solo

HI = {"prompt": "hi", "thread_id": "t"}
ROUTES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/agents", None),
    ("GET", "/agents/Solo", None),
    ("GET", "/agents/Nobody", None),
    ("POST", "/agents/Solo/completion", HI),
    ("POST", "/agents/Solo/completion", {}),
    ("POST", "/agents/Solo/stream-completion", HI),
    ("POST", "/agents/Solo/resume", {"thread_id": "t", "decisions": {"a": 1}}),
    ("GET", "/agents/Solo/threads/t", None),
    ("DELETE", "/agents/Solo/threads/t", None),
    ("GET", "/openapi.json", None),
    ("GET", "/docs", None),
    ("GET", "/redoc", None),
    ("GET", "/nowhere", None),
    ("GET", "/agents/", None),
    ("PUT", "/agents", None),
    ("OPTIONS", "/agents", None),
]
WRONG = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer"},
    {"Authorization": "Basic b25l"},
    {"Authorization": "one"},
    {"X-API-Key": "wrong"},
    {"X-API-Key": ""},
    {"X-API-Key": "one,two"},
    {"X-API-Key": "on"},
    {"Cookie": "X-API-Key=one"},
]
RIGHT = [
    {"Authorization": "Bearer one"},
    {"Authorization": "bearer two"},
    {"X-API-Key": "one"},
    {"x-api-key": "two"},
    {"Authorization": "Basic b25l", "X-API-Key": "two"},
]


async def test_every_route_asks_for_a_key() -> None:
    agent = solo("never")
    async with serving(agent, api_keys=["one", "two"]) as client:
        answers = [
            await client.request(method, path, json=body, headers=headers)
            for method, path, body in ROUTES
            for headers in WRONG
        ]

    for answer in answers:
        problem = problem_of(answer, 401)
        assert problem["code"] == "unauthorized"
        assert "X-API-Key" in problem["detail"]
        assert answer.headers["www-authenticate"] == "Bearer"
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests == []


@pytest.mark.parametrize("headers", RIGHT)
async def test_whoever_has_a_key_may_ask(headers: dict[str, str]) -> None:
    async with serving(solo("hello"), api_keys=["one", "two"]) as client:
        answer = await client.post("/agents/Solo/completion", json=HI, headers=headers)
        refused = await client.get("/nowhere", headers=headers)

    assert answer.json()["text"] == "hello"
    problem_of(refused, 404)


async def test_key_need_not_be_ascii() -> None:
    async with serving(solo(), api_keys=["schlüssel"]) as client:
        right, wrong = [
            await client.get("/agents", headers=[(b"x-api-key", key.encode())])
            for key in ("schlüssel", "schlussel")
        ]

    assert right.status_code == 200
    problem_of(wrong, 401)


async def test_keys_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGRAPH_API_KEYS", " one , ,two,")
    async with serving(solo()) as client:
        statuses = [
            (await client.get("/agents", headers={"X-API-Key": key})).status_code
            for key in ("one", "two", "", ",", "one , ,two,")
        ]

    assert statuses == [200, 200, 401, 401, 401]


async def test_keys_in_one_text_are_those_between_its_commas() -> None:
    async with serving(solo(), api_keys="one, two") as client:
        statuses = [
            (await client.get("/agents", headers={"X-API-Key": key})).status_code
            for key in ("one", "two", "o", "e", "one, two")
        ]

    assert statuses == [200, 200, 401, 401, 401]


@pytest.mark.parametrize("blank", ["", " , ", [" "], iter(["", " "])])
def test_keys_that_are_given_and_blank_are_refused(blank: Iterable[str]) -> None:
    with pytest.raises(ConfigurationError, match="AGENTGRAPH_API_KEYS holds no key"):
        create_app(solo(), settings=Settings(api_keys=blank))


@pytest.mark.parametrize("blank", ["", " ", ",", " , "])
def test_keys_that_are_blank_are_refused(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGRAPH_API_KEYS", blank)

    with pytest.raises(ConfigurationError, match="AGENTGRAPH_API_KEYS holds no key"):
        create_app(solo())
    with pytest.raises(ConfigurationError, match="AGENTGRAPH_API_KEYS holds no key"):
        make_server(solo(), host="0.0.0.0")


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "example.com:8000",
        "127.0.0.1.example.com",
        "192.168.0.7",
        "[",
        "[::1",
        "a.b]",
    ],
)
async def test_page_that_calls_this_machine_by_a_name_of_its_own_is_refused(host: str) -> None:
    agent = solo("never")
    async with serving(agent) as client:
        answers = [
            await client.get("/agents", headers={"Host": host}),
            await client.post("/agents/Solo/completion", json=HI, headers={"Host": host}),
        ]

    for answer in answers:
        assert problem_of(answer, 403)["code"] == "forbidden"
        assert "AGENTGRAPH_API_KEYS" in answer.json()["detail"]
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests == []


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "127.1.2.3", "[::1]:80", "server"]
)
async def test_names_of_this_machine_are_answered(host: str) -> None:
    async with serving(solo()) as client:
        answer = await client.get("/agents", headers={"Host": host})

    assert answer.status_code == 200


async def test_with_keys_any_name_is_answered() -> None:
    async with serving(solo(), api_keys=["one"]) as client:
        headers = {"Host": "example.com", "X-API-Key": "one"}
        answer = await client.get("/agents", headers=headers)

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("address", "keys", "status"),
    [
        ("192.168.0.7", None, 403),
        ("2001:db8::1", None, 403),
        ("127.0.0.1", None, 200),
        ("::1", None, 200),
        ("192.168.0.7", ["one"], 200),
    ],
)
async def test_without_keys_only_this_machine_is_answered(
    address: str, keys: list[str] | None, status: int
) -> None:
    settings = Settings() if keys is None else Settings(api_keys=keys)
    app = create_app(solo(), store="memory", settings=settings)
    transport = httpx.ASGITransport(app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/agents", headers={"X-API-Key": "one"})

    assert answer.status_code == status
    if status == 403:
        assert problem_of(answer, 403)["code"] == "forbidden"


@pytest.mark.parametrize("known_as", ["192.168.0.7", "unknown"])
async def test_whoever_a_proxy_speaks_for_is_no_part_of_this_machine(known_as: str) -> None:
    async with serving(solo()) as client:
        answer = await client.get("/agents", headers={"X-Forwarded-For": known_as})

    assert problem_of(answer, 403)["code"] == "forbidden"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.com", ""])
def test_address_that_others_reach_is_refused_without_keys(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_server(solo(), host=host)

    assert "set AGENTGRAPH_API_KEYS, or serve on 127.0.0.1" in str(refused.value)
    monkeypatch.setenv("AGENTGRAPH_API_KEYS", "one")
    server = make_server(solo(), host=host, port=8123, store="memory")
    assert (server.config.host, server.config.port) == (host, 8123)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_this_machine_is_served_without_keys(host: str) -> None:
    assert make_server(solo(), host=host, store="memory").config.host == host


def test_server_is_bound_to_this_machine_by_default() -> None:
    assert make_server(solo(), store="memory").config.host == "127.0.0.1"
