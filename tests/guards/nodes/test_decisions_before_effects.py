"""What guards decide stands in the audit trail before it takes effect, and so does what is done."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph import Agent, Team, effect
from agentgraph.guards import (
    AuditTrail,
    CircuitBreaker,
    CostBudget,
    Escalation,
    FanOutLimit,
    Gate,
    Guards,
    MemorySink,
    Record,
    Subject,
)
from agentgraph.routing import sequence
from agentgraph.sessions import EV_AUDIT, EV_ROUND_FAILED, EV_SESSION_CLOSED
from agentgraph.stream import FinalStateEvent, GuardEvent
from agentgraph.testing import Fault, ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import Hurried, solo, watched
from tests.sessions.talk import after, held


class Diary(MemorySink):
    """A sink that notes, in one list, what is recorded and what happens."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def write(self, record: Record) -> None:
        super().write(record)
        if record.kind in ("input", "gate", "end"):
            return
        told = record.decision or {}
        what = told.get("action") or record.data.get("tool") or record.data.get("decision") or ""
        state = record.data.get("state") or ""
        self.lines.append(" ".join(filter(None, (record.kind, str(what), str(state)))))

    def model(self, name: str, *turns: Scripted) -> ScriptedModel:
        """Return a model that notes when it is asked."""
        said = iter(turns)

        def turn(messages: list[BaseMessage]) -> Scripted:
            self.lines.append(f"> {name}")
            return next(said)

        return ScriptedModel(turn, model_name=name)

    def look(self, what: str) -> str:
        """Look something up."""
        self.lines.append("> look")
        return "nothing"

    def before(self, line: str) -> list[str]:
        """Return what was noted before a line came, the last time it did."""
        last = len(self.lines) - 1 - self.lines[::-1].index(line)
        return self.lines[:last]


@pytest.fixture
def diary() -> Diary:
    return Diary()


def run_by(diary: Diary, *turns: Scripted, **fields: Any) -> Agent:
    guards: Guards = watched(diary, **fields)
    return solo(diary.model("a", *turns), diary.look, guards=guards)


async def test_each_step_is_recorded_before_it_is_taken(diary: Diary) -> None:
    await run_by(diary, call("look", what="it"), "Done.").ainvoke("go")
    asked = ["model", "> a", "settled"]
    assert diary.lines == [*asked, "tool look", "> look", *asked]


async def test_a_correction_is_recorded_before_the_model_reads_it(diary: Diary) -> None:
    again = [call("look", what="it")] * 3
    await run_by(diary, *again, "I give up.").ainvoke("go")
    assert diary.lines[-5:] == ["> look", "decision correct", "model", "> a", "settled"]


async def test_an_end_is_recorded_before_the_run_ends_and_before_it_is_told(diary: Diary) -> None:
    agent = run_by(diary, *[call("look", what="it")] * 7)
    async for event in agent.astream("go"):
        if isinstance(event, GuardEvent):
            diary.lines.append(f"told {event.decision['action']}")
        if isinstance(event, FinalStateEvent):
            diary.lines.append("closed")
    assert diary.lines[-4:] == ["> look", "decision abort", "told abort", "closed"]


async def test_a_retry_is_recorded_before_it_is_made(diary: Diary) -> None:
    with Hurried().installed():
        await run_by(diary, Fault.server_error(), "Done.").ainvoke("go")
    attempt = ["model", "> a", "settled"]
    assert diary.lines == [*attempt, "decision allow", *attempt]


async def test_a_swap_of_models_is_recorded_before_it_is_made(diary: Diary) -> None:
    cheap = diary.model("cheap", "Done.")
    agent = run_by(diary, *[Fault.server_error()] * 3, breaker=CircuitBreaker(fallback=cheap))
    with Hurried().installed():
        assert (await agent.ainvoke("go")).text == "Done."
    assert diary.lines[-4:] == ["decision fallback", "model", "> cheap", "settled"]


async def test_a_question_and_its_answer_are_recorded_before_the_run_goes_on(
    diary: Diary,
) -> None:
    again = [call("look", what="it")] * 7
    agent = run_by(diary, *again, "Done.", tier="regulated")
    reply = await agent.ainvoke("go", thread_id="t")
    assert diary.lines[-2:] == ["> look", "decision escalate"]
    await agent.aresume("t", {reply.interrupts[0].id: "approve"})
    assert diary.lines[-4:] == ["human approve", "model", "> a", "settled"]


async def test_a_doubt_is_recorded_before_a_human_sees_the_answer(diary: Diary) -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1)
    agent = run_by(diary, "An answer.", escalation=critic)
    reply = await agent.ainvoke("go", thread_id="t")
    assert diary.lines == ["model", "> a", "settled", "decision escalate"]
    await agent.aresume("t", {reply.interrupts[0].id: "approve"})
    assert diary.lines[-1] == "human approve"


