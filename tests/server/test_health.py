"""Health, readiness and `/ok`: who may ask, and what is said when a part is down."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agentgraph.engines import LocalEngine
from agentgraph.errors import AgentGraphError, StorageError
from agentgraph.remote import Principal
from agentgraph.sessions import Hub
from agentgraph_server import create_app
from agentgraph_server.settings import Settings
from tests.server.live_server import problem_of, serving, solo


async def test_server_that_can_work_is_ready() -> None:
    async with serving(solo()) as client:
        answers = [await client.get(path) for path in ("/ready", "/health", "/ok")]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json() == {"status": "ready", "store": "up", "engine": "up"}
    assert answers[1].json()["agents"] == ["Solo"]
    assert answers[2].json() == {"ok": True}


async def test_strangers_learn_that_it_is_there_and_no_names() -> None:
    async with serving(solo(), api_keys=["one"]) as client:
        stranger = await client.get("/health")
        known = await client.get("/health", headers={"X-API-Key": "one"})
        ok = await client.get("/ok")

    assert (stranger.status_code, ok.status_code) == (200, 200)
    assert "Solo" not in stranger.text
    assert known.json()["agents"] == ["Solo"]


class Down(LocalEngine):
    """An engine that cannot be reached."""

    async def check(self) -> None:
        raise AgentGraphError("no worker at postgresql://admin:pass-word-9@db")


@pytest.mark.parametrize("is_store_down", [True, False])
async def test_what_is_down_is_named_and_nothing_else(
    is_store_down: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def lost(hub: Hub) -> None:
        raise StorageError("the store cannot be reached")

    engine = LocalEngine() if is_store_down else Down()
    if is_store_down:
        monkeypatch.setattr(Hub, "ping_store", lost)
    async with serving(solo(), engine=engine) as client:
        answer = await client.get("/ready")
        health = await client.get("/health")

    problem = problem_of(answer, 503)
    assert problem["code"] == "not_ready"
    assert problem["detail"].startswith(f"down: {'store' if is_store_down else 'engine'};")
    assert "pass-word" not in answer.text + caplog.text
    assert any(record.exc_info for record in caplog.records)
    assert health.status_code == 200


@pytest.mark.parametrize(
    ("address", "scopes", "status"),
    [
        ("127.0.0.1", None, 200),
        ("10.0.0.7", None, 401),
        ("10.0.0.7", {"read", "run"}, 403),
        ("10.0.0.7", {"operate"}, 200),
    ],
)
async def test_from_other_machines_operators_ask(
    address: str, scopes: set[str] | None, status: int
) -> None:
    def auth(request: Any) -> Principal | None:
        return None if scopes is None else Principal("ann", scopes=frozenset(scopes))

    app = create_app(solo(), store="memory", auth=auth, settings=Settings())
    transport = httpx.ASGITransport(app, client=(address, 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        answer = await client.get("/ready")

    assert answer.status_code == status
