"""How much a run may spend: the worst case is reserved before each call and settled after it.

A check of what is spent alone would let N parallel calls overspend N times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from threading import Lock
from typing import Literal, TypeAlias, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.spending.prices import Prices

Amount: TypeAlias = float | str | Decimal
"""US dollars."""

_GUARD = "cost_budget"
_ALLOWED = Decision("allow", _GUARD)
_NOTHING = Decimal(0)


@dataclass(frozen=True, slots=True)
class CostBudget:
    """The US dollars, the tokens, or both, that a run may spend.

    A call is reckoned by how much its model may write (`max_tokens`). One that does not say is
    taken to write 1,024 tokens, or as many as it has written before: give it a limit where none of
    the budget may be passed.
    """

    usd: Amount | None = None
    tokens: int | None = None
    prices: Mapping[str, tuple[Amount, Amount]] = field(default_factory=dict, hash=False)
    """US dollars for a million tokens, read and written, of models that no price book has."""

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
        known = {
            name: (_amount(read), _amount(written)) for name, (read, written) in self.prices.items()
        }
        object.__setattr__(self, "prices", known)

    @property
    def price_list(self) -> Prices:
        """Return the prices, exactly as they were written."""
        return cast("Prices", self.prices)

    @property
    def dollars(self) -> Decimal | None:
        """Return the limit in US dollars, exactly as it was written."""
        return self.usd if isinstance(self.usd, Decimal) else None


class Reservation:
    """What one call may cost, held back until it is known what it did cost."""

    __slots__ = ("_spend", "id", "tokens", "usd")

    def __init__(self, spend: Spend, id: str, tokens: int, usd: Decimal | None) -> None:
        self._spend = spend
        self.id = id
        self.tokens = tokens
        self.usd = usd

    def settle(self, *, tokens: int, usd: Decimal | None) -> None:
        """Replace it by what was used; a figure that is missing or makes no sense is charged."""
        known = _is_count(tokens)
        paid = None if usd is None else _dollars(usd)
        self._spend._close(
            self,
            tokens if known else self.tokens,
            self.usd if paid is None else paid,
            estimated=0 if known else self.tokens,
        )

    def charge(self) -> None:
        """Count all of it as spent: the call was made and no usage came back."""
        self._spend._close(self, self.tokens, self.usd, estimated=self.tokens)

    def release(self) -> None:
        """Give it back: the call was never made."""
        self._spend._close(self, 0, None, estimated=0)


class Spend:
    """The account of one run; without a budget it only counts."""

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
        self.granted = 1
        self._limit: int | None = None
        self._dollars: Decimal | None = None
        self._allow()
        self._open: set[Reservation] = set()
        # Nodes that are no coroutines run in threads, and share the account with the others.
        self._lock = Lock()

    def fresh(self) -> Spend:
        """Return an account with the same budget and nothing spent."""
        return Spend(self.budget)

    def reserve(
        self, *, tokens: int, usd: Decimal | None, id: str = ""
    ) -> tuple[Decision, Reservation | None]:
        """Hold back the worst case of a call, or deny the call."""
        if not _is_count(tokens):
            raise ValueError(f"reserve(tokens={tokens!r}): give a whole number of 0 or more")
        if usd is not None and (usd := _dollars(given := usd)) is None:
            raise ValueError(f"reserve(usd={given!r}): give an amount of 0 or more, or None")
        with self._lock:
            if denied := self._denied(tokens, usd):
                return denied, None
            reservation = Reservation(self, id, tokens, usd)
            self._open.add(reservation)
            self.reserved_tokens += tokens
            self.reserved_usd += usd or 0
        return _ALLOWED, reservation

    @property
    def share(self) -> float:
        """Return which share of the budget is spent or reserved, the larger one of its units."""
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
        """Deny whatever comes next where nothing is left; None while something is."""
        with self._lock:
            dollars = self._dollars
            denied = self._denied(1, None if dollars is None else _NOTHING)
            if denied is None and dollars is not None and self.usd >= dollars:
                return _over("usd", self.usd, self.reserved_usd, _NOTHING, dollars)
            return denied

    def grant(self) -> None:
        """Allow as much again: a human has agreed to it."""
        with self._lock:
            self.granted += 1
            self._allow()

    def count_in(self, tokens: int, usd: Decimal, granted: int = 1) -> None:
        """Count what others have paid for the same input."""
        with self._lock:
            self.tokens += tokens
            self.usd += usd
            self.granted = max(self.granted, granted)
            self._allow()

    def hold(self, tokens: int, usd: Decimal, share: float) -> None:
        """Count at least what was paid and a share of the budget that may have been too."""
        limit, dollars = self._limit, self._dollars
        held = math.ceil((limit or 0) * share)
        with self._lock:
            self.estimated_tokens = max(self.estimated_tokens, held)
            self.tokens = max(self.tokens, tokens + held)
            self.usd = max(self.usd, usd + (dollars or Decimal(0)) * _amount(share))

    def _allow(self) -> None:
        """Reckon the limits: the budget's, as often as it was granted."""
        tokens = None if self.budget is None else self.budget.tokens
        self._limit = None if tokens is None else tokens * self.granted
        dollars = None if self.budget is None else self.budget.dollars
        # A product would be rounded.
        self._dollars = dollars if dollars is None or self.granted == 1 else dollars * self.granted

    def dump(self) -> dict[str, object]:
        """Return the account as JSON-able values."""
        with self._lock:
            return {
                "granted": self.granted,
                "tokens": self.tokens,
                "usd": str(self.usd),
                "reserved_tokens": self.reserved_tokens,
                "reserved_usd": str(self.reserved_usd),
                "estimated_tokens": self.estimated_tokens,
            }

    def load(self, dumped: Mapping[str, object]) -> None:
        """Take what `dump` gave; what was reserved counts as spent.

        Whoever loads does not know whether the call was made.
        """
        reserved = _count(dumped.get("reserved_tokens"))
        with self._lock:
            self.tokens = _count(dumped.get("tokens")) + reserved
            self.usd = _amount(dumped.get("usd")) + _amount(dumped.get("reserved_usd"))
            self.estimated_tokens = _count(dumped.get("estimated_tokens")) + reserved
            self.granted = _count(dumped.get("granted")) or 1
            self._allow()
            self.reserved_tokens, self.reserved_usd = 0, Decimal(0)
            self._open.clear()

    def _denied(self, tokens: int, usd: Decimal | None) -> Decision | None:
        if self.budget is None:
            return None
        limit, dollars = self._limit, self._dollars
        if limit is not None and self.tokens + self.reserved_tokens + tokens > limit:
            return _over("tokens", self.tokens, self.reserved_tokens, tokens, limit)
        if dollars is None:
            return None
        if usd is None:
            return _over("usd", self.usd, self.reserved_usd, None, dollars)
        if self.usd + self.reserved_usd + usd > dollars:
            return _over("usd", self.usd, self.reserved_usd, usd, dollars)
        return None

    def _close(
        self, reservation: Reservation, tokens: int, usd: Decimal | None, *, estimated: int
    ) -> None:
        with self._lock:
            if reservation not in self._open:
                return
            self._open.remove(reservation)
            self.reserved_tokens -= reservation.tokens
            self.reserved_usd -= reservation.usd or 0
            self.tokens += tokens
            self.usd += usd or 0
            self.estimated_tokens += estimated


