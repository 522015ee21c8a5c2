"""Undo the actions of an input: one action at a time, the last one first."""

from __future__ import annotations

from collections.abc import Mapping

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, GuardStopped
from agentgraph.guards.mechanisms.effects import Effect
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.nodes.site import Site
from agentgraph.guards.records.record import RecordKind


async def undo_last(site: Site, effects: Mapping[str, Effect]) -> bool:
    """Undo the last action of an input that must still be undone; return whether more are left.

    `effects` has the marks of the tools by path and name: "desk/billing:pay". An action whose tool
    is missing there is recorded as one that could not be undone.
    """
    account = site.account
    saga = account.saga
    if saga is not None:
        for key in await account.in_flight.unbegun_keys():
            _record(site, "effect", saga.failed(key))
        account.in_flight.registered_keys.clear()  # they must not begin any more
    plan = saga.plan() if saga is not None else []
    if saga is None or not plan:
        return False
    if not account.is_undoing:
        # A round that is cut off from here on must not begin anew: it must go on undoing.
        await site.log(kind="undoing", reason=account.ended_by)
        account.is_rolling_back = True
        await account.log_effects()
    _record(site, "compensated", plan[0], "undoing")

    async def undo(entry: Entry) -> None:
        effect = effects.get(saga.local(entry.tool)) or account.root.effects.get(entry.tool)
        if effect is None:
            raise AgentGraphError(f"the tool {entry.tool!r} is no longer here", code="tool_gone")
        # A grace time of its own: the deadline of the run may have passed.
        with clock().timeout(saga.grace_s):
            await effect.undo(entry.args, result=entry.result, key=entry.key)

    async def persist(entry: Entry) -> None:
        _record(site, "compensated", entry)
        await site.log_effect(entry)

    decision = await saga.undo_last(undo, persist)
    if decision is not None and not decision.allows:
        await site.decide(decision)
    return bool(saga.plan())


def _record(site: Site, kind: RecordKind, entry: Entry, state: str = "") -> None:
    try:
        site.record(kind, tool=entry.tool, key=entry.key, state=state or entry.state)
    except GuardStopped:
        if site.ledger is None:
            raise
        # The session's log has it: an audit trail that cannot be written must not stop the undoing.
