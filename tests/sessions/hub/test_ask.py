"""Asking a session: one call that sends, waits, and returns what was answered to this input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import BaseModel

from agentgraph import Agent, Guards
from agentgraph.errors import (
    ConfigurationError,
    InsideRound,
    ModelError,
    Quarantined,
    SessionClosed,
    SessionError,
)
from agentgraph.guards import Deadlines, StepLimit
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_TEXT,
    Answer,
    Envelope,
    Hub,
    MemoryLog,
    Session,
    Team,
    current_session,
)
from agentgraph.sessions.rounds.input_span import InputSpan
from agentgraph.testing import FakeClock, Fault, ScriptedModel, Turn, call
from tests.sessions.talk import (
    PATIENCE_S,
    agent,
    heard,
    held,
    hub_of,
    of_type,
    until,
    untried,
)

OpenHub: TypeAlias = Callable[..., Awaitable[Hub]]


@pytest.fixture
async def open_hub(log_url: str) -> AsyncIterator[OpenHub]:
    """Open hubs on one store."""
    log, saver = MemoryLog(), InMemorySaver()
    async with AsyncExitStack() as stack:

        async def open_hub(*teams: Team) -> Hub:
            if log_url != "memory":
                hub = await Hub.open(log_url, serve=teams)
            else:
                hub = Hub(log, saver, teams, 30.0)
                await hub.start(None)
            return await stack.enter_async_context(hub)

        yield open_hub


def desk(*turns: Any, **fields: Any) -> Team:
    """Return a team of one that says its turns, or without any what it has heard."""
    return desk_of(agent("a", *turns) if turns else echoing("a"), **fields)


def desk_of(one: Agent, *others: Agent, **fields: Any) -> Team:
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    return Team([one, *others], rules, **{"name": "desk", **fields})


def echo(messages: Sequence[BaseMessage]) -> str:
    return f"heard {heard(messages).rpartition('[user]: ')[2]}"


def echoing(name: str) -> Agent:
    """Return an agent that says each time what it has heard."""
    return Agent(name, "echoes", model=ScriptedModel(echo), default_tools=False)


def questioner() -> Agent:
    """Return an agent that asks a human before it answers."""

    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}, said {interrupt({'pay': amount})}"

    def turn(messages: Sequence[BaseMessage]) -> Any:
        is_input = messages[-1].type == "human"
        return call("pay", amount=7) if is_input else f"Done: {messages[-1].text}"

    return Agent("a", "asks", model=ScriptedModel(turn), tools=[pay], default_tools=False)


class Doors:
    """A model that waits in each turn until it is let go on."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.opened: asyncio.Queue[None] = asyncio.Queue()
        self.agent = Agent("a", "waits", model=ScriptedModel(self._turn), default_tools=False)

    async def _turn(self, messages: Sequence[BaseMessage]) -> str:
        self.entered.put_nowait(heard(messages))
        await self.opened.get()
        return echo(messages)


