"""Answers that do not pass: tried again as often as the tier says, then what its table says."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from pydantic import BaseModel

from agentgraph import Agent, Guards, Team, sequence
from agentgraph.guards import Cell, CircuitBreaker, CostBudget, DecisionTable, Gate, Subject
from agentgraph.guards.decision import Tier
from agentgraph.guards.mechanisms.gates.grounding import numbers_found
from agentgraph.outcomes import Interrupt
from agentgraph.stream import AIMessageEvent, TokenEvent
from agentgraph.testing import ScriptedModel, Turn, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import words_of
from tests.guards.metered_models import actions, asked, told, worker
from tests.sessions.talk import after, held
from tests.wire import call as call_on_wire
from tests.wire import chat_openai, serve, text


class Total(BaseModel):
    """What an answer has to be."""

    total: int


def is_polite(subject: Subject) -> str | None:
    return None if "please" in subject.text else "an answer says please"


def is_harmless(subject: Subject) -> str | None:
    return "nobody may read that" if "secret" in subject.text else None


GOOD = '{"total": 7}'
GATES: dict[str, tuple[Gate, tuple[str, str, str], str]] = {
    "schema": (Gate(schema=Total), ("seven", '{"total": "many"}', "{"), GOOD),
    "invariant": (Gate(invariants=[is_polite]), ("No.", "Never.", "Go."), "No, please."),
    "grounding": (Gate(grounding=numbers_found()), ("It is 5.", "It is 6.", "8"), "It is 7."),
}
"""A gate, answers that do not pass it, and one that does."""
SAFE = AIMessage("I cannot tell you that.")


def guards(tier: Tier, gate: Gate, **fields: Any) -> Guards:
    return Guards(tier, budget=CostBudget(tokens=100_000), velocity=None, gates=gate, **fields)


def count() -> str:
    """Count."""
    return "there are 7"


def agent(*answers: Any, guards: Guards | None, **fields: Any) -> Agent:
    """Return an agent that counts, and then gives its answers."""
    return worker("a", [call("count"), *answers], tools=[count], guards=guards, **fields)


def tries(participant: Agent) -> int:
    return asked(participant) - 1


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("tier", "most"), [("interactive", 1), ("batch", 2)])
async def test_a_stage_that_fails_is_planned_anew_as_often_as_its_tier_says(
    tier: Tier, most: int, kind: str
) -> None:
    gate, bad, good = GATES[kind]
    for failures in range(most + 1):
        mended = agent(*bad[:failures], good, guards=guards(tier, gate))
        end, decisions = await told(mended, "how many?")
        assert (end.text, end.close_reason, tries(mended)) == (good, None, failures + 1)
        action = "correct" if tier == "interactive" else "replan"
        assert actions(decisions) == [("gate", action)] * failures

    stuck = agent(*bad[: most + 1], good, guards=guards(tier, gate))
    end, decisions = await told(stuck, "how many?")
    assert (words_of(end), end.close_reason, tries(stuck)) == ("", "gate", most + 1)
    assert actions(decisions)[-1] == ("gate", "abort")
    # What is refused was said to nobody, and stands nowhere.
    assert [m for m in await stuck.ahistory("t") if isinstance(m, AIMessage) and m.text] == []


async def test_the_next_try_is_told_why_the_last_one_was_refused() -> None:
    model = ScriptedModel(["seven", GOOD])
    policy = guards("interactive", Gate(schema=Total))
    reply = await Agent("a", model=model, guards=policy).ainvoke("how many?")
    assert reply.text == GOOD
    *_, refused, why = model.requests[1].messages
    assert (refused.type, refused.text) == ("ai", "seven")
    assert (why.type, str(why.text)[:26]) == ("human", "Your answer was not accept")
    assert "1 fault against Total" in str(why.text)


async def held_by(tier: Tier, gate: Gate, *answers: str, **fields: Any) -> tuple[Agent, Interrupt]:
    """Return an agent that waits for a human, and what it asks."""
    waiting = agent(*answers, guards=guards(tier, gate, **fields))
    reply = await waiting.ainvoke("how many?", thread_id="t")
    assert (reply.text, reply.close_reason) == ("", None)
    [question] = reply.interrupts
    return waiting, question


@pytest.mark.parametrize("kind", [*GATES, "policy"])
async def test_where_stakes_are_high_a_human_is_asked_at_once(kind: str) -> None:
    policy = Gate(policy=is_harmless), ("It is secret.",), "It is 7."
    gate, bad, _ = GATES.get(kind, policy)
    waiting, question = await held_by("regulated", gate, *bad)
    assert tries(waiting) == 1
    assert isinstance(question.payload, dict)
    assert (question.payload["answer"], question.payload["guard"]) == (bad[0], "gate")
    assert question.payload["evidence"]["validation"]["passed"] is False
    expected = "unsafe_output" if kind == "policy" else "schema_failure"
    assert question.payload["failure_class"] == expected


@pytest.mark.parametrize(
    ("decision", "text", "reason"),
    [
        ("approve", GOOD, None),
        ({"type": "edit", "edited": '{"total": 8}'}, '{"total": 8}', None),
        ({"type": "respond", "message": "Ask again."}, "Ask again.", None),
        ("reject", "", "gate"),
    ],
)
async def test_what_the_human_decides_is_what_is_answered(
    decision: Any, text: str, reason: str | None
) -> None:
    waiting, question = await held_by("regulated", Gate(schema=Total), "seven", GOOD)
    reply = await waiting.aresume("t", {question.id: decision})
    assert (words_of(reply), reply.close_reason, reply.interrupts) == (text, reason, ())
    # What has failed is no answer: to approve is to let the model try once more.
    assert tries(waiting) == (2 if decision == "approve" else 1)


async def test_an_edit_has_to_pass_the_gate_too() -> None:
    waiting, question = await held_by("regulated", Gate(schema=Total), "seven")
    bad = {question.id: {"type": "edit", "edited": "eight"}}
    [again] = (await waiting.aresume("t", bad)).interrupts
    assert isinstance(again.payload, dict)
    assert "the edit does not pass" in again.payload["cause"]
    reply = await waiting.aresume("t", {again.id: {"type": "edit", "edited": GOOD}})
    assert (reply.text, tries(waiting)) == (GOOD, 1)


async def test_the_same_answer_again_is_no_progress() -> None:
    """It goes by the table's row of that: after one new plan, a human."""
    waiting, question = await held_by("batch", Gate(schema=Total), "seven", "seven", GOOD)
    assert tries(waiting) == 2
    assert isinstance(question.payload, dict)
    assert question.payload["failure_class"] == "no_progress"
    reply = await waiting.aresume("t", {question.id: "reject"})
    assert reply.close_reason == "replan_limit"


