"""What a flow does when a stage fails: a new plan, a human, or its end, by class and tier."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agentgraph import Agent
from agentgraph.flow import Brief, Flow, FlowResult, Plan, Stage, Summary, Verdict, mast_of
from agentgraph.guards import (
    Cell,
    CircuitBreaker,
    CostBudget,
    Decision,
    DecisionTable,
    FailureClass,
    Gate,
    Guards,
    MemorySink,
    StepLimit,
)
from agentgraph.stream import GuardEvent
from agentgraph.testing import Fault, ScriptedModel, call
from tests.flow.planned_work import (
    flow_of,
    guarded,
    lead,
    plan,
    requests,
    stages_of,
    verdict,
    worker,
)
from tests.guards.guarded_agents import audited

TIERS = ("interactive", "batch", "regulated")
BAD = verdict(False, 0.9, "no sources")


def again(*turns: Any, times: int = 4) -> list[Any]:
    """Return the turns of a supervisor, attempt after attempt."""
    return [turn for _ in range(times) for turn in turns]


async def test_rejected_result_is_planned_anew_with_its_problems_and_then_aborted() -> None:
    flow = flow_of(*again(plan("a"), "weak", BAD))
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class, result.replans) == ("aborted", "schema_failure", 2)
    planned = [text for text in requests(flow.supervisor) if text.startswith("Plan the work")]
    assert ["no sources" in text for text in planned] == [False, True, True]
    assert "no sources" in result.text


async def test_plan_that_is_mended_goes_on() -> None:
    flow = flow_of(plan("a"), "weak", BAD, plan("a", "b"), "strong", verdict())
    result = await flow.ainvoke("go")
    assert (result.status, result.text, result.replans) == ("finished", "strong", 1)
    told = await stages_of(flow_of(plan("a"), "weak", BAD, plan("a", "b"), "strong", verdict()))
    assert ("validate", "", "replanned") in told


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (call("Plan", briefs=[]), "no briefs"),
        (plan("nobody"), "who is no worker"),
        (plan("a", requires=["b"]), "who has no brief"),
        (call("Plan", briefs=[{"worker": "a"}]), "task"),
    ],
)
async def test_malformed_plan_is_mended_or_ends_the_flow_by_tier(bad: Any, text: str) -> None:
    result = await flow_of(bad, bad, bad, guards=guarded("interactive")).ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "spec_malformed")
    assert text in result.text
    # A plan that misses its schema is asked for again by the planner itself, without a critic.
    criticized = [] if text == "task" else [verdict()]
    flow = flow_of(bad, plan("a"), *criticized, "ok", verdict())
    assert (await flow.ainvoke("go")).status == "finished"
    result = await flow_of(bad, guards=guarded("regulated")).ainvoke("go")
    assert result.status != "finished"


@pytest.mark.parametrize(
    ("failing", "failure_class"),
    [
        (Fault.server_error(), "provider_error"),
        ("", "schema_failure"),
    ],
)
async def test_worker_that_fails_takes_no_other_with_it(
    failing: Any, failure_class: FailureClass
) -> None:
    a, b = worker("a", *[failing] * 20), worker("b")
    flow = flow_of(*again(plan("a", "b"), "ok", verdict()), work=[a, b])
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) in {
        ("aborted", failure_class),
        ("waiting", None),
    }
    by_worker = {report.worker: report.output for report in result.stages if report.worker}
    assert by_worker["a"] is None
    assert by_worker["b"]["text"] == "b is done"


async def test_function_that_raises_is_a_failed_worker() -> None:
    def broken(brief: Brief) -> Summary:
        raise RuntimeError("broken")

    flow: Flow[Any] = Flow("f", work=[broken], guards=guarded())
    result = await flow.ainvoke("go")
    assert result.status == "aborted"
    assert "broken" in result.text


async def test_low_confidence_asks_a_human_and_tries_nothing_anew() -> None:
    flow = flow_of(plan("a"), "doubtful", verdict(True, 0.2))
    result = await flow.ainvoke("go", thread_id="t")
    assert (result.status, result.replans) == ("waiting", 0)
    [question] = result.interrupts
    assert question.payload["answer"] == "doubtful"
    result = await flow.aresume("t", {question.id: {"type": "approve"}})
    assert (result.status, result.text) == ("finished", "doubtful")


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ({"type": "reject"}, "aborted", ""),
        ({"type": "edit", "edited": {"text": "edited"}}, "finished", "edited"),
        ({"type": "respond", "message": "mine"}, "finished", "mine"),
    ],
)
async def test_human_decides_on_a_doubtful_result(answer: Any, status: str, text: str) -> None:
    flow = flow_of(plan("a"), "doubtful", verdict(True, 0.2))
    result = await flow.ainvoke("go", thread_id="t")
    result = await flow.aresume("t", {result.interrupts[0].id: answer})
    assert result.status == status
    assert text in result.text


async def test_regulated_flow_asks_a_human_about_a_rejected_result() -> None:
    flow = flow_of(*again(plan("a"), "weak", BAD), guards=guarded("regulated"))
    result = await flow.ainvoke("go", thread_id="t")
    assert result.status == "waiting"
    result = await flow.aresume("t", {result.interrupts[0].id: {"type": "reject"}})
    assert (result.status, result.failure_class) == ("aborted", "schema_failure")


async def test_same_plan_that_fails_for_the_same_reasons_is_no_progress() -> None:
    table = DecisionTable({("schema_failure", "batch"): Cell("replan", 9, "abort")})
    flow = flow_of(*again(plan("a"), "weak", BAD), guards=guarded(replans=9, decisions=table))
    result = await flow.ainvoke("go", thread_id="t")
    assert (result.status, result.replans) == ("waiting", 2)
    assert result.interrupts[0].payload["failure_class"] == "no_progress"


async def test_critic_judges_each_plan_before_its_gate() -> None:
    asked: list[Plan] = []

    def critic(planned: Plan) -> Verdict:
        asked.append(planned)
        return Verdict(accepted=len(planned.briefs) > 1, problems=("too small",))

    flow = flow_of(plan("a"), plan("a", "b"), "ok", verdict(), critic=critic)
    result = await flow.ainvoke("go")
    assert (result.status, result.replans, len(asked)) == ("finished", 1, 2)
    assert "too small" in requests(flow.supervisor)[1]


async def test_plan_after_a_malformed_one_is_judged_by_the_supervisor_without_a_critic() -> None:
    flow = flow_of(
        plan("nobody"), plan("a"), verdict(False, 0.9, "too small"), plan("a", "b"), verdict(),
        "weak", verdict(False, 0.9, "no sources"),
    )  # fmt: skip
    result = await flow.ainvoke("go")
    asked = requests(flow.supervisor)
    assert ["Judge whether it can lead" in text for text in asked[:6]] == [
        False, False, True, False, True, False,
    ]  # fmt: skip
    assert "who is no worker" in asked[1] and "too small" in asked[3]
    assert (result.status, result.replans) == ("aborted", 2)
    flow = flow_of(plan("a"), "weak", verdict(False), plan("a"), "ok", verdict())
    assert (await flow.ainvoke("go")).status == "finished"  # no plan was malformed, no critic asked


@pytest.mark.parametrize("tier", TIERS)
async def test_worker_whose_model_went_round_although_corrected_is_no_reason_for_a_plan(
    tier: Any,
) -> None:
    def look(what: str) -> str:
        """Look."""
        return "nothing"

    a = worker("a", *[call("look", what="it")] * 60, tools=[look])
    flow = flow_of(plan("a", "b"), work=[a, worker("b")], guards=guarded(tier))
    result = await flow.ainvoke("go")
    assert result.replans == 0
    if tier == "regulated":
        assert result.interrupts[0].payload["failure_class"] == "infinite_loop"
    else:
        assert (result.status, result.failure_class) == ("aborted", "infinite_loop")


async def test_rules_of_a_stage_decide_on_its_failures() -> None:
    def ruled(judged: Any, **fields: Any) -> Flow[Any]:
        stages = {"validate": Stage(guards=Guards(**fields))}
        return flow_of(*again(plan("a"), "weak", judged), stages=stages)

    asking = {("schema_failure", "batch"): Cell("escalate")}
    result = await ruled(BAD, decisions=asking).ainvoke("go")
    assert (result.status, result.replans) == ("waiting", 0)
    result = await ruled(BAD, replans=0).ainvoke("go")
    assert (result.status, result.replans) == ("aborted", 0)
    result = await ruled(verdict(True, 0.3), escalation=0.2).ainvoke("go")
    assert (result.status, result.text) == ("finished", "weak")
    result = await ruled(verdict(True, 0.8), escalation=0.9).ainvoke("go")
    assert result.status == "waiting"


@pytest.mark.parametrize("stage", ["fan_out", "broken"])
async def test_rules_of_the_work_or_of_a_worker_decide_on_its_failures(stage: str) -> None:
    def broken(brief: Brief) -> str:
        raise RuntimeError("broken")

    async def ruled(**fields: Any) -> FlowResult[Any]:
        stages = {stage: Stage(guards=Guards(**fields))}
        flow: Flow[Any] = Flow(
            "f", work=[broken, worker("b")], stages=stages, guards=guarded("interactive")
        )
        return await flow.ainvoke("go")

    failure_class = (await ruled()).failure_class
    assert failure_class is not None
    asking = {(failure_class, "interactive"): Cell("escalate")}
    assert (await ruled(decisions=asking)).status == "waiting"
    assert (await ruled(replans=0)).replans == 0 < (await ruled()).replans


async def test_guards_of_the_work_hold_for_all_workers() -> None:
    gates = Gate(policy=lambda subject: "poison" not in subject.text)
    stages = {"fan_out": Stage(guards=Guards(gates=gates))}
    flow = flow_of(plan("a", "b"), "poison", verdict(), stages=stages)
    assert (await flow.ainvoke("go")).text == "poison"
    flow = flow.replace(work=[worker("a", *["poison"] * 9), worker("b")],
                        supervisor=lead(*again(plan("a", "b"), "ok", verdict())))  # fmt: skip
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "unsafe_output")


@pytest.mark.parametrize("where", ["stages", "guards"])
async def test_limits_of_a_worker_are_its_own(where: str) -> None:
    def look(what: str) -> str:
        """Look."""
        return f"{what} seen"

    own = Guards(steps=StepLimit(3, total=3))
    a = worker("a", *[call("look", what=str(n)) for n in range(60)], tools=[look])
    fields: dict[str, Any] = {"guards": guarded("interactive", replans=0)}
    if where == "stages":
        fields["stages"] = {"a": Stage(guards=own)}
    else:
        fields["guards"] = guarded("interactive", replans=0, stages={"a": own})
    flow: Flow[Any] = Flow("f", work=[a, worker("b")], **fields)
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "infinite_loop")
    assert len(requests(a)) <= 3
    outputs = {report.worker: report.output for report in result.stages if report.worker}
    assert outputs["b"]["text"] == "b is done"


async def test_oracle_that_raises_says_nothing_and_the_outcome_stands() -> None:
    def oracle(outcome: Any) -> bool:
        raise RuntimeError("no network")

    sink = MemorySink()
    flow = flow_of(plan("a"), "ok", verdict(), oracle=oracle, guards=guarded(sink=sink))
    result = await flow.ainvoke("go")
    assert (result.status, result.text, result.success) == ("finished", "ok", None)
    [failed] = [v for r in result.stages for v in r.verdicts if not v.passed]
    assert (failed.gate, failed.check) == ("finalize:after", "oracle")
    assert "no network" in failed.problems[0]
    assert ("report/finalize", "oracle", "allow") in audited(sink)


async def test_safe_answer_takes_the_place_of_an_unsafe_result() -> None:
    breaker = CircuitBreaker(fallback=AIMessage("Please ask our staff."))
    stages = {"fan_in": Stage(after=Gate(policy=lambda subject: "poison" not in subject.text))}
    guards = guarded("interactive", breaker=breaker)
    flow = flow_of(plan("a"), "poison", stages=stages, guards=guards)
    result = await flow.ainvoke("go")
    assert (result.status, result.reason) == ("finished", "fallback")
    assert result.text == "Please ask our staff."
    told = await stages_of(flow_of(plan("a"), "poison", stages=stages, guards=guards))
    assert told[-2:] == [("fan_in", "", "failed"), ("fan_in", "", "finished")]


async def test_decisions_events_and_usage_name_a_worker_by_one_path() -> None:
    sink = MemorySink()
    a = worker("a", *[Fault.server_error()] * 20)
    flow = flow_of(plan("a"), work=[a], guards=guarded(sink=sink))
    events = [event async for event in flow.astream("go")]
    decided = {agent for agent, _, _ in audited(sink)}
    assert decided == {"report/fan_out/a", "report/fan_in"}
    told = {event.agent for event in events if isinstance(event, GuardEvent)}
    assert "report/fan_out/a" in told


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("stage", ["plan", "fan_out", "fan_in", "validate", "finalize", "a"])
async def test_gate_of_any_stage_stops_what_does_not_pass(stage: str, side: str) -> None:
    def refuse(subject: Any) -> str:
        return f"not at {stage}"

    gate: Any = {side: Gate(invariants=[refuse])}
    flow = flow_of(*again(plan("a"), "ok", verdict()), stages={stage: Stage(**gate)})
    result = await flow.ainvoke("go", thread_id="t")
    assert result.status != "finished"
    failed = [v for report in result.stages for v in report.verdicts if not v.passed]
    assert failed or stage == "a"


async def test_required_artifacts_must_be_there() -> None:
    stages, guards = {"validate": Stage(requires=("sources",))}, guarded("interactive")
    flow = flow_of(*again(plan("a"), "ok", verdict()), stages=stages, guards=guards)
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "spec_malformed")
    assert "'sources' is required" in result.text


async def test_fifty_briefs_on_a_budget_for_fewer_never_overspend() -> None:
    spent = 0

    def plan_all(task: str, problems: list[str]) -> Plan:
        return Plan(briefs=tuple(Brief(worker="a", task=f"part {n}") for n in range(50)))

    a = worker("a")
    flow: Flow[Any] = Flow(
        "f", work=[a], plan=plan_all, guards=guarded(budget=CostBudget(tokens=2_000))
    )
    result = await flow.ainvoke("go")
    spent = result.usage.total_tokens
    assert spent <= 2_000
    assert (result.status, result.failure_class) == ("aborted", "cost_overrun")
    done = [r for r in result.stages if r.worker and r.output is not None]
    left = [r for r in result.stages if r.worker and r.output is None]
    assert done and left


async def test_every_decision_is_on_record() -> None:
    sink = MemorySink()
    await flow_of(*again(plan("a"), "weak", BAD), guards=guarded(sink=sink)).ainvoke("go")
    decided = [(guard, action) for _, guard, action in audited(sink)]
    assert decided == [("validate", "replan"), ("validate", "replan"), ("validate", "abort")]
    kinds = [r.data["status"] for run in sink.runs() for r in sink.read(run) if r.kind == "stage"]
    assert kinds.count("replanned") == 2 and kinds.count("aborted") == 1


def test_each_failure_class_has_a_category() -> None:
    assert mast_of("spec_malformed") == "specification"
    assert mast_of("deadlock") == "inter_agent"
    assert mast_of("schema_failure") == "verification"
    assert Decision("abort", "x", failure_class="deadlock").failure_class == "deadlock"


async def test_many_workers_with_many_steps_each_are_healthy_work() -> None:
    def plan_all(task: str, problems: list[str]) -> Plan:
        return Plan(briefs=tuple(Brief(worker="a", task=f"part {n}") for n in range(60)))

    def turn(messages: Any) -> Any:
        calls = sum(message.type == "tool" for message in messages)
        return call("look", what=f"{messages[-1].text} {calls}") if calls < 11 else "done"

    flow: Flow[Any] = Flow("f", work=[looking("a", turn)], plan=plan_all, guards=guarded())
    result = await flow.ainvoke("go")
    assert result.status == "finished"
    assert sum(report.worker == "a" for report in result.stages) == 60


async def test_worker_in_a_loop_is_ended_and_no_other() -> None:
    def turn(messages: Any) -> Any:
        return call("look", what="it")

    stuck = looking("stuck", turn)
    flow: Flow[Any] = Flow("f", work=[stuck, worker("b")], guards=guarded(replans=0))
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "infinite_loop")
    assert len(requests(stuck)) <= 10
    outputs = {report.worker: report.output for report in result.stages if report.worker}
    assert outputs["b"]["text"] == "b is done"


def looking(name: str, turn: Any) -> Agent[Any]:
    """Return a worker with a tool, whose model follows `turn`."""

    def look(what: str) -> str:
        """Look."""
        return f"{what} seen"

    return Agent(name, model=ScriptedModel(turn), tools=[look], default_tools=False)
