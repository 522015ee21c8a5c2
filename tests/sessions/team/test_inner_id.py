"""Inner sessions have ids that no user chooses or guesses, and only their round enters them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import ConfigurationError, SessionError
from agentgraph.routing import sequence
from agentgraph.sessions import Hub, Session, Team
from agentgraph.sessions.log import Log, SessionQuery
from agentgraph.sessions.state.record import Parent, SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team import inner_id, nested, opening, private_sessions
from agentgraph.sessions.team.opening import new_record
from agentgraph.testing import call
from tests.sessions.talk import after, agent, asked, dialogue, settled, shown, talk


def inner_team(*turns: Any, **fields: Any) -> Team:
    return Team([agent("x", *turns, **fields)], sequence(["x"]), name="inner")


def outer_team(inner: Team) -> Team:
    return Team([agent("a"), inner], sequence(["a", "inner"]), name="outer")


async def inner_ids(hub: Hub, outer: Session) -> list[str]:
    sessions = [await hub.get(one.session_id) for one in await hub.log.sessions()]
    parents = {one.id: one.record.parent for one in sessions if one.record.serves}
    return [id for id, parent in parents.items() if parent and parent.session_id == outer.id]


async def test_a_session_opened_beforehand_is_not_taken_for_an_inner_one() -> None:
    inner = inner_team()
    outer = outer_team(inner)
    async with await Hub.open(serve=[outer, inner]) as hub:
        session = await hub.session(outer, id="o")
        waiting = await hub.session(inner, id="o/2/inner", creator="mallory")
        await after(session, "user", "the secret of the day")
        assert ("inner", "x speaks") in await talk(session)
        assert await talk(waiting) == []
        assert waiting.state.status == "active"
        (inner_session_id,) = await inner_ids(hub, session)
        assert inner_session_id != waiting.id


@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_inner_sessions_are_not_listed_and_forks_are(log_url: str, tenant: str) -> None:
    outer = outer_team(inner_team())
    async with await Hub.open(log_url, serve=[outer]) as hub:
        session = await hub.session(outer, tenant=tenant, metadata={"kind": "chat"})
        await after(session, "user", "hello")
        fork = await session.fork(2)
        ids = [session.id, fork.id]
        assert len(await hub.log.sessions()) == 3
        for owner in (None, tenant):
            listed = await hub.sessions(tenant=owner, creator="user")
            assert [summary.session_id for summary in listed] == ids


@pytest.mark.parametrize("parent", ["o", "a/b"])
@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_inner_sessions_of_earlier_versions_are_not_listed(
    log: Log, parent: str, tenant: str
) -> None:
    record = new_record(inner_team(), parent, creator="user", tenant=tenant)
    rounds = Parent(parent, 2, "inner", path="inner")
    inner = replace(record, session_id=f"{parent}/2/inner", parent=rounds)
    other = replace(record, session_id=f"{parent}/2/other")
    for each in (record, inner, other):
        await log.create(each, [], SessionState.initial(each))
    listed = await log.sessions(SessionQuery(with_inner=False))
    assert [summary.session_id for summary in listed] == [parent, other.session_id]


async def test_an_inner_session_is_read_and_entered_by_its_round_alone() -> None:
    inner = inner_team(call("ask", what="may I?"), "inner said", tools=[ask])
    outer = outer_team(inner)
    async with await Hub.open(serve=[outer, inner]) as hub:
        session = await hub.session(outer)
        state = await after(session, "user", "hello")
        (inner_session_id,) = await inner_ids(hub, session)
        handle = await hub.get(inner_session_id)
        for request in (
            handle.send("user", "from outside"),
            handle.ask("from outside"),
            handle.set_context("tier", "gold"),
            handle.cancel(),
            handle.rewind(1),
            handle.leave("x"),
            handle.close(),
        ):
            with pytest.raises(SessionError) as refused:
                await request
            assert refused.value.code == "inner_session"
        await session.decide(next(iter(state.interrupts)), "yes")
        await settled(session)
        assert (await talk(session))[-1] == ("inner", "inner said")
        assert [sender for sender, _ in await talk(handle)] == ["user", "x"]


async def test_nobody_opens_a_session_with_the_id_of_an_inner_one() -> None:
    inner = inner_team()
    outer = outer_team(inner)
    async with await Hub.open(serve=[outer, inner]) as hub:
        session = await hub.session(outer)
        await after(session, "user", "hello")
        (inner_session_id,) = await inner_ids(hub, session)
        for id in (inner_session_id, f"{inner_session_id[:-1]}x"):
            with pytest.raises(ConfigurationError, match="choose another"):
                await hub.session(inner, id=id)


async def test_the_same_session_elsewhere_has_other_inner_ids() -> None:
    found = set()
    for _ in range(2):
        outer = outer_team(inner_team())
        async with await Hub.open(serve=[outer]) as hub:
            session = await hub.session(outer, id="o")
            await after(session, "user", "hello")
            found.update(await inner_ids(hub, session))
    assert len(found) == 2


def ask(what: str) -> str:
    """Ask a human for a decision."""
    return f"decided: {interrupt({'question': what})}"


async def test_a_fork_does_not_enter_the_inner_session_of_its_original() -> None:
    turns = [call("ask", what="may I?"), call("ask", what="may I?")]
    outer = outer_team(inner_team(*turns, tools=[ask]))
    async with await Hub.open(serve=[outer]) as hub:
        session = await hub.session(outer)
        state = await after(session, "user", "hello")
        fork = await session.fork(state.sequence)
        forked = await settled(fork)
        assert forked.status == "waiting_decision"
        assert len(await inner_ids(hub, session)) == 1
        assert await inner_ids(hub, fork)
        assert not {*await inner_ids(hub, fork)} & {*await inner_ids(hub, session)}


async def test_a_tool_that_runs_its_own_team_does_not_enter_the_session_around_it() -> None:
    teams: list[Team] = []

    async def again() -> str:
        """Ask the team itself."""
        result = await teams[0].graph.ainvoke({"messages": [("user", "a question of a tool")]})
        return f"they said: {result['messages'][-1].text}"

    x = agent("x", call("again"), "from within", "from without", tools=[again])
    team = Team([x], dialogue("x"), name="own")
    teams.append(team)
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await after(session, "user", "hello")
        assert await talk(session) == [("user", "hello"), ("x", "from without")]
        assert "they said: from within" in shown(x)


@pytest.fixture
def earlier_version(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Name and store inner sessions as the versions did whose records had no secret."""

    async def earlier_id(
        log: object, outer: SessionRecord, parent: Parent, attempt: int, team: str
    ) -> str:
        return inner_id._earlier_id(parent, attempt)

    stored = SessionRecord.to_dict

    def to_dict(record: SessionRecord) -> dict[str, Any]:
        data = stored(record)
        del data["secret"]
        (data["parent"] or {}).pop("path", None)
        return data

    for module in (nested, private_sessions):
        monkeypatch.setattr(module, "inner_id", earlier_id)
    monkeypatch.setattr(opening, "new_id", lambda: "")
    monkeypatch.setattr(SessionRecord, "to_dict", to_dict)
    return monkeypatch


