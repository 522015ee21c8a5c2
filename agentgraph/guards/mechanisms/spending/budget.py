"""The budget of a run, and its account: each call is reserved before it runs, and settled after.

The worst case of a call is reserved first: a check of the amount spent alone would let N parallel
calls pass together, and overspend N times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from threading import Lock
from typing import Literal, Self, TypeAlias, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.settings import is_whole
from agentgraph.guards.mechanisms.spending.prices import Prices

Amount: TypeAlias = float | str | Decimal
"""US dollars."""

_GUARD = "cost_budget"
_ALLOW = Decision("allow", _GUARD)
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class CostBudget(BuiltInGuard):
    """The US dollars, the tokens, or both, that a run may spend.

        CostBudget(usd="2.50", prices={"my-model": ("0.15", "0.60")})

    Before each call, what it sends and what its model may write (`max_tokens`) is reserved. A model
    without a limit is assumed to write as many tokens as in its longest answer so far, and 1,024 if
    that many are left. So one such call, the last, may exceed the budget by what it writes: give
    models a limit where the budget must never be exceeded.
    """

    setting = "budget"
    summary = "CostBudget(tokens=1_000_000): tokens and dollars, reserved before each call"
    short_form = "how many tokens, 0 or more"

    usd: Amount | None = None
    tokens: int | None = None
    prices: Mapping[str, tuple[Amount, Amount]] = field(default_factory=dict, hash=False)
    """US dollars for a million tokens, read and written, of models missing in the price book."""

    def __post_init__(self) -> None:
        faults = [*_price_faults(self.prices)]
        if self.usd is None and self.tokens is None:
            faults.append("CostBudget(): give usd, tokens, or both")
        if self.usd is not None and (usd := _dollars(self.usd)) is None:
            faults.append(f"CostBudget(usd={self.usd!r}): give an amount of 0 or more")
        elif self.usd is not None:
            object.__setattr__(self, "usd", usd)
        if self.tokens is not None and not _is_count(self.tokens):
            faults.append(f"CostBudget(tokens={self.tokens!r}): give a whole number of 0 or more")
        if faults:
            raise ConfigurationError(faults)
        prices = {
            name: (_amount(read_price), _amount(written_price))
            for name, (read_price, written_price) in self.prices.items()
        }
        object.__setattr__(self, "prices", prices)

    @classmethod
    def of_tier(cls, tier: Tier) -> Self | None:
        """Return the budget of a tier, in tokens; a regulated one has to be given."""
        if tier == "regulated":
            return None
        return cls(tokens=10_000_000 if tier == "batch" else 1_000_000)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the budget of so many tokens."""
        return cls(tokens=value) if is_whole(value) else None

    @classmethod
    def absence_faults(cls, tier: Tier, *, is_removed: bool) -> Iterator[str]:
        """Yield a fault where a regulated policy has no budget."""
        if tier == "regulated":
            yield (
                "a regulated flow has no budget of its own: give budget=CostBudget(usd=…), "
                "or tokens=…"
            )

    @property
    def price_list(self) -> Prices:
        """Return the prices, exactly as they were written."""
        return cast("Prices", self.prices)

    @property
    def dollars(self) -> Decimal | None:
        """Return the limit in US dollars, exactly as it was written."""
        return self.usd if isinstance(self.usd, Decimal) else None


class Reservation:
    """What one call may cost, reserved until its usage is known: settle, charge or release it.

    Only the first of the three calls counts.
    """

    __slots__ = ("_spend", "id", "tokens", "usd")

    def __init__(self, spend: Spend, id: str, tokens: int, usd: Decimal | None) -> None:
        self._spend = spend
        self.id = id
        self.tokens = tokens
        self.usd = usd

    def settle(self, *, tokens: int, usd: Decimal | None) -> None:
        """Replace it by the real usage; a missing or invalid figure is charged in full."""
        is_counted = _is_count(tokens)
        dollars = None if usd is None else _dollars(usd)
        self._spend._close(
            self,
            tokens if is_counted else self.tokens,
            self.usd if dollars is None else dollars,
            estimated_tokens=0 if is_counted else self.tokens,
        )

    def charge(self) -> None:
        """Count all of it as spent: the call was made and no usage came back."""
        self._spend._close(self, self.tokens, self.usd, estimated_tokens=self.tokens)

    def release(self) -> None:
        """Return the amount to the budget: the call was never made."""
        self._spend._close(self, 0, None, estimated_tokens=0)


