"""A budget at work: a run ends before the call that would exceed it, however many run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, Guards, Team, sequence
from agentgraph.graphs.public_graph import whole_state
from agentgraph.guards import (
    AuditTrail,
    Cell,
    CostBudget,
    DecisionTable,
    Gate,
    MemorySink,
    Record,
    Subject,
    folded,
)
from agentgraph.models import price_of
from agentgraph.sessions import EV_AUDIT
from agentgraph.testing import Turn, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import recorded, words_of
from tests.guards.metered_models import (
    OUTPUT,
    PAID,
    PATIENCE_S,
    READ,
    WORKERS,
    Metered,
    actions,
    again,
    asked,
    crowd,
    look,
    paid,
    told,
    unpaid,
    worker,
)
from tests.sessions.talk import after, held, of_type
from tests.wire import Wire, chat_openai, serve
from tests.wire import call as call_on_wire

PRICES = {"metered": (1, 10)}
"""Dollars for a million tokens: 0.00202 for a call, and little more is reserved for it."""
STOPPED = [("cost_budget", "abort")]


def looking(numbers: Iterator[int] | None = None) -> Any:
    """Return a script that looks at one thing after the other, and never has enough."""
    counted = iter(range(1_000)) if numbers is None else numbers
    return again(lambda: paid(call("look", number=next(counted))))


def looker(budget: CostBudget, **fields: Any) -> Agent:
    return worker("a", looking(), tools=[look], guards=Guards.interactive(budget=budget), **fields)


@pytest.mark.parametrize(
    "budget",
    [CostBudget(tokens=1_000), CostBudget(usd="0.0075", prices=PRICES)],
    ids=["tokens", "dollars"],
)
async def test_a_run_ends_before_the_call_that_would_exceed_its_budget(budget: CostBudget) -> None:
    agent = looker(budget)
    end, decisions = await told(agent, "go")
    assert (end.close_reason, words_of(end)) == ("cost_budget", "")
    assert actions(decisions) == STOPPED
    figures = {name: Decimal(decisions[0]["evidence"][name]) for name in ("spent", "asked")}
    limit = Decimal(decisions[0]["evidence"]["limit"])
    assert figures["spent"] <= limit < sum(figures.values())
    # Three calls fit, and nobody was asked for a fourth.
    assert asked(agent) == 3
    assert end.usage["total_tokens"] == 3 * PAID


async def test_dollars_are_reckoned_by_the_price_book() -> None:
    usage: Any = {"input_tokens": READ, "output_tokens": OUTPUT, "total_tokens": PAID}
    price = price_of("gpt-4o", usage)
    assert price is not None
    budget = CostBudget(usd=price * 4)
    model = Metered(looking(), model_name="gpt-4o")
    agent = Agent("a", model=model, tools=[look], guards=Guards.interactive(budget=budget))
    end, decisions = await told(agent, "go")
    assert (end.close_reason, actions(decisions)) == ("cost_budget", STOPPED)
    assert asked(agent) == 3
    assert (
        Decimal(decisions[0]["evidence"]["spent"]) == price * 3 == Decimal(str(end.usage["cost"]))
    )


async def test_the_next_input_starts_afresh() -> None:
    agent = looker(CostBudget(tokens=1_000))
    for times in (1, 2):
        end, _ = await told(agent, "go")
        assert end.close_reason == "cost_budget"
        # The conversation has grown, and with it what is reserved.
        assert 2 * times <= asked(agent) <= 3 * times


async def test_a_supervisor_and_its_sub_agents_spend_from_one_budget() -> None:
    below = worker("below", looking(), tools=[look])
    above = worker(
        "above",
        [paid(call("transfer_to_below"))],
        agents=[below],
        guards=Guards.interactive(budget=CostBudget(tokens=1_000)),
    )
    end, _ = await told(above, "go")
    assert end.close_reason == "cost_budget"
    assert (asked(above), asked(below)) == (1, 2)


class Bell(MemorySink):
    """Rings when something is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.rung = asyncio.Event()

    def write(self, record: Record) -> None:
        super().write(record)
        if record.kind == "decision":
            self.rung.set()


