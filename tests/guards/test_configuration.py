"""Policies that cannot hold are refused where they are made, with all that is wrong at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from agentgraph import Agent, Guards, Team, patched, sequence
from agentgraph.errors import ConfigurationError
from agentgraph.guards import (
    AuditTrail,
    Cell,
    CircuitBreaker,
    CostBudget,
    CostVelocity,
    Deadlines,
    DecisionTable,
    Escalation,
    FailureClass,
    Gate,
    LoopDetector,
    MemorySink,
    RetryBudget,
    Saga,
)
from agentgraph.guards.mechanisms.gates.cedar import CedarPolicy
from agentgraph.guards.table import DEFAULT_CELLS
from agentgraph.testing import ScriptedModel
from tests.guards.metered_models import worker

DOLLARS = CostBudget(usd=1)
PRICES = {"metered": (1, 10), "scripted": (1, 10)}


def faults_of(make: Callable[[], object]) -> tuple[str, ...]:
    """Return all that is wrong with what somebody tries to make."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert str(caught.value).count("\n- ") == len(caught.value.faults)
    return caught.value.faults


WRONG: dict[str, Any] = {
    "steps": 0,
    "hops": -1,
    "depth": -1,
    "fan_out": -3,
    "replans": -1,
    "loop": 1,
    "deadlock": "yes",
    "breaker": CircuitBreaker,
    "retry": 1.1,
    "backoff": 0,
    "deadlines": -60,
    "budget": 0.5,
    "velocity": 0,
    "gates": [Gate(), lambda subject: True],
    "escalation": 7,
    "decisions": {("deadlock", "batch"): "abort"},
    "saga": True,
    "audit": "file.jsonl",
    "stages": {"billing": 0.5},
    "patience": 5,
}


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_field_is_named(name: str) -> None:
    [fault] = faults_of(lambda: Guards.interactive(**{name: WRONG[name]}))
    assert fault.startswith(name)


def test_all_wrong_fields_are_told_in_one_error() -> None:
    faults = faults_of(lambda: Guards("strict", **WRONG))  # type: ignore[arg-type]
    assert len(faults) == len(WRONG) + 1
    assert [fault.partition("=")[0].partition(":")[0] for fault in faults] == ["tier", *WRONG]


@pytest.mark.parametrize("name", ["hops", "steps", "depth", "fan_out", "replans"])
@pytest.mark.parametrize("value", [-1, True, 1.5, "5", float("nan")])
def test_a_limit_is_a_whole_number(name: str, value: Any) -> None:
    [fault] = faults_of(lambda: Guards.batch(**{name: value}))
    assert fault.startswith(f"{name}={value!r}")


@pytest.mark.parametrize("name", ["replans", "deadlines", "escalation", "decisions"])
def test_what_every_flow_needs_cannot_be_taken_away(name: str) -> None:
    nothing: Any = None
    [fault] = faults_of(lambda: Guards.interactive(**{name: nothing}))
    assert fault.startswith(f"{name}=None")


def test_a_regulated_flow_must_be_given_a_budget_and_a_velocity() -> None:
    no_budget, no_velocity = faults_of(Guards.regulated)
    assert "give budget=CostBudget" in no_budget
    assert "give velocity=CostVelocity" in no_velocity
    assert len(faults_of(lambda: Guards.regulated(budget=None, hops=-1))) == 3
    for velocity in (None, CostVelocity(1_000)):
        assert Guards.regulated(budget=5, velocity=velocity).velocity is velocity


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: Deadlines(-1, 0, float("nan")), 3),
        (lambda: CostBudget(usd=-1, tokens=-1, prices={"x": (1,)}), 3),  # type: ignore[dict-item]
        (lambda: Escalation(threshold=1.5, critic=0.5, ttl_s=-1), 3),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(identical=0, rate=2.0, cooldown_s=-1), 3),
        (lambda: RetryBudget(ratio=2, reserve=-1, ttl_s=0), 3),
        (lambda: CostVelocity(tokens_per_min=-1, usd_per_hour=0), 2),
        (lambda: LoopDetector(window=0, threshold=0), 2),
        (lambda: Cell("allow", -1, "correct"), 3),
        (lambda: DecisionTable({("deadlock", "batch"): "abort", ("x", "batch"): Cell("abort")}), 2),  # type: ignore[dict-item]
        (lambda: Gate(schema=int, policy="allow", invariants=["short"]), 3),  # type: ignore[arg-type, list-item]
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_each_part_tells_all_that_is_wrong_with_it(make: Any, count: int) -> None:
    assert len(faults_of(make)) == count


