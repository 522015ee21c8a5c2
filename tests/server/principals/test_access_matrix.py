"""Each route, for each who may not: no key, an ended one, another tenant's, another person's, one
without the scope. A route that is not in the table here fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from httpx_sse import EventSource, ServerSentEvent
from langchain_core.messages import AnyMessage

from agentgraph import Agent
from agentgraph.testing import FakeClock, ScriptedModel, call
from agentgraph_server import create_app
from agentgraph_server.principals.key_file import KeyFile
from agentgraph_server.principals.principal import SCOPES
from agentgraph_server.settings import Settings
from tests.server.live_server import approve, problem_of

Of = Literal["session", "run", "thread", "all", "nobody"]
NOT_THERE = {"other person": 404, "other tenant": 404}


@dataclass(frozen=True)
class Rule:
    """What a route needs, and what its path names."""

    scope: str | None
    """The scope without which it is 403."""
    of: Of
    """`session`, `run`, `thread`: what of others is as what is not there. `all`: its own, or what
    all may see. `nobody`: no key is needed."""
    body: Mapping[str, Any] | None = None
    """It may have the ids of the owner, as `{thread_id}`."""
    query: str = ""
    foreign: Mapping[str, int] = field(default_factory=lambda: NOT_THERE)
    """What others get for a session, a run or a thread."""


PROMPT = {"prompt": "hi", "thread_id": "{thread_id}"}
TAKEN = {"other person": 404}

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/health"): Rule(None, "nobody"),
    ("GET", "/openapi.json"): Rule(None, "all"),
    ("GET", "/docs"): Rule(None, "all"),
    ("GET", "/docs/oauth2-redirect"): Rule(None, "all"),
    ("GET", "/redoc"): Rule(None, "all"),
    ("GET", "/served"): Rule("read", "all"),
    ("GET", "/served/{name}"): Rule("read", "all"),
    ("GET", "/served/{name}/graph"): Rule("read", "all"),
    ("POST", "/sessions"): Rule("run", "all", {"served": "Solo"}),
    ("GET", "/sessions"): Rule("read", "all"),
    ("GET", "/sessions/{id}"): Rule("read", "session"),
    ("DELETE", "/sessions/{id}"): Rule("run", "session"),
    ("GET", "/sessions/{id}/log"): Rule("read", "session"),
    ("GET", "/sessions/{id}/state"): Rule("read", "session"),
    ("GET", "/sessions/{id}/explain/{sequence}"): Rule("read", "session"),
    ("GET", "/sessions/{id}/audit"): Rule("read", "session"),
    ("PUT", "/sessions/{id}/context/{key}"): Rule("run", "session", {"value": 1}),
    ("DELETE", "/sessions/{id}/context/{key}"): Rule("run", "session"),
    ("POST", "/sessions/{id}/cancel"): Rule("run", "session"),
    ("POST", "/sessions/{id}/close"): Rule("run", "session"),
    ("POST", "/sessions/{id}/fork"): Rule("run", "session", {"at": 1}),
    ("POST", "/sessions/{id}/rewind"): Rule("run", "session", {"to": 1}),
    ("POST", "/sessions/{id}/release"): Rule("run", "session"),
    ("POST", "/sessions/{id}/join"): Rule("run", "session"),
    ("POST", "/sessions/{id}/reject"): Rule("run", "session"),
    ("POST", "/sessions/{id}/leave"): Rule("run", "session"),
    ("POST", "/sessions/{id}/messages"): Rule("run", "session", {"text": "hi"}),
    ("GET", "/sessions/{id}/events"): Rule("read", "session", query="?live=false"),
    ("GET", "/sessions/{id}/runs"): Rule("read", "session"),
    ("GET", "/runs/{run_id}"): Rule("read", "run"),
    ("GET", "/runs/{run_id}/events"): Rule("read", "run"),
    ("POST", "/runs/{run_id}/cancel"): Rule("run", "run"),
    ("GET", "/decisions"): Rule("decide", "all"),
    ("GET", "/sessions/{id}/decisions"): Rule("read", "session"),
    ("POST", "/sessions/{id}/decisions/{interrupt_id}"): Rule(
        "decide", "session", {"decision": True}
    ),
    ("GET", "/ok"): Rule(None, "nobody"),
    ("GET", "/ready"): Rule(None, "nobody"),  # from this machine
    ("GET", "/agents"): Rule("read", "all"),
    ("GET", "/agents/{name}"): Rule("read", "all"),
    # Where nothing is, a prompt begins a thread: another tenant's is another one.
    ("POST", "/agents/{name}/completion"): Rule("run", "thread", PROMPT, foreign=TAKEN),
    ("POST", "/agents/{name}/stream-completion"): Rule("run", "thread", PROMPT, foreign=TAKEN),
    ("POST", "/agents/{name}/resume"): Rule(
        "decide",
        "thread",
        {"thread_id": "{thread_id}", "decisions": {"{interrupt_id}": True}},
        foreign={"other person": 409, "other tenant": 409},
    ),
    ("GET", "/agents/{name}/threads/{thread_id}"): Rule("read", "thread"),
    ("DELETE", "/agents/{name}/threads/{thread_id}"): Rule(
        "run", "thread", foreign={"other person": 204, "other tenant": 204}
    ),
}
"""Each route of the server: one that is not here fails `test_every_route_has_its_rule`."""


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """Return the routes of an application by method and path; HEAD goes with GET."""
    routes: set[tuple[str, str]] = set()
    for route in iter_route_contexts(app.routes):
        methods = {*(getattr(route, "methods", None) or {"?"})} - {"HEAD", "OPTIONS"}
        routes |= {(method, str(getattr(route, "path", route))) for method in methods}
    return routes


def agent() -> Agent:
    """Make an agent that asks a human about each input."""

    def answer(messages: Sequence[AnyMessage]) -> object:
        return call("approve") if messages[-1].type == "human" else "Done."

    return Agent("Solo", model=ScriptedModel(answer), tools=[approve])  # type: ignore[arg-type]


@dataclass
class World:
    """A server with keys, and what its owner has: a session with a run that waits for a human."""

    app: FastAPI
    client: httpx.AsyncClient
    file: KeyFile
    keys: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    async def ask(
        self,
        key: str | None,
        method: str,
        path: str,
        ids: Mapping[str, str] | None = None,
        accept: str = "*/*",
    ) -> httpx.Response:
        """Send what a route takes, with the ids of the owner or with others."""
        rule = RULES["GET" if method == "HEAD" else method, path]
        all_ids = {**self.ids, **(ids or {})}
        names = {name: quote(id, safe="") for name, id in all_ids.items()}
        address = path.format(**names) + rule.query
        headers = {"Accept": accept, **({} if key is None else {"X-API-Key": self.keys[key]})}
        body = None if method == "HEAD" else _with_ids(rule.body, all_ids)
        return await self.client.request(method, address, json=body, headers=headers)


def _with_ids(value: Any, ids: Mapping[str, str]) -> Any:
    """Return a body with ids in the places that are named by `{…}`."""
    if isinstance(value, Mapping):
        return {_with_ids(name, ids): _with_ids(item, ids) for name, item in value.items()}
    is_place = isinstance(value, str) and value.startswith("{")
    return ids[value.strip("{}")] if is_place else value


@asynccontextmanager
async def world(folder: Path, id: str | None = None, tenant: str = "acme") -> AsyncIterator[World]:
    file = KeyFile(folder / "keys.json")
    keys = {
        "owner": file.add("ann", tenant=tenant),
        "other person": file.add("bob", tenant=tenant),
        "other tenant": file.add("ann", tenant="evil", scopes=SCOPES),
        "operator": file.add("root", tenant=tenant, scopes=SCOPES),
    }
    with FakeClock(1.0).installed():
        keys["ended"] = file.add("ann", tenant=tenant, expires_in_s=1)
    for scope in SCOPES[:3]:
        others = [other for other in SCOPES[:3] if other != scope]
        keys[f"without {scope}"] = file.add("ann", tenant=tenant, scopes=others)
        keys[f"only {scope}"] = file.add("ann", tenant=tenant, scopes=[scope])
    app = create_app(
        agent(), store=f"sqlite:///{folder}/a.db", settings=Settings(keys_file=str(file.path))
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server") as client,
    ):
        world = World(app, client, file, keys)
        await _begin(world, id)
        yield world


async def _begin(world: World, id: str | None = None) -> None:
    headers = {"X-API-Key": world.keys["owner"]}
    body = {"served": "Solo", **({} if id is None else {"id": id})}
    session = (await world.client.post("/sessions", json=body, headers=headers)).json()["id"]
    path = f"/sessions/{quote(session)}/messages"
    headers["Prefer"] = "wait"
    answer = (await world.client.post(path, json={"text": "go"}, headers=headers)).json()
    world.ids = {
        "id": session,
        "run_id": answer["run_id"],
        "interrupt_id": answer["interrupts"][0]["id"],
        "sequence": "2",
        "key": "color",
        "name": "Solo",
        "thread_id": session,
    }


def test_every_route_has_its_rule() -> None:
    app = create_app(agent(), store="memory")

    assert routes_of(app) == set(RULES), "name each route, and who may use it, in RULES"


@pytest.mark.parametrize("tenant", ["acme", "default"])
async def test_who_may_not_is_refused(tenant: str, tmp_path: Path) -> None:
    async with world(tmp_path, tenant=tenant) as it:
        for (method, path), rule in RULES.items():
            for key, status in refusals(rule).items():
                about = f"{method} {path} with the key {key!r}"
                answer = await it.ask(key, method, path)
                if status == 204:
                    assert answer.status_code == 204, about  # nothing of its own is there
                else:
                    assert checked(about, answer, status)["code"] in CODES, about
                if method == "GET":
                    head = await it.ask(key, "HEAD", path)
                    assert head.status_code in (status, 405), about
            if "other tenant" in rule.foreign and rule.of in ("session", "run", "thread"):
                for key in rule.foreign:
                    await _is_as_unknown(it, key, method, path)
        unchanged = await it.ask("owner", "GET", "/sessions/{id}/decisions")
        assert [one["interrupt_id"] for one in unchanged.json()] == [it.ids["interrupt_id"]]
        log = (await it.ask("owner", "GET", "/sessions/{id}/log")).json()
        assert [one["event_type"] for one in log][-1] == "ag.interrupt"


CODES = (
    "unauthorized",
    "forbidden",
    "unknown_session",
    "unknown_run",
    "unknown_thread",
    "unknown_interrupt",
)


def refusals(rule: Rule) -> dict[str | None, int]:
    """Return who is refused on a route, and how."""
    if rule.of == "nobody":
        return {}
    statuses: dict[str | None, int] = {None: 401, "ended": 401}
    if rule.scope is not None:
        statuses[f"without {rule.scope}"] = 403
    if rule.of in ("session", "run", "thread"):
        statuses.update(rule.foreign)
    return statuses


def checked(about: str, answer: httpx.Response, status: int) -> dict[str, Any]:
    """Return the problem that an answer is; `about` says which, if it is another."""
    assert answer.status_code == status, f"{about}: {answer.status_code} {answer.text}"
    return problem_of(answer, status)


async def _is_as_unknown(it: World, key: str, method: str, path: str) -> None:
    """Check that what is another's is answered as what is not there: nobody learns that it is."""
    name = {"session": "id", "run": "run_id", "thread": "thread_id"}[RULES[method, path].of]
    foreign = await it.ask(key, method, path)
    unknown = await it.ask(key, method, path, {name: "nothing"})
    assert foreign.status_code == unknown.status_code
    assert foreign.text.replace(it.ids[name], "nothing") == unknown.text
    assert foreign.headers.keys() == unknown.headers.keys()


