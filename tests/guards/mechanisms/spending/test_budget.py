"""What a run may spend: reserved before the call, settled after it."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.spending.budget import CostBudget, Reservation, Spend

TOKENS = st.integers(0, 40)
DOLLARS = st.integers(0, 40).map(lambda cents: Decimal(cents) / 100)


def reserved(spend: Spend, tokens: int, usd: Decimal | None = None) -> Reservation:
    decision, reservation = spend.reserve(tokens=tokens, usd=usd)
    assert decision.allows and reservation is not None
    return reservation


def figures(spend: Spend) -> tuple[object, ...]:
    return (spend.tokens, spend.usd, spend.reserved_tokens, spend.reserved_usd)


@pytest.mark.parametrize("usd", ["0.1", 0.1, Decimal("0.1")])
def test_an_amount_is_the_number_as_it_is_written(usd: object) -> None:
    budget = CostBudget(usd=usd)  # type: ignore[arg-type]
    assert budget == CostBudget(usd="0.1")
    assert budget.dollars == Decimal("0.1")


@pytest.mark.parametrize("usd", [-1, True, float("nan"), float("inf"), "sNaN", "five", [1]])
def test_no_amount_of_money_is_a_fault(usd: object) -> None:
    with pytest.raises(ConfigurationError, match="usd"):
        CostBudget(usd=usd)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [-1, True, 1.5, "9", float("nan")])
def test_no_number_of_tokens_is_a_fault(tokens: object) -> None:
    with pytest.raises(ConfigurationError, match="whole number"):
        CostBudget(tokens=tokens)  # type: ignore[arg-type]


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        CostBudget(usd=-1, tokens=-1)
    assert len(caught.value.faults) == 2
    with pytest.raises(ConfigurationError, match="give usd, tokens, or both"):
        CostBudget()
    with pytest.raises(ConfigurationError, match="give a CostBudget"):
        Spend(5)  # type: ignore[arg-type]


def test_the_call_that_reaches_the_limit_is_made_and_the_next_denied() -> None:
    spend = Spend(CostBudget(tokens=10))
    reserved(spend, 10).settle(tokens=10, usd=None)
    decision, nothing = spend.reserve(tokens=1, usd=None)
    assert (decision.action, decision.failure_class, nothing) == ("deny", "cost_overrun", None)
    assert decision.evidence == {
        "unit": "tokens",
        "spent": 10,
        "reserved": 0,
        "asked": 1,
        "limit": 10,
    }
    assert decision.cause == "the call may use 1 tokens: of 10 tokens, 10 are spent and 0 reserved"


def test_a_denial_reserves_nothing() -> None:
    spend = Spend(CostBudget(tokens=100, usd="1"))
    before = figures(spend)
    assert spend.reserve(tokens=5, usd=Decimal(2))[0].action == "deny"
    assert figures(spend) == before


def test_an_unknown_price_is_denied_where_the_budget_is_in_dollars() -> None:
    decision, _ = Spend(CostBudget(usd=1)).reserve(tokens=1, usd=None)
    assert decision.action == "deny"
    assert "price of the call is unknown" in decision.cause
    assert decision.evidence["asked"] is None
    assert Spend(CostBudget(tokens=1)).reserve(tokens=1, usd=None)[0].allows


def test_without_a_budget_it_only_counts() -> None:
    spend = Spend(None)
    reserved(spend, 10**9, None).settle(tokens=10**9, usd=Decimal(7))
    assert (spend.tokens, spend.usd) == (10**9, Decimal(7))


async def test_parallel_calls_do_not_overspend() -> None:
    """Check-then-act would let all twenty through: each sees an empty account."""
    spend = Spend(CostBudget(tokens=100))
    all_asked = asyncio.Barrier(20)

    async def call() -> bool:
        decision, reservation = spend.reserve(tokens=30, usd=None)
        await all_asked.wait()
        if reservation is not None:
            reservation.settle(tokens=30, usd=None)
        return decision.allows

    made = await asyncio.gather(*(call() for _ in range(20)))
    assert sum(made) == 3
    assert spend.tokens == 90


def test_what_is_settled_stays_settled() -> None:
    spend = Spend(CostBudget(tokens=100))
    reservation = reserved(spend, 50)
    reservation.settle(tokens=20, usd=None)
    reservation.settle(tokens=50, usd=None)
    reservation.charge()
    reservation.release()
    assert figures(spend) == (20, 0, 0, 0)


def test_without_usage_the_reservation_is_charged_as_an_estimate() -> None:
    spend = Spend(CostBudget(tokens=100, usd=1))
    reserved(spend, 30, Decimal("0.2")).charge()
    reserved(spend, 10, Decimal("0.1")).settle(tokens=-4, usd=Decimal("NaN"))
    assert (spend.tokens, spend.usd, spend.estimated_tokens) == (40, Decimal("0.3"), 40)


def test_a_call_that_was_never_made_costs_nothing() -> None:
    spend = Spend(CostBudget(tokens=100, usd=1))
    reserved(spend, 100, Decimal(1)).release()
    assert figures(spend) == (0, 0, 0, 0)


def test_a_call_that_used_more_than_reserved_is_counted_in_full() -> None:
    spend = Spend(CostBudget(tokens=100))
    reserved(spend, 10).settle(tokens=150, usd=None)
    assert spend.tokens == 150
    assert not spend.reserve(tokens=0, usd=None)[0].allows


def test_whoever_loads_counts_open_calls_as_made() -> None:
    spend = Spend(CostBudget(tokens=100, usd=1))
    reserved(spend, 10, Decimal("0.1")).settle(tokens=5, usd=Decimal("0.05"))
    reserved(spend, 30, Decimal("0.3"))
    loaded = spend.fresh()
    loaded.load(json.loads(json.dumps({**spend.dump(), "later": "version"})))
    assert (loaded.tokens, loaded.usd, loaded.estimated_tokens) == (35, Decimal("0.35"), 30)
    assert (loaded.reserved_tokens, loaded.reserved_usd) == (0, Decimal(0))


def test_a_reservation_from_before_a_load_is_void() -> None:
    spend = Spend(CostBudget(tokens=100))
    stale = reserved(spend, 30)
    spend.load(spend.dump())
    stale.release()
    assert figures(spend) == (30, 0, 0, 0)


@pytest.mark.parametrize(("tokens", "usd"), [(-1, None), (True, None), (1, Decimal(-1))])
def test_a_reservation_of_nonsense_raises(tokens: int, usd: Decimal | None) -> None:
    with pytest.raises(ValueError, match="reserve"):
        Spend(None).reserve(tokens=tokens, usd=usd)


class Accounts(RuleBasedStateMachine):
    """An account and its reloaded twin against a sum; nobody uses more than was reserved."""

    open = Bundle("open")

    def __init__(self) -> None:
        super().__init__()
        self.spend = Spend(CostBudget(tokens=100, usd=1))
        self.tokens, self.usd = 0, Decimal(0)
        self.held: list[tuple[int, Decimal]] = []

    @rule(target=open, tokens=TOKENS, usd=DOLLARS)
    def reserve(self, tokens: int, usd: Decimal) -> tuple[Reservation, int, Decimal] | None:
        fits = (
            self.tokens + sum(t for t, _ in self.held) + tokens <= 100
            and self.usd + sum(d for _, d in self.held) + usd <= 1
        )
        twin = self.spend.fresh()
        twin.load(json.loads(json.dumps(self.spend.dump())))
        decision, reservation = self.spend.reserve(tokens=tokens, usd=usd)
        assert decision.allows == fits == twin.reserve(tokens=tokens, usd=usd)[0].allows
        if reservation is None:
            return None
        self.held.append((tokens, usd))
        return reservation, tokens, usd

    @rule(reservation=consumes(open), share=st.integers(0, 4), end=st.sampled_from("scr"))
    def close(
        self, reservation: tuple[Reservation, int, Decimal] | None, share: int, end: str
    ) -> None:
        if reservation is None:
            return
        held, tokens, usd = reservation
        self.held.remove((tokens, usd))
        if end == "s":
            used = (tokens * share // 4, usd * share / 4)
            held.settle(tokens=used[0], usd=used[1])
        else:
            used = (tokens, usd) if end == "c" else (0, Decimal(0))
            held.charge() if end == "c" else held.release()
        self.tokens += used[0]
        self.usd += used[1]

    @invariant()
    def agrees(self) -> None:
        assert (self.spend.tokens, self.spend.usd) == (self.tokens, self.usd)
        assert self.spend.reserved_tokens == sum(t for t, _ in self.held)
        assert self.spend.tokens + self.spend.reserved_tokens <= 100
        assert self.spend.usd + self.spend.reserved_usd <= 1
        assert len(json.dumps(self.spend.dump())) < 300


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
