"""A human decides in a session: the log asks, and any hub of the store goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Agent, Hub, ParallelTarget, Session, Team, TeamResult, TransitionGraph
from agentgraph.errors import AlreadyDecided, SessionError
from agentgraph.guards import Escalation, MemorySink
from agentgraph.routing import FromSpeaker, Transition, sequence
from agentgraph.sessions import EV_DECISION, EV_INTERRUPT, EV_PACKET, SessionState
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.guards.escalating_agents import (
    ANSWER,
    DECISIONS,
    INVALID,
    PLACES,
    REASONS,
    Till,
    clerk,
    tree,
    unsure,
)
from tests.guards.guarded_agents import audited
from tests.sessions.talk import of_type, settled

GUARD = {"doubt": "escalation", "failure": "retry"}

everywhere = pytest.mark.parametrize("place", PLACES)
for_all_reasons = pytest.mark.parametrize("reason", REASONS)


class Desk:
    """A session on a file, opened by one hub after the other."""

    def __init__(self, path: Path, place: str, reason: str, till: Till, **fields: Any) -> None:
        self.url = f"sqlite:///{path / 'desk.db'}"
        self._place, self._reason, self._till, self._fields = place, reason, till, fields
        self.models: list[ScriptedModel] = []

    def team(self, *turns: Any) -> Team:
        worker = clerk(self._till, self._reason)
        if self.models:  # another process, whose models have to say only what is left
            worker = worker.replace(model=ScriptedModel(turns))
        self.models.append(worker.model)  # type: ignore[arg-type]
        speaker = tree(self._place, worker)
        policy = unsure(self._reason, **self._fields)
        return Team([speaker], sequence([speaker.name]), name="desk", guards=policy)

    @asynccontextmanager
    async def hub(self, *turns: Any, clock: FakeClock | None = None) -> AsyncIterator[Session]:
        team = self.team(*turns)
        async with await Hub.open(self.url, serve=[team], clock=clock) as hub:
            yield await hub.session(team, id="s", ttl=None)

    async def asked(self, session: Session) -> str:
        """Have the session come to its question."""
        await session.send("user", "pay for tea")
        return waiting(await settled(session))


def waiting(state: SessionState) -> str:
    """Return the question that waits."""
    assert state.status == "waiting_decision"
    [key] = [key for key, one in state.interrupts.items() if "decision" not in one]
    return key


async def said(session: Session) -> str:
    """Return what the speaker has said in the end."""
    packets = await of_type(session, EV_PACKET)
    return packets[-1].text.removeprefix("The clerk: ") if packets else ""


@pytest.mark.parametrize("verb", DECISIONS)
@for_all_reasons
@everywhere
async def test_another_hub_decides_and_nothing_is_done_twice(
    place: str, reason: str, verb: str, tmp_path: Path
) -> None:
    till, sink = Till(), MemorySink()
    desk = Desk(tmp_path, place, reason, till, sink=sink)
    async with desk.hub() as session:
        question = await desk.asked(session)
        payload = session.state.interrupts[question]["payload"]
        assert (payload["guard"], payload["type"]) == (GUARD[reason], "escalation")
    decision, text = DECISIONS[verb]
    async with desk.hub(ANSWER) as session:
        await session.decide(question, decision)
        state = await settled(session)
        assert await said(session) == text
        assert len(await of_type(session, EV_INTERRUPT, EV_DECISION)) == 2
        result = TeamResult.of(await session.history(), session.record, state)
    is_rejected = verb == "reject"
    ended = f"The run was ended by the guard {GUARD[reason]}: a human has rejected it."
    assert result.text.removeprefix("The clerk: ") == (ended if is_rejected else text)
    assert state.pending_close_reason == (GUARD[reason] if is_rejected else "sequence_complete")
    assert till.tries == ["pay tea", *(["give back tea"] if is_rejected else [])]
    assert len(desk.models[1].requests) == (reason == "failure" and verb == "approve")


@pytest.mark.parametrize("verb", DECISIONS)
@for_all_reasons
@everywhere
async def test_what_is_no_answer_is_asked_again_also_by_the_next_hub(
    place: str, reason: str, verb: str, tmp_path: Path
) -> None:
    till = Till()
    desk = Desk(tmp_path, place, reason, till)
    async with desk.hub() as session:
        question = await desk.asked(session)
        first = session.state.interrupts[question]["payload"]
        for invalid in INVALID[:3]:
            await session.decide(question, invalid)
            question = waiting(await settled(session))
            payload = session.state.interrupts[question]["payload"]
            assert payload == {**first, "error": payload["error"]}
    for invalid in INVALID[3:5]:
        async with desk.hub() as session:
            assert waiting(await settled(session)) == question
            await session.decide(question, invalid)
            question = waiting(await settled(session))
    decision, text = DECISIONS[verb]
    async with desk.hub(ANSWER) as session:
        await session.decide(question, decision)
        await settled(session)
        assert await said(session) == text
        assert len(await of_type(session, EV_INTERRUPT)) == 6
    assert till.tries.count("pay tea") == 1


@for_all_reasons
@everywhere
async def test_a_decision_counts_once_and_an_unknown_one_not_at_all(
    place: str, reason: str, tmp_path: Path
) -> None:
    till = Till()
    desk = Desk(tmp_path, place, reason, till)
    async with desk.hub() as session:
        question = await desk.asked(session)
        with pytest.raises(SessionError) as unknown:
            await session.decide("nobody", "approve")
        assert unknown.value.code == "unknown_interrupt"
        results = await asyncio.gather(
            *(session.decide(question, verb) for verb in ("approve", "reject")),
            return_exceptions=True,
        )
        assert [isinstance(one, AlreadyDecided) for one in results] == [False, True]
        assert not isinstance(results[0], BaseException)
        await settled(session)
        with pytest.raises(AlreadyDecided, match="has answered 'approve'"):
            await session.decide(question, "approve")
        assert await said(session) == ANSWER
        assert len(await of_type(session, EV_DECISION)) == 1
    assert till.tries == ["pay tea"]


@for_all_reasons
@everywhere
async def test_whoever_decides_too_late_has_denied(place: str, reason: str, tmp_path: Path) -> None:
    till, sink = Till(), MemorySink()
    escalation = unsure(reason).escalation
    brief = Escalation(escalation.threshold, escalation.critic, ttl_s=60)
    desk = Desk(tmp_path, place, reason, till, sink=sink, escalation=brief)
    clock = FakeClock()
    async with desk.hub(clock=clock) as session:
        question = await desk.asked(session)
    clock.advance(61)
    async with desk.hub(clock=clock) as session:
        await session.decide(question, "approve")
        state = await settled(session)
    assert (state.status, state.pending_close_reason) == ("closed", "escalation_timeout")
    assert till.left == []
    assert audited(sink)[-1][1:] == ("escalation_timeout", "deny")


# Several who ask at a time


def doubts(*names: str) -> Any:
    return lambda subject: 0.2 if subject.stage in names else 1.0


def desks(till: Till, model: ScriptedModel | None = None) -> Team:
    """Return two clerks who work side by side, between two others."""
    clerks = [clerk(till, "doubt", name).replace(name=name) for name in ("ann", "bob")]
    if model is not None:
        clerks = [one.replace(model=model) for one in clerks]
    first = Agent("first", model=ScriptedModel(["Go."]))
    last = Agent("last", model=ScriptedModel(["Well done."]))
    rules = [Transition(FromSpeaker("first"), ParallelTarget(("ann", "bob"), join="last"))]
    policy = unsure("doubt", escalation=Escalation(0.85, doubts("ann", "bob")))
    members = [first, *clerks, last]
    return Team(members, TransitionGraph("first", rules), name="desks", guards=policy)


async def both_asked(session: Session) -> dict[str, str]:
    """Have both clerks come to their questions; return those by their names."""
    await session.send("user", "go")
    state = await settled(session)
    asked = {one["speaker"]: key for key, one in state.interrupts.items()}
    assert sorted(asked) == ["ann", "bob"]
    return asked


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_speakers_side_by_side_are_decided_on_one_by_one(
    is_restarted: bool, tmp_path: Path
) -> None:
    till = Till()
    url = f"sqlite:///{tmp_path / 'desks.db'}"

    async def approved(session: Session) -> list[str]:
        await session.decide(asked["ann"], "approve")
        await settled(session)
        return [one.text for one in await of_type(session, EV_PACKET)]

    async with await Hub.open(url, serve=[team := desks(till)]) as hub:
        session = await hub.session(team, id="s", ttl=None)
        asked = await both_asked(session)
        await session.decide(asked["bob"], {"type": "edit", "edited": "Bob, edited."})
        assert waiting(await settled(session)) == asked["ann"]
        texts = [] if is_restarted else await approved(session)
    if is_restarted:
        async with await Hub.open(url, serve=[desks(till, ScriptedModel([]))]) as hub:
            texts = await approved(await hub.get("s"))
    assert texts == ["Go.", "Bob, edited.", ANSWER, "Well done."]
    assert sorted(till.tries) == ["pay ann", "pay bob"]


@pytest.mark.parametrize("other", ["approve", "reject"])
async def test_whoever_is_rejected_ends_it_for_all_and_all_is_undone_once(
    other: str, tmp_path: Path
) -> None:
    till = Till()
    team = desks(till)
    async with await Hub.open(f"sqlite:///{tmp_path / 's.db'}", serve=[team]) as hub:
        session = await hub.session(team, ttl=None)
        asked = await both_asked(session)
        await session.decide(asked["ann"], "reject")
        state = await settled(session)
        if state.status == "waiting_decision":
            await session.decide(asked["bob"], other)
            state = await settled(session)
    assert (state.status, state.pending_close_reason) == ("closed", "escalation")
    assert till.left == []
    assert sorted(one for one in till.tries if "back" in one) == ["give back ann", "give back bob"]


@pytest.mark.parametrize("verb", DECISIONS)
async def test_a_team_within_a_team_asks_through_the_outer_one(verb: str, tmp_path: Path) -> None:
    till = Till()
    url = f"sqlite:///{tmp_path / 's.db'}"

    def team(*turns: Any) -> Team:
        worker = clerk(till, "doubt")
        if turns:
            worker = worker.replace(model=ScriptedModel(turns[1:]))
        inner = Team([worker], sequence(["clerk"]), name="inner")
        return Team([inner], sequence(["inner"]), name="outer", guards=unsure("doubt"))

    async with await Hub.open(url, serve=[one := team()]) as hub:
        session = await hub.session(one, id="s", ttl=None)
        await session.send("user", "go")
        question = waiting(await settled(session))
    decision, text = DECISIONS[verb]
    async with await Hub.open(url, serve=[team("again")]) as hub:
        session = await hub.get("s")
        await session.decide(question, decision)
        state = await settled(session)
        assert await said(session) == text
    assert state.is_ended
    assert till.tries == ["pay tea", *(["give back tea"] if verb == "reject" else [])]


@pytest.mark.parametrize("way", ["delegate", "tool"])
async def test_two_visits_to_one_agent_ask_each_for_itself(way: str, tmp_path: Path) -> None:
    till = Till()

    def turn(messages: Any) -> Any:
        return f"{messages[-1].text} is done"

    cook = Agent("cook", "cooks", model=ScriptedModel(turn))
    if way == "tool":
        calls = [call("cook", request=f"part {one}") for one in "ab"]
        boss = Agent("boss", model=ScriptedModel(_joining(calls)), agents=[cook.as_tool()])
    else:
        other = cook.replace(name="cook2")
        calls = [call(f"transfer_to_{one}", summary=one) for one in ("cook", "cook2")]
        boss = Agent(
            "boss", model=ScriptedModel(_joining(calls)), agents=[cook, other], handoff="delegate"
        )
    policy = unsure("doubt", escalation=Escalation(0.85, doubts("cook", "cook2")))
    boss = boss.replace(guards=policy, checkpointer=f"sqlite:///{tmp_path / 'a.db'}")
    reply = await boss.ainvoke("go", thread_id="t")
    answers = [one.payload["answer"] for one in reply.interrupts]
    assert len(reply.interrupts) == 2
    first, second = reply.interrupts
    reply = await boss.aresume("t", {second.id: {"type": "edit", "edited": "second, edited"}})
    assert [one.id for one in reply.interrupts] == [first.id]
    reply = await boss.aresume("t", {first.id: "approve"})
    assert reply.text == f"{answers[0]} and second, edited"
    assert till.tries == []


def _joining(calls: list[Any]) -> Any:
    def turn(messages: Any) -> Any:
        answers = [str(one.text) for one in messages if one.type == "tool"]
        return " and ".join(answers) if answers else calls

    return turn
