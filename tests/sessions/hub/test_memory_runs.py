"""Runs of a team without a store: one that asks a human waits in memory, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import AgentGraphError, AlreadyDecided, ConfigurationError, SessionError
from agentgraph.routing import FromSpeaker, ParallelTarget, Transition, TransitionGraph, sequence
from agentgraph.sessions import EV_DECISION, EV_INTERRUPT, Envelope, Team, TeamResult
from agentgraph.sessions.hub import memory_runs
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import PATIENCE_S, agent, asked


def clerk(name: str = "a", times: int = 1) -> Agent:
    """Return an agent that asks a human some times before it answers."""

    def pay(number: int) -> str:
        """Pay."""
        return f"{number}: {interrupt({'pay': number})}"

    def turn(messages: Sequence[BaseMessage]) -> Any:
        answers = [str(m.text) for m in messages if m.type == "tool"]
        if len(answers) < times:
            return call("pay", number=len(answers) + 1)
        return f"{name} has {', '.join(answers)}"

    return Agent(name, "asks", model=ScriptedModel(turn), tools=[pay], default_tools=False)


def parallel() -> Team:
    """Return a team of two that ask at the same time."""
    rules = TransitionGraph("c", [Transition(FromSpeaker("c"), ParallelTarget(["a", "b"], "d"))])
    return Team([clerk("a"), clerk("b"), agent("c"), agent("d")], rules)


async def soon(work: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await work


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_run_that_asks_goes_on_with_the_decision(durability: Any) -> None:
    team = Team([clerk(), agent("b")], sequence(["a", "b"]), durability=durability)
    waiting = await soon(team.arun("pay", context={"tier": "gold"}))
    assert (waiting.text, waiting.close_reason) == ("", None)
    assert waiting.state.status == "waiting_decision"
    (question,) = waiting.interrupts
    assert (question.payload, question.speaker) == ({"pay": 1}, "a")
    assert waiting.session_id == waiting.state.session_id
    result = await soon(team.aresume(waiting.session_id, {question.id: "yes"}))
    assert (result.text, result.close_reason) == ("b speaks", "sequence_complete")
    assert (result.interrupts, result.session_id) == ((), waiting.session_id)
    assert result.envelopes[: len(waiting.envelopes)] == waiting.envelopes
    assert "a has 1: yes" in [envelope.text for envelope in result.envelopes]
    assert result.usage.total_tokens > waiting.usage.total_tokens > 0


def test_synchronous_calls_and_any_event_loop_go_on_with_it() -> None:
    team = Team([clerk(times=3)], sequence(["a"]))
    result = team.run("pay")
    result = asyncio.run(team.aresume(result.session_id, {result.interrupts[0].id: 1}))
    result = asyncio.run(team.aresume(result.session_id, {result.interrupts[0].id: 2}))
    result = team.resume(result.session_id, {result.interrupts[0].id: 3})
    assert result.text == "a has 1: 1, 2: 2, 3: 3"
    again = asyncio.run(team.arun("pay"))
    assert team.resume(again.session_id, {again.interrupts[0].id: "x"}).interrupts


async def test_a_synchronous_call_goes_on_from_within_a_running_loop() -> None:
    team = Team([clerk()], sequence(["a"]))
    waiting = team.run("pay")
    assert team.resume(waiting.session_id, {waiting.interrupts[0].id: "yes"}).text == "a has 1: yes"


async def test_questions_of_several_are_decided_at_once_or_one_by_one() -> None:
    for at_once in (True, False):
        team = parallel()
        waiting = await soon(team.arun("go"))
        assert [one.speaker for one in waiting.interrupts] == ["a", "b"]
        decisions = {one.id: f"for {one.speaker}" for one in waiting.interrupts}
        if not at_once:
            first, second = waiting.interrupts
            result = await soon(team.aresume(waiting.session_id, {first.id: "for a"}))
            assert result.interrupts == (second,)
            decisions = {second.id: "for b"}
        result = await soon(team.aresume(waiting.session_id, decisions))
        texts = {envelope.sender_id: envelope.text for envelope in result.envelopes}
        assert (texts["a"], texts["b"]) == ("a has 1: for a", "b has 1: for b")
        assert (result.text, result.interrupts) == ("d speaks", ())


@pytest.mark.parametrize(
    ("decisions", "error", "code"),
    [
        ({"other": True}, SessionError, "unknown_interrupt"),
        ({}, SessionError, "unknown_interrupt"),
        (["yes"], ConfigurationError, "input"),
    ],
)
async def test_a_wrong_decision_is_refused_and_the_run_waits_on(
    decisions: Any, error: type[AgentGraphError], code: str
) -> None:
    team = Team([clerk()], sequence(["a"]))
    waiting = await soon(team.arun("pay"))
    with pytest.raises(error) as caught:
        await soon(team.aresume(waiting.session_id, decisions))
    assert caught.value.code == code
    if error is SessionError:
        assert waiting.interrupts[0].id in str(caught.value)
    result = await soon(team.aresume(waiting.session_id, {waiting.interrupts[0].id: "yes"}))
    assert result.text == "a has 1: yes"


async def test_of_several_decisions_none_is_made_if_one_is_wrong() -> None:
    team = parallel()
    waiting = await soon(team.arun("go"))
    first, second = waiting.interrupts
    with pytest.raises(SessionError):
        await soon(team.aresume(waiting.session_id, {first.id: 1, "other": 2}))
    with pytest.raises(ConfigurationError):
        await soon(team.aresume(waiting.session_id, {first.id: 1, second.id: object()}))
    result = await soon(team.aresume(waiting.session_id, {first.id: 3, second.id: 4}))
    assert "a has 1: 3" in [envelope.text for envelope in result.envelopes]


async def test_a_run_that_does_not_wait_any_more_is_refused() -> None:
    team = Team([clerk()], sequence(["a"]))
    waiting = await soon(team.arun("pay"))
    decisions = {waiting.interrupts[0].id: "yes"}
    with pytest.raises(SessionError) as stranger:
        await soon(Team([clerk()], sequence(["a"])).aresume(waiting.session_id, decisions))
    assert stranger.value.code == "not_waiting"
    results = await soon(
        asyncio.gather(
            *(team.aresume(waiting.session_id, decisions) for _ in range(2)),
            return_exceptions=True,
        )
    )
    result, error = sorted(results, key=lambda one: isinstance(one, Exception))
    assert isinstance(result, TeamResult)
    assert isinstance(error, SessionError)
    for session_id in (waiting.session_id, "no such session"):
        with pytest.raises(SessionError) as caught:
            await soon(team.aresume(session_id, decisions))
        assert (caught.value.code, session_id in str(caught.value)) == ("not_waiting", True)


async def test_runs_of_one_team_wait_side_by_side() -> None:
    team = Team([clerk()], sequence(["a"]))
    results = await soon(asyncio.gather(*(team.arun(f"pay {n}") for n in range(5))))
    answers = await soon(
        asyncio.gather(
            *(
                team.aresume(one.session_id, {one.interrupts[0].id: n})
                for n, one in reversed([*enumerate(results)])
            )
        )
    )
    assert [one.text for one in answers] == [f"a has 1: {n}" for n in reversed(range(5))]
    assert [one.envelopes[1].text for one in answers] == [f"pay {n}" for n in reversed(range(5))]


@pytest.mark.parametrize("gives", [False, True])
async def test_a_resumption_that_was_cut_off_goes_on_with_what_was_decided(gives: bool) -> None:
    entered, opened = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        decision = interrupt("may I?")
        entered.set()
        await opened.wait()
        return str(decision)

    def turn(messages: Sequence[BaseMessage]) -> Any:
        return call("wait") if messages[-1].type == "human" else messages[-1].text

    one = Agent("a", model=ScriptedModel(turn), tools=[wait], default_tools=False)
    team = Team([one], sequence(["a"]))
    waiting = await soon(team.arun("go"))
    decisions = {waiting.interrupts[0].id: "yes"}
    resuming = asyncio.ensure_future(team.aresume(waiting.session_id, decisions))
    await soon(entered.wait())
    resuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(resuming)
    with pytest.raises(AlreadyDecided, match="has answered 'yes'"):
        await soon(team.aresume(waiting.session_id, dict.fromkeys(decisions, "no")))
    with pytest.raises(SessionError, match=r"does not wait for 'x'.*give \{\} to go on"):
        await soon(team.aresume(waiting.session_id, {**decisions, "x": 1}))
    opened.set()
    result = await soon(team.aresume(waiting.session_id, decisions if gives else {}))
    assert result.text == "yes"
    made = [one for one in result.envelopes if one.event_type == EV_DECISION]
    assert len(made) == 1


async def test_decisions_that_were_cut_off_between_them_are_given_again() -> None:
    team = parallel()
    waiting = await soon(team.arun("go"))
    first, second = waiting.interrupts
    result = await soon(team.aresume(waiting.session_id, {first.id: "for a"}))
    decisions = {first.id: "for a", second.id: "for b"}
    with pytest.raises(AlreadyDecided, match="has answered 'for a'"):
        await soon(team.aresume(waiting.session_id, {**decisions, first.id: True}))
    result = await soon(team.aresume(waiting.session_id, decisions))
    assert result.text == "d speaks"
    texts = [one.text for one in result.envelopes if one.sender_id in ("a", "b")]
    assert sorted(texts) == ["a has 1: for a", "b has 1: for b"]


async def test_a_stream_that_asks_can_be_gone_on_with_also_where_its_reader_left() -> None:
    team = Team([clerk()], sequence(["a"]))
    for leaves in (True, False):
        question: Envelope | None = None
        stream = team.astream("pay")
        async for item in stream:
            if isinstance(item, Envelope) and item.event_type == EV_INTERRUPT:
                question = item
                if leaves:
                    break
        await stream.aclose()
        assert question is not None
        decisions = {question.event_data["id"]: "yes"}
        result = await soon(team.aresume(question.session_id, decisions))
        assert result.text == "a has 1: yes"


async def test_the_oldest_of_too_many_waiting_runs_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_runs, "_MOST_WAITING", 2)
    team = Team([clerk()], sequence(["a"]))
    results = [await soon(team.arun("pay")) for _ in range(3)]
    with pytest.raises(SessionError):
        await soon(team.aresume(results[0].session_id, {results[0].interrupts[0].id: 1}))
    for result in results[1:]:
        resumed = await soon(team.aresume(result.session_id, {result.interrupts[0].id: 1}))
        assert resumed.close_reason == "sequence_complete"


async def test_a_run_takes_content_blocks() -> None:
    image = {"type": "image", "url": "https://example.org/tide.png"}
    one = agent("a")
    team = Team([one], sequence(["a"]))
    result = await soon(team.arun([{"type": "text", "text": "What is it?"}, image]))
    assert result.text == "a speaks"
    assert image in asked(one)[0].messages[-1].content
    items = [item async for item in team.astream([image])]
    assert any(isinstance(item, Envelope) and item.text == "a speaks" for item in items)
