"""Sessions over HTTP: opened, spoken in, read, decided, forked, rewound, closed and erased."""

from __future__ import annotations

import json
from typing import Any

import httpx
from httpx_sse import aconnect_sse

from agentgraph import Agent, Team, sequence
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import approve, lookup, problem_of, serving, solo


async def opened(client: httpx.AsyncClient, served: str = "Solo", **body: Any) -> str:
    answer = await client.post("/sessions", json={"served": served, **body})
    assert answer.status_code == 201, answer.text
    id: str = answer.json()["id"]
    return id


async def asked(client: httpx.AsyncClient, id: str, text: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(
        f"/sessions/{id}/messages", json={"text": text, **body}, headers={"Prefer": "wait"}
    )
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def test_a_session_is_opened_and_answers() -> None:
    async with serving(solo("Hello.", "Again.")) as client:
        created = await client.post("/sessions", json={"served": "Solo", "metadata": {"a": 1}})
        session = created.json()
        assert created.headers["location"] == f"/sessions/{session['id']}"
        assert (session["served"], session["status"]) == ("Solo", "active")
        answer = await asked(client, session["id"], "hi")
        assert (answer["text"], answer["speaker"]) == ("Hello.", "Solo")
        assert answer["status"] == "waiting_human"
        run = (await client.get(f"/runs/{answer['run_id']}")).json()
        assert (run["status"], run["session_id"]) == ("success", session["id"])
        log = (await client.get(f"/sessions/{session['id']}/log")).json()
        assert [envelope["sequence"] for envelope in log] == [1, 2, 3]
        assert (await asked(client, session["id"], "again"))["text"] == "Again."


async def test_a_message_without_a_wish_is_accepted_and_runs_on() -> None:
    async with serving(solo("Hello.")) as client:
        id = await opened(client)
        answer = await client.post(f"/sessions/{id}/messages", json={"text": "hi"})
        assert answer.status_code == 202
        run_id = answer.json()["run_id"]
        assert answer.headers["location"] == f"/runs/{run_id}"
        events = await events_of(client, f"/runs/{run_id}/events")
        assert [name for name, _, _ in events][-2:] == ["message", "done"]
        assert events[-2][1]["text"] == "Hello."
        runs = (await client.get(f"/sessions/{id}/runs")).json()
        assert [run["status"] for run in runs] == ["success"]


async def events_of(
    client: httpx.AsyncClient, path: str, **body: Any
) -> list[tuple[str, dict[str, Any], str]]:
    method = "POST" if body else "GET"
    async with aconnect_sse(
        client, method, path, json=body or None, headers={"Accept": "text/event-stream"}
    ) as source:
        assert source.response.status_code == 200, await source.response.aread()
        return [(sse.event, json.loads(sse.data), sse.id) async for sse in source.aiter_sse()]


async def test_a_message_streams_its_run() -> None:
    model = ScriptedModel([call("lookup", order="7"), "It is lost."])
    agent = Agent("Solo", model=model, tools=[lookup])
    async with serving(agent) as client:
        id = await opened(client)
        events = await events_of(client, f"/sessions/{id}/messages", text="where is 7?")
        names = [name for name, _, _ in events]
        assert names[0] == "ag.msg.text"
        assert "tool_usage" in names and "tool_response" in names and "ag.packet" in names
        assert names[-2:] == ["message", "done"]
        said = [data["text"] for name, data, _ in events if name == "token"]
        assert "".join(said) == "It is lost."
        assert all(id for name, _, id in events if name not in ("message", "done"))


async def test_a_run_is_streamed_from_its_first_token() -> None:
    model = ScriptedModel([call("approve"), "All of it is done.", "And more of it."])
    async with serving(Agent("Solo", model=model, tools=[approve])) as client:
        id = await opened(client)
        (question,) = (await asked(client, id, "do it"))["interrupts"]
        decided = await events_of(
            client, f"/sessions/{id}/decisions/{question['id']}", decision="yes"
        )
        more = await events_of(client, f"/sessions/{id}/messages", text="more")
    for events, text in ((decided, "All of it is done."), (more, "And more of it.")):
        assert "".join(data["text"] for name, data, _ in events if name == "token") == text


async def test_a_decision_goes_on_as_a_run_of_its_own() -> None:
    model = ScriptedModel([call("approve"), "Done."])
    async with serving(Agent("Solo", model=model, tools=[approve])) as client:
        id = await opened(client)
        answer = await asked(client, id, "do it")
        (question,) = answer["interrupts"]
        assert (await client.get(f"/runs/{answer['run_id']}")).json()["status"] == "interrupted"
        (waiting,) = (await client.get("/decisions")).json()
        assert (waiting["interrupt_id"], waiting["session_id"]) == (question["id"], id)
        assert waiting["payload"] == {"question": "may I?"}
        decided = await client.post(
            f"/sessions/{id}/decisions/{question['id']}",
            json={"decision": "yes"},
            headers={"Prefer": "wait"},
        )
        assert decided.json()["text"] == "Done."
        assert (await client.get("/decisions")).json() == []
        run = (await client.get(f"/runs/{decided.json()['run_id']}")).json()
        assert run["status"] == "success"


async def test_a_team_is_served_and_ends() -> None:
    writer = Agent("writer", model=ScriptedModel(["A draft."]))
    editor = Agent("editor", model=ScriptedModel(["A page."]))
    team = Team([writer, editor], sequence(["writer", "editor"]), name="page")
    async with serving(team) as client:
        id = await opened(client, "page", context={"tier": "gold"})
        answer = await asked(client, id, "A page on tides")
        assert (answer["text"], answer["close_reason"]) == ("A page.", "sequence_complete")
        state = (await client.get(f"/sessions/{id}/state")).json()
        assert (state["status"], state["context"]) == ("closed", {"tier": "gold"})
        log = (await client.get(f"/sessions/{id}/log")).json()
        draft = next(one["sequence"] for one in log if one["sender_id"] == "writer")
        explained = (await client.get(f"/sessions/{id}/explain/{draft}")).json()
        assert explained["decision"]["speakers"] == ["editor"]
        assert [rule["fired"] for rule in explained["rules"]][-1] is True
        assert all(rule["text"] and (rule["fired"] or rule["why"]) for rule in explained["rules"])
        over = await client.get(f"/sessions/{id}/events", headers={"Last-Event-ID": "99"})
        assert over.status_code == 204
        problem_of(await client.post(f"/sessions/{id}/messages", json={"text": "more"}), 409)


async def test_sessions_are_listed_newest_first_in_pages() -> None:
    async with serving(solo("never")) as client:
        ids = [
            await opened(client, metadata={"kind": "even" if n % 2 else "odd"}) for n in range(5)
        ]
        page = await client.get("/sessions", params={"limit": 2})
        assert [one["id"] for one in page.json()] == [ids[4], ids[3]]
        link = page.links["next"]["url"]
        assert [one["id"] for one in (await client.get(link)).json()] == [ids[2], ids[1]]
        odd = await client.get("/sessions", params={"metadata.kind": "odd"})
        assert [one["id"] for one in odd.json()] == [ids[4], ids[2], ids[0]]


async def test_a_session_is_forked_rewound_closed_and_erased() -> None:
    async with serving(solo("One.", "Two.", "Three.")) as client:
        id = await opened(client)
        await asked(client, id, "first")
        fork = (await client.post(f"/sessions/{id}/fork", json={"at": 3})).json()
        assert (await asked(client, fork["id"], "in the fork"))["text"] == "Two."
        rewound = await client.post(f"/sessions/{id}/rewind", json={"to": 1})
        assert rewound.status_code == 202
        assert (await asked(client, id, "anew"))["text"] == "Three."
        assert (await client.post(f"/sessions/{id}/close")).json()["status"] == "closed"
        assert (await client.delete(f"/sessions/{id}")).status_code == 204
        problem_of(await client.get(f"/sessions/{id}"), 404)


async def test_the_context_is_set_and_deleted() -> None:
    async with serving(solo("never")) as client:
        id = await opened(client)
        path = f"/sessions/{id}/context/tier"
        assert (await client.put(path, json={"value": {"a": [1]}})).status_code == 204
        assert (await client.get(f"/sessions/{id}")).json()["context"] == {"tier": {"a": [1]}}
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(f"/sessions/{id}")).json()["context"] == {}


async def test_what_is_wrong_with_a_message_is_said() -> None:
    async with serving(solo("never")) as client:
        id = await opened(client)
        bodies: list[dict[str, Any]] = [
            {},
            {"text": " "},
            {"text": "a", "content": []},
            {"event_data": {}},
        ]
        for body in bodies:
            problem_of(await client.post(f"/sessions/{id}/messages", json=body), 422)
        forged = {"event_type": "ag.session.closed", "event_data": {}}
        problem = problem_of(await client.post(f"/sessions/{id}/messages", json=forged), 422)
        assert problem["code"] == "reserved_type"
        stranger = {"text": "psst", "audience": ["nobody"]}
        problem = problem_of(await client.post(f"/sessions/{id}/messages", json=stranger), 422)
        assert "nobody" in problem["detail"]
