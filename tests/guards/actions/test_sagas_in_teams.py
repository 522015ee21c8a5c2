"""What a team does to the world: once for each round, and not at all where its session fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from agentgraph import Agent, ParallelTarget, Team, TransitionGraph, effect, set_context
from agentgraph.guards import MemorySink, Saga
from agentgraph.guards.nodes.tool_call import answer_again, beside_of
from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing import FromSpeaker, Transition, sequence
from agentgraph.sessions import EV_AUDIT, EV_PACKET, EV_ROUND_FAILED
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, Till, pays
from tests.guards.guarded_agents import audited, recorded, watched
from tests.sessions.talk import after, held, of_type

FAILS = Fault.server_error()


def untried(sink: MemorySink | None = None, **fields: Any) -> Any:
    """Return guards under which a round that fails once is run again at once."""
    return watched(sink, retry=None, **fields)


def payer(till: Till, *turns: Any, name: str = "desk", **fields: Any) -> Agent:
    fields = {"tools": [till.tool], "default_tools": False, **fields}
    return Agent(name, f"is {name}", model=ScriptedModel(turns), **fields)


async def test_a_round_that_runs_again_is_given_what_its_actions_came_to() -> None:
    till, sink = Till(), MemorySink()
    desk = payer(till, pays("tea", "milk"), FAILS, pays("tea", "milk"), ANSWER)
    async with held(Team([desk], sequence(["desk"]), guards=untried(sink))) as session:
        state = await after(session, "user", "go")
        (packet,) = await of_type(session, EV_PACKET)
    assert state.pending_close_reason == "sequence_complete"
    assert sorted(till.tries) == ["pay milk", "pay tea"]
    results = [one["result"] for one in packet.event_data["steps"][0]["calls"]]
    assert results == ["paid for tea", "paid for milk"]
    assert audited(sink) == [("desk", "retry", "abort")]


async def test_the_key_of_an_action_is_not_that_of_another_one() -> None:
    till, sink = Till(), MemorySink()
    desk = payer(till, *pays("tea"), FAILS, *pays("milk"), *pays("milk"), ANSWER)
    async with held(Team([desk], sequence(["desk"]), guards=untried(sink))) as session:
        await after(session, "user", "go")
        (packet,) = await of_type(session, EV_PACKET)
    first, second = [one["calls"][0]["result"] for one in packet.event_data["steps"]]
    assert first.startswith('Not executed anew: `pay` was called with {"item":"tea"} before')
    assert second == "paid for milk"
    assert till.tries == ["pay tea", "pay milk"]
    assert ("desk", "saga", "deny") in audited(sink)


async def test_what_a_replayed_action_has_noted_and_decided_holds_again() -> None:
    till = Till()

    @effect(compensate=till.give_back)
    def settle(item: str) -> str:
        """Pay, and note it."""
        set_context(item, "paid")
        return str(till.tool(item))

    turns = [call("settle", item="tea")]
    desk = payer(till, *turns, FAILS, *turns, ANSWER, tools=[settle])
    async with held(Team([desk], sequence(["desk"]), guards=untried())) as session:
        state = await after(session, "user", "go")
    assert dict(state.context_vars) == {"tea": "paid"}
    assert till.tries == ["pay tea"]


@pytest.mark.parametrize("decided", [Handoff("other", reason="paid"), Finish("Done."), None])
def test_a_replay_decides_again_who_goes_on(decided: Handoff | Finish | None) -> None:
    saga = Saga()
    saga.begin(key="k", tool="desk:settle", args={}, compensates=True)
    message = ToolMessage("paid", tool_call_id="1", artifact=decided)
    saga.done("k", "paid", beside_of(message, []))
    stored = Saga()
    stored.load(json.loads(json.dumps(saga.dump())))
    again = stored.begin(key="k", tool="desk:settle", args={}, compensates=True)
    answer = answer_again(again, "settle")
    assert (answer.text, answer.artifact, answer.name) == ("paid", decided, "settle")


@pytest.mark.parametrize("kind", ["model", "silent", "deadline"])
async def test_what_was_done_is_undone_where_a_round_fails_for_good(kind: str) -> None:
    till, sink = Till(), MemorySink()
    ends: Any = {"model": FAILS, "silent": "", "deadline": FAILS}[kind]
    first = payer(till, *pays("tea"), "Paid.", name="first")
    second = payer(till, *pays("milk"), ends, *pays("milk"), ends, name="second")
    team = Team([first, second], sequence(["first", "second"]), guards=untried(sink))
    async with held(team) as session:
        state = await after(session, "user", "go")
        failed = await of_type(session, EV_ROUND_FAILED)
        told = [one.event_data for one in await of_type(session, EV_AUDIT)]
    assert [one.event_data["final"] for one in failed] == [False, True]
    assert (state.status, state.pending_close_reason) == ("closed", "round_failed")
    assert till.tries == ["pay tea", "pay milk", "give back milk", "give back tea"]
    assert till.left == []
    assert [one["reason"] for one in told if one["kind"] == "undoing"] == ["round_failed"]
    undone = [one.data["state"] for one in recorded(sink, "compensated")]
    assert undone == ["undoing", "compensated"] * 2


async def test_what_was_done_stays_done_where_somebody_is_there_for_failures() -> None:
    till = Till()
    desk = payer(till, *pays("tea"), FAILS, *pays("tea"), FAILS)
    other = payer(till, "I see to it.", name="other")
    rules = TransitionGraph("desk", [Transition(FromSpeaker("desk"), "other")])
    team = Team([desk, other], rules, guards=untried(), failure_target="other")
    async with held(team) as session:
        await after(session, "user", "go")
    assert till.tries == ["pay tea"]


async def test_of_speakers_side_by_side_the_last_to_end_has_all_undone() -> None:
    till = Till()
    first = payer(till, "Go.", name="first")
    ann = payer(till, *pays("ann"), FAILS, *pays("ann"), FAILS, name="ann")
    bob = payer(till, *pays("bob"), FAILS, *pays("bob"), FAILS, name="bob")
    rules = [Transition(FromSpeaker("first"), ParallelTarget(("ann", "bob"), join="first"))]
    graph = TransitionGraph("first", rules, max_turns=9)
    async with held(Team([first, ann, bob], graph, guards=untried())) as session:
        state = await after(session, "user", "go")
    assert state.pending_close_reason == "round_failed"
    assert till.left == []
    assert sorted(till.returned.values()) == ["ann", "bob"]


async def test_a_team_within_a_team_does_not_do_twice_what_its_failed_round_did() -> None:
    till = Till()
    desk = payer(till, *pays("tea"), FAILS, *pays("tea"), FAILS, *pays("tea"), ANSWER)
    inner = Team([desk], sequence(["desk"]), name="inner")
    async with held(Team([inner], sequence(["inner"]), guards=untried())) as session:
        state = await after(session, "user", "go")
    assert state.pending_close_reason == "sequence_complete"
    assert till.tries == ["pay tea", "give back tea", "pay tea"]
    assert till.left == ["tea"]
