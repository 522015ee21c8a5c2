"""What real agents and teams leave in each sink, also where it fails or their process is killed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Agent, FromSpeaker, Hub, HumanTarget, Team, Transition, TransitionGraph
from agentgraph.errors import GuardStopped
from agentgraph.guards import (
    AuditTrail,
    CostBudget,
    Deadlines,
    Gate,
    Guards,
    JSONLSink,
    MemorySink,
    Record,
    SQLiteSink,
)
from agentgraph.routing import sequence
from agentgraph.sessions import EV_AUDIT
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, Till, asked, clerk, gate, unsure
from tests.guards.guarded_agents import Hurried, recorded, solo, watched
from tests.guards.processes.test_sagas_over_kills import Runs
from tests.sessions.kills import Pen, pen
from tests.sessions.talk import after, held

AnySink = MemorySink | JSONLSink | SQLiteSink

WHOLE = [
    *("input", "model", "settled", "effect", "tool", "effect"),
    *("model", "settled", "gate", "decision", "human", "compensated", "compensated", "end"),
]


def sink_of(kind: str, folder: Path) -> AnySink:
    match kind:
        case "memory":
            return MemorySink()
        case "jsonl":
            return JSONLSink(folder / "audit.jsonl")
        case _:
            return SQLiteSink(folder / "audit.db")


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnySink]:
    made = sink_of(request.param, tmp_path)
    yield made
    AuditTrail(made).close()


async def test_each_sink_has_the_whole_of_a_run(sink: Any) -> None:
    agent = clerk(Till(), "").replace(guards=unsure("doubt", sink))
    [question] = (await asked(agent)).interrupts
    await agent.aresume("t", {question.id: {"type": "reject", "message": "no"}})
    [run] = sink.runs()
    records = sink.read(run)
    assert [one.kind for one in records] == WHOLE
    assert [one.seq for one in records] == [*range(1, len(WHOLE) + 1)]
    assert {one.thread for one in records} == {"t"}
    assert records[0].data["text"] == "pay for tea"
    assert records[-1].data["reason"] == "escalation"
    [weighed] = [one for one in records if one.kind == "gate"]
    assert weighed.data | {"passed": False, "score": 0.2, "threshold": 0.85} == weighed.data
    trail = AuditTrail(sink).trail(run)
    assert (trail.path, trail.steps, trail.end) == (("clerk",), 2, "escalation")


async def test_each_sink_has_what_all_of_a_team_did_for_an_input(sink: Any) -> None:
    rules = TransitionGraph("desk", [Transition(FromSpeaker("user"), "desk")], HumanTarget())
    desk = Agent("desk", model=ScriptedModel(["one", "two"]))
    async with held(Team([desk], rules, guards=watched(sink))) as session:
        await after(session, "user", "first")
        await after(session, "user", "second")
        runs = sink.runs()
        assert runs == [f"{session.id}@2", f"{session.id}@4"]
    for run in runs:
        records = sink.read(run)
        assert [one.kind for one in records] == ["input", "model", "settled", "end"]
        assert records[0].data["sender"] == "user"
        assert records[-1].data["reason"] == "waiting_human"


async def test_an_error_that_is_raised_is_on_record_and_ends_the_run(sink: Any) -> None:
    agent = solo(ScriptedModel([ValueError("no such model")]), guards=watched(sink))
    with pytest.raises(Exception, match="ValueError"):
        await agent.ainvoke("go")
    [run] = sink.runs()
    *_, abort, end = sink.read(run)
    assert abort.decision is not None
    assert (abort.decision["action"], abort.decision["cause"]) == (
        "abort",
        "the provider failed: ValueError",
    )
    assert (end.kind, end.data["reason"], end.data["error"]) == ("end", "failed", "ModelError")


async def test_gates_leave_what_each_check_said_whether_it_passes_or_not() -> None:
    def allowed(subject: Any) -> Any:
        return subject.tool != "look" or (subject.args or {}).get("what") != "secrets"

    sink = MemorySink()
    calls = [call("look", what="tea"), call("look", what="secrets")]
    policy = [Gate(policy=allowed), gate("curse")]
    agent = solo(ScriptedModel([calls, "a curse", ANSWER]), guards=watched(sink, gates=policy))
    assert (await agent.ainvoke("go")).text == ANSWER
    told = [(one.data["phase"], one.data["passed"]) for one in recorded(sink, "gate")]
    assert told == [
        *(("pre", True), ("pre", False)),
        *(("post", True), ("post", False)),
        *(("post", True), ("post", True)),
    ]
    denied = recorded(sink, "gate")[1].data
    assert denied["tool"] == "look"
    assert denied["checks"][0] | {"status": "fail", "code": "policy_denied"} == denied["checks"][0]  # type: ignore[index]


# Sinks that fail


class Failing(MemorySink):
    """A sink that fails from some record on, until it is mended."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after: int | None = after

    def write(self, record: Record) -> None:
        if self.after is not None and record.seq > self.after:
            raise OSError("no space left")
        super().write(record)