async def soon(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await work


# What an answer has.


async def test_an_answer_has_what_was_said_for_its_input_and_nothing_of_others(
    open_hub: OpenHub,
) -> None:
    session = await (await open_hub(desk())).session("desk")
    first = await soon(session.ask("one"))
    second = await soon(session.ask("two"))
    assert (first.text, second.text) == ("heard one", "heard two")
    for answer in (first, second):
        assert (answer.speaker, answer.status) == ("a", "waiting_human")
        assert answer.close_reason is answer.output is None
        assert answer.interrupts == ()
        assert [one.event_type for one in answer.envelopes] == [EV_TEXT, EV_PACKET]
        assert answer.run_id == answer.envelopes[0].envelope_id
        assert answer.sequence == answer.envelopes[-1].sequence
    assert [*first.envelopes, *second.envelopes] == (await session.history())[1:]
    assert session.state.sequence == second.sequence


async def test_the_last_speaker_answers_and_the_whole_run_is_paid_for() -> None:
    def figures(count: int) -> Any:
        return {"input_tokens": count, "output_tokens": 1, "total_tokens": count + 1}

    one, other = (
        agent("a", Turn("draft", usage=figures(10))),
        agent("b", Turn("final", usage=figures(5))),
    )
    async with held(Team([one, other], sequence(["a", "b"]))) as session:
        answer = await soon(session.ask("write"))
    assert (answer.text, answer.speaker) == ("final", "b")
    assert (answer.status, answer.close_reason) == ("closed", "sequence_complete")
    assert (answer.usage.input_tokens, answer.usage.total_tokens) == (15, 17)
    assert set(answer.usage.by_agent) == {"a", "b"}


async def test_a_formed_answer_is_the_output_also_where_the_model_said_nothing() -> None:
    class Verdict(BaseModel):
        is_good: bool
        reasons: list[str]

    given = call("Verdict", is_good=True, reasons=["short"])
    team = desk_of(agent("a", given, given, response_format=Verdict))
    async with held(team) as session:
        answer = await soon(session.ask("judge"))
        assert answer.output == Verdict(is_good=True, reasons=["short"])
        assert json.loads(answer.text) == {"is_good": True, "reasons": ["short"]}
    assert answer.to_dict()["output"] == {"is_good": True, "reasons": ["short"]}


async def test_an_answer_is_written_for_the_wire() -> None:
    async with held(desk_of(questioner())) as session:
        answer = await soon(session.ask("hello"))
    wire = json.loads(json.dumps(answer.to_dict()))
    names = "text speaker status close_reason interrupts usage output run_id sequence"
    assert set(names.split()) <= set(wire)
    (question,) = wire["interrupts"]
    assert question == {
        "id": answer.interrupts[0].id,
        "payload": {"pay": 7},
        "response_schema": None,
        "speaker": "a",
    }


async def test_a_supervisors_remark_is_never_the_text() -> None:
    def judge(messages: Sequence[BaseMessage]) -> Any:
        return "Mind the tone." if "heard" in heard(messages) else call("stay_silent")

    boss = Agent("boss", model=ScriptedModel(judge), default_tools=False)
    async with held(desk(supervisor=boss)) as session:
        answer = await soon(session.ask("hello", idempotency_key="1"))
        await until(lambda: _has_said(session, "boss"))
        again = await soon(session.ask("hello", idempotency_key="1"))
    assert (answer.text, answer.speaker) == (again.text, again.speaker) == ("heard hello", "a")


async def _has_said(session: Session, name: str) -> bool:
    return any(one.sender_id == name for one in await session.history())


async def test_blocks_can_be_asked_about() -> None:
    image = {"type": "image", "url": "https://example.org/tide.png"}
    async with held(desk()) as session:
        answer = await soon(session.ask([{"type": "text", "text": "this?"}, image]))
        assert answer.text == "heard this?"
        assert answer.envelopes[0].event_data["content"][1] == image


# Several at once.


async def test_who_asks_while_another_input_is_worked_on_gets_an_answer_of_their_own() -> None:
    doors = Doors()
    async with held(desk_of(doors.agent)) as session:
        first = asyncio.ensure_future(session.ask("one"))
        assert "one" in await soon(doors.entered.get())
        second = asyncio.ensure_future(session.ask("two"))
        await until(lambda: hub_of(session).log.inbox(session.id))
        doors.opened.put_nowait(None)
        # The second input begins in the moment in which the first has settled.
        assert (await soon(first)).text == "heard one"
        assert "two" in await soon(doors.entered.get())
        assert not second.done()
        doors.opened.put_nowait(None)
        answer = await soon(second)
    assert answer.text == "heard two"
    assert answer.envelopes[0].text == "two"
    assert answer.sequence == answer.envelopes[-1].sequence


async def test_an_interjection_is_answered_when_the_session_has_settled() -> None:
    doors = Doors()
    async with held(Team([doors.agent, echoing("b")], sequence(["a", "b"]))) as session:
        first = asyncio.ensure_future(session.ask("one"))
        await soon(doors.entered.get())
        second = asyncio.ensure_future(session.ask("two"))
        await until(lambda: hub_of(session).log.inbox(session.id))
        doors.opened.put_nowait(None)
        answers = await soon(asyncio.gather(first, second))
    assert [answer.text for answer in answers] == ["heard two", "heard two"]
    assert [answer.speaker for answer in answers] == ["b", "b"]
    assert [answer.envelopes[0].text for answer in answers] == ["one", "two"]
    assert answers[0].run_id != answers[1].run_id
    assert answers[0].sequence == answers[1].sequence


async def test_an_input_to_which_nobody_is_due_to_answer_has_settled_at_once() -> None:
    rules = TransitionGraph(
        "a", [Transition(FromSpeaker("a"), HumanTarget("ann")), Transition(FromSpeaker("ann"), "a")]
    )
    async with held(Team([agent("a")], rules, humans=["ann"])) as session:
        await session.join("ann")
        assert (await soon(session.ask("hello"))).text == "a speaks"
        answer = await soon(session.ask("ann?", idempotency_key="1"))
        assert (answer.text, answer.speaker, answer.status) == ("", None, "waiting_human")
        assert [one.text for one in answer.envelopes] == ["ann?"]
        assert (await soon(session.ask("yes?", sender="ann"))).text == "a speaks"
        assert await soon(session.ask("ann?", idempotency_key="1")) == answer


async def test_many_ask_at_once_and_each_gets_what_came_after_their_input(
    open_hub: OpenHub,
) -> None:
    session = await (await open_hub(desk())).session("desk")
    answers = await soon(asyncio.gather(*(session.ask(f"{n}") for n in range(12))))
    texts = [one for one in await session.history() if one.is_substantive]
    for number, answer in enumerate(answers):
        (own,) = [one for one in texts if one.text == str(number)]
        later = [one.text for one in texts if one.sequence > own.sequence and one.sender_id == "a"]
        assert answer.run_id == own.envelope_id
        assert answer.text == later[0]


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["alone", "together"]), min_size=1, max_size=6), st.booleans())
def test_the_same_key_is_answered_the_same_whatever_was_said_since(
    rhythm: list[str], closes: bool
) -> None:
    async def converse() -> None:
        async with held(desk()) as session:
            answers: dict[str, Answer] = {}
            for number, how in enumerate(rhythm):
                keys = [f"{number}{letter}" for letter in ("a" if how == "alone" else "abc")]
                asks = [session.ask(key, idempotency_key=key) for key in keys]
                answers |= zip(keys, await soon(asyncio.gather(*asks)), strict=True)
            if closes:
                await session.ask("the last")
            for key, answer in answers.items():
                assert await soon(session.ask(key, idempotency_key=key)) == answer

    asyncio.run(converse())