HUGE = 10**400
"""No float is as large."""
ENDS = ("escalate", "abort")
JUDGED = ("correct", "replan", "fallback", *ENDS)
POSSIBLE: dict[FailureClass, tuple[str, ...]] = {
    "infinite_loop": ("correct", *ENDS),
    "deadlock": ENDS,
    "cost_overrun": ENDS,
    "provider_error": ("fallback", *ENDS),
    "schema_failure": JUDGED,
    "spec_malformed": ("correct", "deny", "replan", *ENDS),
    "no_progress": JUDGED,
    "unsafe_output": JUDGED,
}


@pytest.mark.parametrize("failure", POSSIBLE)
def test_a_cell_that_could_not_be_carried_out_is_refused(failure: FailureClass) -> None:
    for action in ("correct", "deny", "fallback", "replan", *ENDS):
        cell = Cell(action, 2, "abort")  # type: ignore[arg-type]
        table = DecisionTable({(failure, "batch"): cell})
        if action in POSSIBLE[failure]:
            assert Guards(decisions=table).decisions is table
        else:
            [fault] = faults_of(lambda table=table: Guards(decisions=table))  # type: ignore[misc]
            told = f"decisions: {action!r} cannot be carried out for {(failure, 'batch')!r}: give "
            assert fault == told + ", ".join(map(repr, POSSIBLE[failure]))


def test_all_cells_of_the_default_table_can_be_carried_out() -> None:
    assert Guards(decisions=DecisionTable(DEFAULT_CELLS)).decisions.overrides == DEFAULT_CELLS


def test_all_cells_that_could_not_be_carried_out_are_told_at_once() -> None:
    again = Cell("replan", 1, "abort")
    table = DecisionTable({("deadlock", "batch"): again, ("cost_overrun", "regulated"): again})
    assert len(faults_of(lambda: Guards(hops=-1, decisions=table))) == 3


NOT_FLOAT = pytest.param(HUGE, id="huge")


@pytest.mark.parametrize("value", [None, "", [], {}, b"", False, float("nan"), -1, NOT_FLOAT, "30"])
def test_a_first_stretch_that_is_no_time_is_refused(value: Any) -> None:
    [fault] = faults_of(lambda: CostVelocity(min_elapsed_s=value))
    assert fault == f"CostVelocity(min_elapsed_s={value!r}): give 0 or more"


@pytest.mark.parametrize("name", ["tokens_per_min", "usd_per_hour", "fast_s", "slow_s"])
@pytest.mark.parametrize("value", [NOT_FLOAT, 1e308])
def test_how_fast_one_may_spend_is_a_number_to_reckon_with(name: str, value: Any) -> None:
    [fault] = faults_of(lambda: CostVelocity(**{name: value}))
    assert fault.startswith(f"CostVelocity({name}={value!r}): give")


@pytest.mark.parametrize(
    "make",
    [
        lambda: CircuitBreaker(window=HUGE),
        lambda: MemorySink(HUGE),
        lambda: Saga(grace_s=HUGE),
        lambda: Escalation(ttl_s=HUGE),
    ],
)
def test_what_no_machine_can_count_is_refused(make: Callable[[], object]) -> None:
    [fault] = faults_of(make)
    assert f"{HUGE}): give" in fault