@pytest.mark.parametrize("kind", ["tool", "delegate"])
async def test_workers_side_by_side_never_overspend_together(kind: str) -> None:
    begun: list[str] = []
    sink = Bell()

    async def turn(messages: Any) -> Scripted:
        begun.append("one")
        await sink.rung.wait()  # until one was refused: all that may work are at it by then
        return paid("My part.")

    boss = crowd(kind, turn, CostBudget(tokens=2_100), audit=AuditTrail(sink))
    async with asyncio.timeout(PATIENCE_S):
        end, decisions = await told(boss, "go")
    assert end.close_reason == "cost_budget"
    assert 2 <= len(begun) < WORKERS
    assert end.usage["total_tokens"] == PAID * (1 + len(begun)) <= 2_100
    assert actions(decisions) == STOPPED * (WORKERS - len(begun))
    assert decisions[0]["evidence"]["reserved"] > PAID * len(begun)


@pytest.mark.parametrize("kind", ["tool", "delegate"])
async def test_workers_side_by_side_all_work_where_the_budget_has_room(kind: str) -> None:
    boss = crowd(kind, again(lambda: paid("My part.")), CostBudget(tokens=20_000))
    end, decisions = await told(boss, "go")
    assert (end.text, end.close_reason, decisions) == ("All is done.", None, [])
    assert end.usage["total_tokens"] == PAID * (WORKERS + 2)


async def test_an_answer_without_usage_is_charged_as_it_was_reserved() -> None:
    sink = MemorySink()
    calls = [{"name": "look", "args": {"number": n}, "id": f"c{n}"} for n in range(9)]
    turns = [unpaid(tool_calls=[one]) for one in calls]
    guards = Guards.interactive(budget=CostBudget(tokens=1_000), audit=AuditTrail(sink))
    agent = worker("a", turns, tools=[look], guards=guards)
    end, decisions = await told(agent, "go")
    assert end.close_reason == "cost_budget"
    [run] = sink.runs()
    records = sink.read(run)
    reserved = [one.data["reserved_tokens"] for one in records if one.kind == "model"]
    settled = [one.data for one in records if one.kind == "settled"]
    assert settled == [{"total_tokens": tokens, "estimated": True} for tokens in reserved]
    assert decisions[0]["evidence"]["spent"] == sum(reserved) <= 1_000  # type: ignore[arg-type]
    assert guards.audit is not None
    spent = guards.audit.trail(run).spend
    assert spent.total_tokens == spent.estimated_tokens == sum(reserved)  # type: ignore[arg-type]
    assert asked(agent) == len(reserved) >= 2


async def test_answers_that_are_refused_are_paid_for_and_accounted_for() -> None:
    def is_long(subject: Subject) -> bool:
        return len(subject.text) > 4

    guards = Guards.batch(budget=CostBudget(tokens=10_000), gates=Gate(invariants=[is_long]))
    agent = worker("a", [paid("no"), paid("nay"), paid("At last.")], guards=guards)
    end, decisions = await told(agent, "go")
    assert (end.text, len(decisions)) == ("At last.", 2)
    assert end.usage["total_tokens"] == 3 * PAID
    stopped = worker("a", [paid("no"), paid("nay"), paid("non")], guards=guards)
    end, _ = await told(stopped, "go")
    assert (end.close_reason, end.usage["total_tokens"]) == ("gate", 3 * PAID)


async def test_answers_that_are_refused_use_up_the_budget() -> None:
    def never(subject: Subject) -> bool:
        return False

    table = DecisionTable({("schema_failure", "interactive"): Cell("replan", 99, "abort")})
    guards = Guards.interactive(
        budget=CostBudget(tokens=1_200), gates=Gate(invariants=[never]), decisions=table, replans=99
    )
    agent = worker("a", [paid(f"no {n}") for n in range(99)], guards=guards)
    end, _ = await told(agent, "go")
    assert (end.close_reason, end.usage["total_tokens"]) == ("cost_budget", 4 * PAID)


