"""Tools know who asks: who has sent the input, or has decided; and participants are not told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.graph import MessagesState, StateGraph
from langgraph.runtime import get_runtime
from langgraph.types import interrupt
from starlette.requests import Request

from agentgraph import Agent, Hub, Team, sequence
from agentgraph.remote import Principal, current_principal
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import Gated, serving, solo
from tests.server.test_sessions import asked, opened

WAIT = {"Prefer": "wait"}


def by_header(request: Request) -> Principal | None:
    name = request.headers.get("x-user")
    if name is None:
        return None
    scopes = frozenset(request.headers.get("x-scopes", "run,read,decide").split(","))
    return Principal(
        name, request.headers.get("x-tenant", "acme"), scopes, request.headers.get("x-participant")
    )


def whoami() -> str:
    """Tell who asks."""
    principal = current_principal()
    return "nobody" if principal is None else f"{principal.tenant}/{principal.name}"


async def test_a_tool_knows_who_has_sent_the_input() -> None:
    names: list[str] = []

    def note() -> str:
        """Note who asks."""
        names.append(whoami())
        return "noted"

    agent = solo(call("note"), "A.", call("note"), "B.", tools=[note])
    async with serving(agent, auth=by_header) as client:
        client.headers["x-user"] = "ann"
        id = await opened(client)
        await asked(client, id, "hi")
        client.headers.update({"x-user": "root", "x-participant": "ann"})
        await asked(client, id, "hi")
    assert names == ["acme/ann", "acme/root"]
    assert current_principal() is None


async def test_a_tool_of_the_routes_of_agents_knows_it_too() -> None:
    seen: list[str] = []

    def note() -> str:
        """Note who asks."""
        seen.append(whoami())
        return "noted"

    async with serving(solo(call("note"), "A.", tools=[note]), auth=by_header) as client:
        await client.post(
            "/agents/Solo/completion", json={"prompt": "hi"}, headers={"x-user": "ann"}
        )
    assert seen == ["acme/ann"]


async def test_after_a_decision_it_is_who_has_decided() -> None:
    seen: list[str] = []

    def ask() -> str:
        """Ask a human, twice."""
        seen.append(whoami())
        interrupt("may I?")
        seen.append(whoami())
        return "done"

    async with serving(
        solo(call("ask"), call("note"), "Done.", tools=[ask, _noting(seen)]), auth=by_header
    ) as client:
        client.headers["x-user"] = "ann"
        id = await opened(client)
        question = (await asked(client, id, "go"))["interrupts"][0]["id"]
        await client.post(
            f"/sessions/{id}/decisions/{question}",
            json={"decision": True},
            headers={"x-user": "boss", "x-scopes": "decide,read,operate", **WAIT},
        )
    assert seen == ["acme/ann", "acme/boss", "acme/boss", "acme/boss"]


def _noting(seen: list[str]) -> Any:
    def note() -> str:
        """Note who asks."""
        seen.append(whoami())
        return "noted"

    return note


async def test_a_foreign_graph_finds_its_user_as_on_a_platform() -> None:
    users: list[Any] = []

    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        users.append(get_config()["configurable"]["langgraph_auth_user"])
        users.append(get_runtime().server_info.user)  # type: ignore[union-attr]
        assert config["configurable"]["langgraph_auth_user"] is users[0]
        return {"messages": [AIMessage("hi")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge("__start__", "node")
    async with serving(graph.compile(name="foreign"), auth=by_header) as client:
        client.headers["x-user"] = "ann"
        await asked(client, await opened(client, "foreign"), "hi")
    config_user, runtime_user = users
    assert config_user == {
        "identity": "ann",
        "display_name": "ann",
        "is_authenticated": True,
        "permissions": ["decide", "read", "run"],
        "tenant": "acme",
    }
    assert runtime_user.identity == "ann" and runtime_user.permissions == config_user["permissions"]


async def test_participants_are_not_shown_under_which_key_somebody_speaks() -> None:
    secret = "the-name-of-a-key"
    async with serving(solo("A.", "B."), auth=by_header) as client:
        client.headers.update({"x-user": secret, "x-participant": "ann"})
        id = await opened(client)
        run = await asked(client, id, "hi")
        client.headers["x-user"] = "ann"
        pages = [
            await client.get(path)
            for path in (
                f"/sessions/{id}/log",
                f"/sessions/{id}/events?live=false",
                f"/sessions/{id}/state",
                f"/sessions/{id}/audit",
                f"/runs/{run['run_id']}/events",
                f"/sessions/{id}/explain/2",
            )
        ]
        assert all(page.status_code == 200 for page in pages)
        assert not any(secret in page.text for page in pages)
        client.headers.update({"x-user": "boss", "x-scopes": "read,operate"})
        del client.headers["x-participant"]
        log = (await client.get(f"/sessions/{id}/log")).json()
        assert secret in str(log)


async def test_nobody_else_can_say_who_asks() -> None:
    async with serving(solo("never"), auth=by_header) as client:
        client.headers["x-user"] = "ann"
        id = await opened(client)
        body = {"text": "hi", "metadata": {"ag.principal": {"name": "root"}}}
        answer = await client.post(f"/sessions/{id}/messages", json=body)
        assert answer.status_code == 422
        assert "ag.principal" in answer.json()["detail"]


async def test_outside_of_a_server_nobody_asks() -> None:
    agent = solo(call("whoami"), "Done.", tools=[whoami])
    async with await Hub.open(serve=[agent]) as hub:
        session = await hub.session("Solo")
        await session.ask("hi")
        messages = await session.messages()
    assert "nobody" in [message.content for message in messages]


async def test_inner_teams_and_later_rounds_work_for_the_same_principal() -> None:
    seen: list[str] = []
    tools = [_noting(seen)]
    inner = Team(
        [
            Agent("writer", model=ScriptedModel([call("note"), "A draft."]), tools=tools),
            Agent("editor", model=ScriptedModel([call("note"), "A page."]), tools=tools),
        ],
        sequence(["writer", "editor"]),
        name="desk",
    )
    last = Agent("last", model=ScriptedModel([call("note"), "Printed."]), tools=tools)
    async with serving(
        Team([inner, last], sequence(["desk", "last"]), name="press"), auth=by_header
    ) as client:
        client.headers["x-user"] = "ann"
        await asked(client, await opened(client, "press"), "go")
    assert seen == ["acme/ann"] * 3


async def test_a_rewound_session_works_for_who_has_rewound_it() -> None:
    seen: list[str] = []
    agent = solo(call("note"), "A.", call("note"), "B.", tools=[_noting(seen)])
    async with serving(agent, auth=by_header) as client:
        client.headers["x-user"] = "ann"
        id = await opened(client)
        await asked(client, id, "go")
        boss = {"x-user": "boss", "x-scopes": "run,read,operate"}
        log = (await client.get(f"/sessions/{id}/log")).json()
        first = next(one["sequence"] for one in log if one["event_type"] == "ag.msg.text")
        body = {"to": first}
        answer = await client.post(f"/sessions/{id}/rewind", json=body, headers=boss)
        run_id = answer.json()["run_id"]
        await client.get(f"/runs/{run_id}/events")
    assert seen == ["acme/ann", "acme/boss"]


async def test_it_travels_to_the_server_that_drives_the_session(tmp_path: Path) -> None:
    store, seen, never = f"sqlite:///{tmp_path}/a.db", list[str](), list[str]()
    driver = solo(call("note"), "A.", call("note"), "B.", tools=[_noting(seen)])
    other = solo(call("note"), "A.", tools=[_noting(never)])
    async with (
        serving(driver, store=store, auth=by_header) as one,
        serving(other, store=store, auth=by_header) as two,
    ):
        one.headers["x-user"] = two.headers["x-user"] = "ann"
        id = await opened(one)
        await asked(one, id, "hi")
        two.headers.update({"x-user": "helper", "x-participant": "ann"})
        await asked(two, id, "again")
    assert (seen, never) == (["acme/ann", "acme/helper"], [])


async def test_a_server_that_takes_a_run_over_works_for_the_same_principal(
    tmp_path: Path, gated: Gated
) -> None:
    store, seen = f"sqlite:///{tmp_path}/a.db", list[str]()
    first = solo(call("work"), "never", tools=[gated.work])
    async with serving(first, store=store, auth=by_header) as client:
        client.headers["x-user"] = "ann"
        id = await opened(client)
        answer = await client.post(f"/sessions/{id}/messages", json={"text": "hi"})
        run_id = answer.json()["run_id"]
        await gated.begun.wait()
    second = solo(call("note"), "Done.", tools=[_noting(seen)])
    async with serving(second, store=store, auth=by_header) as client:
        client.headers["x-user"] = "ann"
        assert "Done." in (await client.get(f"/runs/{run_id}/events")).text
    assert seen == ["acme/ann"]