@pytest.mark.parametrize("value", ["", b"", bytearray()])
def test_a_text_is_no_gates(value: Any) -> None:
    [fault] = faults_of(lambda: Guards(gates=value))
    assert fault == f"gates={value!r}: give a Gate, a schema, or several"
    assert Guards(gates=[]).gates == ()


def _nothing() -> bool:
    return True


def _two(subject: Any, other: Any) -> bool:
    return True


def _by_name(subject: Any, *, limit: int) -> bool:
    return True


def _enough(subject: Any, limit: int = 3, *others: Any, **more: Any) -> bool:
    return True


@pytest.mark.parametrize("check", [_nothing, _two, _by_name])
def test_a_check_that_cannot_be_given_its_subject_is_refused(check: Any) -> None:
    faults = faults_of(lambda: Gate(policy=check, invariants=[_enough, check], grounding=check))
    kinds = ["policy", "invariants", "grounding"]
    told = f"={check!r}): it is given a Subject: let it take that alone"
    assert faults == tuple(f"Gate({kind}{told}" for kind in kinds)
    [fault] = faults_of(lambda: Escalation(critic=check))
    assert fault == f"Escalation(critic{told}"


@pytest.mark.parametrize("check", [_enough, partial(_by_name, limit=3), bool, int, [].count])
def test_a_check_that_can_be_given_its_subject_is_taken(check: Any) -> None:
    Gate(policy=check, invariants=[check], grounding=check)
    assert Escalation(critic=check).critic is check


def test_a_fallback_is_somebody_or_something_that_can_answer() -> None:
    [fault] = faults_of(lambda: Guards.interactive(breaker=CircuitBreaker(fallback=42)))
    assert fault.startswith("breaker: fallback=42")
    for fallback in (None, "openai:gpt-4o", ScriptedModel([]), AIMessage("Later.")):
        Guards.interactive(breaker=CircuitBreaker(fallback=fallback))


@pytest.mark.parametrize("fallback", ["openai:gpt-4o", AIMessage("Later.")])
def test_a_fallback_that_could_never_answer_is_refused(fallback: Any) -> None:
    breaker, budget = CircuitBreaker(fallback=fallback), CostBudget(tokens=1_000)
    [fault] = faults_of(lambda: Guards.regulated(budget=budget, velocity=None, breaker=breaker))
    assert "a regulated run swaps no model in silence" in fault
    cell: Any = {("provider_error", "regulated"): Cell("fallback", 1, "escalate")}
    asked = Guards.regulated(
        budget=budget, velocity=None, breaker=breaker, decisions=DecisionTable(cell)
    )
    assert asked.breaker is breaker
    below = solo(guards=Guards.interactive(breaker=breaker))
    around = Guards.regulated(budget=budget, velocity=None)
    [fault] = faults_of(lambda: worker("top", [], agents=[below], guards=around))
    assert "'top/a': a regulated run swaps no model" in fault
    stages = {"a": Guards.regulated(budget=budget, velocity=None)}
    solo(guards=Guards.interactive(breaker=breaker, stages=stages))


def test_a_fallback_that_is_no_model_is_told_before_it_is_needed() -> None:
    guards = Guards.interactive(breaker=CircuitBreaker(fallback="nobody"))
    [fault] = faults_of(lambda: solo(guards=guards).graph)
    assert "'nobody' names no model" in fault


@pytest.mark.parametrize(
    "policy",
    [
        "forbid(principal, action, resource) when { context.amount > 100 };",
        "permit(principal, action, resource) unless { context.risk > 5 };",
    ],
)
def test_a_policy_that_reads_what_may_be_missing_is_refused(policy: str) -> None:
    [fault] = faults_of(lambda: Guards.interactive(gates=Gate(policy=CedarPolicy(policy))))
    assert "which may be missing" in fault


def solo(**fields: Any) -> Agent:
    return worker("a", ["Hello."], **fields)