async def test_no_tool_runs_on_a_budget_that_is_used_up() -> None:
    ran: list[int] = []

    def act(number: int) -> str:
        """Act."""
        ran.append(number)
        return "done"

    # What a model thinks is written too, and was not foreseen.
    turn = paid(call("act", number=1), written=5_000)
    guards = Guards.interactive(budget=CostBudget(tokens=1_000))
    agent = worker("a", [turn], tools=[act], guards=guards)
    end, decisions = await told(agent, "go")
    assert (end.close_reason, actions(decisions)) == ("cost_budget", STOPPED)
    assert (ran, asked(agent)) == ([], 1)
    [answer] = [m for m in await agent.ahistory("t") if isinstance(m, ToolMessage)]
    assert str(answer.text).startswith("Not executed: the call may use")


async def test_a_stage_ends_with_its_own_budget_and_the_others_have_theirs() -> None:
    def four_times(name: str) -> Agent:
        looks = [paid(call("look", number=n)) for n in range(4)]
        return worker(name, [*looks, paid("Found.")], tools=[look])

    small, large = four_times("small"), four_times("large")
    stages = {"small": Guards(budget=CostBudget(tokens=600))}
    guards = Guards.interactive(budget=CostBudget(tokens=100_000), stages=stages)
    boss = worker("boss", [], agents=[small, large], guards=guards)
    end, decisions = await told(boss, "@small go", "s")
    assert (end.close_reason, actions(decisions), asked(small)) == ("cost_budget", STOPPED, 1)
    end, decisions = await told(boss, "@large go", "l")
    assert (end.text, decisions, asked(large)) == ("Found.", [], 5)


async def test_the_prices_of_a_stages_budget_are_its_own() -> None:
    stage = Guards(budget=CostBudget(usd="0.0075", prices=PRICES))
    below = worker("below", looking(), tools=[look])
    above = worker(
        "above",
        [paid(call("transfer_to_below"))],
        agents=[below],
        guards=Guards.interactive(stages={"below": stage}),
    )
    end, decisions = await told(above, "go")
    assert (asked(below), end.close_reason) == (3, "cost_budget")
    assert decisions[0]["evidence"]["unit"] == "usd"


async def test_budgets_within_each_other_have_their_prices_each() -> None:
    inner = CostBudget(usd="0.0075", prices=PRICES)
    below = worker("below", looking(), tools=[look], guards=Guards(budget=inner))
    outer = CostBudget(usd=1, prices={"other": (1, 1)})
    above = Agent(
        "above",
        model=Metered([paid(call("transfer_to_below"))], model_name="other"),
        agents=[below],
        guards=Guards.interactive(budget=outer),
    )
    end, decisions = await told(above, "go")
    assert (asked(below), end.close_reason) == (3, "cost_budget")
    assert decisions[0]["evidence"]["limit"] == "0.0075"


async def test_what_a_turn_has_spent_takes_the_place_of_what_it_may_have() -> None:
    looks = [paid(call("look", number=n)) for n in range(4)]
    speaker = worker("a", [*looks, paid("Found.")], tools=[look])
    guards = Guards.interactive(budget=CostBudget(tokens=5_000))
    team = Team([speaker], sequence(["a"]), guards=guards, expectations=())
    async with held(team) as session:
        state = await after(session, "user", "go")
        audits = [one.event_data for one in await of_type(session, EV_AUDIT)]
    held_back = [one for one in audits if one["kind"] == "reserved"]
    assert {one["of"] for one in held_back} == {""}
    assert 0.1 <= sum(one["share"] for one in held_back) < 0.5
    assert (state.held, state.pending_close_reason) == ({}, "sequence_complete")
    [(_, tokens, _)] = state.account["spends"][""]["paid"].values()
    assert tokens == 5 * PAID