class Spend:
    """What a run has spent and reserved under one budget; without a budget it only counts."""

    def __init__(self, budget: CostBudget | None = None) -> None:
        if budget is not None and not isinstance(budget, CostBudget):
            raise ConfigurationError(f"Spend({budget!r}): give a CostBudget, or None")
        self.budget = budget
        self.is_in_usd = budget is not None and budget.usd is not None
        self.tokens = 0
        self.usd = Decimal(0)
        self.reserved_tokens = 0
        self.reserved_usd = Decimal(0)
        self.estimated_tokens = 0
        self.grants = 1
        self._limit: int | None = None
        self._dollars: Decimal | None = None
        self._set_limits()
        self._open: set[Reservation] = set()
        # Nodes that are not coroutines run in threads, and use the account at the same time.
        self._lock = Lock()

    def fresh(self) -> Spend:
        """Return an account with the same budget and nothing spent."""
        return Spend(self.budget)

    def reserve(
        self,
        *,
        tokens: int,
        usd: Decimal | None,
        id: str = "",
        assumed_tokens: int = 0,
        assumed_usd: Decimal = _ZERO,
    ) -> tuple[Decision, Reservation | None]:
        """Reserve the worst case of a call, or deny the call.

        `usd` is None where the price is unknown; a budget in dollars denies such a call. The parts
        that are only assumed are cut to what is left of the budget, and the call is denied where
        nothing is left for them. Raises `ValueError` for an invalid amount.
        """
        if not _is_count(tokens):
            raise ValueError(f"reserve(tokens={tokens!r}): give a whole number of 0 or more")
        if usd is not None and (usd := _dollars(amount := usd)) is None:
            raise ValueError(f"reserve(usd={amount!r}): give an amount of 0 or more, or None")
        with self._lock:
            tokens, usd = self._cut(tokens, usd, assumed_tokens, assumed_usd)
            if denial := self._denial_of(tokens, usd):
                return denial, None
            reservation = Reservation(self, id, tokens, usd)
            self._open.add(reservation)
            self.reserved_tokens += tokens
            self.reserved_usd += usd or 0
        return _ALLOW, reservation

    @property
    def share(self) -> float:
        """Return the spent and reserved share of the budget, the larger one of its two units."""
        if self.budget is None:
            return 0.0
        limit, dollars = self._limit, self._dollars
        shares = [0.0]
        if limit is not None:
            shares.append((self.tokens + self.reserved_tokens) / max(limit, 1))
        if dollars is not None:
            shares.append(float(self.usd + self.reserved_usd) / max(float(dollars), 1e-9))
        return max(shares)

    def exhausted(self) -> Decision | None:
        """Return a denial where nothing is left of the budget, else None."""
        with self._lock:
            dollars = self._dollars
            denial = self._denial_of(1, None if dollars is None else _ZERO)
            if denial is None and dollars is not None and self.usd >= dollars:
                return _denial("usd", self.usd, self.reserved_usd, _ZERO, dollars)
            return denial

    def lacks(self, budget: CostBudget) -> Decision | None:
        """Return a denial where less is left than another budget allows to spend, else None."""
        with self._lock:
            return self._denial_of(budget.tokens or 1, budget.dollars)

    def grant(self) -> None:
        """Allow the whole budget once more: a human has agreed to it."""
        with self._lock:
            self.grants += 1
            self._set_limits()

    def count_in(self, tokens: int, usd: Decimal, grants: int = 1) -> None:
        """Add what other processes have paid for the same input, and adopt their grants."""
        with self._lock:
            self.tokens += tokens
            self.usd += usd
            self.grants = max(self.grants, grants)
            self._set_limits()

    def hold(self, tokens: int, usd: Decimal, share: float) -> None:
        """Raise the account to what was certainly paid, plus a share that may have been paid.

        `share` is relative to the whole budget, 0.1 is a tenth of it; it counts as an estimate.
        """
        limit, dollars = self._limit, self._dollars
        share_tokens = math.ceil((limit or 0) * share)
        with self._lock:
            self.estimated_tokens = max(self.estimated_tokens, share_tokens)
            self.tokens = max(self.tokens, tokens + share_tokens)
            self.usd = max(self.usd, usd + (dollars or Decimal(0)) * _amount(share))

    def _set_limits(self) -> None:
        """Compute the limits: the limits of the budget, times the number of grants."""
        tokens = None if self.budget is None else self.budget.tokens
        self._limit = None if tokens is None else tokens * self.grants
        dollars = None if self.budget is None else self.budget.dollars
        # Not multiplied by 1: a product is rounded to the context's precision.
        self._dollars = dollars if dollars is None or self.grants == 1 else dollars * self.grants

    def dump(self) -> dict[str, object]:
        """Return the account as JSON-able values."""
        with self._lock:
            return {
                "granted": self.grants,
                "tokens": self.tokens,
                "usd": str(self.usd),
                "reserved_tokens": self.reserved_tokens,
                "reserved_usd": str(self.reserved_usd),
                "estimated_tokens": self.estimated_tokens,
            }

    def load(self, state: Mapping[str, object]) -> None:
        """Restore the account from what `dump` returned; a reserved amount counts as spent.

        The process that loads it cannot know whether the reserved call was made.
        """
        reserved_tokens = _count(state.get("reserved_tokens"))
        with self._lock:
            self.tokens = _count(state.get("tokens")) + reserved_tokens
            self.usd = _amount(state.get("usd")) + _amount(state.get("reserved_usd"))
            self.estimated_tokens = _count(state.get("estimated_tokens")) + reserved_tokens
            self.grants = _count(state.get("granted")) or 1
            self._set_limits()
            self.reserved_tokens, self.reserved_usd = 0, Decimal(0)
            self._open.clear()

    def _cut(
        self, tokens: int, usd: Decimal | None, assumed_tokens: int, assumed_usd: Decimal
    ) -> tuple[int, Decimal | None]:
        """Return the amounts without what is assumed beyond the rest of the budget."""
        limit, dollars = self._limit, self._dollars
        if limit is not None and assumed_tokens:
            rest = limit - self.tokens - self.reserved_tokens
            tokens = min(tokens, max(rest, tokens - assumed_tokens + 1))
        if dollars is not None and usd is not None and assumed_usd:
            rest_usd = dollars - self.usd - self.reserved_usd
            # Something must be left for the answer, or the call would be refused only after it.
            if rest_usd > usd - assumed_usd:
                usd = min(usd, rest_usd)
        return tokens, usd

    def _denial_of(self, tokens: int, usd: Decimal | None) -> Decision | None:
        if self.budget is None:
            return None
        limit, dollars = self._limit, self._dollars
        if limit is not None and self.tokens + self.reserved_tokens + tokens > limit:
            return _denial("tokens", self.tokens, self.reserved_tokens, tokens, limit)
        if dollars is None:
            return None
        if usd is None:
            return _denial("usd", self.usd, self.reserved_usd, None, dollars)
        if self.usd + self.reserved_usd + usd > dollars:
            return _denial("usd", self.usd, self.reserved_usd, usd, dollars)
        return None

    def _close(
        self, reservation: Reservation, tokens: int, usd: Decimal | None, *, estimated_tokens: int
    ) -> None:
        with self._lock:
            if reservation not in self._open:
                return
            self._open.remove(reservation)
            self.reserved_tokens -= reservation.tokens
            self.reserved_usd -= reservation.usd or 0
            self.tokens += tokens
            self.usd += usd or 0
            self.estimated_tokens += estimated_tokens


