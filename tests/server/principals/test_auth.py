"""`auth=`: several ways at once, and what it does wrong is logged and told to nobody."""

from __future__ import annotations

import logging

import pytest
from starlette.requests import Request

from agentgraph.errors import ConfigurationError
from agentgraph_server import Principal, Settings, Unauthorized, create_app, first_of, key_auth
from agentgraph_server.principals.auth import Auth
from tests.server.live_server import problem_of, serving, solo

SECRET = "postgresql://app:hunter2@db"


async def slowly(request: Request) -> Principal | None:
    name = request.headers.get("x-user")
    return None if name is None else Principal(name, tenant="acme")


def refusing(request: Request) -> Principal | None:
    if "x-old" in request.headers:
        raise Unauthorized("this kind of key is not used any more")
    return None


def broken(request: Request) -> Principal | None:
    raise OSError(f"{SECRET} is away")


async def test_several_ways_are_asked_in_turn() -> None:
    auth = first_of(refusing, key_auth(["one"]), slowly)
    async with serving(solo(), auth=auth) as client:
        for headers, status in (
            ({"X-API-Key": "one"}, 200),
            ({"x-user": "ann"}, 200),
            ({"x-old": "1", "x-user": "ann"}, 200),
            ({}, 401),
        ):
            assert (await client.get("/served", headers=headers)).status_code == status
        answer = await client.get("/served", headers={"x-old": "1"})
        assert "not used any more" in problem_of(answer, 401)["detail"]
        assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'


async def test_what_fails_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(solo(), auth=first_of(key_auth(["one"]), broken)) as client:
        problem = problem_of(await client.get("/served"), 500)
        assert problem["code"] == "auth_failed"
        assert "hunter2" not in str(problem) and "OSError" not in str(problem)
        good = await client.get("/served", headers={"X-API-Key": "one"})
        assert good.status_code == 200
        assert (await client.get("/health")).status_code == 200
    record = next(one for one in caplog.records if one.levelno == logging.ERROR)
    assert record.exc_info is not None and "hunter2" in str(record.exc_info[1])


@pytest.mark.parametrize("answer", ["ann", True, 7, {"name": "ann"}, object()])
async def test_what_is_no_principal_is_nobody(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def auth(request: Request) -> Principal | None:
        return answer  # type: ignore[return-value]

    async with serving(solo(), auth=auth) as client:
        assert problem_of(await client.get("/served"), 500)["code"] == "auth_failed"
    assert f"returned {type(answer).__name__}" in caplog.text


@pytest.mark.parametrize(
    ("principal", "word"),
    [
        (Principal(""), "name"),
        (Principal(7), "name=7"),  # type: ignore[arg-type]
        (Principal("ann", tenant="a/b"), "'a/b'"),
        (Principal("ann", tenant=""), "tenant"),
        (Principal("ann", participant="b c"), "'b c'"),
        (Principal("ann", scopes="read"), "scopes='read'"),  # type: ignore[arg-type]
        (Principal("ann", scopes=frozenset({1})), "scopes="),  # type: ignore[arg-type]
        (Principal("ag.hub"), "'ag.hub'"),
    ],
)
async def test_a_principal_that_can_be_nobody_is_refused_with_the_reason(
    principal: Principal, word: str
) -> None:
    async with serving(solo(), auth=lambda request: principal) as client:
        problem = problem_of(await client.get("/served"), 403)
        assert problem["code"] == "principal" and word in problem["detail"]


async def test_plain_keys_are_a_principal_each() -> None:
    async with serving(solo("A."), api_keys=["one", "two"]) as client:
        one, two = {"X-API-Key": "one"}, {"X-API-Key": "two"}
        session = (await client.post("/sessions", json={"served": "Solo"}, headers=one)).json()
        assert session["creator"].startswith("key-") and "one" not in session["creator"]
        problem_of(await client.get(f"/sessions/{session['id']}", headers=two), 404)


def test_the_settings_of_an_issuer_are_checked_at_the_start() -> None:
    for values, word in (
        ({"jwt_issuer": "https://login.example.com"}, "audience"),
        ({"jwt_audience": "agents"}, "jwt_issuer"),
        ({"jwt_issuer": "http://example.com", "jwt_audience": "a"}, "https"),
        (
            {
                "jwt_issuer": "https://example.com",
                "jwt_audience": "a",
                "jwt_algorithms": "RS256,HS256",
            },
            "HS256",
        ),
        ({"keys_file": "/nowhere/keys.json"}, "agentgraph keys add"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            create_app(solo(), store="memory", settings=Settings(**values))


def test_an_auth_function_has_a_type() -> None:
    auths: list[Auth] = [slowly, refusing, key_auth(["one"]), first_of(slowly)]
    assert all(map(callable, auths))