async def test_a_refused_answer_is_recorded_before_another_is_asked_for(diary: Diary) -> None:
    def is_long(subject: Subject) -> bool:
        return len(subject.text) > 3

    agent = run_by(diary, "No.", "A long one.", gates=Gate(invariants=(is_long,)))
    assert (await agent.ainvoke("go")).text == "A long one."
    assert diary.lines == [
        *("model", "> a", "settled"),
        "decision correct",
        *("model", "> a", "settled"),
    ]


async def test_a_refused_call_is_recorded_and_never_made(diary: Diary) -> None:
    def forbids(subject: Subject) -> Any:
        return subject.tool != "look"

    agent = run_by(diary, call("look", what="it"), "Done.", gates=Gate(policy=forbids))
    await agent.ainvoke("go")
    assert "> look" not in diary.lines
    assert diary.lines[3] == "decision deny"


async def test_a_handoff_and_its_refusal_are_recorded_before_anybody_acts_on_them(
    diary: Diary,
) -> None:
    boss = diary.model("boss", call("transfer_to_sub"))
    sub = solo(diary.model("sub", "Done."), name="sub")
    agent = Agent("boss", model=boss, agents=[sub], guards=watched(diary))
    await agent.ainvoke("go")
    assert diary.before("> sub")[-2:] == ["handoff", "model"]
    boss = diary.model("boss", call("transfer_to_sub"), "I do it myself.")
    refused = agent.replace(model=boss, guards=watched(diary, hops=0))
    await refused.ainvoke("go")
    assert diary.lines[-4:] == ["decision deny", "model", "> boss", "settled"]


async def test_what_is_sent_off_and_what_is_not_is_recorded_before_it_begins(
    diary: Diary,
) -> None:
    workers = [solo(diary.model(f"w{n}", "Done."), name=f"w{n}") for n in range(3)]
    asks = [call(worker.name, request="go") for worker in workers]
    boss = diary.model("boss", asks, "All done.")
    members = [worker.as_tool() for worker in workers]
    agent = Agent(
        "boss", model=boss, agents=members, guards=watched(diary, fan_out=FanOutLimit(8, total=2))
    )
    await agent.ainvoke("go")
    assert diary.lines[3:6] == ["decision deny", "dispatch", "dispatch"]
    assert "> w2" not in diary.lines
    assert {"> w0", "> w1"} <= set(diary.lines[6:])


async def test_an_action_is_recorded_before_it_is_begun_and_undone_after_the_decision(
    diary: Diary,
) -> None:
    def unbook(room: str) -> None:
        diary.lines.append("> unbook")

    @effect(compensate=unbook)
    def book(room: str) -> str:
        """Book a room."""
        diary.lines.append("> book")
        return "booked"

    again = [call("look", what="it")] * 7
    guards = watched(diary)
    agent = solo(diary.model("a", call("book", room="1"), *again), book, diary.look, guards=guards)
    reply = await agent.ainvoke("go")
    assert reply.close_reason == "loop_detector"
    assert diary.before("> book")[-2:] == ["effect book started", "tool book"]
    assert "decision abort" in diary.before("> unbook")


async def test_a_limit_is_recorded_before_it_ends_the_run(diary: Diary) -> None:
    agent = run_by(diary, call("look", what="1"), call("look", what="2"), steps=2)
    assert (await agent.ainvoke("go")).close_reason == "max_steps"
    assert diary.lines[-2:] == ["> look", "decision abort"]


async def test_no_step_is_taken_that_a_regulated_trail_cannot_record() -> None:
    class Full(MemorySink):
        def write(self, record: Record) -> None:
            raise OSError("no space left")

    model = ScriptedModel(["never"])
    trail = AuditTrail(Full(), on_failure="stop")
    guards = Guards.regulated(velocity=None, budget=CostBudget(tokens=10_000), audit=trail)
    reply = await solo(model, guards=guards).ainvoke("go")
    assert (reply.close_reason, model.requests) == ("audit", [])


# Sessions: the log has the decision before what follows from it


async def test_the_log_of_a_session_has_decisions_before_what_follows(diary: Diary) -> None:
    agent = run_by(diary, *[call("look", what="it")] * 7)
    async with held(Team([agent], sequence(["a"]), guards=watched(diary))) as session:
        await after(session, "user", "go")
        told = [one.event_type for one in await session.history()]
        assert told[-4:] == [EV_AUDIT, EV_AUDIT, EV_ROUND_FAILED, EV_SESSION_CLOSED]