def team_around(where: str, x: Agent) -> Team:
    """Return a team with an agent in a team inside it, or inside an agent of it."""
    inner = Team([x], sequence(["x"]), name="inner")
    speaker: Any = inner
    if where == "agent":
        speaker = agent("boss", call("transfer_to_inner", reason="it knows"), agents=[inner])
    return Team([speaker], sequence([speaker.name]), name="outer")


@pytest.mark.parametrize("where", ["team", "agent"])
async def test_an_inner_session_of_an_earlier_version_goes_on(
    where: str, earlier_version: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    path = "inner" if where == "team" else "boss/inner"
    team = team_around(where, agent("x", call("ask", what="may I?"), tools=[ask]))
    async with await Hub.open(url, serve=[team]) as hub:
        session = await hub.session(team, id="o")
        state = await after(session, "user", "hello")
        assert state.status == "waiting_decision"
        assert await inner_ids(hub, session) == [f"o/1/{path}"]
    earlier_version.undo()
    x = agent("x", "x was told", tools=[ask])
    async with await Hub.open(url, serve=[team_around(where, x)]) as hub:
        session = await hub.get("o")
        (key,) = session.state.interrupts
        await session.decide(key, "yes")
        await settled(session)
        assert await inner_ids(hub, session) == [f"o/1/{path}"]
        assert len(asked(x)) == 1
        assert "decided: yes" in shown(x)
        assert (await talk(session))[-1][1] == "x was told"


async def test_the_id_of_an_inner_session_of_an_earlier_version_opens_nothing(
    earlier_version: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    inner = inner_team()
    outer = outer_team(inner)
    async with await Hub.open(url, serve=[outer]) as hub:
        await after(await hub.session(outer, id="o"), "user", "hello")
    earlier_version.undo()
    async with await Hub.open(url, serve=[outer, inner]) as hub:
        with pytest.raises(SessionError, match="another id"):
            await hub.session(inner, id="o/2/inner")


async def test_later_rounds_of_a_session_of_an_earlier_version_have_ids_of_their_own(
    earlier_version: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    inner = inner_team()
    outer = outer_team(inner)
    async with await Hub.open(url, serve=[outer, inner]) as hub:
        await hub.session(outer, id="o")
    earlier_version.undo()
    async with await Hub.open(url, serve=[outer, inner]) as hub:
        waiting = await hub.session(inner, id="o/2/inner", creator="mallory")
        session = await hub.get("o")
        await after(session, "user", "the secret of the day")
        assert ("inner", "x speaks") in await talk(session)
        assert await talk(waiting) == []