async def test_the_same_answer_again_ends_the_run_of_somebody_who_waits() -> None:
    patient = DecisionTable({("schema_failure", "interactive"): Cell("correct", 5, "abort")})
    policy = guards("interactive", Gate(schema=Total), decisions=patient, replans=5)
    stuck = agent("seven", "eight", "seven", GOOD, guards=policy)
    end, decisions = await told(stuck, "how many?")
    assert (end.close_reason, tries(stuck)) == ("replan_limit", 3)
    assert decisions[-1]["failure_class"] == "no_progress"
    assert actions(decisions) == [("gate", "correct")] * 2 + [("replan_limit", "abort")]


async def test_fewer_new_plans_than_the_table_has_end_as_it_says() -> None:
    stuck = agent("a", "b", GOOD, guards=guards("batch", Gate(schema=Total), replans=1))
    end, decisions = await told(stuck, "how many?")
    assert (end.close_reason, tries(stuck)) == ("replan_limit", 2)
    assert actions(decisions) == [("gate", "replan"), ("replan_limit", "abort")]
    none = agent("a", GOOD, guards=guards("interactive", Gate(schema=Total), replans=0))
    end, _ = await told(none, "how many?")
    assert (end.close_reason, tries(none)) == ("replan_limit", 1)


async def test_overrides_of_the_decision_table_act() -> None:
    changed = DecisionTable({("schema_failure", "interactive"): Cell("escalate")})
    waiting, _ = await held_by("interactive", Gate(schema=Total), "seven", decisions=changed)
    assert tries(waiting) == 1
    changed = DecisionTable({("schema_failure", "regulated"): Cell("replan", 1, "abort")})
    policy = guards("regulated", Gate(schema=Total), decisions=changed)
    end, decisions = await told(agent("a", "b", guards=policy), "how many?")
    assert end.close_reason == "gate"
    assert actions(decisions) == [("gate", "replan"), ("gate", "abort")]
    assert decisions[0]["evidence"]["overridden"] is True