def test_a_budget_in_dollars_needs_the_price_of_the_model() -> None:
    [fault] = faults_of(lambda: solo(guards=Guards.interactive(budget=DOLLARS)))
    assert "the price of its model 'metered' is unknown" in fault
    assert "prices={'metered': (read, written)}, …)" in fault


@pytest.mark.parametrize(
    "fields",
    [
        {"guards": Guards.interactive(budget=CostBudget(usd=1, prices=PRICES))},
        {"guards": Guards.interactive(budget=CostBudget(tokens=1))},
        {"guards": Guards.interactive(budget=None)},
        {"guards": Guards.interactive(budget=DOLLARS), "model": "openai:gpt-4o"},
        {"guards": Guards.interactive(budget=DOLLARS), "model": None},
        {"guards": Guards.interactive(budget=DOLLARS), "model": "offline"},
    ],
    ids=["given", "tokens", "none", "in the book", "the environment's", "offline"],
)
def test_a_budget_whose_prices_are_known_is_taken(fields: dict[str, Any]) -> None:
    assert Agent("a", **{"model": ScriptedModel([]), **fields}).name == "a"


def test_a_ceiling_in_dollars_needs_the_price_too() -> None:
    fast = CostVelocity(usd_per_hour=1)
    [fault] = faults_of(lambda: solo(guards=Guards.interactive(velocity=fast)))
    assert fault.startswith("guards: 'a' has a velocity in dollars")
    solo(guards=Guards.interactive(velocity=CostVelocity(tokens_per_min=1)))
    solo(guards=Guards.interactive(velocity=fast, budget=CostBudget(tokens=1, prices=PRICES)))


async def test_the_offline_model_costs_nothing() -> None:
    guards = Guards.interactive(budget=CostBudget(usd="0.000001"))
    reply = await Agent("a", model="offline", guards=guards).ainvoke("hello")
    assert reply.text and reply.close_reason is None


def test_the_model_of_the_environment_has_to_be_priced_too(monkeypatch: Any) -> None:
    monkeypatch.setenv("AGENTGRAPH_MODEL", "openai:nobody-knows-it")
    [fault] = faults_of(lambda: Agent("a", guards=Guards.interactive(budget=DOLLARS)))
    assert "'nobody-knows-it'" in fault


def test_whoever_may_answer_instead_has_to_be_priced_too() -> None:
    priced = CostBudget(usd=1, prices=PRICES)
    breaker = CircuitBreaker(fallback=ScriptedModel([], model_name="cheap"))
    [fault] = faults_of(lambda: solo(guards=Guards.interactive(budget=priced, breaker=breaker)))
    assert "'cheap'" in fault
    said = CircuitBreaker(fallback=AIMessage("Later."))
    solo(guards=Guards.interactive(budget=priced, breaker=said))


def test_all_models_of_a_tree_without_a_price_are_named_at_once() -> None:
    def named(name: str, *below: Any, **fields: Any) -> Agent:
        model = ScriptedModel([], model_name=f"model-of-{name}")
        return Agent(name, model=model, agents=below, **fields)

    low, tool = named("low"), named("tool")
    faults = faults_of(
        lambda: named("top", named("mid", low), tool.as_tool(), guards=Guards.batch(budget=DOLLARS))
    )
    paths = ("top", "top/mid", "top/mid/low", "top/tool")
    assert [fault.split("'")[1] for fault in faults] == list(paths)
    assert [fault.split("'")[3] for fault in faults] == [
        f"model-of-{path.rpartition('/')[2]}" for path in paths
    ]


def test_a_stage_with_a_budget_in_dollars_needs_its_price_alone() -> None:
    below = worker("below", [])
    stages = {"below": Guards(budget=DOLLARS)}
    [fault] = faults_of(
        lambda: worker("above", [], agents=[below], guards=Guards.interactive(stages=stages))
    )
    assert fault.startswith("guards: 'above/below' has a budget in dollars")


