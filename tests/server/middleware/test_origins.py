"""Pages of other origins, foreign names of the host, and the addresses in headers."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from agentgraph.errors import ConfigurationError
from agentgraph_server import create_app
from agentgraph_server.settings import Settings
from tests.server.live_server import problem_of, serving, solo

PAGE = "https://page.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "DELETE",
    "Access-Control-Request-Headers": "content-type,x-api-key,authorization,last-event-id",
}
EXPOSED = {
    "content-location",
    "location",
    "link",
    "x-pagination-total",
    "x-pagination-next",
    "retry-after",
}


@pytest.mark.parametrize("origins", [[PAGE, "https://other.example"], ["*"]])
async def test_preflight_needs_no_key(origins: list[str]) -> None:
    async with serving(solo(), api_keys=["one"], cors_origins=origins) as client:
        answer = await client.options("/sessions/1", headers=PREFLIGHT)

    allowed = {name.strip() for name in answer.headers["access-control-allow-methods"].split(",")}
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert allowed == {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"}
    asked = PREFLIGHT["Access-Control-Request-Headers"]
    assert answer.headers["access-control-allow-headers"] == asked
    assert answer.headers["access-control-max-age"] == "600"


async def test_pages_may_read_answers_refusals_and_failures() -> None:
    def broken(request: object) -> None:
        raise ZeroDivisionError

    headers = {"Origin": PAGE}
    async with serving(solo(), api_keys=["one"], cors_origins=[PAGE]) as client:
        refused = await client.get("/sessions", headers=headers)
        answered = await client.get("/sessions", headers={**headers, "X-API-Key": "one"})
    async with serving(solo(), auth=broken, cors_origins=[PAGE]) as client:
        failed = await client.get("/sessions", headers=headers)

    statuses = [answer.status_code for answer in (answered, refused, failed)]
    assert statuses == [200, 401, 500]
    for answer in (answered, refused, failed):
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert set(exposed) >= EXPOSED


@pytest.mark.parametrize("origins", [[], ["https://other.example"]])
async def test_other_origins_are_not_let_in(origins: list[str]) -> None:
    async with serving(solo(), cors_origins=origins) as client:
        preflight = await client.options("/sessions", headers=PREFLIGHT)
        answer = await client.get("/sessions", headers={"Origin": PAGE})

    for response in (preflight, answer):
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("agents.example", 200),
        ("AGENTS.example:8000", 200),
        ("a.below.example", 200),
        ("below.example", 403),
        ("other.example", 403),
        ("[", 403),
    ],
)
@pytest.mark.parametrize("keys", [None, ["one"]])
async def test_only_the_allowed_names_are_answered(
    host: str, status: int, keys: list[str] | None
) -> None:
    names = ["agents.example", "*.below.example"]
    async with serving(solo(), api_keys=keys, allowed_hosts=names) as client:
        headers = {"Host": host, "X-API-Key": "one"}
        answer = await client.get("/agents", headers=headers)
        health = await client.get("/health", headers={"Host": "10.0.0.7"})

    assert answer.status_code == status
    if status == 403:
        assert problem_of(answer, 403)["code"] == "forbidden_host"
    assert health.status_code == (200 if keys else 403)


async def test_addresses_are_those_of_the_public_url() -> None:
    public = "https://example.com/agents"
    async with serving(solo("Hello.", "Hello."), public_url=f"{public}/") as client:
        headers = {"Host": "localhost"}
        body = {"served": "Solo"}
        opened = [await client.post("/sessions", json=body, headers=headers) for _ in range(2)]
        page = await client.get("/sessions?limit=1", headers=headers)
        said = await client.post(f"/sessions/{opened[0].json()['id']}/messages", json={"text": "a"})
        turn = await client.post("/agents/Solo/completion", json={"prompt": "hi", "thread_id": "t"})

    assert opened[0].headers["location"] == f"{public}/sessions/{opened[0].json()['id']}"
    assert page.links["next"]["url"].startswith(f"{public}/sessions?limit=1&after=")
    assert said.headers["location"] == f"{public}/runs/{said.json()['run_id']}"
    assert turn.headers["content-location"] == f"{public}/agents/Solo/threads/t"


async def test_addresses_are_below_where_the_application_is_mounted() -> None:
    app = create_app(solo(), store="memory")
    outer = Starlette(routes=[Mount("/deep", app)])
    transport = httpx.ASGITransport(outer)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        created = [await client.post("/deep/sessions", json={"served": "Solo"}) for _ in range(2)]
        page = await client.get("/deep/sessions?limit=1")
        next_page = await client.get(page.links["next"]["url"])
        head = await client.head("/deep/health")

    assert created[0].headers["location"] == f"/deep/sessions/{created[0].json()['id']}"
    assert [session["id"] for session in next_page.json()] == [created[0].json()["id"]]
    assert head.status_code == 200


@pytest.mark.parametrize("url", ["example.com", "https://example.com/?a=1", "ftp://example.com"])
def test_public_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="public_url"):
        Settings(public_url=url)
