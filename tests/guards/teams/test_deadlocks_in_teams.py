"""Agents who keep each other busy: those who get nowhere end, those who get on may go on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from agentgraph import Agent, Guards, Team
from agentgraph.guards import CostBudget, DeadlockMonitor, StepLimit
from agentgraph.guards.decision import Tier
from agentgraph.phases import ConversationRouter
from agentgraph.sessions import EV_AUDIT, EV_HANDOFF, EV_HANDOFF_REJECTED, Session
from agentgraph.testing import ScriptedModel, Turn, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import words_of
from tests.guards.metered_models import actions, again, asked, told, worker
from tests.sessions.talk import after, held, of_type, settled

TOLD = Callable[[], Scripted]


def guards(tier: Tier = "interactive", **fields: Any) -> Guards:
    return Guards(tier, budget=CostBudget(tokens=1_000_000), velocity=None, **fields)


def over(target: str, text: str = "", **fields: Any) -> Turn:
    """Hand the conversation over, and perhaps say something along with it."""
    wish = {"target": target, "reason": "", "summary": "", **fields}
    return Turn(text, [call("handoff_conversation", **wish)])


def among(*turns: TOLD, **fields: Any) -> Team:
    """Return agents who may hand over to each other."""
    agents = [worker("abc"[n], again(turn)) for n, turn in enumerate(turns)]
    return Team(agents, ConversationRouter([], default_agent_id="a"), expectations=(), **fields)


async def decisions(session: Session) -> list[Any]:
    """Return what guards have decided, as the log has it."""
    audits = [one.event_data for one in await of_type(session, EV_AUDIT)]
    return [one for one in audits if one["kind"] == "decision"]


async def moved(session: Session) -> int:
    return len(await of_type(session, EV_HANDOFF))


NUMBERS = count()

NOTHING_NEW: dict[str, TOLD] = {
    "silent": lambda: over("", ""),
    "the same words": lambda: over("", "That is not for me."),
    "another reason each time": lambda: over("", reason=f"because of {next(NUMBERS)}"),
    "another summary each time": lambda: over("", summary=f"it is\n\n{next(NUMBERS)}"),
}


def at(target: str, turn: Scripted) -> Turn:
    """Return the turn with another target."""
    assert isinstance(turn, Turn)
    [wish] = turn.calls
    args: Any = {**wish["args"], "target": target}  # type: ignore[dict-item]
    return Turn(turn.text, [call("handoff_conversation", **args)])


@pytest.mark.parametrize("kind", NOTHING_NEW)
async def test_two_who_only_hand_over_to_each_other_end(kind: str) -> None:
    turn = NOTHING_NEW[kind]
    team = among(lambda: at("b", turn()), lambda: at("a", turn()), guards=guards())
    async with held(team) as session:
        state = await after(session, "user", "help me")
        assert (state.status, state.pending_close_reason) == ("closed", "deadlock_monitor")
        # The second time round is one too many: who insists on it is not asked again.
        assert await moved(session) == 3
        corrected, ended = await decisions(session)
        assert (corrected["action"], corrected["evidence"]["cycle"]) == ("correct", ["a", "b"])
        assert (ended["action"], ended["evidence"]["cycle"]) == ("abort", ["a", "b"])
        assert corrected["agent"] == ended["agent"] == "b"
    assert sum(asked(one) for one in team.agents if isinstance(one, Agent)) == 5


async def test_who_is_refused_such_a_handoff_and_answers_goes_on() -> None:
    def turn(messages: Any) -> Scripted:
        is_told = "without progress" in str(messages[-1].text)
        return "I answer with what is there." if is_told else over("a")

    agents = [worker("a", again(lambda: over("b"))), worker("b", turn)]
    router = ConversationRouter([], default_agent_id="a")
    async with held(Team(agents, router, guards=guards(), expectations=())) as session:
        state = await after(session, "user", "help me")
        assert (state.status, state.last_speaker_id) == ("waiting_human", "b")
        assert actions(await decisions(session)) == [("deadlock_monitor", "correct")]


async def test_a_circle_of_three_ends_too() -> None:
    team = among(lambda: over("b"), lambda: over("c"), lambda: over("a"), guards=guards(hops=20))
    async with held(team) as session:
        state = await after(session, "user", "help me")
        assert state.pending_close_reason == "deadlock_monitor"
        decided = (await decisions(session))[0]
        assert (await moved(session), decided["evidence"]["cycle"]) == (5, ["a", "b", "c"])


async def test_whoever_may_go_round_more_often_does() -> None:
    policy = guards(hops=20, deadlock=DeadlockMonitor(occurrences=4))
    async with held(among(lambda: over("b"), lambda: over("a"), guards=policy)) as session:
        state = await after(session, "user", "help me")
        assert state.pending_close_reason == "deadlock_monitor"
        assert await moved(session) > 3


async def test_without_a_monitor_the_hop_limit_is_met_first() -> None:
    team = among(lambda: over("b"), lambda: over("a"), guards=guards(deadlock=None, loop=None))
    async with held(team) as session:
        state = await after(session, "user", "help me")
        assert (await moved(session), state.pending_close_reason) == (5, "max_steps")


def told_why_not(messages: Any) -> bool:
    """Tell whether the last thing that a model was told is that it must not hand over."""
    last = messages[-1]
    return isinstance(last, ToolMessage) and "hop_limit" in str(last.text)


async def test_with_progress_they_go_on_up_to_the_hop_limit() -> None:
    numbers = count()

    def speaks(other: str) -> Any:
        def turn(messages: Any) -> Scripted:
            if told_why_not(messages):
                return "I answer with what is there."
            return over(other, f"I have found {next(numbers)}.")

        return turn

    agents = [worker("a", speaks("b")), worker("b", speaks("a"))]
    router = ConversationRouter([], default_agent_id="a")
    async with held(Team(agents, router, guards=guards(), expectations=())) as session:
        state = await after(session, "user", "help me")
        assert await moved(session) == 5
        assert actions(await decisions(session)) == [("hop_limit", "deny")]
        assert len(await of_type(session, EV_HANDOFF_REJECTED)) == 1
        assert (state.status, state.last_speaker_id) == ("waiting_human", "b")


async def test_what_a_tool_has_found_out_is_progress() -> None:
    numbers, asked_for = count(), count()

    def search() -> str:
        """Search."""
        return f"found {next(numbers)}"

    def speaks(other: str) -> Any:
        def turn(messages: Any) -> Scripted:
            if next(asked_for) == 24:
                return "Enough."
            found = isinstance(messages[-1], ToolMessage) and "found" in str(messages[-1].text)
            return over(other) if found else call("search")

        return turn

    agents = [worker("a", speaks("b"), tools=[search]), worker("b", speaks("a"), tools=[search])]
    router = ConversationRouter([], default_agent_id="a")
    async with held(Team(agents, router, guards=guards(), expectations=())) as session:
        await after(session, "user", "help me")
        assert (await moved(session), await decisions(session)) == (12, [])


async def test_a_batch_of_them_ends_with_an_alert() -> None:
    team = among(lambda: over("b"), lambda: over("a"), guards=guards("batch"))
    async with held(team) as session:
        state = await after(session, "user", "help me")
        _, decided = await decisions(session)
    assert state.pending_close_reason == "deadlock_monitor"
    assert (decided["action"], decided["evidence"]["alert"]) == ("abort", True)


async def test_where_stakes_are_high_a_human_decides_whether_they_go_on() -> None:
    team = among(lambda: over("b"), lambda: over("a"), guards=guards("regulated", hops=50))
    async with held(team) as session:
        state = await after(session, "user", "help me")
        for times in (1, 2):
            assert state.status == "waiting_decision"
            [(key, asked_now)] = state.interrupts.items()
            assert asked_now["payload"]["guard"] == "deadlock_monitor"
            assert asked_now["payload"]["evidence"]["cycle"] == ["a", "b"]
            before = await moved(session)
            await session.decide(key, "approve" if times == 1 else "reject")
            state = await settled(session)
        # They went on, got nowhere, and the human was asked again.
        assert before > 3
        assert (state.status, state.pending_close_reason) == ("closed", "deadlock_monitor")


async def test_a_human_may_answer_for_those_who_are_stuck() -> None:
    team = among(lambda: over("b"), lambda: over("a"), guards=guards("regulated"))
    async with held(team) as session:
        state = await after(session, "user", "help me")
        [key] = state.interrupts
        await session.decide(key, {"type": "respond", "message": "It is on its way."})
        state = await settled(session)
        said = [one.text for one in await session.history() if one.is_substantive]
    assert (state.status, said[-1]) == ("waiting_human", "It is on its way.")


def boss_of(sub: Any, tier: Tier = "interactive", **fields: Any) -> Agent:
    """Return a supervisor who hands everything over to a sub-agent that wants help with it."""
    below = worker("sub", sub, default_tools=True)
    policy = guards(tier, hops=20, **fields)
    above = again(lambda: call("transfer_to_sub"))
    return worker("boss", above, agents=[below], guards=policy)


def help_me(reason: str = "I know nothing") -> Any:
    return call("request_help", reason=reason)


@pytest.mark.parametrize("tier", ["interactive", "batch"])
async def test_a_supervisor_and_a_sub_agent_who_give_it_to_and_fro_end(tier: Tier) -> None:
    boss = boss_of(again(help_me), tier)
    end, decided = await told(boss, "help me")
    assert (end.close_reason, words_of(end)) == ("deadlock_monitor", "")
    assert actions(decided) == [("deadlock_monitor", "correct"), ("deadlock_monitor", "abort")]
    assert decided[0]["evidence"]["cycle"] == ["boss", "sub"]
    assert asked(boss) == 3


async def test_who_asks_for_another_kind_of_help_and_is_told_nothing_ends_too() -> None:
    numbers = count()
    boss = boss_of(again(lambda: help_me(f"tell me {next(numbers)}")))
    _, decided = await told(boss, "help me")
    assert actions(decided) == [("deadlock_monitor", "correct"), ("deadlock_monitor", "abort")]
    assert "asked for help 3 times" in decided[0]["cause"]


async def test_where_stakes_are_high_a_human_decides_on_such_a_pair() -> None:
    boss = boss_of(again(help_me), "regulated")
    reply = await boss.ainvoke("help me", thread_id="t")
    [question] = reply.interrupts
    assert isinstance(question.payload, dict)
    assert question.payload["evidence"]["cycle"] == ["boss", "sub"]
    given = {"type": "respond", "message": "I will see to it."}
    ended = await boss.aresume("t", {question.id: given})
    assert (ended.text, ended.close_reason) == ("I will see to it.", None)


def asking(kind: str, answers: Any, tier: Tier = "interactive") -> tuple[Agent, Agent]:
    """Return a supervisor who asks one worker for the same again and again, and the worker."""
    below = worker("sub", answers)
    if kind == "tool":
        turn: Any = call("sub", request="the figures")
        boss = worker("boss", again(lambda: turn), agents=[below.as_tool()])
    else:
        turn = call("transfer_to_sub", reason="the figures")
        boss = worker("boss", again(lambda: turn), agents=[below], handoff="delegate")
    return boss.replace(guards=guards(tier, loop=None)), below


@pytest.mark.parametrize("kind", ["delegate", "tool"])
@pytest.mark.parametrize("tier", ["interactive", "batch"])
async def test_a_supervisor_stuck_on_a_worker_is_nudged_and_then_ended(
    kind: str, tier: Tier
) -> None:
    boss, below = asking(kind, again(lambda: "I need more."), tier)
    end, decided = await told(boss, "how much?")
    assert (asked(boss), asked(below)) == (3, 3)
    assert actions(decided) == [("deadlock_monitor", "correct"), ("deadlock_monitor", "abort")]
    assert (end.close_reason, words_of(end)) == ("deadlock_monitor", "")
    assert isinstance(boss.model, ScriptedModel)
    told_then = [one.system for one in boss.model.requests]
    assert ["same reply" in text for text in told_then] == [False, False, True]
    assert "'sub' has given the same reply 2 times" in told_then[2]


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_supervisor_who_only_words_its_brief_anew_is_nudged_and_ended(kind: str) -> None:
    numbers = count()
    boss, below = asking(kind, again(lambda: "I cannot do that."))
    name, given = ("sub", "request") if kind == "tool" else ("transfer_to_sub", "reason")

    def worded() -> Scripted:
        return call(name, **{given: "the figures" + ", please" * next(numbers)})

    boss = boss.replace(model=worker("boss", again(worded)).model)
    end, decided = await told(boss, "how much?")
    assert actions(decided) == [("deadlock_monitor", "correct"), ("deadlock_monitor", "abort")]
    assert (end.close_reason, asked(boss), asked(below)) == ("deadlock_monitor", 6, 6)


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_supervisor_who_heeds_the_nudge_goes_on(kind: str) -> None:
    boss, below = asking(kind, again(lambda: "I need more."))

    def turn(messages: Any) -> Scripted:
        if "same reply" in str(messages[0].text):
            return "There are none."
        return call("sub" if kind == "tool" else "transfer_to_sub")

    end, decided = await told(boss.replace(model=ScriptedModel(turn)), "how much?")
    assert (end.text, end.close_reason, asked(below)) == ("There are none.", None, 2)
    assert actions(decided) == [("deadlock_monitor", "correct")]


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_worker_whose_replies_differ_is_asked_on(kind: str) -> None:
    numbers = count()
    boss, below = asking(kind, again(lambda: f"part {next(numbers)}"))
    policy = guards(loop=None, steps=StepLimit(20, total=20))
    end, decided = await told(boss.replace(guards=policy), "how much?")
    assert (end.close_reason, asked(below)) == ("max_steps", 10)
    # The brief is the same each time, which is worth a word and no more.
    assert actions(decided) == [*[("deadlock_monitor", "correct")] * 3, ("max_steps", "abort")]


async def test_where_stakes_are_high_a_human_decides_on_a_stuck_supervisor() -> None:
    boss, _ = asking("delegate", again(lambda: "I need more."), "regulated")
    reply = await boss.ainvoke("how much?", thread_id="t")
    [question] = reply.interrupts
    assert isinstance(question.payload, dict)
    assert question.payload["guard"] == "deadlock_monitor"
    assert question.payload["evidence"]["worker"] == "sub"
    ended = await boss.aresume("t", {question.id: "reject"})
    assert ended.close_reason == "deadlock_monitor"
