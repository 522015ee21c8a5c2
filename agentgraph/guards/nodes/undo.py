"""What was done is undone, one action at a time, the last one first."""

from __future__ import annotations

from collections.abc import Mapping

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, GuardStopped
from agentgraph.guards.mechanisms.effects import Effect
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.record import RecordKind
from agentgraph.guards.records.recorder import Recorder


async def undo_last(account: Account, effects: Mapping[str, Effect], recorder: Recorder) -> bool:
    """Undo the last action that is still to be undone; tell whether more are."""
    saga = account.saga
    if saga is not None:
        for key in await account.underway.unbegun():  # and they do not any more
            _note(recorder, "effect", saga.failed(key))
        account.underway.registered.clear()
    plan = saga.plan() if saga is not None else []
    if saga is None or not plan:
        return False
    if not account.is_undoing:
        # A round that is cut off from now on must not begin anew: it has to go on with this.
        await recorder.keep(kind="undoing", reason=account.ended_by)
        account.is_rolling_back = True
    _note(recorder, "compensated", plan[0], "undoing")

    async def undo(entry: Entry) -> None:
        effect = effects.get(saga.local(entry.tool))
        if effect is None:
            raise AgentGraphError(f"the tool {entry.tool!r} is no longer here", code="tool_gone")
        # The grace is its own: the deadline of what failed may be over.
        with clock().timeout(saga.grace_s):
            await effect.undo(entry.args, result=entry.result, key=entry.key)

    async def persist(entry: Entry) -> None:
        _note(recorder, "compensated", entry)
        await recorder.keep(kind="effect", entry=entry.to_dict())

    decision = await saga.undo_last(undo, persist)
    if decision is not None and not decision.allows:
        await recorder.decided(decision)
    return bool(saga.plan())


def _note(recorder: Recorder, kind: RecordKind, entry: Entry, state: str = "") -> None:
    try:
        recorder.note(kind, tool=entry.tool, key=entry.key, state=state or entry.state)
    except GuardStopped:
        if recorder.ledger is None:
            raise
        # The session's log has it: a trail that stays away must not keep what was done from that.