def _denial(
    unit: Literal["tokens", "usd"],
    spent_amount: int | Decimal,
    reserved_amount: int | Decimal,
    amount: int | Decimal | None,
    limit: int | Decimal,
) -> Decision:
    usage = f"of {limit} {unit}, {spent_amount} are spent and {reserved_amount} reserved"
    if amount is None:
        cause = f"the price of the call is unknown, and the budget is in dollars: {usage}"
    else:
        cause = f"the call may use {amount} {unit}: {usage}"
    figures = {"spent": spent_amount, "reserved": reserved_amount, "asked": amount, "limit": limit}
    json_figures = {name: str(n) if isinstance(n, Decimal) else n for name, n in figures.items()}
    return Decision("deny", _GUARD, cause, "cost_overrun", {"unit": unit, **json_figures})


def _price_faults(prices: object) -> Iterator[str]:
    if not isinstance(prices, Mapping):
        yield f"CostBudget(prices={prices!r}): give {{model name: (read, written)}}, per million"
        return
    for name, price in prices.items():
        pair = price if isinstance(price, list | tuple) and len(price) == 2 else (None,)
        if not isinstance(name, str) or any(_dollars(amount) is None for amount in pair):
            yield f"CostBudget(prices={{{name!r}: {price!r}}}): give two amounts, of 0 or more"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _dollars(value: object) -> Decimal | None:
    """Return an amount of money, None for a value that is none."""
    amount = value if isinstance(value, Decimal) else _decimal_of(value)
    if amount is None:
        return None
    return amount if amount.is_finite() and amount >= 0 else None


def _decimal_of(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _count(value: object) -> int:
    return value if isinstance(value, int) and _is_count(value) else 0


def _amount(value: object) -> Decimal:
    return _dollars(value) or Decimal(0)