def test_a_stage_has_to_be_an_agent() -> None:
    below = worker("below", [])
    stages = {"below": Guards(hops=1), "billing": Guards(hops=1), "Above": Guards(hops=1)}
    faults = faults_of(
        lambda: worker("above", [], agents=[below], guards=Guards.interactive(stages=stages))
    )
    assert len(faults) == 2
    assert faults[0] == "guards: the stage 'billing' is no agent: there are above, below"
    assert "'Above'" in faults[1]


def test_a_stage_has_no_stages_and_nothing_that_holds_for_the_whole() -> None:
    inner = Guards(
        stages={"a": Guards()},
        velocity=CostVelocity(tokens_per_min=5),
        deadlock=None,
        audit=AuditTrail(),
    )
    faults = faults_of(lambda: solo(guards=Guards.interactive(stages={"a": inner})))
    assert [fault.split("'a'")[1][:13] for fault in faults] == [
        " has stages: ",
        " has deadlock",
        " has velocity",
        " has audit=…,",
    ]


def test_all_faults_of_an_agent_and_its_guards_are_told_at_once() -> None:
    guards = Guards.interactive(budget=DOLLARS, stages={"nobody": Guards()})
    faults = faults_of(lambda: worker("not a name", [], guards=guards, durability="never"))
    assert len(faults) == 4


@pytest.mark.parametrize("guards", ["interactive", 5, {"hops": 3}, Guards])
def test_guards_are_guards(guards: Any) -> None:
    [fault] = faults_of(lambda: solo(guards=guards))
    assert "give Guards" in fault
    [fault] = faults_of(lambda: Team([solo()], sequence(["a"]), guards=guards))
    assert "give Guards" in fault


def test_a_team_tells_what_is_wrong_with_its_guards_before_it_runs() -> None:
    agents = [worker("a", []), worker("b", [], agents=[worker("c", [])])]
    guards = Guards.batch(budget=DOLLARS, stages={"c": Guards(hops=1), "d": Guards(hops=1)})
    faults = faults_of(lambda: Team(agents, sequence(["a", "b", "x"]), guards=guards))
    assert [fault.split("'")[1] for fault in faults if fault.startswith("guards")] == [
        "d",
        "a",
        "b",
        "b/c",
    ]
    assert len(faults) == 5  # and nobody is called x


def test_a_team_within_a_team_is_looked_at_too() -> None:
    inner = Team([worker("c", [])], sequence(["c"]), name="inner")
    guards = Guards.batch(budget=DOLLARS, stages={"c": Guards(hops=1), "inner": Guards(hops=1)})
    [fault] = faults_of(lambda: Team([inner], sequence(["inner"]), guards=guards))
    assert fault.startswith("guards: 'c' has a budget in dollars")
    priced = Guards.batch(budget=CostBudget(usd=1, prices=PRICES), stages={"c": Guards(hops=1)})
    outer = Team([inner], sequence(["inner"]), guards=priced)
    assert outer.graph is not None


def test_a_supervisor_of_a_team_is_looked_at_too() -> None:
    watcher = worker("watcher", [])
    priced = worker("a", []).replace(model="openai:gpt-4o")
    guards = Guards.batch(budget=DOLLARS, stages={"watcher": Guards(hops=1)})
    [fault] = faults_of(lambda: Team([priced], sequence(["a"]), supervisor=watcher, guards=guards))
    assert fault.startswith("guards: 'watcher'")


def test_none_takes_the_gates_away() -> None:
    assert Guards(gates=None).gates == ()


def test_a_graph_of_others_is_told_of_names_that_it_does_not_have() -> None:
    class Wanted(BaseModel):
        what: str

    def look(what: str) -> str:
        """Look something up."""
        return what

    graph = create_agent(ScriptedModel([]), tools=[look])
    policy = Guards.batch(gates=Gate(schema={"lok": Wanted}), stages={"nobody": Guards(steps=1)})
    with pytest.raises(ConfigurationError) as refused:
        patched(graph, policy)
    told = str(refused.value)
    assert "the stage 'nobody' is no agent" in told and "there is 'look'" in told
