"""Who may do what in a session: its creator, people that it invites, operators."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agentgraph import Agent, FromSpeaker, HumanTarget, Team, Transition, TransitionGraph
from agentgraph.testing import ScriptedModel
from tests.server.live_server import problem_of, serving, solo
from tests.server.principals.test_current_principal import by_header
from tests.server.test_sessions import asked, opened


def desk(**fields: Any) -> Team:
    """Make a team in which a writer answers whoever speaks, below a supervisor."""
    anybody = Transition(~FromSpeaker("writer"), "writer")
    rules = TransitionGraph("writer", [anybody], HumanTarget())
    writer = Agent("writer", model=ScriptedModel(["Yes."] * 20))
    return Team([writer], rules, name="desk", **fields)


def as_(name: str, **more: str) -> dict[str, str]:
    return {"x-user": name, **{f"x-{key}": value for key, value in more.items()}}


async def send(client: httpx.AsyncClient, id: str, name: str, **body: Any) -> httpx.Response:
    path = f"/sessions/{id}/messages"
    return await client.post(path, json={"text": "hi", **body}, headers=as_(name))


@pytest.mark.parametrize("name", ["writer", "WRITER", "lead", "Lead", "desk"])
async def test_nobody_speaks_as_an_agent(name: str) -> None:
    team = desk(supervisor=Agent("lead", model=ScriptedModel([""] * 20)))
    async with serving(team, auth=by_header) as client:
        body = {"served": "desk"}
        answer = await client.post("/sessions", json=body, headers=as_(name))
        assert "is an agent" in problem_of(answer, 403)["detail"]


async def test_who_is_named_like_an_agent_does_not_speak_as_it() -> None:
    async with serving(desk(), auth=by_header) as client:
        client.headers.update(as_("ann"))
        id = await opened(client, "desk")
        operator = as_("writer", scopes="run,read,operate")
        path = f"/sessions/{id}/messages"
        answer = await client.post(path, json={"text": "hi"}, headers=operator)
        assert "nobody else speaks as it" in problem_of(answer, 403)["detail"]
        answer = await client.get(f"/sessions/{id}", headers=as_("writer"))
        problem_of(answer, 404)


@pytest.mark.parametrize("name", ["human", "Human", "a b", "ann@example.com", "x" * 53])
async def test_who_can_take_part_in_nothing_is_told_so(name: str) -> None:
    async with serving(desk(), auth=by_header) as client:
        problem = problem_of(await client.get("/served", headers=as_(name)), 403)
        assert problem["code"] == "principal"
        answer = await client.get("/served", headers=as_(name, participant="ann"))
        assert answer.status_code == 200


async def test_an_invited_person_speaks_once_it_has_accepted_and_until_it_leaves() -> None:
    async with serving(desk(), auth=by_header) as client:
        client.headers.update(as_("ann"))
        id = await opened(client, "desk", participants=["bob"])
        assert "accept" in problem_of(await send(client, id, "bob"), 403)["detail"]
        problem_of(await send(client, id, "carl"), 404)
        joined = await client.post(f"/sessions/{id}/join", headers=as_("bob"))
        assert joined.status_code == 204
        await asked(client, id, "hi")
        first = await send(client, id, "bob", idempotency_key="a")
        assert first.status_code == 202
        path = f"/sessions/{id}/context/color"
        assert (await client.put(path, json={"value": 1}, headers=as_("bob"))).status_code == 204
        await client.post(f"/sessions/{id}/leave", headers=as_("bob"))
        assert "has left" in problem_of(await send(client, id, "bob"), 403)["detail"]
        problem_of(await client.put(path, json={"value": 2}, headers=as_("bob")), 403)
        again = await send(client, id, "bob", idempotency_key="a")
        assert again.json() == first.json()
        assert (await client.get(f"/sessions/{id}/log", headers=as_("bob"))).status_code == 200


async def test_people_of_a_team_are_principals_of_its_sessions_in_their_tenant() -> None:
    async with serving(desk(humans=["bob"]), auth=by_header) as client:
        client.headers.update(as_("ann"))
        id = await opened(client, "desk")
        for headers, status in (
            (as_("bob"), 200),
            (as_("bob", tenant="other"), 404),
            (as_("carl"), 404),
            (as_("key-7", participant="bob"), 200),
        ):
            assert (await client.get(f"/sessions/{id}", headers=headers)).status_code == status
        (listed,) = (await client.get("/sessions", headers=as_("bob"))).json()
        assert listed["id"] == id


OWNERS_ALONE = [
    ("POST", "/close", None),
    ("POST", "/fork", {"at": 1}),
    ("POST", "/rewind", {"to": 4}),
    ("DELETE", "", None),
]


@pytest.mark.parametrize(("method", "path", "body"), OWNERS_ALONE)
async def test_only_the_creator_or_an_operator_ends_or_turns_back_a_session(
    method: str, path: str, body: object
) -> None:
    async with serving(desk(humans=["bob"]), auth=by_header) as client:
        client.headers.update(as_("ann"))
        id = await opened(client, "desk")
        await client.post(f"/sessions/{id}/join", headers=as_("bob"))
        await asked(client, id, "hi")
        address = f"/sessions/{id}{path}"
        refused = await client.request(method, address, json=body, headers=as_("bob"))
        assert "only who has opened" in problem_of(refused, 403)["detail"]
        operator = as_("root", scopes="run,operate")
        answer = await client.request(method, address, json=body, headers=operator)
        assert answer.status_code < 300, answer.text


async def test_with_one_key_for_each_a_person_can_have_several() -> None:
    async with serving(solo("A.", "B."), auth=by_header) as client:
        client.headers.update(as_("laptop", participant="ann"))
        id = await opened(client)
        await asked(client, id, "hi")
        client.headers["x-user"] = "phone"
        assert (await asked(client, id, "again"))["text"] == "B."