# Across hubs.


async def test_the_session_may_be_driven_by_another_hub(open_hub: OpenHub) -> None:
    doors = Doors()
    drives, asks = await open_hub(desk_of(doors.agent)), await open_hub(desk())
    session = await drives.session("desk", id="s")
    await session.send("user", "begin")
    await soon(doors.entered.get())
    other = await asks.get("s")
    asking = asyncio.ensure_future(other.ask("more"))
    await until(lambda: drives.log.inbox("s"))
    assert drives.drivers.owned_session("s") is not None
    assert asks.drivers.owned_session("s") is None
    doors.opened.put_nowait(None)
    await soon(doors.entered.get())
    doors.opened.put_nowait(None)
    answer = await soon(asking)
    assert (answer.text, answer.status) == ("heard more", "waiting_human")
    assert other.state.sequence >= answer.sequence


async def test_the_cost_of_asking_does_not_grow_with_the_log() -> None:
    async with held(desk()) as session:
        for number in range(30):
            await soon(session.ask(f"{number}"))
        log, head = hub_of(session).log, session.state.sequence
        positions: list[int] = []
        read = log.read

        async def counting(session_id: str, after: int = 0, limit: int | None = None) -> Any:
            positions.append(after)
            return await read(session_id, after, limit)

        log.read = counting  # type: ignore[method-assign]
        answer = await soon(session.ask("last"))
        log.read = read  # type: ignore[method-assign]
    assert answer.text == "heard last"
    assert min(positions, default=head) >= head
    assert len(positions) < 10


# Questions.


async def test_open_questions_are_in_the_answer_and_the_final_one_under_the_same_key() -> None:
    async with held(desk_of(questioner())) as session:
        asked_answer = await soon(session.ask("pay", idempotency_key="1"))
        assert (asked_answer.text, asked_answer.status) == ("", "waiting_decision")
        (question,) = asked_answer.interrupts
        assert (question.payload, question.agent, question.speaker) == ({"pay": 7}, "a", "a")
        assert await soon(session.ask("pay", idempotency_key="1")) == asked_answer
        await session.decide(question.id, "yes")
        answer = await soon(session.ask("pay", idempotency_key="1"))
        assert answer.text == "Done: paid 7, said yes"
        assert answer.interrupts == ()
        assert answer.run_id == asked_answer.run_id


async def test_a_text_that_is_asked_while_a_question_is_open_waits_for_its_decision() -> None:
    async with held(desk_of(questioner())) as session:
        (question,) = (await soon(session.ask("one"))).interrupts
        waiting = asyncio.ensure_future(session.ask("two"))
        await until(lambda: hub_of(session).log.inbox(session.id))
        await session.decide(question.id, "yes")
        answer = await soon(waiting)
        assert answer.envelopes[0].text == "two"
        assert [one.payload for one in answer.interrupts] == [{"pay": 7}]
        assert answer.interrupts[0].id != question.id


# Failures and ends.


