"""What was done for an input is undone where its session ends by a failure."""

from __future__ import annotations

from agentgraph.guards.nodes.site import Site
from agentgraph.guards.nodes.undo import undo_last
from agentgraph.guards.place import Place
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.registry import account_of
from agentgraph.sessions.hub.ledger import RoundLedger


async def roll_back(ledger: RoundLedger, reason: str) -> None:
    """Undo the actions of an input, the last first; does nothing where none is left."""
    turn, account = ledger.turn, _account(ledger)
    if account is None or account.saga is None or not account.saga.plan():
        return
    account.closed_by = account.closed_by or reason
    site = Site(account.policy, Place(turn.speaker), account, turn.live.id, ledger)
    with ledger.intact():
        async with account.undo_lock:
            while await undo_last(site, turn.live.effects):
                pass


def _account(ledger: RoundLedger) -> Account | None:
    """Return the account of the input; a process that has done nothing for it yet opens one."""
    live = ledger.turn.live
    if ledger.own_account is None and live.guards is not None and live.state.effects:
        return account_of(live.guards, ledger.input_id, None, ledger, ledger.id_scope)
    return ledger.own_account
