"""What the guards of a round must not forget, written to the session's log before it happens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentgraph.errors import ConfigurationError, kind_of
from agentgraph.guards import SHARE, Guards
from agentgraph.guards.records.account import Account
from agentgraph.interception import LedgerUnavailable
from agentgraph.sessions.hub.round import Round
from agentgraph.sessions.state.draft import Draft
from agentgraph.sessions.state.envelope import EV_AUDIT
from agentgraph.sessions.state.payload import clip

_LONGEST = 4_000
"""The longest result that is given again to a round that runs again: each append writes it."""


@dataclass(frozen=True, slots=True)
class Around:
    """What an inner session is a part of."""

    part: str
    """What it is called there."""
    place: str
    """The same, but that it tells it from others of that name which are held beside it."""
    ledger: RoundLedger | None
    """Where that is written which the whole must not forget, None outside of a session."""
    account: Account | None
    """What is counted for the whole, None where no guards hold for it."""

    def told(self, record: Mapping[str, object]) -> dict[str, object]:
        """Return a record of what was done in it as the whole has it."""
        return {**record, "agent": f"{self.part}/{record['agent']}"}

    async def hear(self, record: Mapping[str, object]) -> None:
        """Have a decision on record with the whole too."""
        if self.ledger is not None:
            await self.ledger.write(self.told(record))

    def take_in(self, account: Account, session: str, guards: Guards | None) -> None:
        """Count what is done in a session with all else, under the deadline of its own guards."""
        if self.account is None:
            return
        begun = f"{self.part}@{self.ledger.round}" if self.ledger is not None else session
        own = self.account.inner_deadline(begun, guards.deadlines) if guards is not None else None
        account.join(self.account, self.part, session, own)

    def count_hops(self, hops: int) -> None:
        """Count how often the conversation moved within it, once it has come to its end."""
        if self.account is not None and hops:
            self.account.hop_count.count(self.ledger.speaker if self.ledger else "", hops)

    @property
    def keeper(self) -> RoundLedger | None:
        """Where it is written what is done in it, as the whole is to undo that; None: in its own.

        Outside of a session it is in the account alone.
        """
        undoes = self.account is not None and self.account.saga is not None
        return self.ledger if undoes else None


@dataclass(slots=True)
class RoundLedger:
    """The session's log, as the guards of one round see it."""

    turn: Round
    lost: Exception | None = None
    """Why it could not be written to."""

    @property
    def id_scope(self) -> object:
        """The log: in another one there may be a session of the same id."""
        return self.turn.live.log

    @property
    def input_id(self) -> str:
        """The outside input that the round serves."""
        return f"{self.turn.live.id}@{self.turn.state.input}"

    @property
    def speaker(self) -> str:
        """Whose turn it is."""
        return self.turn.speaker

    @property
    def round(self) -> int:
        """The round's number."""
        return self.turn.number

    @property
    def round_key(self) -> str:
        """The attempt at the round."""
        return f"{self.turn.number}/{self.turn.attempt}"

    @property
    def account(self) -> Mapping[str, Any]:
        """What the log has of this input; it stands in the state, so nobody has to read the log."""
        state = self.turn.live.state
        undoing = state.undoing
        # Each attempt that died may have spent what needs no record; one that failed has told all.
        died = self.turn.attempt - 1 - sum(state.failures.values())
        return {
            "hops": state.hops,
            "account": state.account,
            "held": _summed(state.held.values()),
            "dead": SHARE * max(0, died),
            "effects": state.effects,
            "undoing": undoing.get("reason") if undoing.get("round") == self.turn.number else "",
        }

    def retain(self, account: object) -> None:
        """Keep what is counted for this input while its session is at work here."""
        live = self.turn.live
        if live.around is not None and isinstance(account, Account) and account.parent is None:
            live.around.take_in(account, live.id, live.guards)
        live.account = account

    @property
    def balance(self) -> Mapping[str, object]:
        """What was counted so far, to stand in the log; nothing where no guards count."""
        account = self.own_account
        return account.balance() if account is not None else {}

    @property
    def own_account(self) -> Account | None:
        """The account of the input, where guards keep one here."""
        account = self.turn.live.account
        is_own = isinstance(account, Account) and account.input_id == self.input_id
        return account if is_own else None  # type: ignore[return-value]  # as it has just said

    def act(self, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or asks its model; it is written down with the round."""
        self.turn.live.walks.step(self.speaker, agent, asks=asks)
        around = self.turn.live.around
        if around is not None and around.ledger is not None:
            around.ledger.act(f"{around.part}/{agent}", asks=asks)

    async def write(self, record: Mapping[str, object]) -> None:
        """Append a record; it is durable when this returns."""
        turn = self.turn
        if record.get("kind") == "effect" and (around := turn.live.around) and around.keeper:
            await around.keeper.write(around.told(record))
            return
        by = {"speaker": turn.speaker, "round": turn.number, "attempt": turn.attempt}
        draft = _drafted(record, by)
        try:
            await turn.live.note(draft)
        except Exception as error:
            self.lost = error
            raise LedgerUnavailable(f"the log cannot be written to: {kind_of(error)}") from error
        if record.get("kind") == "decision" and turn.live.around is not None:
            await turn.live.around.hear(record)

    @contextmanager
    def intact(self) -> Iterator[None]:
        """Let what goes wrong with the log go wrong with what runs in here, whoever caught it."""
        try:
            yield
        finally:
            if self.lost is not None:
                raise self.lost


def _drafted(record: Mapping[str, object], by: Mapping[str, object]) -> Draft:
    entry = record.get("entry")
    if not isinstance(entry, Mapping) or entry.get("state") == "started":
        return Draft(EV_AUDIT, {**record, **by})
    # It has happened: what the log has no room for is no reason to say that it has not.
    told = {key: value for key, value in entry.items() if key != "args"}
    if isinstance(told.get("result"), str):
        told["result"] = clip(told["result"], _LONGEST)
    try:
        return Draft(EV_AUDIT, {**record, **by, "entry": told})
    except ConfigurationError:
        return Draft(EV_AUDIT, {**record, **by, "entry": {**told, "beside": {}}})


def _summed(held: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for shares in held:
        for of, share in shares.items():
            total[of] += share
    return total