def _over(
    unit: Literal["tokens", "usd"],
    spent: int | Decimal,
    reserved: int | Decimal,
    asked: int | Decimal | None,
    limit: int | Decimal,
) -> Decision:
    used = f"of {limit} {unit}, {spent} are spent and {reserved} reserved"
    if asked is None:
        cause = f"the price of the call is unknown, and the budget is in dollars: {used}"
    else:
        cause = f"the call may use {asked} {unit}: {used}"
    figures = {"spent": spent, "reserved": reserved, "asked": asked, "limit": limit}
    shown = {name: str(n) if isinstance(n, Decimal) else n for name, n in figures.items()}
    return Decision("deny", _GUARD, cause, "cost_overrun", {"unit": unit, **shown})


def _price_faults(prices: object) -> Iterator[str]:
    if not isinstance(prices, Mapping):
        yield f"CostBudget(prices={prices!r}): give {{model name: (read, written)}}, per million"
        return
    for name, price in prices.items():
        pair = price if isinstance(price, list | tuple) and len(price) == 2 else (None,)
        if not isinstance(name, str) or any(_dollars(one) is None for one in pair):
            yield f"CostBudget(prices={{{name!r}: {price!r}}}): give two amounts, of 0 or more"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _dollars(value: object) -> Decimal | None:
    """Return an amount of money, None for what is none."""
    amount = value if isinstance(value, Decimal) else _read(value)
    if amount is None:
        return None
    return amount if amount.is_finite() and amount >= 0 else None


def _read(value: object) -> Decimal | None:
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