async def test_a_human_who_agrees_grants_the_budget_once_more() -> None:
    agent = looker(CostBudget(tokens=1_000))
    agent = agent.replace(guards=Guards.regulated(velocity=None, budget=CostBudget(tokens=1_000)))
    reply = await agent.ainvoke("go", thread_id="t")
    before = asked(agent)
    [question] = reply.interrupts
    assert isinstance(question.payload, dict)
    assert question.payload["failure_class"] == "cost_overrun"
    assert reply.close_reason is None
    again_asked = await agent.aresume("t", {question.id: "approve"})
    assert before == 3
    assert asked(agent) in (6, 7)
    [question] = again_asked.interrupts
    ended = await agent.aresume("t", {question.id: "reject"})
    assert ended.close_reason == "cost_budget"
    assert asked(agent) in (6, 7)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serve() as served:
        yield served


@pytest.mark.parametrize("unit", ["tokens", "dollars"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_budget_holds_over_the_wire(wire: Wire, unit: str, streaming: bool) -> None:
    wire.script(*(call_on_wire("look", number=n) for n in range(20)))
    budget = CostBudget(tokens=1_000) if unit == "tokens" else CostBudget(usd="0.003")
    model = chat_openai(wire, streaming=streaming, max_completion_tokens=100, timeout=5)
    agent = Agent("a", model=model, tools=[look], guards=Guards.interactive(budget=budget))
    end, decisions = await told(agent.replace(default_tools=False), "go")
    assert (end.close_reason, actions(decisions)) == ("cost_budget", STOPPED)
    evidence = decisions[0]["evidence"]
    spent = end.usage["total_tokens" if unit == "tokens" else "cost"]
    assert Decimal(str(spent)) == Decimal(evidence["spent"]) > 0
    assert Decimal(evidence["spent"]) + Decimal(evidence["asked"]) > Decimal(evidence["limit"])
    assert 2 <= len(wire.requests) == 20 - wire.left < 20


def test_the_reservation_covers_what_is_read() -> None:
    """Hold that the scripts of these tests never use more than was reserved for them."""
    from agentgraph.guards.mechanisms.spending.estimates import estimate

    assert estimate([HumanMessage("go")], max_output=OUTPUT) < PAID + READ
    assert estimate([HumanMessage("go" * 40)], max_output=OUTPUT) > PAID


@pytest.mark.parametrize(
    ("read", "written", "total", "counted"),
    [
        (100, 50, 1, 150),
        (0, 0, 0, None),
        (-10, 5, -5, None),
        (10, -5, 5, None),
        (10, 5, 20, 20),
    ],
)
async def test_figures_that_cannot_be_are_not_believed(
    read: int, written: int, total: int, counted: int | None
) -> None:
    """A sum is at least that of its parts; where a part cannot be, the worst case is charged."""
    used = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=total)
    sink, saver = MemorySink(), InMemorySaver()
    prices = {"metered": (Decimal(1), Decimal(1))}
    policy = Guards(budget=CostBudget(usd=1, prices=prices), audit=AuditTrail(sink))
    agent = worker("a", [Turn("Hello.", usage=used)], guards=policy, checkpointer=saver)
    assert (await agent.ainvoke("go", thread_id="t")).text == "Hello."
    spend = folded(sink.read(sink.runs()[0])).spend
    [held] = [one.data["reserved_tokens"] for one in recorded(sink, "model")]
    assert spend.total_tokens == (held if counted is None else counted)
    assert spend.estimated_tokens == (held if counted is None else 0)
    state = await whole_state(agent.graph, {"configurable": {"thread_id": "t"}})
    [[_, tokens, usd]] = state.values["guarded"]["spends"][""]["paid"].values()
    assert (tokens, Decimal(usd)) == (spend.total_tokens, spend.usd)