async def test_a_failure_that_closes_a_session_is_told_in_words() -> None:
    team = Team(
        [agent("a"), agent("b", Fault.server_error(), Fault.server_error())],
        sequence(["a", "b"]),
        guards=untried(),
    )
    async with held(team) as session:
        answer = await soon(session.ask("hello"))
        (_, final) = await of_type(session, EV_ROUND_FAILED)
    assert (answer.status, answer.close_reason, answer.speaker) == ("closed", "round_failed", None)
    assert answer.text.startswith("The turn of b has failed: ")
    assert final.event_data["message"].rstrip(".") in answer.text


async def test_a_deadline_says_that_it_has_ended_the_run() -> None:
    clock, doors = FakeClock(), Doors()
    guards = Guards.interactive(deadlines=Deadlines(stage_s=30.0))
    async with held(desk_of(doors.agent, guards=guards), clock=clock) as session:
        asking = asyncio.ensure_future(session.ask("hello"))
        for _ in range(2):
            await soon(doors.entered.get())
            clock.advance(31)
        answer = await soon(asking)
        assert answer.close_reason == "round_failed"
        assert answer.text.startswith("The run was ended by the guard deadline: cut off after 30 s")


@pytest.mark.parametrize(("target", "status"), [(None, "closed"), ("human", "waiting_human")])
async def test_a_guard_says_why_it_has_ended_the_run(target: str | None, status: str) -> None:
    one = agent("a", *[call("look")] * 9, tools=[look])
    guards = Guards.interactive(steps=StepLimit(3))
    async with held(desk_of(one, guards=guards, failure_target=target)) as session:
        answer = await soon(session.ask("hello"))
        assert (answer.close_reason, answer.status) == ("max_steps", status)
        assert answer.text.startswith("The run was ended by the guard max_steps")


def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize(
    ("turns", "error", "code"),
    [
        ([Fault.server_error(), Fault.server_error()], ModelError, "model"),
        (["", ""], SessionError, "silent"),
    ],
)
async def test_a_failed_run_raises_where_the_session_goes_on(
    turns: list[Any], error: type[Exception], code: str
) -> None:
    async with held(desk(*turns, "back", failure_target="human", guards=untried())) as session:
        with pytest.raises(error, match="The turn of a has failed") as caught:
            await soon(session.ask("hello", idempotency_key="1"))
        assert getattr(caught.value, "code", None) == code
        assert session.state.status == "waiting_human"
        assert (await soon(session.ask("again"))).text == "back"
        with pytest.raises(error):
            await soon(session.ask("hello", idempotency_key="1"))


async def test_an_answer_of_whoever_takes_over_is_no_failure() -> None:
    broken = agent("a", Fault.server_error(), Fault.server_error())
    rules = TransitionGraph("a", [Transition(FromSpeaker("b"), TerminateTarget("done"))])
    team = Team(
        [broken, questioner().replace(name="b")], rules, failure_target="b", guards=untried()
    )
    async with held(team) as session:
        answer = await soon(session.ask("hello", idempotency_key="1"))
        (question,) = answer.interrupts
        assert question.speaker == "b"
        await session.decide(question.id, "yes")
        answer = await soon(session.ask("hello", idempotency_key="1"))
        assert (answer.text, answer.close_reason) == ("Done: paid 7, said yes", "done")


async def test_what_waits_when_the_session_is_closed_is_answered_with_its_end() -> None:
    doors = Doors()
    async with held(desk_of(doors.agent)) as session:
        first = asyncio.ensure_future(session.ask("one"))
        await soon(doors.entered.get())
        second = asyncio.ensure_future(session.ask("two"))
        await until(lambda: hub_of(session).log.inbox(session.id))
        await session.close("enough")
        for answer in await soon(asyncio.gather(first, second)):
            assert (answer.status, answer.close_reason, answer.text) == ("closed", "enough", "")
        with pytest.raises(SessionClosed):
            await session.ask("three")


async def test_a_round_cannot_ask_its_own_session() -> None:
    async def inquire() -> str:
        """Inquire."""
        try:
            await current_session().ask("and you?")
        except InsideRound as error:
            return f"refused: {error.code}"
        return "asked"

    def turn(messages: Sequence[BaseMessage]) -> Any:
        return call("inquire") if messages[-1].type == "human" else messages[-1].text

    one = Agent("a", model=ScriptedModel(turn), tools=[inquire], default_tools=False)
    async with held(desk_of(one)) as session:
        assert (await soon(session.ask("hello"))).text == "refused: inside_round"
        assert len(await of_type(session, EV_TEXT)) == 1


