"""Work that goes well is left alone: no word, no stop, no decision, under the default guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Team, effect
from agentgraph.guards import AuditTrail, MemorySink
from agentgraph.routing import TransitionGraph, feedback, round_robin
from agentgraph.routing.conditions import ContextEquals
from agentgraph.sessions import EV_AUDIT, set_context
from agentgraph.stream import FinalStateEvent
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import (
    answers,
    audited,
    decided,
    for_ever,
    is_legal,
    look,
    recorded,
    solo,
    streamed,
)
from tests.sessions.talk import after, held, of_type, talk

COMPLETE = "round_robin_complete"

Turns = Callable[[list[BaseMessage]], Scripted]


def by_default(sink: MemorySink) -> Guards:
    """Return the default guards, watched."""
    return Guards.interactive(audit=AuditTrail(sink))


async def left_alone(agent: Agent, said: Any = "go") -> str:
    """Run an agent to its end, which no guard has a word in; return its answer."""
    sink = MemorySink()
    events = await streamed(agent.replace(guards=by_default(sink)), said)
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert (decided(events), audited(sink), final.close_reason) == ([], [], None)
    return final.text


def until_it_says(done: str, asks: Scripted) -> Turns:
    """Return a script that asks again until a tool has said that it is done."""
    return lambda messages: "Done." if done in answers(messages)[-1:] else asks


def one_by_one(*asks: Scripted, end: str = "Done.") -> ScriptedModel:
    return ScriptedModel([*asks, end])


def dispatching(sub: Agent, kind: str, brief: str, times: int = 10) -> Agent:
    """Return a supervisor who gives one worker a brief for one thing after the other."""
    ask, given = ("transfer_to_sub", "reason") if kind == "delegate" else ("sub", "request")
    asks = [call(ask, **{given: f"{brief} {n}"}) for n in range(times)]
    mode: Any = "delegate" if kind == "delegate" else "sticky"
    members = [sub if kind == "delegate" else sub.as_tool()]
    return Agent("boss", model=one_by_one(*asks), agents=members, handoff=mode)


class Job:
    """Something that takes its time, and says how far it is."""

    def __init__(self, *states: str) -> None:
        self._states = iter(states)
        self.asked = 0

    def next(self) -> str:
        self.asked += 1
        return next(self._states)


async def test_a_poll_of_a_job_that_moves_on_now_and_then() -> None:
    states = [state for state in ("queued", "10 %", "80 %") for _ in range(9)]
    job = Job(*states, "ready")

    @effect(poll=True)
    def status(job_id: str) -> str:
        """Return how far a job is."""
        return job.next()

    model = ScriptedModel(until_it_says("ready", call("status", job_id="7")))
    assert await left_alone(solo(model, status)) == "Done."
    assert job.asked == 28


async def test_a_plain_tool_whose_result_changes() -> None:
    job = Job(*(f"{n} %" for n in range(20)), "ready")

    def status(job_id: str) -> str:
        """Return how far a job is."""
        return job.next()

    model = ScriptedModel(until_it_says("ready", call("status", job_id="7")))
    assert await left_alone(solo(model, status)) == "Done."
    assert job.asked == 21


async def test_a_poll_among_other_tools() -> None:
    job = Job(*["running"] * 6, "ready")

    @effect(poll=True)
    def status() -> str:
        """Return how far the job is."""
        return job.next()

    asks = [one for n in range(7) for one in (call("status"), call("look", what=f"part {n}"))]
    assert await left_alone(solo(one_by_one(*asks), status, look)) == "Done."


async def test_pages_one_after_the_other_all_alike() -> None:
    def page(number: int) -> str:
        """Return a page."""
        return "20 rows, and there is more"

    asks = [call("page", number=number) for number in range(25)]
    assert await left_alone(solo(one_by_one(*asks), page)) == "Done."


async def test_pages_by_a_cursor_that_each_page_names() -> None:
    def page(cursor: str = "") -> str:
        """Return a page, and where the next one begins."""
        return f"rows; next: {int(cursor or 0) + 1}"

    asks = [call("page", cursor=str(n) if n else "") for n in range(20)]
    assert await left_alone(solo(one_by_one(*asks), page)) == "Done."


async def test_a_list_and_then_each_of_its_things() -> None:
    def listing(page: int) -> str:
        """List things."""
        return "a, b"

    def read(path: str) -> str:
        """Read one."""
        return "text"

    asks = [one for n in range(10) for one in (call("listing", page=n), call("read", path=f"{n}"))]
    assert await left_alone(solo(one_by_one(*asks), listing, read)) == "Done."


async def test_equal_calls_side_by_side_in_one_message() -> None:
    three = [call("look", what="it")] * 3
    agent = solo(one_by_one(three))
    assert await left_alone(agent) == "Done."


async def test_equal_calls_side_by_side_in_several_messages_with_others_between() -> None:
    asks: list[Scripted] = []
    for n in range(4):
        asks += [
            [call("look", what="it")] * 4,
            call("look", what=f"{n}"),
            call("look", what=f"{n}!"),
        ]
    assert await left_alone(solo(one_by_one(*asks))) == "Done."


async def test_a_tool_that_fails_now_and_then() -> None:
    def fetch(page: int) -> str:
        """Fetch a page, of which every third is there."""
        if page % 3:
            raise ConnectionError("try again")
        return f"page {page}"

    asks = [call("fetch", page=page) for page in (1, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert await left_alone(solo(one_by_one(*asks), fetch)) == "Done."


async def test_several_that_fail_side_by_side_have_failed_once() -> None:
    def fetch(page: int) -> str:
        """Fetch a page."""
        raise LookupError(f"there is no page {page}")

    asks = [[call("fetch", page=page) for page in range(4 * n, 4 * n + 4)] for n in range(2)]
    assert await left_alone(solo(one_by_one(*asks), fetch)) == "Done."


async def test_forty_different_steps() -> None:
    asks = [call("look", what=f"thing {n}") for n in range(40)]
    assert await left_alone(solo(one_by_one(*asks))) == "Done."


async def test_a_tool_that_asks_a_human_each_time() -> None:
    def ask(number: int) -> str:
        """Ask a human."""
        return str(interrupt(number))

    sink = MemorySink()
    agent = solo(one_by_one(*(call("ask", number=n) for n in range(6))), ask)
    agent = agent.replace(guards=by_default(sink))
    reply = await agent.ainvoke("go", thread_id="t")
    for _ in range(6):
        (question,) = reply.interrupts
        reply = await agent.aresume("t", {question.id: "yes"})
    assert (reply.text, reply.close_reason, audited(sink)) == ("Done.", None, [])


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_supervisor_that_dispatches_ten_times_to_one_worker(kind: str) -> None:
    """The worker looks the same thing up each time, and each time it gets further."""
    worked: list[int] = []

    def turn(messages: list[BaseMessage]) -> Scripted:
        looked = messages[-1].type == "tool" and "nothing of" in str(messages[-1].text)
        if not looked:
            return call("look", what="the plan")
        worked.append(len(worked) + 1)
        return f"Part {worked[-1]} is written."

    sub = solo(ScriptedModel(turn), name="sub")
    assert await left_alone(dispatching(sub, kind, "part")) == "Done."
    assert len(worked) == 10


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_worker_that_is_done_with_one_thing_after_the_other(kind: str) -> None:
    """Each is another brief: that the reply to it is the same is no wonder."""
    sub = solo(ScriptedModel(lambda _: "Done."), name="sub")
    assert await left_alone(dispatching(sub, kind, "part", times=3)) == "Done."


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_worker_that_does_ten_things_and_says_the_same_of_each(kind: str) -> None:
    saved: list[str] = []

    def save(row: str) -> str:
        """Save a row."""
        saved.append(row)
        return f"row {row} is saved"

    def turn(messages: list[BaseMessage]) -> Scripted:
        has_saved = "is saved" in str(messages[-1].text)
        return "Done." if has_saved else call("save", row=str(len(saved)))

    sub = solo(ScriptedModel(turn), save, name="sub")
    assert await left_alone(dispatching(sub, kind, "save row")) == "Done."
    assert saved == [str(n) for n in range(10)]


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_worker_whose_tool_says_the_same_of_each_thing_too(kind: str) -> None:
    """What it was called for tells the things apart: more of them than may be answered alike."""
    written: list[str] = []

    def write(path: str) -> str:
        """Write a file."""
        written.append(path)
        return "ok"

    def turn(messages: list[BaseMessage]) -> Scripted:
        has_written = messages[-1].type == "tool" and messages[-1].text == "ok"
        return "Done." if has_written else call("write", path=f"file {len(written)}")

    sub = solo(ScriptedModel(turn), write, name="sub")
    assert await left_alone(dispatching(sub, kind, "write", times=16)) == "Done."
    assert written == [f"file {n}" for n in range(16)]


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_ten_things_of_a_kind_that_are_all_answered_alike(kind: str) -> None:
    sub = solo(ScriptedModel(lambda _: "yes"), name="sub")
    assert await left_alone(dispatching(sub, kind, "is it spam?")) == "Done."


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_ten_things_that_one_rule_answers_alike(kind: str) -> None:
    """The worker looks the rule up each time."""

    def turn(messages: list[BaseMessage]) -> Scripted:
        has_looked = "nothing of the rule" in str(messages[-1].text)
        return "yes" if has_looked else call("look", what="the rule")

    sub = solo(ScriptedModel(turn), name="sub")
    assert await left_alone(dispatching(sub, kind, "is it spam?")) == "Done."


async def test_workers_side_by_side_that_say_the_same() -> None:
    sub = solo(ScriptedModel(lambda _: "Done."), name="sub")
    asks = [[call("sub", request=f"part {n}") for n in range(8)]]
    agent = Agent("boss", model=one_by_one(*asks, end="All done."), agents=[sub.as_tool()])
    assert await left_alone(agent) == "All done."


async def test_two_agents_that_talk_for_twenty_turns() -> None:
    """A solver shows its checker ten drafts; the checker has a word on each."""
    checked: list[str] = []

    def judge(messages: list[BaseMessage]) -> Scripted:
        checked.append(str(messages[-1].text))
        return f"Draft {len(checked)} is better, but not done."

    checker = solo(ScriptedModel(judge), name="checker")
    asks = [call("checker", request=f"draft {n}") for n in range(1, 11)]
    solver = Agent("solver", model=one_by_one(*asks, end="Final."), agents=[checker.as_tool()])
    assert await left_alone(solver) == "Final."
    assert checked == [f"draft {n}" for n in range(1, 11)]


async def test_a_conversation_that_moves_to_and_fro_with_each_input() -> None:
    """Hops are counted for one input; a conversation of many may move as often as it wants."""
    sub = solo(for_ever(call("request_help", reason="done")), name="sub")
    boss = for_ever(call("transfer_to_sub"), "Here.")
    agent = Agent("boss", model=boss, agents=[sub.replace(default_tools=True)])
    sink = MemorySink()
    agent = agent.replace(guards=by_default(sink))
    for n in range(12):
        reply = await agent.ainvoke(f"question {n}", thread_id="t")
        assert (reply.text, reply.close_reason) == ("Here.", None)
    assert audited(sink) == []
    assert is_legal(await agent.ahistory("t"))


# Teams


def drafting(*tools: Any) -> list[Agent]:
    """Return a solver and a checker; the checker looks the same rules up in each of its turns."""
    drafts = iter(range(1, 100))

    def solve(messages: list[BaseMessage]) -> Scripted:
        return f"Draft {next(drafts)}."

    def check(messages: list[BaseMessage]) -> Scripted:
        if messages[-1].type == "tool":
            return "Not yet."
        return call("look", what="the rules")

    solver = solo(ScriptedModel(solve), name="solver")
    return [solver, solo(ScriptedModel(check), look, *tools, name="checker")]


async def test_a_solver_and_a_checker_of_a_team_talk_for_twenty_turns() -> None:
    team = Team(drafting(), round_robin(["solver", "checker"], max_turns=20))
    async with held(team) as session:
        state = await after(session, "user", "Solve it.")
        said = await talk(session)
        assert [who for who, _ in said[1:]] == ["solver", "checker"] * 10
        assert (state.turn_count, state.pending_close_reason) == (20, COMPLETE)
        assert await of_type(session, EV_AUDIT) == []


async def test_a_dialogue_until_the_checker_is_content() -> None:
    checks = iter(range(1, 100))

    def approve() -> str:
        """Accept the draft."""
        set_context("done", True)
        return "accepted"

    def check(messages: list[BaseMessage]) -> Scripted:
        last = messages[-1]
        if last.type == "tool" and "accepted" in str(last.text):
            return "Good."
        return call("approve") if next(checks) == 10 else "Not yet."

    solver, _ = drafting()
    checker = solo(ScriptedModel(check), approve, name="checker")
    rules: TransitionGraph = feedback("solver", "checker", done=ContextEquals("done", True))
    async with held(Team([solver, checker], rules)) as session:
        state = await after(session, "user", "Solve it.")
        assert (state.turn_count, state.status) == (20, "closed")
        assert await of_type(session, EV_AUDIT) == []
        assert (await talk(session))[-1] == ("checker", "Good.")


async def test_what_a_team_s_audit_trail_has_of_it_is_no_decision() -> None:
    sink = MemorySink()
    rules = round_robin(["solver", "checker"], max_turns=20)
    result = await Team(drafting(), rules, guards=by_default(sink)).arun("Solve it.")
    assert (result.close_reason, audited(sink)) == (COMPLETE, [])
    kinds = {record.kind for record in recorded(sink)}
    assert kinds == {"input", "model", "settled", "tool", "end"}
    assert len(recorded(sink, "tool")) == 10
