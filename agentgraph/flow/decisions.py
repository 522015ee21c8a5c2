"""What follows from a failure of a stage: a new plan, a human's decision, or the end.

The decision table says it by the class of the failure and by the tier. Nothing is tried again,
escalated or ended in silence: each decision is recorded before it takes effect, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage
from langgraph.graph import END
from langgraph.types import Overwrite
from pydantic_core import from_json, to_json

from agentgraph.flow.result import mast_of
from agentgraph.flow.stage_run import StageRun
from agentgraph.flow.stages.failure import StageFailure, class_of_guard
from agentgraph.flow.state import Ask, FlowState, HumanValue, aborted_end, finished_end
from agentgraph.guards import Decision, DecisionTable, FailureClass, Tier
from agentgraph.guards.mechanisms.canonical import digest
from agentgraph.guards.mechanisms.escalation import CONFIDENCE
from agentgraph.guards.nodes.human import question
from agentgraph.guards.nodes.site import close
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account

ESCALATE = "escalate"
_CHECKS = {"fan_in": "fan_in", "validate": "validate_gate", "finalize": "finalize"}
"""The node that checks what a human gives in place of what a stage makes."""
_SAME_STATES = 3
"""How often the same plan may fail with the same result for the same reasons: no progress."""
_NEW_PLAN = frozenset({"correct", "replan"})


@dataclass(frozen=True, slots=True)
class NextStep:
    """Where the flow goes on, and what is written to its state."""

    goto: str
    update: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides on the failures of one stage, or of one worker."""

    tier: Tier = "batch"
    table: DecisionTable = field(default_factory=DecisionTable)
    replans: int = 2
    """How many new plans an input may have."""
    threshold: float = 0.0
    """The confidence below which a human is asked."""
    fallback: AIMessage | None = None
    """The safe answer in place of an outcome that must not be shown."""

    @classmethod
    def of(cls, policy: Policy | None) -> Rules:
        """Return the rules of a policy; without guards nobody is asked."""
        if policy is None:
            return cls()
        fallback = policy.breaker.fallback if policy.breaker is not None else None
        return cls(
            policy.tier,
            policy.table,
            policy.replans.replans,
            policy.escalation.threshold,
            fallback if isinstance(fallback, AIMessage) else None,
        )


def check_confidence(stage: StageRun, confidence: float) -> None:
    """Raise where a verdict is too unsure: a human is asked then, and nothing is tried anew."""
    threshold = Rules.of(None if stage.site is None else stage.site.policy).threshold
    is_low = confidence < threshold
    cause = f"the confidence is {confidence:g}, and {threshold:g} is needed"
    stage.note("after", "confidence", [cause] if is_low else (), confidence)
    if is_low:
        evidence = {"confidence": confidence, "threshold": threshold}
        raise StageFailure("unsafe_output", CONFIDENCE, cause, [cause], evidence)


def headroom(stage: StageRun) -> str:
    """Return what may still be spent, in words."""
    if stage.site is None:
        return ""
    parts = []
    for spend in stage.site.account.spends_under(stage.site.policy):
        budget = spend.budget
        if budget is not None and budget.tokens is not None:
            parts.append(f"{max(0, budget.tokens * spend.grants - spend.tokens):,} tokens")
        if budget is not None and budget.dollars is not None:
            parts.append(f"${max(0, budget.dollars * spend.grants - spend.usd)}")
    return " and ".join(parts)


async def decide(stage: StageRun, state: FlowState, failure: StageFailure) -> NextStep:
    """Decide on a failure, record it, and say where the flow goes on."""
    failed_states = [*(state.get("failed_states") or ()), _state_of(state, failure)]
    rules = Rules.of(stage.policy_for(failure))
    decision = _decision(rules, state, failure, failed_states)
    mast = mast_of(decision.failure_class or "schema_failure")
    verdict = {"passed": False, "problems": [*failure.problems], "mast": mast}
    await stage.tell("failed", verdict)
    if stage.site is not None:
        decision = await stage.site.decide(decision)
    about = {**verdict, "cause": decision.cause}
    if decision.action in _NEW_PLAN:
        await stage.tell("replanned", about)
        attempt = (state.get("attempt") or 1) + 1
        update = {"attempt": attempt, "problems": [*failure.problems], "human_value": None}
        update["needs_critic"] = decision.failure_class == "spec_malformed"
        return NextStep("plan", {**update, "failed_states": failed_states})
    if decision.action == "escalate" and stage.site is not None:
        await stage.tell("escalated", about)
        return _escalation(stage, decision)
    if decision.action == "fallback" and rules.fallback is not None:
        await stage.tell("finished", {**about, "fallback": True})
        return NextStep(END, {"end": finished_end("fallback", None, str(rules.fallback.text))})
    await stage.tell("aborted", about)
    return _aborted_step(stage, decision)


