"""What an unfinished run has done: taken over by the next turn, so that nothing is forgotten.

LangGraph drops the results of finished siblings and the messages of nested graphs when new input
arrives on a thread whose last run was cancelled, killed or left waiting for a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint
from langgraph.types import PregelTask, StateSnapshot

from agentgraph.agents.state import merge_messages
from agentgraph.history import OUTCOME_UNKNOWN, unknown_outcomes

__all__ = ["Leftovers", "is_finished", "leftovers"]

_BRANCH = "branch:to:"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What must enter the next turn."""

    messages: list[AnyMessage] = field(default_factory=list)
    active: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def is_finished(checkpoint: Checkpoint) -> bool:
    """Tell whether nothing is left to run, from the checkpoint's versions alone.

    It asks no graph, which may have been rebuilt without the node that is still to run.
    """
    if checkpoint["channel_values"].get("__pregel_tasks"):
        return False
    seen = checkpoint["versions_seen"]
    versions = checkpoint["channel_versions"]
    for channel in checkpoint["channel_values"]:
        if channel == "__start__" or channel.startswith(_BRANCH):
            node = channel.removeprefix(_BRANCH)
            looked_at = seen.get(node, {}).get(channel)
            if looked_at is None or versions[channel] > looked_at:  # type: ignore[operator]
                return False
    return True


def leftovers(snapshot: StateSnapshot) -> Leftovers:
    """Collect what finished; whatever stays open is answered "outcome unknown"."""
    done = list(_finished(snapshot))
    known = list(snapshot.values.get("messages") or ())
    whole = merge_messages(known, [done])
    values: dict[str, Any] = {}
    for task in snapshot.tasks:
        values |= {
            key: value
            for key, value in (task.result or {}).items()
            if key not in _OWN and not _is_many(value)
        }
    return Leftovers([*done, *unknown_outcomes(whole)], _active(snapshot), values)


_OWN = ("messages", "outcomes", "turn", "current_active_agent")


def _finished(snapshot: StateSnapshot) -> Iterator[AnyMessage]:
    """Yield the messages that the snapshot's tasks made and its state has not got."""
    for task in snapshot.tasks:
        if task.result:
            written = task.result.get("messages") or ()
            batches = written["$writes"] if _is_many(written) else [written]
            yield from merge_messages([], batches)
        elif isinstance(task.state, StateSnapshot) and task.state.values:
            nested = merge_messages(
                task.state.values.get("messages") or [], [list(_finished(task.state))]
            )
            yield from _of_errand(task, nested) or nested


def _of_errand(task: PregelTask, messages: list[AnyMessage]) -> list[AnyMessage] | None:
    """Tell what a delegate did in the answer to its call: its messages are not the parent's."""
    state = task.state
    call_id = state.values.get("errand") if isinstance(state, StateSnapshot) else None
    if call_id is None:
        return None
    facts = [
        f"- {m.name}: {m.text}" if isinstance(m, ToolMessage) else f"- said: {m.text}"
        for m in messages
        if isinstance(m, ToolMessage | AIMessage) and m.text
    ]
    text = "\n".join([OUTCOME_UNKNOWN, f"What {task.name} did until then:", *facts])
    return [
        ToolMessage(
            text if facts else OUTCOME_UNKNOWN,
            id=f"answer_{call_id}",
            tool_call_id=call_id,
            name=task.name,
            status="error",
        )
    ]


def _active(snapshot: StateSnapshot) -> str | None:
    """Return the whole active path: each level knows the part below it only when it returns."""
    path = snapshot.values.get("current_active_agent")
    for task in snapshot.tasks:
        nested = task.state
        if not path or path.partition("/")[0] != task.name:
            continue
        if isinstance(nested, StateSnapshot) and nested.values:
            below = _active(nested)
            return f"{task.name}/{below}" if below else task.name
    return path


def _is_many(value: object) -> bool:
    return isinstance(value, Mapping) and "$writes" in value
