"""What several speakers do at once takes effect in the order of the list, whoever is faster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from random import Random  # noqa: TID251 - a seeded one
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph import Agent, Team
from agentgraph.errors import ConfigurationError
from agentgraph.outcomes import Handoff
from agentgraph.routing import (
    FromSpeaker,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.sessions import (
    EV_HANDOFF,
    EV_HANDOFF_REJECTED,
    EV_PACKET,
    Draft,
    Hub,
    Session,
    WindowedSummary,
    set_context,
)
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.parallel import turns_of
from agentgraph.sessions.state.state import SessionState
from agentgraph.testing import Fault, ScriptedModel, call
from tests.sessions.talk import PATIENCE_S, after, agent, held, of_type, shown, until, untried

NAMES = ("b", "c", "d")


def put(key: str, value: str) -> str:
    """Put."""
    set_context(key, value)
    return "put"


def give(to: str) -> Handoff:
    """Hand over."""
    return Handoff(to, f"to {to}", f"about {to}")


class Gates:
    """Models of which each answers when the test lets it."""

    def __init__(self) -> None:
        self.open = {name: asyncio.Event() for name in NAMES}

    def close(self) -> None:
        for gate in self.open.values():
            gate.clear()

    def agent(self, name: str, *turns: Any) -> Agent:
        async def turn(messages: Sequence[BaseMessage]) -> Any:
            await self.open[name].wait()
            return turns[sum(message.type == "tool" for message in messages)]

        return agent(name, tools=[put, give]).replace(model=ScriptedModel(turn))


def team_of(gates: Gates, view: Any = None) -> Team:
    rules = TransitionGraph(
        "a",
        (Transition(FromSpeaker("a"), ParallelTarget(NAMES, "e")),),
        TerminateTarget("over"),
    )
    return Team(
        [
            agent("a"),
            gates.agent("b", call("put", key="k", value="b"), call("give", to="f")),
            gates.agent(
                "c", call("put", key="k", value="c"), call("put", key="c", value="c"), "c!"
            ),
            gates.agent("d", call("put", key="k", value="d"), call("give", to="e")),
            agent("e"),
            agent("f"),
        ],
        rules,
        **({} if view is None else {"view": view}),
    )


async def played(order: Sequence[str], view: Any = None) -> tuple[SessionState, list[Any], Team]:
    """Play the session, with the packets of the round committed in an order."""
    gates = Gates()
    team = team_of(gates, view)
    async with held(team) as session:
        return await released(session, gates, order), await session.history(), team


async def released(session: Session, gates: Gates, order: Sequence[str]) -> SessionState:
    """Let the speakers of a new session answer in an order; return how it ends."""
    await session.send("user", "go")
    for name in order:
        gates.open[name].set()

        async def has_spoken(name: str = name) -> bool:
            return any(one.sender_id == name for one in await of_type(session, EV_PACKET))

        await until(has_spoken)
    async with asyncio.timeout(PATIENCE_S):
        return await session.settled()


_STAMPS = {"last_envelope_id", "session_id", "account"}
_NUMBERS = re.compile(r"(_at$|^spoke$|^asked$|^round_began$|^sequence$|^input$|timestamp)")


def comparable(value: Any) -> Any:
    """Return a state without ids, times and sequences."""
    if isinstance(value, dict):
        return {
            key: comparable(item)
            for key, item in value.items()
            if key not in _STAMPS and not _NUMBERS.search(key)
        }
    return [comparable(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("order", [*permutations(NAMES)])
async def test_the_join_takes_the_turns_in_the_order_of_the_list(order: Sequence[str]) -> None:
    state, history, team = await played(order)
    packets = [one for one in history if one.event_type == EV_PACKET]
    assert [one.sender_id for one in packets[1:4]] == [*order]
    stamps = [one.event_data["parallel"] for one in packets[1:4]]
    assert [stamp["place"] for stamp in stamps] == [NAMES.index(name) for name in order]
    assert stamps[2]["context_updates"] == {"set": {"k": "d", "c": "c"}, "delete": []}
    assert dict(state.context_vars) == {"k": "d", "c": "c"}

    (made,) = [one for one in history if one.event_type == EV_HANDOFF]
    assert (made.event_data["from"], made.event_data["target"]) == ("b", "f")
    (refused,) = [one for one in history if one.event_type == EV_HANDOFF_REJECTED]
    assert (refused.event_data["from"], refused.event_data["target"]) == ("d", "e")
    ids = {one.sender_id: one.envelope_id for one in packets[1:4]}
    assert (made.causation_id, refused.causation_id) == (ids["b"], ids["d"])

    f = next(one for one in team.agents if isinstance(one, Agent) and one.name == "f")
    view = shown(f)
    assert view.index("[b handed over to f: to f]") < view.index("[c]: c!")
    assert "[Context from b]: about f" in view
    state_at_join = fold_all(SessionState(), history[: packets[3].sequence])
    assert state_at_join.turns == {}


async def test_the_window_of_a_view_is_cut_in_the_order_of_the_list() -> None:
    views = set()
    for order in permutations(NAMES):
        *_, team = await played(order, WindowedSummary(2))
        f = next(one for one in team.agents if isinstance(one, Agent) and one.name == "f")
        views.add(shown(f))
    assert len(views) == 1


async def test_shuffled_delays_fold_to_the_same_state_two_hundred_times() -> None:
    random, states, gates = Random(7), [], Gates()
    team = team_of(gates)
    async with await Hub.open(serve=[team]) as hub:
        for _ in range(200):
            session = await hub.session(team)
            state = await released(session, gates, random.sample(NAMES, len(NAMES)))
            refolded = fold_all(SessionState.initial(session.record), await session.history())
            assert refolded == state
            states.append(comparable(refolded.to_dict()))
            gates.close()
    assert all(state == states[0] for state in states[1:])


async def test_a_handoff_that_cannot_be_made_gives_way_to_the_next() -> None:
    for order in permutations(NAMES):
        state, history, _ = await played(order)
        assert state.pending_close_reason == "over"
        assert [one.sender_id for one in history if one.event_type == EV_PACKET][4:] == ["f"]


async def test_context_of_a_round_is_seen_only_after_the_join() -> None:
    gates = Gates()
    team = team_of(gates)
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "go")
        gates.open["c"].set()

        async def has_spoken() -> bool:
            return len(await of_type(session, EV_PACKET)) == 2

        await until(has_spoken)
        assert dict(session.state.context_vars) == {}
        assert session.state.last_speaker_id == "a"
        for gate in gates.open.values():
            gate.set()
        assert dict((await after(session, "user")).context_vars) == {"k": "d", "c": "c"}


@pytest.mark.parametrize("order", [("b", "c", "d"), ("d", "c", "b"), ("c", "d", "b")])
async def test_a_round_in_which_one_failed_keeps_what_the_others_wrote(
    order: Sequence[str],
) -> None:
    gates = Gates()
    broken = gates.agent("c", Fault.server_error(), Fault.server_error())
    base = team_of(gates)
    agents = [broken if isinstance(one, Agent) and one.name == "c" else one for one in base.agents]
    team = Team(agents, base.rules, guards=untried(), failure_target="e")
    async with held(team) as session:
        await session.send("user", "go")
        for name in order:
            gates.open[name].set()

            async def has_ended(name: str = name) -> bool:
                state = session.state  # who failed runs again once the others have spoken
                return name in (*state.spoken, *state.failures) or state.round > 2

            await until(has_ended)
        async with asyncio.timeout(PATIENCE_S):
            state = await session.settled()
        assert dict(state.context_vars) == {"k": "d"}
        assert await of_type(session, EV_HANDOFF) == []
        refused = await of_type(session, EV_HANDOFF_REJECTED)
        assert [one.event_data["from"] for one in refused] == ["b", "d"]


async def test_a_round_that_is_closed_before_its_join_keeps_what_was_written() -> None:
    gates = Gates()
    async with held(team_of(gates)) as session:
        await session.send("user", "go")
        gates.open["c"].set()

        async def has_spoken() -> bool:
            return session.state.spoken == ("c",)

        await until(has_spoken)
        await session.close("enough")
        assert dict((await session.refresh()).context_vars) == {"k": "c", "c": "c"}


async def test_nobody_outside_can_write_the_stamp() -> None:
    gates = Gates()
    async with held(team_of(gates)) as session:
        with pytest.raises(ConfigurationError, match="'parallel' is stamped"):
            await session.send("user", Draft("my.note", {"parallel": {"place": 0, "of": 2}}))


async def test_a_log_of_before_folds_as_it_did_then() -> None:
    _, history, _ = await played(("c", "d", "b"))
    earlier = [
        replace(one, event_data={k: v for k, v in one.event_data.items() if k != "parallel"})
        for one in history
    ]
    opened = SessionState(participant_order=("a", "b", "c", "d", "e", "f"), creator_id="user")
    state = fold_all(opened, earlier)
    assert dict(state.context_vars) == {"k": "b", "c": "c"}  # each took effect at once
    assert (state.last_speaker_id, state.turn_count, state.turns) == ("f", 5, {})


def test_a_snapshot_of_before_is_read_with_the_finish_that_waits() -> None:
    state = SessionState(speakers=("b", "c"), spoken=("b",), round=2)
    data = state.to_dict()
    del data["turns"]
    finish = {"sender_id": "b", "routing": {"kind": "finish", "reason": "enough"}}
    assert SessionState.from_dict({**data, "finish": None}) == state
    (turn,) = turns_of(SessionState.from_dict({**data, "finish": finish}))
    assert (turn.sender_id, turn.kind) == ("b", "finish")