async def test_failures_of_one_kind_do_not_use_up_the_tries_of_another() -> None:
    gate = Gate(policy=is_harmless, invariants=[is_polite])
    policy = guards("interactive", gate, breaker=CircuitBreaker(fallback=SAFE))
    end, decisions = await told(agent("No.", "It is secret.", guards=policy), "how many?")
    assert (end.text, end.close_reason) == (SAFE.text, None)
    assert actions(decisions) == [("gate", "correct"), ("gate", "fallback")]


UNSAFE = "It is secret: 7."


async def test_what_is_unsafe_is_blocked_and_a_safe_answer_given() -> None:
    policy = guards("interactive", Gate(policy=is_harmless), breaker=CircuitBreaker(fallback=SAFE))
    safe = agent(UNSAFE, guards=policy)
    heard = [event async for event in safe.astream("tell me", thread_id="t")]
    said = [one.text for one in heard if isinstance(one, AIMessageEvent | TokenEvent)]
    assert "secret" not in "".join(said)
    assert said == [SAFE.text]
    assert [m.text for m in await safe.ahistory("t")][-1] == SAFE.text
    assert tries(safe) == 1


@pytest.mark.parametrize("tier", ["interactive", "batch"])
async def test_what_is_unsafe_ends_the_run_where_nothing_safe_is_known(tier: Tier) -> None:
    stopped = agent(UNSAFE, guards=guards(tier, Gate(policy=is_harmless)))
    end, decisions = await told(stopped, "tell me")
    assert (words_of(end), end.close_reason, tries(stopped)) == ("", "gate", 1)
    assert actions(decisions) == [("gate", "abort")]
    assert decisions[0]["failure_class"] == "unsafe_output"


async def test_where_work_is_long_what_is_unsafe_halts_it_whatever_else_could_be_said() -> None:
    policy = guards("batch", Gate(policy=is_harmless), breaker=CircuitBreaker(fallback=SAFE))
    end, decisions = await told(agent(UNSAFE, guards=policy), "tell me")
    assert (words_of(end), end.close_reason) == ("", "gate")
    assert decisions[0]["evidence"]["alert"] is True


def refuses_large(subject: Subject) -> str | None:
    large = subject.args is not None and subject.args.get("amount", 0) > 100  # type: ignore[operator]
    return "more than 100 needs a signature" if large else None


class Payment(BaseModel):
    """What may be paid."""

    amount: int
    to: str


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        (Gate(policy=refuses_large), "more than 100 needs a signature"),
        (Gate(schema={"pay": Payment}), "1 fault against Payment"),
    ],
    ids=["policy", "schema"],
)
async def test_a_call_that_does_not_pass_does_not_run_and_the_model_is_told_why(
    gate: Gate, why: str
) -> None:
    ran: list[int] = []

    def pay(amount: int, to: str = "") -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    both = [call("pay", amount=500), call("pay", amount=5, to="ann")]
    turns: list[Scripted] = [both, "Five were paid."]
    payer = worker("a", turns, tools=[pay], guards=guards("interactive", gate))
    end, decisions = await told(payer, "pay")
    assert (end.text, ran) == ("Five were paid.", [5])
    assert actions(decisions) == [("gate", "deny")]
    answers = [m for m in await payer.ahistory("t") if isinstance(m, ToolMessage)]
    assert [m.status for m in answers] == ["error", "success"]
    assert str(answers[0].text).startswith("Not executed: ") and why in str(answers[0].text)