async def test_a_quarantined_session_is_not_asked(open_hub: OpenHub) -> None:
    session = await (await open_hub(desk())).session("desk", id="s")
    await soon(session.ask("hello"))
    await hub_of(session).aclose()
    stranger = await open_hub()
    other = await stranger.get("s")
    with pytest.raises(Quarantined):
        await soon(other.ask("hello?"))


async def test_a_closed_hub_ends_the_wait() -> None:
    doors = Doors()
    hub = await Hub.open(serve=[desk_of(doors.agent)])
    session = await hub.session("desk")
    asking = asyncio.ensure_future(session.ask("hello"))
    await soon(doors.entered.get())
    await hub.aclose()
    with pytest.raises(SessionError) as caught:
        await soon(asking)
    assert caught.value.code == "hub_closed"


# What a reader may see.


async def test_a_reader_is_told_what_they_may_see_and_no_more() -> None:
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    team = Team([questioner(), agent("b")], rules)
    async with held(team, participants=["ann"]) as session:
        await session.join("ann")
        whole = await soon(session.ask("for a", audience=["a"], idempotency_key="1"))
        assert len(whole.interrupts) == 1
        key: dict[str, Any] = {"audience": ["a"], "idempotency_key": "1"}
        own = await soon(session.ask("for a", reader="user", **key))
        hers = await soon(session.ask("for a", reader="ann", **key))
        assert own.interrupts == whole.interrupts
        assert (hers.interrupts, hers.envelopes, hers.text) == ((), (), "")
        assert (hers.run_id, hers.status) == (whole.run_id, "waiting_decision")
        await session.decide(whole.interrupts[0].id, "yes")
        assert (await soon(session.ask("for a", reader="user", **key))).text.startswith("Done")
        hers = await soon(session.ask("for a", reader="ann", **key))
        assert (hers.text, hers.speaker, hers.usage.total_tokens) == ("", None, 0)


async def test_why_a_private_run_failed_is_not_told_to_others() -> None:
    team = desk(Fault.server_error(), Fault.server_error(), guards=untried())
    async with held(team, participants=["ann"]) as session:
        await session.join("ann")
        key: dict[str, Any] = {"audience": ["a"], "idempotency_key": "1"}
        asks = [session.ask("for a", reader=name, **key) for name in ("user", "ann")]
        answer, hers = await soon(asyncio.gather(*asks))
        assert answer.text.startswith("The turn of a has failed: ")
        assert (hers.text, hers.close_reason) == ("The run has failed.", "round_failed")


async def test_faults_of_what_is_asked_are_raised_before_anything_is_sent() -> None:
    async with held(desk()) as session:
        with pytest.raises(SessionError) as stranger:
            await session.ask("hello", reader="nobody")
        assert stranger.value.code == "stranger"
        with pytest.raises(ConfigurationError):
            await session.ask("hello", sender="nobody")
        with pytest.raises(ConfigurationError):
            await session.ask(3)  # type: ignore[arg-type]
        assert not await of_type(session, EV_TEXT)


# Parallel speakers.


async def test_the_answer_of_parallel_speakers_is_that_of_the_last_in_the_list() -> None:
    rules = TransitionGraph(
        "a",
        [
            Transition(FromSpeaker("user"), "a"),
            Transition(FromSpeaker("a"), ParallelTarget(["b", "c"], HumanTarget())),
        ],
        HumanTarget(),
    )
    slow = Doors()
    team = Team([agent("a"), agent("b"), slow.agent.replace(name="c")], rules)
    async with held(team) as session:
        asking = asyncio.ensure_future(session.ask("hello"))
        await soon(slow.entered.get())
        await until(lambda: _has_said(session, "b"))
        assert not asking.done()
        slow.opened.put_nowait(None)
        answer = await soon(asking)
        assert (answer.speaker, answer.status) == ("c", "waiting_human")
        assert [one.sender_id for one in answer.envelopes] == ["user", "a", "b", "c"]


async def test_a_span_is_the_same_however_its_envelopes_arrive() -> None:
    async with held(desk()) as session:
        answers = [await soon(session.ask(text)) for text in ("one", "two")]
        history = await session.history()
    for answer in answers:
        after = answer.envelopes[0].sequence - 1
        for size in (1, 2, 50):
            span = InputSpan(session.record, after)
            head = after

            while not span.has_settled:
                head = min(head + size, len(history))
                await span.read(_reading(history[:head]))
            assert tuple(span.envelopes) == answer.envelopes


def _reading(history: Sequence[Envelope]) -> Callable[[int, int], Awaitable[list[Envelope]]]:
    async def read(after: int, limit: int) -> list[Envelope]:
        return [*history[after : after + limit]]

    return read