async def test_a_stream_of_decisions_tells_nothing_of_the_threads_of_others(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        path, accept = "/agents/{name}/resume", "text/event-stream"
        for key in ("other person", "other tenant"):
            foreign = await it.ask(key, "POST", path, accept=accept)
            unknown = await it.ask(key, "POST", path, {"thread_id": "nothing"}, accept)
            (first, second) = (
                [(one.event, one.json()["message"]) for one in events[:1]] + [events[1].event]
                for events in (frames(foreign), frames(unknown))
            )
            assert str(first).replace(it.ids["thread_id"], "nothing") == str(second)
            assert "unknown_interrupt" in foreign.text
        assert len((await it.ask("owner", "GET", "/decisions")).json()) == 1


def frames(answer: httpx.Response) -> list[ServerSentEvent]:
    """Return the events of a stream that has ended."""
    return list(EventSource(answer).iter_sse())


@pytest.mark.parametrize("kind", ["completion", "stream-completion"])
async def test_a_prompt_of_another_tenant_begins_a_thread_of_its_own(
    kind: str, tmp_path: Path
) -> None:
    async with world(tmp_path) as it:
        answer = await it.ask("other tenant", "POST", f"/agents/{{name}}/{kind}")
        assert answer.status_code == 200 and it.ids["interrupt_id"] not in answer.text
        own = {}
        for key in ("owner", "other tenant"):
            thread = await it.ask(key, "GET", "/agents/{name}/threads/{thread_id}")
            own[key] = [message["text"] for message in thread.json()["messages"]]
        assert (own["owner"][0], own["other tenant"][0]) == ("go", "hi")
        removed = await it.ask("other tenant", "DELETE", "/agents/{name}/threads/{thread_id}")
        assert removed.status_code == 204
        assert len((await it.ask("owner", "GET", "/decisions")).json()) == 1


async def test_who_may_needs_one_scope_and_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for (method, path), rule in RULES.items():
            if rule.of != "nobody":
                await _begin(it)
                key = "owner" if rule.scope is None else f"only {rule.scope}"
                answer = await it.ask(key, method, path)
                assert answer.status_code < 300 or answer.json()["code"] in (
                    "stranger",  # it was not invited, or is the creator, which cannot leave
                    "not_waiting",
                ), f"{method} {path}: {answer.text}"


async def test_an_operator_has_all_of_its_tenant_and_speaks_as_nobody_else(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for (method, path), rule in RULES.items():
            if rule.of not in ("session", "run"):
                continue
            await _begin(it)
            answer, about = await it.ask("operator", method, path), f"{method} {path}"
            if method != "GET" and any(word in path for word in SPEAKING):
                assert "takes no part" in checked(about, answer, 403)["detail"]
            else:
                is_idle = answer.status_code >= 300 and answer.json()["code"] == "not_waiting"
                assert answer.status_code < 300 or is_idle, f"{about}: {answer.text}"


SPEAKING = ("messages", "join", "reject", "leave", "context")


async def test_lists_have_only_what_is_the_principals(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        counts = {
            (key, path): len((await it.ask(key, "GET", path)).json())
            for key in ("owner", "operator", "other person", "other tenant")
            for path in ("/sessions", "/decisions")
        }
        after = f"/sessions?after={it.ids['id']}"
        headers = {"X-API-Key": it.keys["other person"]}
        problem_of(await it.client.get(after, headers=headers), 404)
    assert {key for key, count in counts.items() if count == 1} == {
        (key, path) for key in ("owner", "operator") for path in ("/sessions", "/decisions")
    }
    assert sum(counts.values()) == 4


async def test_a_question_of_one_session_is_not_decided_in_another(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        mine = await it.ask("other person", "POST", "/sessions")
        path = "/sessions/{id}/decisions/{interrupt_id}"
        answer = await it.ask("other person", "POST", path, {"id": mine.json()["id"]})
        assert problem_of(answer, 404)["code"] == "unknown_interrupt"
        assert len((await it.ask("owner", "GET", "/decisions")).json()) == 1


@pytest.mark.parametrize("id", ["mine", "default", "a b", "é", "a?b#c"])
async def test_ids_that_tenants_choose_never_meet(id: str, tmp_path: Path) -> None:
    async with world(tmp_path, id) as it:
        body = {"served": "Solo", "id": id}
        foreign = {"X-API-Key": it.keys["other tenant"]}
        created = await it.client.post("/sessions", json=body, headers=foreign)
        assert created.status_code == 201
        theirs = (await it.client.get("/sessions", headers=foreign)).json()
        assert [(one["id"], one["sequence"]) for one in theirs] == [(id, 1)]
        own = {"X-API-Key": it.keys["owner"]}
        ours = (await it.client.get("/sessions", headers=own)).json()
        assert [one["id"] for one in ours] == [id] and ours[0]["sequence"] > 1
        same = {"X-API-Key": it.keys["other person"]}
        problem_of(await it.client.post("/sessions", json=body, headers=same), 409)


@pytest.mark.parametrize("id", ["acme/mine", "default/mine", "/", ".", ".."])
async def test_an_id_that_no_address_can_name_is_refused(id: str, tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        headers = {"X-API-Key": it.keys["owner"]}
        body = {"served": "Solo", "id": id}
        problem_of(await it.client.post("/sessions", json=body, headers=headers), 422)