@pytest.mark.parametrize("handoff", ["sticky", "delegate", "tool"])
async def test_a_stage_has_gates_of_its_own(handoff: str) -> None:
    below = worker("below", ["seven", "seven!", GOOD])
    boss: dict[str, Any] = {"agents": [below], "handoff": handoff}
    asks = call("transfer_to_below")
    if handoff == "tool":
        boss, asks = {"agents": [below.as_tool()]}, call("below", request="how many?")
    stages = {"below": Guards.batch(gates=Gate(schema=Total))}
    above = worker("above", [asks, "So many."], guards=Guards.interactive(stages=stages), **boss)
    end, decisions = await told(above, "how many?")
    assert (end.text, end.close_reason) == (GOOD if handoff == "sticky" else "So many.", None)
    assert actions(decisions) == [("gate", "replan")] * 2
    assert asked(below) == 3


async def test_a_stage_without_a_tier_of_its_own_is_of_the_same_as_the_rest() -> None:
    below = worker("below", ["seven", "seven!", GOOD])
    stages = {"below": Guards(gates=Gate(schema=Total))}
    above = worker(
        "above",
        [call("transfer_to_below")],
        agents=[below],
        guards=Guards.batch(stages=stages),
    )
    end, decisions = await told(above, "how many?")
    assert (end.text, end.close_reason) == (GOOD, None)
    assert [one["evidence"]["tier"] for one in decisions] == ["batch", "batch"]


async def test_stages_of_an_agents_own_policy_leave_those_of_its_supervisors_alone() -> None:
    lowest = worker("lowest", ["seven", GOOD])
    own = Guards(stages={"somebody": Guards(replans=0)})
    somebody = worker("somebody", ["unasked"])
    middle = worker("middle", [call("transfer_to_lowest")], agents=[lowest, somebody], guards=own)
    above = worker(
        "above",
        [call("transfer_to_middle")],
        agents=[middle],
        guards=Guards.interactive(stages={"lowest": Guards(gates=Gate(schema=Total))}),
    )
    end, decisions = await told(above, "how many?")
    assert (end.text, actions(decisions)) == (GOOD, [("gate", "correct")])


@pytest.mark.parametrize(("tier", "most"), [("interactive", 1), ("batch", 2)])
async def test_a_session_ends_with_what_its_gate_has_refused(tier: Tier, most: int) -> None:
    bad = GATES["schema"][1]
    first = worker("first", [Turn(text) for text in bad])
    second = worker("second", [GOOD])
    team = Team([first, second], sequence(["first", "second"]), guards=guards(tier, Gate(Total)))
    async with held(team) as session:
        state = await after(session, "user", "how many?")
    assert (state.status, state.pending_close_reason) == ("closed", "gate")
    assert (asked(first), asked(second)) == (most + 1, 0)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_replan_over_the_wire_is_a_history_that_the_provider_takes(streaming: bool) -> None:
    with serve() as wire:
        wire.script(call_on_wire("count"), text("seven"), text(GOOD))
        model = chat_openai(wire, streaming=streaming, timeout=5)
        counter = Agent("a", model=model, tools=[count], default_tools=False)
        counter = counter.replace(guards=guards("interactive", Gate(schema=Total)))
        heard = [event async for event in counter.astream("how many?", thread_id="t")]
        asked_for = wire.requests
    assert [one.text for one in heard if isinstance(one, AIMessageEvent)] == [GOOD]
    assert "seven" not in "".join(one.text for one in heard if isinstance(one, TokenEvent))
    roles = [[message["role"] for message in body["messages"]] for body in asked_for]
    assert roles[1] == ["system", "user", "assistant", "tool"]
    assert roles[2] == [*roles[1], "assistant", "user"]
    assert [m.text for m in await counter.ahistory("t")][-1] == GOOD
