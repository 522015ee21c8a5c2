"""Context variables: written by rounds, whole or not at all, and from outside, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph import Agent
from agentgraph.errors import AgentGraphError, ConfigurationError
from agentgraph.routing import (
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_CONTEXT_SET,
    EV_PACKET,
    Draft,
    Team,
    current_session,
    delete_context,
    set_context,
)
from agentgraph.testing import Fault, ScriptedModel, call
from tests.sessions.talk import PATIENCE_S, after, agent, asked, held, of_type, settled, until


def put(key: str, value: Any) -> str:
    """Put a value."""
    set_context(key, value)
    return "put"


def drop(key: str) -> str:
    """Drop a key."""
    delete_context(key)
    return "dropped"


def put_and_fail(key: str) -> str:
    """Put a value and fail."""
    set_context(key, 1)
    raise ValueError("failed after writing")


def look(key: str) -> str:
    """Look a key up."""
    return repr(current_session().state.context_vars.get(key))


TOOLS = [put, drop, put_and_fail, look]


async def test_a_round_writes_and_the_next_speaker_sees_it() -> None:
    first = agent("a", call("put", key="k", value=[1, {"x": None}]), "so", tools=TOOLS)
    second = agent("b", call("look", key="k"), "so", tools=TOOLS)
    async with held(Team([first, second], sequence(["a", "b"]))) as session:
        state = await after(session, "user", "hello")
        assert dict(state.context_vars) == {"k": [1, {"x": None}]}
        told = [m.text for m in asked(second)[-1].messages if m.type == "tool"]
        assert told == ["[1, {'x': None}]"]


async def test_a_round_does_not_see_what_it_has_not_committed() -> None:
    one = agent("a", call("put", key="k", value=1), call("look", key="k"), "so", tools=TOOLS)
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        told = [m.text for m in asked(one)[-1].messages if m.type == "tool"]
        assert told == ["put", "None"]


async def test_all_writes_of_a_round_come_to_one_update_in_the_order_of_its_calls() -> None:
    one = agent(
        "a",
        [call("put", key="k", value=1), call("put", key="gone", value=1)],
        [call("put", key="k", value=2), call("drop", key="gone"), call("drop", key="old")],
        [call("drop", key="back"), call("put", key="never", value=0)],
        [call("put", key="back", value="yes"), call("drop", key="never")],
        "so",
        tools=TOOLS,
    )
    async with held(Team([one], sequence(["a"])), context={"old": 1, "kept": 1}) as session:
        state = await after(session, "user", "hello")
        assert dict(state.context_vars) == {"kept": 1, "k": 2, "back": "yes"}
        (packet,) = await of_type(session, EV_PACKET)
        updates = packet.event_data["context_updates"]
        assert updates["set"] == {"k": 2, "back": "yes"}
        assert sorted(updates["delete"]) == ["gone", "never", "old"]


async def test_of_calls_side_by_side_the_last_of_the_message_wins_whichever_ends_last() -> None:
    second = asyncio.Event()

    async def put_late() -> str:
        """Put late."""
        await second.wait()
        set_context("k", "first call")
        return "put"

    async def put_early() -> str:
        """Put early."""
        set_context("k", "second call")
        second.set()
        return "put"

    one = agent("a", [call("put_late"), call("put_early")], "so", tools=[put_late, put_early])
    async with held(Team([one], sequence(["a"]))) as session:
        assert dict((await after(session, "user", "x")).context_vars) == {"k": "second call"}


async def test_a_call_that_failed_has_written_nothing() -> None:
    one = agent(
        "a", [call("put_and_fail", key="bad"), call("put", key="good", value=1)], "so", tools=TOOLS
    )
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert dict(state.context_vars) == {"good": 1}


async def test_a_value_that_is_no_json_is_refused_where_it_is_set() -> None:
    def put_strange() -> str:
        """Put something strange."""
        set_context("k", object())
        return "put"

    one = agent("a", call("put_strange"), "so", tools=[put_strange])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        told = [m.text for m in asked(one)[-1].messages if m.type == "tool"]
        assert "ConfigurationError" in told[0]
        assert state.pending_close_reason == "sequence_complete"


async def test_the_tools_of_a_sub_agent_write_for_its_participant() -> None:
    below = agent("below", call("put", key="k", value=1), "so", tools=TOOLS)
    top = agent("a", call("transfer_to_below"), agents=[below])
    async with held(Team([top], sequence(["a"]))) as session:
        assert dict((await after(session, "user", "hello")).context_vars) == {"k": 1}


async def test_the_tools_of_a_delegate_write_for_its_participant() -> None:
    below = agent("below", call("put", key="k", value=1), "so", tools=TOOLS)
    top = agent("a", call("transfer_to_below"), "so", agents=[below], handoff="delegate")
    async with held(Team([top], sequence(["a"]))) as session:
        assert dict((await after(session, "user", "hello")).context_vars) == {"k": 1}


async def test_what_is_written_routes_the_same_turn() -> None:
    one = agent("a", call("put", key="done", value=True), "so", tools=TOOLS)
    rules = TransitionGraph(
        "a",
        (Transition(FromSpeaker("a") & ContextEquals("done", True), "b"),),
        TerminateTarget("default"),
    )
    async with held(Team([one, agent("b")], rules)) as session:
        state = await after(session, "user", "hello")
        assert state.last_speaker_id == "b"


async def test_a_session_begins_with_its_context() -> None:
    rules = TransitionGraph(
        "a", (Transition(FromSpeaker("a") & ContextEquals("tier", "gold"), "b"),)
    )
    team = Team([agent("a"), agent("b")], rules)
    async with held(team, context={"tier": "gold"}) as session:
        assert (await after(session, "user", "hello")).last_speaker_id == "b"
    async with held(team) as session:
        assert (await after(session, "user", "hello")).last_speaker_id == "a"


class Gate:
    """A model that waits until it is let go on."""

    def __init__(self) -> None:
        self.entered, self.opened = asyncio.Event(), asyncio.Event()
        self.model = ScriptedModel(self._turn)

    async def _turn(self, messages: Sequence[BaseMessage]) -> str:
        self.entered.set()
        await self.opened.wait()
        return "so"


async def test_what_is_set_from_outside_lands_while_a_round_is_under_way() -> None:
    gate = Gate()
    rules = TransitionGraph(
        "a", (Transition(FromSpeaker("a") & ContextEquals("k", 2), "b"),), TerminateTarget("no")
    )
    team = Team([agent("a").replace(model=gate.model), agent("b")], rules)
    async with held(team, context={"old": 1}) as session:
        await session.send("user", "hello")
        await gate.entered.wait()
        async with asyncio.timeout(PATIENCE_S):
            await session.set_context("k", 2)
            await session.delete_context("old")
        assert dict(session.state.context_vars) == {"k": 2}
        sets = await of_type(session, EV_CONTEXT_SET)
        assert [one.event_data for one in sets] == [
            {"set": {"k": 2}, "delete": []},
            {"set": {}, "delete": ["old"]},
        ]
        assert await of_type(session, EV_PACKET) == []
        gate.opened.set()
        # The round's rules are asked when it commits: they see it.
        assert (await settled(session)).last_speaker_id == "b"


async def test_a_round_outwrites_what_came_from_outside_before_it_ended() -> None:
    entered, opened = asyncio.Event(), asyncio.Event()

    async def put_slowly() -> str:
        """Put slowly."""
        set_context("k", "from the round")
        entered.set()
        await opened.wait()
        return "put"

    one = agent("a", call("put_slowly"), "so", tools=[put_slowly])
    async with held(Team([one], sequence(["a"]))) as session:
        await session.send("user", "hello")
        await entered.wait()
        await session.set_context("k", "from outside")
        await session.set_context("other", 1)
        opened.set()
        state = await settled(session)
        assert dict(state.context_vars) == {"k": "from the round", "other": 1}


async def test_a_tool_sets_the_session_itself_and_that_lands_at_once() -> None:
    async def put_outside(key: str) -> str:
        """Put from outside of the round."""
        await current_session().set_context(key, 1)
        return "put"

    turns = (call("put_outside", key="k"), Fault.server_error(), "so")
    one = agent("a", *turns, tools=[put_outside])
    async with held(Team([one], sequence(["a"]))) as session:
        await session.send("user", "hello")
        state = await settled(session)
        # The attempt that wrote it has failed; what came by the session stands.
        assert dict(state.context_vars) == {"k": 1}


async def test_a_draft_can_write_the_context() -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        draft = Draft(EV_CONTEXT_SET, {"set": {"k": 1}, "delete": []})
        await session.send("user", draft, admitted=True)
        assert dict(session.state.context_vars) == {"k": 1}


async def test_the_context_outlives_its_rounds() -> None:
    one = agent("a", call("put", key="k", value=1), "so", "again", tools=TOOLS)
    rules = TransitionGraph("a", (Transition(FromSpeaker("user"), "a"),), HumanTarget())
    async with held(Team([one], rules)) as session:
        await after(session, "user", "hello")
        assert dict((await after(session, "user", "more")).context_vars) == {"k": 1}


def test_outside_of_a_round_nothing_can_be_written() -> None:
    for write in (lambda: set_context("k", 1), lambda: delete_context("k"), current_session):
        with pytest.raises(AgentGraphError) as caught:
            write()
        assert caught.value.code == "outside_round"


async def test_a_plain_agents_tools_cannot_write_a_context() -> None:
    model = ScriptedModel([call("put", key="k", value=1), "so"])
    reply = await Agent("a", "x", model=model, tools=[put]).ainvoke("hello")
    assert reply.text == "so"
    assert "outside_round" not in reply.text
    assert any("outside of a session's round" in str(m.text) for m in reply.messages)


async def test_the_context_from_outside_is_checked() -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        with pytest.raises(ConfigurationError):
            await session.set_context("k", object())
        with pytest.raises(ConfigurationError):
            await session.set_context("k", float("inf"))
        assert session.state.sequence == 1
        await until(lambda: session.state.status == "active")
