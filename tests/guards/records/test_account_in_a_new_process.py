"""What a run has spent and met is known to whoever goes on with it from its checkpoint."""

from __future__ import annotations

import gc

import pytest
from langchain_core.messages import ToolCall
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.guards import Cell, CostBudget, DecisionTable, Gate, Guards, Subject
from agentgraph.testing import ScriptedModel, Turn, call


def pay(amount: int) -> str:
    """Pay an amount, if a human agrees."""
    return "paid" if interrupt({"pay": amount}) == "yes" else "not paid"


def costly(said: str | ToolCall) -> Turn:
    usage = UsageMetadata(input_tokens=4_900, output_tokens=100, total_tokens=5_000)
    return Turn(said, usage=usage) if isinstance(said, str) else Turn(calls=[said], usage=usage)


def another_process(saver: InMemorySaver) -> InMemorySaver:
    """Return a saver of the same values, at which nobody in this process is known."""
    other = InMemorySaver()
    other.storage, other.writes, other.blobs = saver.storage, saver.writes, saver.blobs
    return other


def clerk(saver: InMemorySaver, said: Turn, tokens: int) -> Agent:
    return Agent(
        "clerk",
        model=ScriptedModel([said]),
        tools=[pay],
        guards=Guards.interactive(budget=CostBudget(tokens=tokens)),
        checkpointer=saver,
    )


@pytest.mark.parametrize(("tokens", "reason"), [(5_200, "cost_budget"), (9_000, None)])
async def test_what_was_spent_before_a_question_counts_after_its_answer(
    tokens: int, reason: str | None
) -> None:
    saver = InMemorySaver()
    asked = await clerk(saver, costly(call("pay", amount=5)), tokens).ainvoke("pay", thread_id="1")
    [question] = asked.interrupts
    gc.collect()  # nobody has the account in memory: the next one has the checkpoint alone

    again = clerk(another_process(saver), costly("It is done."), tokens)
    reply = await again.aresume("1", {question.id: "yes"})

    assert reply.close_reason == reason


@pytest.mark.parametrize("is_another", [False, True])
async def test_a_human_who_approves_grants_new_plans_also_where_the_run_is_taken_up(
    is_another: bool,
) -> None:
    def polite(subject: Subject) -> bool:
        return "please" in subject.text

    def careful(saver: InMemorySaver, *said: str) -> Agent:
        table = DecisionTable({("schema_failure", "batch"): Cell("replan", 2, "escalate")})
        policy = Guards.batch(gates=Gate(invariants=[polite]), decisions=table)
        return Agent("clerk", model=ScriptedModel([*said]), guards=policy, checkpointer=saver)

    saver = InMemorySaver()
    first = careful(saver, "no", "never", "not at all", "no more", "no, really", "yes, please")
    [question] = (await first.ainvoke("pay", thread_id="1")).interrupts
    again = first
    if is_another:
        del first, again
        gc.collect()
        again = careful(another_process(saver), "no more", "no, really", "yes, please")
    reply = await again.aresume("1", {question.id: "approve"})
    assert (reply.text, reply.interrupts) == ("yes, please", ())