@pytest.mark.parametrize("tier", ["interactive", "batch"])
async def test_a_sink_that_fails_is_lamented_once_in_each_run_that_goes_on(
    tier: Any, caplog: pytest.LogCaptureFixture
) -> None:
    till = Till()
    policy = Guards(tier, audit=AuditTrail(Failing(after=2)))
    turns: list[Any] = [call("pay", item="tea"), call("pay", item="milk"), ANSWER]
    agent = solo(ScriptedModel([*turns, *turns]), till.tool, guards=policy)
    with caplog.at_level(logging.WARNING, "agentgraph"):
        for _ in range(2):
            assert (await agent.ainvoke("go")).text == ANSWER
    assert len(till.paid) == 4
    laments = [one.getMessage() for one in caplog.records]
    assert len(laments) == len(set(laments)) == 2
    assert all(one.endswith("cannot be written: OSError") for one in laments)


def regulated(sink: MemorySink, **fields: Any) -> Guards:
    given = {"budget": CostBudget(tokens=10**6), "velocity": None, "audit": AuditTrail(sink)}
    return Guards.regulated(**{**given, **fields})


STEPS = ("input", "model", "settled", "effect", "tool", "effect", "model", "settled", "end")


@pytest.mark.parametrize("after", range(len(STEPS)))
async def test_a_regulated_run_stops_where_it_cannot_be_recorded(after: int) -> None:
    till, sink = Till(), Failing(after)
    model = ScriptedModel([call("pay", item="tea"), ANSWER])
    agent = solo(model, till.tool, guards=regulated(sink))
    try:
        reply = await agent.ainvoke("go", thread_id="t")
        stopped = reply.close_reason == "audit"
    except GuardStopped as stop:
        assert stop.decision.guard == "audit"  # type: ignore[attr-defined]
        stopped = True
    assert [one.kind for one in recorded(sink)] == list(STEPS[:after])
    # The record of the end holds nothing up; all others stand before what they tell of.
    assert stopped == (after < len(STEPS) - 1)
    assert len(model.requests) == (STEPS[:after].count("model") if after else 0)
    assert till.tries == (["pay tea"] if after >= 5 else [])


async def test_what_was_done_is_undone_once_it_can_be_recorded_again() -> None:
    till, sink = Till(), Failing(after=len(STEPS) - 3)
    model = ScriptedModel([call("pay", item="tea"), "never", ANSWER])
    agent = solo(model, till.tool, guards=regulated(sink))
    with pytest.raises(GuardStopped):
        await agent.ainvoke("go", thread_id="t")
    assert till.left == ["tea"]
    sink.after = None
    reply = await agent.ainvoke("and now?", thread_id="t")
    assert reply.text == "never"
    assert till.tries == ["pay tea", "give back tea"]
    first, second = sink.runs()
    assert (sink.read(first)[-1].data["reason"], sink.read(second)[-1].data["reason"]) == (
        "audit",
        "answered",
    )


async def test_a_regulated_run_goes_on_where_its_trail_is_told_to() -> None:
    trail = AuditTrail(Failing(after=2), on_failure="log")
    agent = solo(ScriptedModel([ANSWER]), guards=regulated(MemorySink(), audit=trail))
    assert (await agent.ainvoke("go")).text == ANSWER


async def test_a_regulated_stage_stops_where_it_cannot_be_recorded() -> None:
    audit, budget = AuditTrail(Failing(after=1)), CostBudget(tokens=10**6)
    stages = {"a": Guards.regulated(velocity=None, budget=budget)}
    model = ScriptedModel([ANSWER])
    agent = solo(model, guards=Guards.interactive(audit=audit, stages=stages))
    reply = await agent.ainvoke("go")
    assert (reply.close_reason, model.requests) == ("audit", [])


async def test_a_regulated_session_stops_where_it_cannot_be_recorded() -> None:
    till, sink = Till(), Failing(after=2)
    desk = solo(ScriptedModel([call("pay", item="tea"), ANSWER]), till.tool, name="desk")
    async with held(Team([desk], sequence(["desk"]), guards=regulated(sink))) as session:
        state = await after(session, "user", "go")
    assert (state.status, state.pending_close_reason) == ("closed", "audit")
    assert till.tries == []


# Processes that end


@pytest.fixture(scope="module")
def child() -> Iterator[Pen]:
    with pen("tests.guards.processes.killed_agents") as kept:
        yield kept


FILES = pytest.mark.parametrize("name", ["audit.jsonl", "audit.db"])


