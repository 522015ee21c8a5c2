"""The actions of a run that was cut off: what came of them, and the answers to their calls.

An action is looked up where its tool has a `lookup`. A call that was under way is then answered
with the result, or told that it was not done; else its outcome is unknown, and that is said.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from langchain_core.messages import ToolMessage

from agentgraph.clock import clock
from agentgraph.errors import kind_of
from agentgraph.guards.mechanisms.effects import Effect
from agentgraph.guards.mechanisms.failures import is_control_flow
from agentgraph.guards.mechanisms.saga_entry import Entry, EntryState
from agentgraph.history import OUTCOME_UNKNOWN

log = logging.getLogger("agentgraph")

_TEXTS: Mapping[EntryState, str] = {
    "failed": "Not executed: the run was cut off before it was done.",
    "compensated": "It was done, and undone again: a guard has ended the run.",
}
_LONGEST_LOOKUP_S = 60.0


async def look_up(
    entry: Entry, effects: Mapping[str, Effect], running_keys: Collection[str] = ()
) -> Entry:
    """Return an action with its outcome: looked up if it is not known and can be.

    `effects` has the marks of the tools by path and name. A lookup that fails leaves it unknown. So
    does one that finds nothing of an action in `running_keys`, which this process has cut off: a
    thread cannot be cut off, and may still do it.
    """
    effect = effects.get(entry.tool)
    if entry.state != "started" or effect is None or effect.lookup is None:
        return entry
    try:
        with clock().timeout(_LONGEST_LOOKUP_S):
            result = await effect.look_up(entry.args, key=entry.key)
    except Exception as error:
        if is_control_flow(error):
            raise
        log.warning("the lookup of %s failed: %s", entry.tool, kind_of(error))
        return entry
    if result is None:
        return entry if entry.key in running_keys else replace(entry, state="failed")
    return replace(entry, state="done", result=str(result))


def answers_to(entries: Iterable[Entry]) -> dict[str, ToolMessage]:
    """Return the answers to the calls of actions, by the ids of the calls."""
    return {
        entry.call_id: ToolMessage(
            _text_of(entry),
            id=f"answer_{entry.call_id}",
            tool_call_id=entry.call_id,
            name=entry.tool.rpartition(":")[2],
            status="success" if entry.state == "done" else "error",
        )
        for entry in entries
        if entry.call_id
    }


def _text_of(entry: Entry) -> str:
    if entry.state == "done":
        return str(entry.result or "")
    return _TEXTS.get(entry.state, OUTCOME_UNKNOWN)
