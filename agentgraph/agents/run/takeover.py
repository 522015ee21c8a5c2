"""What an unfinished run has done: taken over, or undone, before the next turn begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import StateSnapshot

from agentgraph.agents.nodes.state import made, merge_messages
from agentgraph.guards.records.pauses import left_to_undo
from agentgraph.guards.records.pending_writes import PAUSE_CHANNEL, PendingWrites
from agentgraph.history import OUTCOME_UNKNOWN, calls_of, open_calls, unknown_outcomes, work_done

Journal: TypeAlias = Mapping[str | None, Sequence[AnyMessage]]

_BRANCH = "branch:to:"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What must enter the next turn."""

    messages: list[AnyMessage] = field(default_factory=list)
    active: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def is_finished(saved: CheckpointTuple) -> bool:
    """Tell whether nothing is left to run, from the checkpoint's versions alone.

    It asks no graph, which may have been rebuilt without the node that is still to run.
    """
    checkpoint = saved.checkpoint
    if saved.pending_writes or checkpoint["channel_values"].get("__pregel_tasks"):
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


def leftovers(snapshot: StateSnapshot, journal: Journal) -> Leftovers:
    """Collect what finished; whatever stays open is answered "outcome unknown".

    The journal of a run that was cut off in this process also knows what no checkpoint has got.
    """
    known = list(snapshot.values.get("messages") or ())
    done = merge_messages([], [list(_finished(snapshot, journal)), list(journal.get(None, ()))])
    ids = {message.id for message in known}
    # A call that another process has decided or answered meanwhile is not answered again.
    answered = {m.tool_call_id for m in known if isinstance(m, ToolMessage)}
    fresh = [m for m in done if m.id not in ids and getattr(m, "tool_call_id", "") not in answered]
    unanswered = {call["id"] for call in open_calls([*known, *fresh])}
    fresh += [
        _report(call_id, "it", work)
        for call_id, work in journal.items()
        if call_id and call_id in unanswered
    ]
    # Some providers match an answer by its tool's name, which a delegate's report has not known.
    tools = {c["id"]: c["name"] for m in (*known, *fresh) for c in _calls(m)}
    fresh = [_named(message, tools) for message in fresh]
    unknown = unknown_outcomes([*known, *fresh])
    values: dict[str, Any] = {}
    for task in snapshot.tasks:
        values |= {
            key: value
            for key, value in (task.result or {}).items()
            if key not in _OWN and not _is_many(value)
        }
    return Leftovers([*fresh, *unknown], _active(snapshot), values)


def unsaved(snapshot: StateSnapshot, journal: Journal) -> list[AnyMessage]:
    """Return what a run that was cut off had made, and no checkpoint has got."""
    stored = [*(snapshot.values.get("messages") or ()), *_finished(snapshot, {})]
    ids = {message.id for message in stored}
    return [message for message in journal.get(None, ()) if message.id not in ids]


_OWN = ("messages", "outcomes", "turn", "current_active_agent")


def _finished(snapshot: StateSnapshot, journal: Journal) -> Iterator[AnyMessage]:
    """Yield the messages that the snapshot's tasks made and its state has not got."""
    for task in snapshot.tasks:
        if task.result:
            written: Any = task.result.get("messages") or []
            batches = written["$writes"] if _is_many(written) else [written]
            yield from merge_messages([], batches)
        elif isinstance(task.state, StateSnapshot) and task.state.values:
            nested = made(task.state.values, list(_finished(task.state, journal)))
            errand = task.state.values.get("errand")
            if errand is None:
                yield from nested
            else:
                later = list(journal.get(errand, ()))
                yield _report(errand, task.name, merge_messages(nested, [later]))


def _report(call_id: str, worker: str, messages: Sequence[AnyMessage]) -> ToolMessage:
    """Tell what a delegate did in the answer to its call: its messages are not the parent's."""
    done = work_done(messages)
    lines = [OUTCOME_UNKNOWN, f"What {worker} did until then:", done] if done else [OUTCOME_UNKNOWN]
    return ToolMessage(
        "\n".join(lines),
        id=f"answer_{call_id}",
        tool_call_id=call_id,
        name=worker,
        status="error",
    )


def _calls(message: AnyMessage) -> list[Any]:
    return [*calls_of(message)] if isinstance(message, AIMessage) else []


def _named(message: AnyMessage, tools: Mapping[Any, Any]) -> AnyMessage:
    if not isinstance(message, ToolMessage) or message.tool_call_id not in tools:
        return message
    return message.model_copy(update={"name": tools[message.tool_call_id]})


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


async def ended(
    saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot, left: Leftovers
) -> dict[str, Any] | None:
    """Return the state in which what was ended is undone, None where nothing is to be.

    The question is dropped, as new input always drops it.
    """
    turn = snapshot.values.get("turn") or {}
    known = [account async for account in _accounts(saver, snapshot)]
    unbegun = await PendingWrites(saver, snapshot.config).registered_keys()
    account = left_to_undo(known, turn.get("id", ""), unbegun)
    if account is None:
        return None
    at = {} if left.active is None else {"current_active_agent": left.active}
    closed = {**turn, "closed": account["closed"]}
    return {**left.values, **at, "messages": left.messages, "guarded": account, "turn": closed}


async def _accounts(
    saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield what each level of a run that waits has of the account, stored and noted beside it."""
    # A graph of others may have a state of any form, and any channel in it.
    values: object = snapshot.values
    stored = values.get("guarded") if isinstance(values, Mapping) else None
    if isinstance(stored, Mapping):
        yield stored
    for noted in await PendingWrites(saver, snapshot.config).read(PAUSE_CHANNEL):
        yield noted
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            async for below in _accounts(saver, task.state):
                yield below
