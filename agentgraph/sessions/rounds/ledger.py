"""The ledger of a round: writes the records of its guards to the session's log, and rolls back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import ToolMessage

from agentgraph.errors import ConfigurationError, kind_of
from agentgraph.guards import SHARE
from agentgraph.guards.mechanisms.saga_entry import entries_of
from agentgraph.guards.nodes.cut_off_actions import answers_to, look_up
from agentgraph.guards.nodes.site import Site
from agentgraph.guards.nodes.undo import undo_last
from agentgraph.guards.place import Place
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.registry import account_of
from agentgraph.interception import LedgerUnavailable
from agentgraph.routing.frozen_json import thaw
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import EV_AUDIT
from agentgraph.sessions.envelopes.payload import clip
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.state.visibility import Audience

_LONGEST_RESULT = 4_000
"""The longest result of an effect that a repeated round gets back: an envelope has to hold it."""


@dataclass(slots=True)
class RoundLedger:
    """Writes the records of a round's guards to the session's log, before an action happens.

    It is the `Ledger` that guards use for a speaker in a session.
    """

    session: OwnedSession
    speaker: str
    """The participant whose turn it is."""
    round: int
    attempt: int
    input_id: str
    """The id of the outside input that the round serves."""
    audience: Audience
    """Who may see the records; None means everybody."""
    fault: Exception | None = None
    """The error of the last write to the log that failed."""

    @property
    def id_scope(self) -> object:
        """The scope of session ids: another store may have a session with the same id."""
        return self.session.log

    @property
    def round_key(self) -> str:
        """The round and its attempt, as a key."""
        return f"{self.round}/{self.attempt}"

    @property
    def account(self) -> Mapping[str, Any]:
        """What the log has of this input, from the folded state: the log itself is not read."""
        state = self.session.state
        rollback = state.undoing
        # A killed attempt may have spent without a record; a failed attempt has recorded all.
        lost_attempts = self.attempt - 1 - sum(state.failures.values())
        values: dict[str, Any] = {
            "hops": state.hops,
            "account": state.account,
            "held": _totals(state.held.values()),
            "dead": SHARE * max(0, lost_attempts),
            "effects": state.effects,
            "undoing": rollback.get("reason") if rollback.get("round") == self.round else "",
        }
        values.update(thaw({name: values[name] for name in ("account", "effects")}))
        return values

    async def input_text(self) -> str:
        """Return the text of the outside input that the round serves."""
        sequence = self.session.state.input
        envelopes = await self.session.log.read(self.session.id, sequence - 1, 1)
        return envelopes[0].text if envelopes else ""

    def retain(self, account: object) -> None:
        """Store the guards' account of this input while this process works on the session."""
        session = self.session
        assert isinstance(account, Account)  # the `Ledger` protocol cannot name the type of guards
        if session.outer_input is not None and account.parent is None:
            session.outer_input.join(account, session.id, session.guards)
        session.account = account

    @property
    def own_account(self) -> Account | None:
        """The guards' account of this input, None if this process has none."""
        account = self.session.account
        return account if account is not None and account.input_id == self.input_id else None

    def cause_of(self, guard: str) -> str:
        """Return why a guard has ended this input, "" where this process does not know."""
        account = self.own_account
        is_its = account is not None and account.closed_by == guard
        return account.closed_because if account is not None and is_its else ""

    def take_packet_fields(self) -> dict[str, Any]:
        """Return the guards' counts and the agents' path, for the envelope that ends the round."""
        account = self.own_account
        balance = account.balance() if account is not None else {}
        path = self.session.agent_paths.take(self.speaker)
        return {"account": balance, "path": path} if balance else {}

    def act(self, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or calls its model; the round's packet has the notes."""
        self.session.agent_paths.add(self.speaker, agent, asks_model=asks)
        outer = self.session.outer_input
        if outer is not None and outer.ledger is not None:
            outer.ledger.act(f"{outer.part}/{agent}", asks=asks)

    async def write(self, record: Mapping[str, object]) -> None:
        """Append a record; the record is durable when this returns."""
        outer = self.session.outer_input
        if record.get("kind") == "effect" and outer is not None and outer.effects_ledger:
            await outer.effects_ledger.write(outer.outer_record(record))
            return
        place = {"speaker": self.speaker, "round": self.round, "attempt": self.attempt}
        draft = replace(_draft_of(record, place), audience=self.audience)
        try:
            await self.session.note(draft)
        except Exception as error:
            self.fault = error
            raise LedgerUnavailable(f"the log cannot be written to: {kind_of(error)}") from error
        if record.get("kind") == "decision" and outer is not None:
            await outer.write(record)

    @contextmanager
    def intact(self) -> Iterator[None]:
        """Raise the error of a failed write, even if code inside the block has caught it."""
        try:
            yield
        finally:
            if self.fault is not None:
                raise self.fault


async def roll_back(ledger: RoundLedger, reason: str) -> None:
    """Undo the actions of an input, the last one first; do nothing if there is none to undo.

    From here on the input counts as ended, so that no action of it can begin during the undoing.
    """
    session, account = ledger.session, _account_to_undo(ledger)
    if account is None or account.saga is None or not account.saga.plan():
        return
    account.closed_by = account.closed_by or reason
    site = Site(account.policy, Place(ledger.speaker), account, session.id, ledger)
    with ledger.intact():
        async with account.undo_lock:
            while await undo_last(site, session.effects):
                pass


async def look_up_actions(ledger: RoundLedger) -> dict[str, ToolMessage]:
    """Find out what came of the actions that were cut off with a round, and write that to the log.

    Returns the answers to the calls of the input's actions, by the ids of the calls.
    """
    session, account = ledger.session, ledger.own_account
    running_keys = () if account is None else account.in_flight.running_keys
    entries = entries_of({"entries": thaw(session.state.effects)})
    for key, entry in entries.items():
        entries[key] = latest = await look_up(entry, session.effects, running_keys)
        if latest is not entry:
            agent = entry.tool.rpartition(":")[0]
            await ledger.write({"kind": "effect", "agent": agent, "entry": latest.to_dict()})
    return answers_to(entries.values())


def _account_to_undo(ledger: RoundLedger) -> Account | None:
    """Return the account of the input; a process that has not worked on the input creates it."""
    session = ledger.session
    if ledger.own_account is None and session.guards is not None and session.state.effects:
        return account_of(session.guards, ledger.input_id, None, ledger, ledger.id_scope)
    return ledger.own_account


def _draft_of(record: Mapping[str, object], place: Mapping[str, object]) -> Draft:
    entry = record.get("entry")
    if not isinstance(entry, Mapping) or entry.get("state") == "started":
        return Draft(EV_AUDIT, {**record, **place})
    # The action has happened: its record must not be lost because it is too large for the log.
    short_entry = {key: value for key, value in entry.items() if key != "args"}
    if isinstance(short_entry.get("result"), str):
        short_entry["result"] = clip(short_entry["result"], _LONGEST_RESULT)
    try:
        return Draft(EV_AUDIT, {**record, **place, "entry": short_entry})
    except ConfigurationError:
        return Draft(EV_AUDIT, {**record, **place, "entry": {**short_entry, "beside": {}}})


def _totals(reservations: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    totals: defaultdict[str, float] = defaultdict(float)
    for shares in reservations:
        for budget, share in shares.items():
            totals[budget] += share
    return totals
