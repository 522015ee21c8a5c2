"""Payment for a model call: its worst case is reserved before the call, and settled after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata

from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.spending.budget import Reservation, Spend
from agentgraph.guards.mechanisms.spending.prices import (
    cost_of,
    most_output_of,
    worst_cost,
)
from agentgraph.guards.nodes.site import Site
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pending_writes import PendingWrites
from agentgraph.interception import ControlFlow, ModelCall


@dataclass(slots=True)
class Payment:
    """The reservations for one call, one under each budget that pays for it."""

    reservations: Sequence[Reservation] = ()
    record_seq: int | None = None
    """The number of the call's audit record, None until the call is made."""

    @property
    def tokens(self) -> int:
        """The tokens that the call may use at most, 0 where no budget applies."""
        return self.reservations[0].tokens if self.reservations else 0

    @property
    def usd(self) -> Decimal | None:
        """The dollars that the call may cost at most, None where no budget applies."""
        return self.reservations[0].usd if self.reservations else None

    def worst_case(self) -> dict[str, object]:
        """Return what the call may cost at most, as data for its audit record."""
        data: dict[str, object] = {"reserved_tokens": self.tokens}
        if self.usd is not None:
            data["reserved_usd"] = str(self.usd)
        return data

    def release(self) -> None:
        """Release all reservations: nothing was spent."""
        for reservation in self.reservations:
            reservation.release()

    def charge(self) -> None:
        """Count all reservations as spent: the real usage is not known."""
        for reservation in self.reservations:
            reservation.charge()


async def reserve(
    site: Site, name: str, model: object, messages: Sequence[BaseMessage], call: ModelCall
) -> Payment:
    """Reserve what a call may cost at most; raises `GuardStopped` where that exceeds a budget.

    Where a kill of the process must not lose the reservation, it is stored before this returns.
    """
    account, pending_writes = site.account, site.pending_writes
    spends = account.spends_under(site.policy)
    if not spends:
        return Payment()
    estimates = account.estimates
    stated_output = most_output_of(model, call.settings)
    output = stated_output or estimates.likely_output
    # Of a model without a limit, only what it has written before is certain to be needed.
    surplus = 0 if stated_output else output - estimates.most_written
    tokens = estimates.of(messages, call.specs, output)
    if pending_writes is not None:
        await _recall(account, pending_writes)
    payment = hold(site, spends, name, tokens, output, surplus)
    if isinstance(payment, Decision):
        raise GuardStopped(await site.decide_by_table(payment))
    try:
        if pending_writes is not None:
            await pending_writes.write(account.spending.dump())
        if site.ledger is not None or account.outer_ledger is not None:
            await _log_shares(site)
    except BaseException:
        payment.release()
        raise
    return payment


def hold(
    site: Site, spends: Sequence[Spend], name: str, tokens: int, output: int, surplus: int
) -> Payment | Decision:
    """Reserve what a call may cost in all budgets, or in none and return the denial of one.

    `output` of the tokens are those that the model may write, of which `surplus` is only assumed.
    """
    usd: Decimal | None = None
    assumed_amounts: dict[str, Any] = {"assumed_tokens": surplus} if surplus else {}
    if any(spend.is_in_usd for spend in spends):
        prices = site.policy.prices
        usd = worst_cost(prices, name, tokens - output, output)
        if surplus:
            assumed_amounts["assumed_usd"] = worst_cost(prices, name, 0, surplus) or Decimal(0)
    reservations: list[Reservation] = []
    payment = Payment(reservations)
    for spend in spends:
        decision, reservation = spend.reserve(tokens=tokens, usd=usd, **assumed_amounts)
        if reservation is None:
            payment.release()
            return decision
        reservations.append(reservation)
    return payment


async def _recall(account: Account, pending_writes: PendingWrites) -> None:
    """Count what a killed process stored in this node before it was killed."""
    spending = account.spending
    if pending_writes.namespace not in spending.read_levels:
        for spends in await pending_writes.read() if pending_writes.may_have_run else ():
            spending.merge(spends)
        spending.read_levels.add(pending_writes.namespace)


async def _log_shares(site: Site) -> None:
    """Write the shares of the budgets that may be spent from now on to the session's log."""
    spending = site.account.spending
    # Under a lock: a parallel call must not overtake the record of the share that it spends.
    async with spending.log_lock:
        shares = spending.unlogged_shares()
        for budget, share in shares.items():
            await site.log(kind="reserved", of=budget, share=share)
        spending.mark_logged(shares)


def settle(site: Site, name: str, message: AIMessage, payment: Payment) -> Decision | None:
    """Pay the cost of a call; return the denial where tokens or dollars are spent too fast.

    Without plausible figures from the provider the whole reservation counts as spent.
    """
    account, velocity = site.account, site.account.velocity
    usage = _plausible(message.usage_metadata)
    if usage is not None:
        estimates = account.estimates
        estimates.most_written = max(estimates.most_written, usage["output_tokens"])
    watches_usd = velocity is not None and velocity.usd_per_hour is not None
    usd: Decimal | None = None
    if usage is not None and (watches_usd or payment.usd is not None):
        usd = cost_of(site.policy.prices, name, usage)
    if usage is None:
        payment.charge()
    else:
        for reservation in payment.reservations:
            reservation.settle(tokens=usage["total_tokens"], usd=usd)
    data = _estimate_data(payment) if usage is None else _usage_data(usage, usd)
    site.record_usage(payment.record_seq, data)
    if velocity is None:
        return None
    tokens = usage["total_tokens"] if usage is not None else payment.tokens
    scope = f"{account.path_prefix}{site.place.path}"
    stage = f"{account.path_prefix}{site.place.visit_key}"
    decision = velocity.record(tokens=tokens, usd=usd, scope=scope, stage=stage)
    return None if decision.allows else decision


def fail(site: Site, error: BaseException, payment: Payment) -> None:
    """Settle a failed call; one that was cut off is charged, as the provider may bill it."""
    is_cut_off = isinstance(error, asyncio.CancelledError | TimeoutError)
    if is_cut_off:
        payment.charge()
    else:
        payment.release()
    if payment.record_seq is None:
        return
    data = _estimate_data(payment) if is_cut_off else {"total_tokens": 0, "usd": "0"}
    try:
        site.record_usage(payment.record_seq, data)
    except GuardStopped:
        # A cancellation or an interrupt must pass, even if the audit trail cannot be written.
        if isinstance(error, Exception) and not isinstance(error, ControlFlow):
            raise


def _plausible(usage: UsageMetadata | None) -> UsageMetadata | None:
    """Return the usage, None where it is missing or implausible: then the worst case is charged."""
    if usage is None:
        return None
    input_, output, total = usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]
    if min(input_, output, total) < 0 or input_ + output + total == 0:
        return None
    return usage if total >= input_ + output else {**usage, "total_tokens": input_ + output}


def _usage_data(usage: UsageMetadata, usd: Decimal | None) -> dict[str, object]:
    data: dict[str, object] = {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
    }
    if usd is not None:
        data["usd"] = str(usd)
    return data


def _estimate_data(payment: Payment) -> dict[str, object]:
    data: dict[str, object] = {"total_tokens": payment.tokens, "estimated": True}
    if payment.usd is not None:
        data["usd"] = str(payment.usd)
    return data
