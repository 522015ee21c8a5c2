"""What was done is undone, one action at a time, the last one first."""

from __future__ import annotations

from collections.abc import Mapping

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError
from agentgraph.guards.account import Account
from agentgraph.guards.effects import Effect
from agentgraph.guards.recorder import Recorder
from agentgraph.guards.saga import Entry

__all__ = ["undo_last"]


async def undo_last(account: Account, effects: Mapping[str, Effect], recorder: Recorder) -> bool:
    """Undo the last action that is still to be undone; tell whether more are."""
    saga = account.saga
    if saga is not None:
        for key in account.registered:  # which have not begun, and do not any more
            recorder.note("effect", key=key, tool=saga.failed(key).tool, state="failed")
        account.registered.clear()
    plan = saga.plan() if saga is not None else []
    if saga is None or not plan:
        return False
    if not account.is_undoing:
        # A round that is cut off from now on must not begin anew: it has to go on with this.
        await recorder.keep(kind="undoing", reason=account.ended_by)
        account.is_rolling_back = True
    recorder.note("compensated", tool=plan[0].tool, key=plan[0].key, state="undoing")

    async def undo(entry: Entry) -> None:
        effect = effects.get(saga.local(entry.tool))
        if effect is None:
            raise AgentGraphError(f"the tool {entry.tool!r} is no longer here", code="tool_gone")
        # The grace is its own: the deadline of what failed may be over.
        with clock().timeout(saga.grace_s):
            await effect.undo(entry.args, result=entry.result, key=entry.key)

    async def persist(entry: Entry) -> None:
        recorder.note("compensated", tool=entry.tool, key=entry.key, state=entry.state)
        await recorder.keep(kind="effect", entry=entry.to_dict())

    decision = await saga.undo_last(undo, persist)
    if decision is not None and not decision.allows:
        await recorder.decided(decision)
    return bool(saga.plan())
