"""Humans in a flow: what they may decide at each stage, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt
from pydantic import BaseModel

from agentgraph import Team, sequence
from agentgraph.flow import Brief, Flow, FlowResult, Stage, Verdict
from agentgraph.guards import Escalation, Gate
from agentgraph.testing import FakeClock, call
from tests.flow.planned_work import flow_of, guarded, plan, reports, requests, verdict, worker

REJECTED = verdict(False, 0.9, "no sources")


class Page(BaseModel):
    title: str


def refuses(word: str) -> Gate:
    """Return a gate that a text with a word does not pass."""
    return Gate(invariants=[lambda subject: word not in subject.text or f"it has {word}"])


def edit(text: Any) -> dict[str, Any]:
    return {"type": "edit", "edited": text}


async def decided(
    flow: Flow[Any], *answers: Any, failure_class: str = "schema_failure"
) -> FlowResult[Any]:
    """Run a flow, and give these answers to the questions that it asks one after the other."""
    result = await flow.ainvoke("go", thread_id="t")
    for answer in answers:
        assert result.status == "waiting", result
        [question] = result.interrupts
        assert question.payload["failure_class"] == failure_class
        result = await flow.aresume("t", {question.id: answer})
    return result


def once_broken(name: str) -> Any:
    """Return a worker that fails the first time."""
    runs: list[str] = []

    def work(brief: Brief) -> str:
        runs.append(brief.task)
        if len(runs) == 1:
            raise RuntimeError("broken")
        return f"{name} is done"

    work.__name__ = name
    return work


@pytest.mark.parametrize("topology", ["supervisor", "sop"])
async def test_approval_after_a_failed_worker_repeats_that_worker_alone(topology: Any) -> None:
    b = worker("b")
    flow: Flow[Any] = Flow(
        "f", work=[b, once_broken("a")], topology=topology, guards=guarded("regulated")
    )
    result = await decided(flow, "approve")
    assert (result.status, result.text) == ("finished", "b is done\n\na is done")
    assert len(requests(b)) == 1


@pytest.mark.parametrize("answer", [edit("by hand"), {"type": "respond", "message": "by hand"}])
async def test_result_that_a_human_gives_for_failed_workers_is_validated(answer: Any) -> None:
    judged: list[Any] = []

    def judge(aggregate: Any) -> Verdict:
        judged.append(aggregate)
        return Verdict(accepted=True)

    stages = {"fan_in": Stage(after=refuses("poison"))}
    flow: Flow[Any] = Flow(
        "f", work=[once_broken("a")], validate=judge, stages=stages, guards=guarded("regulated")
    )
    result = await decided(flow, edit("poison"), answer)
    assert (result.status, result.text) == ("finished", "by hand")
    assert judged == ["by hand"]


async def test_edit_and_approval_of_a_doubtful_result_pass_its_gate() -> None:
    def doubtful() -> Flow[Any]:
        stages = {"validate": Stage(after=refuses("poison"))}
        turns = [plan("a"), "poison", verdict(True, 0.2)]
        return flow_of(*turns, stages=stages, guards=guarded("interactive", replans=0))

    for answer in (edit("more poison"), "approve", {"type": "respond", "message": "poison"}):
        result = await decided(doubtful(), answer, failure_class="unsafe_output")
        assert (result.status, result.failure_class) == ("aborted", "schema_failure")
        assert "it has poison" in result.text
    result = await decided(doubtful(), edit("clean"), failure_class="unsafe_output")
    assert (result.status, result.text) == ("finished", "clean")


async def test_human_mends_a_plan_that_passes_its_gate_again() -> None:
    flow = flow_of(plan("nobody"), plan("nobody"), plan("nobody"), "ok", verdict())
    mended = {"briefs": [{"worker": "a", "task": "by hand"}]}
    unknown = {"briefs": [{"worker": "nobody", "task": "by hand"}]}
    result = await decided(flow, edit(unknown), edit(mended), failure_class="spec_malformed")
    assert (result.status, result.text) == ("finished", "ok")
    assert requests(flow.workers["a"]) == ["by hand"]


async def test_words_of_a_human_on_a_plan_are_for_the_planner() -> None:
    bad = plan("nobody")
    flow = flow_of(bad, bad, bad, plan("a"), "ok", verdict())
    answer = {"type": "respond", "message": "give all to a"}
    result = await decided(flow, answer, failure_class="spec_malformed")
    assert result.status == "finished"
    assert "give all to a" in requests(flow.supervisor)[3]


async def test_human_mends_a_plan_that_the_gate_of_the_work_refuses() -> None:
    stages = {"fan_out": Stage(before=refuses("poison"))}
    flow = flow_of(plan("a", inputs={"x": "poison"}), "ok", verdict(), stages=stages,
                   guards=guarded("regulated"))  # fmt: skip
    mended = {"briefs": [{"worker": "a", "task": "by hand"}]}
    result = await decided(flow, edit(mended))
    assert (result.status, result.text) == ("finished", "ok")
    assert requests(flow.workers["a"]) == ["by hand"]


async def test_outcome_that_a_human_gives_fits_the_schema_and_passes_the_gate() -> None:
    page = call("Page", title="poison")
    stages = {"finalize": Stage(after=refuses("poison"))}
    flow = flow_of(plan("a"), "text", verdict(), page, outcome=Page, stages=stages,
                   guards=guarded("regulated"))  # fmt: skip
    answers = [edit({"nothing": 1}), edit({"title": "poison"}), edit({"title": "Tides"})]
    result = await decided(flow, *answers)
    assert (result.status, result.outcome) == ("finished", Page(title="Tides"))


async def test_approval_of_a_rejected_result_asks_the_judge_again() -> None:
    flow = flow_of(plan("a"), "weak", REJECTED, verdict(), guards=guarded("regulated"))
    result = await decided(flow, "approve")
    assert (result.status, result.text, result.replans) == ("finished", "weak", 0)
    assert [report[0] for report in reports(result)].count("validate") == 2


async def test_human_is_shown_what_the_gate_has_refused() -> None:
    stages = {"fan_in": Stage(after=refuses("poison"))}
    flow = flow_of(plan("a"), "poison", stages=stages, guards=guarded("regulated"))
    [question] = (await flow.ainvoke("go")).interrupts
    assert question.payload["answer"] == "poison"


@pytest.mark.parametrize("answer", ["approve", edit("mine")])
async def test_decision_that_comes_too_late_is_a_denial(answer: Any, tmp_path: Path) -> None:
    with FakeClock().installed() as clock:
        guards = guarded(escalation=Escalation(0.7, ttl_s=60))
        flow = flow_of(plan("a"), "doubtful", verdict(True, 0.2), guards=guards,
                       checkpointer=f"sqlite:///{tmp_path / 'flows.db'}")  # fmt: skip
        [question] = (await flow.ainvoke("go", thread_id="t")).interrupts
        clock.advance(61)
        result = await flow.aresume("t", {question.id: answer})
    assert (result.status, result.reason) == ("aborted", "escalation_timeout")
    assert "nobody decided" in result.text


async def test_time_in_which_a_human_thinks_does_not_count() -> None:
    with FakeClock().installed() as clock:
        flow = flow_of(plan("a"), "doubtful", verdict(True, 0.2), guards=guarded("interactive"))
        [question] = (await flow.ainvoke("go", thread_id="t")).interrupts
        clock.advance(5_000)
        result = await flow.aresume("t", {question.id: "approve"})
    assert result.status == "finished"


async def test_answer_that_is_none_is_asked_for_again_with_what_is_wrong() -> None:
    flow = flow_of(plan("a"), "doubtful", verdict(True, 0.2))
    [question] = (await flow.ainvoke("go", thread_id="t")).interrupts
    result = await flow.aresume("t", {question.id: {"type": "perhaps"}})
    assert result.status == "waiting"
    [question] = result.interrupts
    assert "give" in question.payload["error"]
    result = await flow.aresume("t", {question.id: "approve"})
    assert result.status == "finished"


async def test_answer_of_a_worker_that_a_human_rejects_ends_the_flow() -> None:
    gates = Gate(policy=lambda subject: "poison" not in subject.text)
    work = [worker("a", "poison"), worker("b", "poison")]
    flow: Flow[Any] = Flow("f", work=work, guards=guarded("regulated", gates=gates))
    first, second = (await flow.ainvoke("go", thread_id="t")).interrupts
    result = await flow.aresume("t", {first.id: edit("clean")})
    assert [question.id for question in result.interrupts] == [second.id]
    result = await flow.aresume("t", {second.id: "reject"})
    assert (result.status, result.failure_class) == ("aborted", "unsafe_output")
    assert "a human has rejected it" in result.text


@pytest.mark.parametrize(("answer", "status"), [("reject", "aborted"), (edit("clean"), "finished")])
async def test_decision_on_an_inner_flow_is_asked_for_once(answer: Any, status: str) -> None:
    inner = flow_of(plan("a"), "doubtful", verdict(True, 0.2))
    flow: Flow[Any] = Flow("outer", work=[inner], guards=guarded())
    result = await decided(flow, answer, failure_class="unsafe_output")
    assert result.status == status
    assert ("clean" in result.text) == (status == "finished")


async def test_questions_of_functions_teams_and_flows_are_the_flows() -> None:
    def buy(item: str) -> str:
        """Buy."""
        return f"bought {interrupt({'buy': item})}"

    def ask(brief: Brief) -> str:
        return f"told {interrupt({'buy': 'function'})}"

    def asking(name: str) -> Any:
        return worker(name, call("buy", item=name), f"{name} is done", tools=[buy])

    team = Team([asking("t1"), worker("t2")], sequence(["t1", "t2"]), name="team")
    inner: Flow[Any] = Flow("inner", work=[asking("x")])
    flow: Flow[Any] = Flow("f", work=[ask, team, inner], guards=guarded())
    result = await flow.ainvoke("go", thread_id="t")
    asked = {question.payload["buy"]: question.id for question in result.interrupts}
    assert {*asked} == {"function", "t1", "x"}
    result = await flow.aresume("t", dict.fromkeys(asked.values(), "yes"))
    assert (result.status, result.text) == ("finished", "told yes\n\nt2 is done\n\nx is done")
