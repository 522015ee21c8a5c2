"""Whoever is handed an envelope or a state can change neither the log nor the session."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import interrupt

from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    Transition,
    TransitionDecision,
    TransitionGraph,
    register_condition,
    register_target,
)
from agentgraph.routing.frozen_json import FrozenDict, FrozenList
from agentgraph.sessions import Envelope, Hub, Session, Team, set_context, text_envelope
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.state import SessionState
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import after, agent


def is_frozen(value: object) -> bool:
    """Tell whether no object or list in a value can be changed."""
    if isinstance(value, Mapping):
        return type(value) is FrozenDict and all(map(is_frozen, value.values()))
    if isinstance(value, list):
        return type(value) is FrozenList and all(map(is_frozen, value))
    return True


ANSWERS = TransitionGraph("a", (Transition(FromSpeaker("user"), "a"),), HumanTarget())
"""Each message of the user is answered by `a`."""


def note(value: int) -> str:
    """Note a value."""
    set_context("notes", {"values": [value]})
    return "noted"


def team() -> Team:
    a = agent(
        "a", call("note", value=1), "It is noted.", call("note", value=2), "Again.", tools=[note]
    )
    return Team([a], ANSWERS)


async def refolded(session: Session) -> SessionState:
    """Return the state that the session's log folds to."""
    return fold_all(SessionState.initial(session.record), await session.history())


def write_everywhere(value: Any) -> int:
    """Try to write to each object and list in a value; return how many there were."""
    count = 0
    if isinstance(value, Mapping):
        with pytest.raises(TypeError):
            value["forged"] = True  # type: ignore[index]  # that is what is tried
        count = 1 + sum(map(write_everywhere, value.values()))
    elif isinstance(value, list):
        with pytest.raises(TypeError):
            value.append("forged")
        count = 1 + sum(map(write_everywhere, value))
    return count


async def test_envelopes_of_every_store_are_frozen_all_the_way_down(log_url: str) -> None:
    one = team()
    async with await Hub.open(log_url, serve=[one]) as hub:
        session = await hub.session(one, context={"tiers": [{"name": "gold"}]})
        heard: list[Envelope] = []
        session.on("*", heard.append)
        draft = text_envelope("hello", metadata={"labels": [{"a": 1}]})
        sent = await session.send("user", draft, admitted=True)
        await session.settled()
        history = await session.history()

        assert heard == history[1:]
        found = [sent, *heard, *history]
        assert all(is_frozen(one.event_data) and is_frozen(one.metadata) for one in found)
        assert sum(write_everywhere(one.event_data) for one in found) > len(found)
        assert sum(write_everywhere(one.metadata) for one in found) > len(found)
        assert write_everywhere(session.state.context_vars) == 5
        assert write_everywhere(session.record.context) == 3
        history.clear()
        assert await session.history()
        assert await refolded(session) == await session.refresh()

    if log_url != "memory":
        async with await Hub.open(log_url, serve=[one]) as hub:
            state = (await hub.get(session.id)).state
            assert write_everywhere(state.context_vars) == 5
            assert all(
                is_frozen(value) for value in vars(state).values() if isinstance(value, Mapping)
            )


async def test_a_handler_that_writes_fails_and_the_session_goes_on() -> None:
    one = team()
    async with await Hub.open(serve=[one]) as hub:
        session = await hub.session(one)

        def forge(envelope: Envelope) -> None:
            envelope.event_data["context_updates"]["set"]["forged"] = True

        session.on("ag.packet", forge)
        await after(session, "user", "hello")
        state = await after(session, "user", "again")
        assert dict(state.context_vars) == {"notes": {"values": [2]}}
        assert await refolded(session) == state


@register_condition
@dataclass(frozen=True)
class ForgesTheState:
    """A condition that writes to all that it is shown."""

    name: ClassVar[str] = "forges_the_state"

    def evaluate(self, state: Any, envelope: Any) -> bool:
        refusals = 0
        for value in (
            state.context_vars,
            state.context_vars["tiers"],
            state.conversation.context,
            state.said,
            envelope.event_data,
            envelope.metadata,
        ):
            try:
                value.clear()
            except TypeError:
                refusals += 1
        return refusals == 6


@register_target
@dataclass(frozen=True)
class ForgingTarget:
    """A target that writes to the state, and then gives up the floor."""

    name: ClassVar[str] = "forging"

    def resolve(self, state: Any, envelope: Any) -> TransitionDecision:
        try:
            state.context_vars["tiers"].append("forged")
        except TypeError:
            return TransitionDecision.close("refused")
        return TransitionDecision.close("forged")


async def test_custom_conditions_and_targets_cannot_write() -> None:
    rules = TransitionGraph("a", (Transition(ForgesTheState(), ForgingTarget()),), HumanTarget())
    one = Team([agent("a")], rules)
    async with await Hub.open(serve=[one]) as hub:
        session = await hub.session(one, context={"tiers": ["gold"]})
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "refused"
        assert state == await refolded(session)
        assert dict(state.context_vars) == {"tiers": ["gold"]}


async def test_a_tool_gets_a_decision_that_it_may_change() -> None:
    def ask() -> str:
        """Ask."""
        decision = interrupt("which?")
        decision["items"].append("mine")
        return ",".join(decision["items"])

    one = Team([agent("a", call("ask"), "so", tools=[ask])], ANSWERS)
    async with await Hub.open(serve=[one]) as hub:
        session = await hub.session(one)
        state = await after(session, "user", "hello")
        (interrupt_id,) = state.interrupts
        await session.decide(interrupt_id, {"items": ["yours"]})
        await session.settled()
        (packet,) = [one for one in await session.history() if one.event_type == "ag.packet"]
        assert packet.event_data["steps"][0]["calls"][0]["result"] == "yours,mine"


async def test_messages_of_a_view_may_be_changed_and_the_log_stays() -> None:
    seen: list[Any] = []

    def turn(messages: Sequence[BaseMessage]) -> Any:
        for message in messages:
            for made in getattr(message, "tool_calls", ()):
                made["args"]["forged"] = True
                seen.append(made["args"])
        return call("note", value=1) if not seen else "done"

    a = agent("a", tools=[note]).replace(model=ScriptedModel(turn))
    one = Team([a], ANSWERS)
    async with await Hub.open(serve=[one]) as hub:
        session = await hub.session(one)
        await after(session, "user", "hello")
        await after(session, "user", "again")
        assert seen
        packets = [one for one in await session.history() if one.event_type == "ag.packet"]
        assert "forged" not in json.dumps([one.to_dict() for one in packets[1:]])


async def test_an_envelope_serialises_pickles_and_copies() -> None:
    one = team()
    async with await Hub.open(serve=[one]) as hub:
        session = await hub.session(one)
        state = await after(session, "user", "hello")
        for envelope in await session.history():
            fields = envelope.to_dict()
            assert Envelope.from_dict(json.loads(json.dumps(fields))) == envelope
            assert pickle.loads(pickle.dumps(envelope)) == envelope
            assert copy.deepcopy(envelope) == envelope
            serde = JsonPlusSerializer()
            assert serde.loads_typed(serde.dumps_typed(dict(envelope.event_data))) == dict(
                envelope.event_data
            )
            fields["event_data"]["mine"] = True
            assert "mine" not in envelope.event_data
        fields = state.to_dict()
        fields["context_vars"]["mine"] = True
        assert SessionState.from_dict(state.to_dict()) == state
        assert pickle.loads(pickle.dumps(state)) == state
        assert "mine" not in state.context_vars
