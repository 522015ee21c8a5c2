"""HEAD, OPTIONS and `Allow`, on every route of the application."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from agentgraph import Agent
from agentgraph.testing import ScriptedModel
from agentgraph_server import create_app
from tests.server.live_server import problem_of, serving, solo


def addresses_of(app: FastAPI) -> dict[str, set[str]]:
    """Return the methods of every path of the document, with values in the places of parameters."""
    methods: dict[str, set[str]] = defaultdict(set)
    for path, operations in app.openapi()["paths"].items():
        methods[re.sub(r"{\w+}", "1", path)] |= {name.upper() for name in operations}
    return methods


@pytest.fixture
def expected() -> dict[str, set[str]]:
    return addresses_of(create_app(solo(), store="memory"))


def methods_in(answer: httpx.Response) -> set[str]:
    return set(re.split(r", *", answer.headers["allow"]))


async def test_options_and_405_list_all_methods_of_a_route(expected: dict[str, set[str]]) -> None:
    async with serving(solo()) as client:
        for path, methods in expected.items():
            allowed = methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
            options = await client.options(path)
            assert (options.status_code, methods_in(options)) == (204, allowed), path
            refused = await client.request("TRACE", path)
            assert problem_of(refused, 405)["code"] == "method_not_allowed"
            assert methods_in(refused) == allowed, path
        problem_of(await client.options("/nowhere"), 404)

    assert {"GET", "DELETE"} <= expected["/agents/1/threads/1"]
    assert {"PUT", "DELETE"} <= expected["/sessions/1/context/1"]


async def test_head_is_get_without_its_body(expected: dict[str, set[str]]) -> None:
    async with serving(solo()) as client:
        for path in [path for path, methods in expected.items() if "GET" in methods]:
            got, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (got.status_code, b""), path
            same = ("content-type", "content-length", "link")
            assert [head.headers.get(name) for name in same] == [
                got.headers.get(name) for name in same
            ]


async def test_head_of_a_stream_ends_with_its_head() -> None:
    async with serving(solo("never")) as client:
        session = (await client.post("/sessions", json={"served": "Solo"})).json()
        head = await client.head(f"/sessions/{session['id']}/events")

    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")


async def test_a_method_of_another_route_starts_nothing() -> None:
    agent: Agent[Any] = solo("never")
    async with serving(agent) as client:
        await client.head("/agents/Solo/completion")
        await client.options("/agents/Solo/completion")

    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests == []
