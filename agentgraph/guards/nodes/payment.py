"""A model call is paid for: its worst case is held back before it, and settled after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata

from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.spending.budget import Reservation
from agentgraph.guards.mechanisms.spending.prices import cost_of, most_output_of, worst_cost
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pending_writes import SideNotes
from agentgraph.guards.records.recorder import Recorder
from agentgraph.interception import ControlFlow, ModelCall


class Paying:
    """Pays for the calls of one node, from all accounts that it is under."""

    def __init__(self, policy: Guards, place: Place, account: Account, recorder: Recorder) -> None:
        self._policy = policy
        self._place = place
        self._account = account
        self._recorder = recorder

    async def reserve(
        self, name: str, model: object, messages: Sequence[BaseMessage], asked: ModelCall
    ) -> list[Reservation]:
        """Hold back what a call may cost; where that is too much, the run ends before it."""
        accounts = self._account.spends_under(self._policy)
        if not accounts:
            return []
        estimates = self._account.estimates
        output = most_output_of(model, asked.settings) or estimates.most_written
        tokens = estimates.of(messages, asked.specs, output)
        usd: Decimal | None = None
        if any(one.is_in_usd for one in accounts):
            usd = worst_cost(self._policy.prices, name, tokens - output, output)
        if self._recorder.notes is not None:
            await self._recall(self._recorder.notes)
        held: list[Reservation] = []
        for spend in accounts:
            decision, reservation = spend.reserve(tokens=tokens, usd=usd)
            if reservation is None:
                _release(held)
                raise GuardStopped(await self._recorder.by_table(decision))
            held.append(reservation)
        try:
            if self._recorder.notes is not None or self._recorder.ledger is not None:
                await self._file()
        except BaseException:
            _release(held)
            raise
        return held

    def settle(
        self, name: str, message: AIMessage, held: Sequence[Reservation], parent: int | None
    ) -> Decision | None:
        """Pay what a call has cost; return what to decide on where that was spent too fast."""
        usage = _plausible(message.usage_metadata)
        if usage is not None:
            estimates = self._account.estimates
            estimates.most_written = max(estimates.most_written, usage["output_tokens"])
        usd: Decimal | None = None
        if usage is not None and (self._watches_usd or (held and held[0].usd is not None)):
            usd = cost_of(self._policy.prices, name, usage)
        for reservation in held:
            if usage is None:
                reservation.charge()
            else:
                reservation.settle(tokens=usage["total_tokens"], usd=usd)
        self._recorder.settled(parent, _figures(usage, usd, held))
        velocity = self._account.velocity
        if velocity is None:
            return None
        tokens = usage["total_tokens"] if usage is not None else _most(held)[0]
        decision = velocity.record(
            tokens=tokens, usd=usd, scope=f"{self._account.part}{self._place.path}"
        )
        return None if decision.allows else decision

    def fail(self, error: BaseException, held: Sequence[Reservation], parent: int | None) -> None:
        """Settle a call that failed; whether one that was cut off was paid for, nobody knows."""
        is_over = isinstance(error, asyncio.CancelledError | TimeoutError)
        for reservation in held:
            if is_over:
                reservation.charge()
            else:
                reservation.release()
        if parent is None:
            return  # it was not made
        figures = _figures(None, None, held) if is_over else {"total_tokens": 0, "usd": "0"}
        try:
            self._recorder.settled(parent, figures)
        except GuardStopped:
            if isinstance(error, Exception) and not isinstance(error, ControlFlow):
                raise
            # Whoever is cancelled, or pauses, does so whatever becomes of the trail.

    def forget_pace(self) -> None:
        """Begin anew to watch how fast is spent."""
        if self._account.velocity is not None:
            self._account.velocity.forget()

    @property
    def _watches_usd(self) -> bool:
        velocity = self._account.velocity
        return velocity is not None and velocity.usd_per_hour is not None

    async def _recall(self, notes: SideNotes) -> None:
        """Count in what a process has written down that was killed in this very node."""
        spending = self._account.spending
        if notes.level not in spending.read_levels:
            for figures in await notes.read():
                spending.merge(figures)
            spending.read_levels.add(notes.level)

    async def _file(self) -> None:
        """Have it written down what may be spent now, before it is: a kill would forget it."""
        if self._recorder.notes is not None:
            await self._recorder.notes.write(self._account.spending.dump())
        if self._recorder.ledger is None:
            return
        spending = self._account.spending
        async with spending.log_lock:
            shares = spending.unlogged_shares()
            for of, share in shares.items():
                await self._recorder.keep(kind="reserved", of=of, share=share)
            spending.mark_logged(shares)


def _release(held: Sequence[Reservation]) -> None:
    for one in held:
        one.release()


def _plausible(usage: UsageMetadata | None) -> UsageMetadata | None:
    """Return what was used, None where that is missing or cannot be: then the worst is charged."""
    if usage is None:
        return None
    read, written, total = usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]
    if min(read, written, total) < 0 or read + written + total == 0:
        return None
    return usage if total >= read + written else {**usage, "total_tokens": read + written}


def reserved(held: Sequence[Reservation]) -> dict[str, object]:
    """Return what a call may cost, as far as anybody has reckoned it."""
    tokens, usd = _most(held)
    figures: dict[str, object] = {"reserved_tokens": tokens}
    if usd is not None:
        figures["reserved_usd"] = str(usd)
    return figures


def _most(held: Sequence[Reservation]) -> tuple[int, Decimal | None]:
    return (held[0].tokens, held[0].usd) if held else (0, None)


def _figures(
    usage: UsageMetadata | None, usd: Decimal | None, held: Sequence[Reservation]
) -> dict[str, object]:
    figures: dict[str, object]
    if usage is None:
        tokens, usd = _most(held)
        figures = {"total_tokens": tokens, "estimated": True}
    else:
        figures = {
            "input_tokens": usage["input_tokens"],
            "output_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
        }
    if usd is not None:
        figures["usd"] = str(usd)
    return figures