def reopened(path: Path) -> AnySink:
    return JSONLSink(path) if path.suffix == ".jsonl" else SQLiteSink(path)


@FILES
def test_what_a_killed_process_has_recorded_is_there_and_the_next_one_goes_on_numbering(
    child: Pen, tmp_path: Path, name: str
) -> None:
    runs = Runs(child, tmp_path, "agent", "reject", audit=str(tmp_path / name))
    [question] = runs.play()["asked"]
    sink = reopened(tmp_path / name)
    [run] = sink.runs()
    before = sink.read(run)
    assert [one.kind for one in before][-2:] == ["gate", "decision"]
    runs.kill("undo milk before", decides=question)
    killed = sink.read(run)
    assert killed[: len(before)] == before
    assert killed[-1].data["state"] == "undoing"
    runs.play(decides=question)
    whole = sink.read(run)
    assert whole[: len(killed)] == killed
    assert [one.seq for one in whole] == [*range(1, len(whole) + 1)]
    trail = AuditTrail(sink).trail(run)
    assert trail.end == "escalation"
    assert trail.effects == (("clerk:pay", "compensated"),) * 3
    assert trail.steps == 4
    AuditTrail(sink).close()


@FILES
@pytest.mark.parametrize("durability", ["round", "step"])
def test_a_team_s_input_is_one_run_over_all_its_processes(
    child: Pen, tmp_path: Path, name: str, durability: str
) -> None:
    path = str(tmp_path / name)
    runs = Runs(child, tmp_path, "team", "lookup", durability=durability, audit=path)
    runs.kill("pay milk after")
    runs.kill("think")
    runs.play()
    sink = reopened(tmp_path / name)
    [run] = sink.runs()
    records = sink.read(run)
    assert [one.seq for one in records] == [*range(1, len(records) + 1)]
    assert [one.kind for one in records].count("input") == 1
    assert (records[0].kind, records[-1].kind) == ("input", "end")
    assert AuditTrail(sink).trail(run).effects == (("clerk:pay", "done"),) * 3
    AuditTrail(sink).close()


async def test_a_hub_that_goes_on_with_a_decision_goes_on_numbering(tmp_path: Path) -> None:
    sink, url = MemorySink(), f"sqlite:///{tmp_path / 's.db'}"

    def team(*turns: Any) -> Team:
        worker = clerk(Till(), "").replace(model=ScriptedModel(turns))
        return Team([worker], sequence(["clerk"]), name="desk", guards=unsure("doubt", sink))

    async with await Hub.open(url, serve=[one := team(ANSWER)]) as hub:
        session = await hub.session(one, id="s", ttl=None)
        await session.send("user", "go")
        [question] = (await session.settled()).interrupts
    async with await Hub.open(url, serve=[team()]) as hub:
        session = await hub.get("s")
        await session.decide(question, "approve")
        await session.settled()
        told = [one for one in await session.history() if one.event_type == EV_AUDIT]
    [run] = sink.runs()
    kinds = [one.kind for one in sink.read(run)]
    assert kinds == ["input", "model", "settled", "gate", "decision", "human", "end"]
    assert [one.event_data["kind"] for one in told] == ["decision"]


async def test_retries_are_told_with_their_cause_in_the_log_too() -> None:
    desk = Agent("desk", model=ScriptedModel([Fault.server_error(), ANSWER]))
    with Hurried().installed() as clock:
        guards = watched(deadlines=Deadlines(None, None, None))
        async with held(Team([desk], sequence(["desk"]), guards=guards), clock=clock) as session:
            await after(session, "user", "go")
            told = [one for one in await session.history() if one.event_type == EV_AUDIT]
    [retry] = [one.event_data for one in told]
    assert (retry["guard"], retry["action"], retry["evidence"]["retry"]) == ("retry", "allow", 1)
    assert retry["cause"] == "the provider failed: InternalServerError 500"


async def test_a_session_is_undone_and_ends_though_it_can_never_be_recorded_again() -> None:
    """Its log has what is undone, also where the trail stays away."""
    till, sink = Till(), Failing(after=5)
    model = ScriptedModel([call("pay", item="tea"), "never"])
    agent = solo(model, till.tool)
    async with held(Team([agent], sequence(["a"]), guards=regulated(sink))) as session:
        state = await after(session, "user", "go")
    assert (state.status, state.pending_close_reason) == ("closed", "audit")
    assert (till.tries, till.left) == (["pay tea", "give back tea"], [])


async def test_who_is_cancelled_is_cancelled_whatever_becomes_of_the_trail() -> None:
    entered = asyncio.Event()
    sink = Failing(after=2)

    async def turn(messages: Any) -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    running = asyncio.create_task(solo(ScriptedModel(turn), guards=regulated(sink)).ainvoke("go"))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [one.kind for one in recorded(sink)] == ["input", "model"]