def _escalation(stage: StageRun, decision: Decision) -> NextStep:
    assert stage.site is not None
    stage.site.account.may_ask = True
    value = stage.output
    text = value if isinstance(value, str) else "" if value is None else _json(value)
    ask = Ask(stage=stage.name, value=value, failure_class=decision.failure_class)
    human = question(stage.site, decision, text)
    return NextStep(ESCALATE, {"ask": ask, "human": human})


def _aborted_step(stage: StageRun, decision: Decision) -> NextStep:
    if stage.site is not None:
        close(stage.site.account, decision.reason, decision.cause)
    end = aborted_end(decision.reason, decision.cause, decision.failure_class)
    return NextStep(END, {"end": end})


def ended_by(guard: str, account: Account, failure_class: str = "") -> NextStep:
    """Return the end of a flow that a guard around it, or a human, has ended."""
    failure_class = failure_class or class_of_guard(guard)
    return NextStep(END, {"end": aborted_end(guard, account.closed_because, failure_class)})


# After a human's decision.


def after_human(
    state: FlowState, ask: Ask, answer: Mapping[str, Any] | None, account: Account
) -> NextStep:
    """Return where the flow goes on after a human's answer; None has rejected it.

    What a human gives in place of what a stage makes passes the gate behind that stage.
    """
    stage = ask["stage"]
    if answer is None:
        guard = account.closed_by or CONFIDENCE
        return ended_by(guard, account, ask["failure_class"])
    if not answer:  # an approval after a failure: the stage runs once more, with new limits
        return _repetition_of(stage, state)
    by, text = answer["by"], str(answer["text"])
    value = ask["value"] if by == "approve" else _read(text) if by == "edit" else text
    if stage in _CHECKS:
        return NextStep(_CHECKS[stage], {"human_value": HumanValue(stage=stage, value=value)})
    if by == "respond":  # words on a plan are for the planner
        return NextStep("plan", {"problems": [text], "needs_critic": False})
    return NextStep("plan_gate", {"plan": value, "needs_critic": False})


def _decision(
    rules: Rules, state: FlowState, failure: StageFailure, failed_states: Sequence[str]
) -> Decision:
    if failure.guard == CONFIDENCE or failure.is_rejected:
        # A doubt is for a human, and what a human has rejected has come to its end.
        action: Literal["abort", "escalate"] = "abort" if failure.is_rejected else "escalate"
        grounds = {**failure.evidence, "mast": mast_of(failure.failure_class)}
        return Decision(action, failure.guard, failure.cause, failure.failure_class, grounds)
    decision = _by_table(rules, failure.failure_class, state, failure)
    same = failed_states.count(failed_states[-1])
    if decision.action in _NEW_PLAN and same >= _SAME_STATES:
        return _by_table(rules, "no_progress", state, failure)
    return decision


def _by_table(
    rules: Rules, failure_class: FailureClass, state: FlowState, failure: StageFailure
) -> Decision:
    replans = (state.get("attempt") or 1) - 1
    cell = rules.table.cell(failure_class, rules.tier)
    is_possible = cell.action != "fallback" or rules.fallback is not None
    if failure_class == "infinite_loop" and cell.action == "correct":
        is_possible = False  # the guards have corrected the model that goes round
    if cell.action in _NEW_PLAN and replans >= rules.replans:
        is_possible = False
    return rules.table.decide(
        failure_class,
        rules.tier,
        made=replans,
        possible=is_possible,
        guard=failure.guard,
        cause=failure.cause,
        evidence={**failure.evidence, "mast": mast_of(failure_class)},
    )


def _repetition_of(stage: str, state: FlowState) -> NextStep:
    """Return the step by which a stage runs once more; of the work, what has failed is repeated."""
    if stage != "fan_in":
        return NextStep(stage)
    entries = state.get("entries") or {}
    rest = {key: entry for key, entry in entries.items() if not entry.get("failure")}
    return NextStep("fan_out", {"entries": Overwrite(rest)})


def _state_of(state: FlowState, failure: StageFailure) -> str:
    return digest([state.get("plan"), state.get("aggregate"), [*failure.problems]])[:32]


def _json(value: object) -> str:
    return to_json(value, fallback=str).decode()


def _read(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text
