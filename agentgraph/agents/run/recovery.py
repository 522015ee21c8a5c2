"""Recovery of an unfinished run: the next turn takes its work over, or undoes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, InvalidToolCall, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import PregelTask, StateSnapshot

from agentgraph.agents.nodes.state import merge_messages, own_messages
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import whole_state
from agentgraph.graphs.task import with_saver
from agentgraph.guards.records.pauses import left_to_undo
from agentgraph.guards.records.pending_writes import PAUSE_CHANNEL, PendingWrites
from agentgraph.history import (
    OUTCOME_UNKNOWN,
    calls_of,
    open_calls,
    unknown_outcomes,
    with_known_answers,
    work_done,
)

Journal: TypeAlias = Mapping[str | None, Sequence[AnyMessage]]
"""The messages of a run in this process, by the id of the call that a delegate serves."""
Answers: TypeAlias = Mapping[str, ToolMessage]
"""What is known of calls that a run has left open, by their ids."""
Saver: TypeAlias = BaseCheckpointSaver[Any]

ORPHAN = ("agentgraph_orphan",)
"""The path in a snapshot of a task whose agent the tree no longer has; LangGraph's paths begin
otherwise, and its own snapshots lack the task."""
_OWN_CHANNELS = ("messages", "outcomes", "next_move", "turn", "current_active_agent")
"""The channels whose writes by finished tasks are recovered otherwise, or not at all."""

_TEAM_CHANNELS = frozenset(("session", "round"))
"""The channels that the graph of a team stores; it does not store its messages."""
_BRANCH = "branch:to:"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What an unfinished run leaves to the next turn."""

    messages: list[AnyMessage] = field(default_factory=list)
    active: str | None = None
    """The active path, if the run has moved the conversation."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The writes of its finished tasks to other channels."""


def recover(
    snapshot: StateSnapshot, journal: Journal, answers: Answers = MappingProxyType({})
) -> Recovery:
    """Collect the results of an unfinished run, and answer its open calls.

    If the run was cut off in this process, `journal` has messages that no checkpoint has. What is
    not in `answers` is answered "outcome unknown".
    """
    stored_messages = list(snapshot.values.get("messages") or ())
    new_messages = left_messages(snapshot, journal, answers=answers)
    open_ids = {call["id"] for call in open_calls([*stored_messages, *new_messages])}
    new_messages += [
        _delegate_report(call_id, "it", with_known_answers(merge_messages([], [work]), answers))
        for call_id, work in journal.items()
        if call_id and call_id in open_ids
    ]
    # Some providers match an answer by its tool's name, which the report of a delegate lacks.
    tools = {c["id"]: c["name"] for m in (*stored_messages, *new_messages) for c in _calls(m)}
    new_messages = [_with_tool_name(message, tools) for message in new_messages]
    last_answers = [
        answers.get(message.tool_call_id, message)
        for message in unknown_outcomes([*stored_messages, *new_messages])
    ]
    values: dict[str, Any] = {}
    for task in snapshot.tasks:
        values |= {
            key: value
            for key, value in (task.result or {}).items()
            if key not in _OWN_CHANNELS and not _has_several_writes(value)
        }
    return Recovery([*new_messages, *last_answers], active_path(snapshot), values)


async def with_orphans(
    graph: AnyCompiledGraph, saver: Saver, snapshot: StateSnapshot
) -> StateSnapshot:
    """Return the state of a thread with the orphaned tasks of all of its unfinished levels.

    `snapshot` has the states of nested graphs. Any level of the tree is read by the root's graph,
    as all have the same channels.
    """
    tasks = [*snapshot.tasks]
    latest = await saver.aget_tuple(snapshot.config) if snapshot.created_at else None
    if latest is not None and not {task.name for task in tasks}.issuperset(_next_nodes(latest)):
        known = {part for task in tasks for part in (task.id, task.name)}
        tasks += [task async for task in _orphans(graph, saver, latest) if task.id not in known]
    for number, task in enumerate(tasks):
        state = task.state
        if isinstance(state, StateSnapshot) and _thread_of(state) == _thread_of(snapshot):
            state = await with_orphans(graph, saver, state)
            tasks[number] = task._replace(state=state)
    return snapshot._replace(tasks=tuple(tasks))


def has_orphans(snapshot: StateSnapshot) -> bool:
    """Tell whether a task of any level is an orphan."""
    return any(
        task.path == ORPHAN or (isinstance(task.state, StateSnapshot) and has_orphans(task.state))
        for task in snapshot.tasks
    )


def is_finished(checkpoint_tuple: CheckpointTuple) -> bool:
    """Tell from a checkpoint's versions alone whether nothing is left to run."""
    return not checkpoint_tuple.pending_writes and not [*_next_nodes(checkpoint_tuple)]


def waits_to_begin(checkpoint_tuple: CheckpointTuple) -> bool:
    """Tell whether a checkpoint has an input and nothing of its run: the turn in it is over."""
    return "__start__" in _next_nodes(checkpoint_tuple)


async def compensation_state(
    saver: BaseCheckpointSaver[Any],
    snapshot: StateSnapshot,
    recovery: Recovery,
    log_account: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the state from which a broken-off run's actions are undone, None without actions.

    The run's open question is dropped, as by every new input. `log_account` is the account of the
    run in the thread's effect log, which may be ahead of its state.
    """
    turn = snapshot.values.get("turn") or {}
    accounts = [account async for account in _accounts(saver, snapshot)]
    if log_account is not None:
        turn = {**turn, "id": log_account["input"]}
        accounts.append(log_account)
    unstarted_actions = await PendingWrites(saver, snapshot.config).registered_keys()
    account = left_to_undo(accounts, turn.get("id", ""), unstarted_actions)
    if account is None:
        return None
    path = {} if recovery.active is None else {"current_active_agent": recovery.active}
    turn = {**turn, "closed": account["closed"]}
    messages = recovery.messages
    return {**recovery.values, **path, "messages": messages, "guarded": account, "turn": turn}


def _next_nodes(checkpoint_tuple: CheckpointTuple) -> Iterator[str]:
    """Yield the names of the nodes that a checkpoint leads to, by its versions alone.

    It uses no graph: that may have been rebuilt without a node that must still run.
    """
    checkpoint = checkpoint_tuple.checkpoint
    for packet in checkpoint["channel_values"].get("__pregel_tasks") or ():
        yield packet.node
    seen_versions = checkpoint["versions_seen"]
    versions = checkpoint["channel_versions"]
    for channel in checkpoint["channel_values"]:
        if channel == "__start__" or channel.startswith(_BRANCH):
            node = channel.removeprefix(_BRANCH)
            version = seen_versions.get(node, {}).get(channel)
            if version is None or versions[channel] > version:  # type: ignore[operator]
                yield node


async def _orphans(
    graph: AnyCompiledGraph, saver: Saver, latest: CheckpointTuple
) -> AsyncIterator[PregelTask]:
    """Yield the tasks that were begun from a checkpoint, those that are no orphans too."""
    results = _messages_by_task(latest)
    for task_id, messages in results.items():
        yield PregelTask(task_id, "it", ORPHAN, result={"messages": messages})
    async for namespace in _namespaces_below(saver, latest):
        name, _, task_id = namespace.rpartition("|")[2].partition(":")
        if task_id not in results:
            config = _config(latest, namespace)
            state = await whole_state(graph, with_saver(config, saver), subgraphs=True)
            # The namespace of a graph with a memory names no task.
            yield PregelTask(task_id or name, name, ORPHAN, state=state)


def _messages_by_task(latest: CheckpointTuple) -> Mapping[str, Any]:
    """Return the messages that finished tasks have written, by the tasks' ids."""
    batches: dict[str, list[Any]] = {}
    for task_id, channel, value in latest.pending_writes or ():
        if channel == "messages" and task_id.strip("0-"):  # an input has no task
            batches.setdefault(task_id, []).append(value)
    return {task_id: {"$writes": values} for task_id, values in batches.items()}


async def _namespaces_below(saver: Saver, latest: CheckpointTuple) -> AsyncIterator[str]:
    """Yield the namespaces of the nested graphs that were begun from a checkpoint."""
    own = latest.config["configurable"]
    level, known = own.get("checkpoint_ns", ""), set()
    async for nested in saver.alist({"configurable": {"thread_id": own["thread_id"]}}):
        namespace = nested.config["configurable"].get("checkpoint_ns", "")
        is_below = namespace and namespace.rpartition("|")[0] == level
        begun_from = (nested.metadata.get("parents") or {}).get(level)
        if is_below and begun_from == latest.checkpoint["id"] and namespace not in known:
            known.add(namespace)
            if not _is_of_team(nested.checkpoint["channel_values"]):
                yield namespace


def _thread_of(snapshot: StateSnapshot) -> object:
    """Return the id of a snapshot's thread; a remote graph has one of its own."""
    return snapshot.config.get("configurable", {}).get("thread_id")


def _config(latest: CheckpointTuple, namespace: str) -> RunnableConfig:
    thread_id = latest.config["configurable"]["thread_id"]
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}


def _is_of_team(channels: Collection[str]) -> bool:
    """Tell by its channels whether a state is a team's."""
    return _TEAM_CHANNELS.issubset(channels) and "messages" not in channels


def reports_of_orphans(snapshot: StateSnapshot) -> dict[str, ToolMessage]:
    """Return the answers of removed delegates, or what they have done, by the ids of their calls.

    A run that is resumed beside them does not see their tasks.
    """
    orphans = tuple(task for task in snapshot.tasks if task.path == ORPHAN)
    messages = task_messages(snapshot._replace(tasks=orphans), {})
    reports = {m.tool_call_id: m for m in messages if isinstance(m, ToolMessage)}
    for task in snapshot.tasks:
        if task.path != ORPHAN and (below := _state_below(task)) is not None:
            reports |= reports_of_orphans(below)
    return reports


async def _accounts(
    saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the account of each level of a waiting run, from its state and its pending writes."""
    # A foreign graph may have a state of any form, with any channels.
    values: object = snapshot.values
    account = values.get("guarded") if isinstance(values, Mapping) else None
    if isinstance(account, Mapping):
        yield account
    for account in await PendingWrites(saver, snapshot.config).read(PAUSE_CHANNEL):
        yield account
    for task in snapshot.tasks:
        if task.path != ORPHAN and (below := _state_below(task)) is not None:
            async for account in _accounts(saver, below):
                yield account


def left_messages(
    snapshot: StateSnapshot,
    journal: Journal,
    *,
    reports: bool = True,
    answers: Answers = MappingProxyType({}),
) -> list[AnyMessage]:
    """Return the messages that an unfinished run has made and that the state does not have."""
    stored_messages = list(snapshot.values.get("messages") or ())
    results = [
        list(task_messages(snapshot, journal, reports=reports, answers=answers)),
        [*journal.get(None, ())],
    ]
    ids = {message.id for message in stored_messages}
    # A call that another process has answered meanwhile is not answered again.
    answered_ids = {m.tool_call_id for m in stored_messages if isinstance(m, ToolMessage)}
    return [
        message
        for message in merge_messages([], results)
        if message.id not in ids and getattr(message, "tool_call_id", "") not in answered_ids
    ]


def task_messages(
    snapshot: StateSnapshot,
    journal: Journal,
    *,
    reports: bool = True,
    answers: Answers = MappingProxyType({}),
) -> Iterator[AnyMessage]:
    """Yield the messages of the snapshot's tasks that its state does not have.

    `reports` adds what unfinished delegates have done, as answers to their calls.
    """
    for task in snapshot.tasks:
        if task.result:
            writes: Any = task.result.get("messages") or []
            batches = writes["$writes"] if _has_several_writes(writes) else [writes]
            yield from merge_messages([], batches)
        elif (state := _state_below(task)) is not None and state.values:
            values = state.values
            below = task_messages(state, journal, reports=reports, answers=answers)
            messages = own_messages(values, list(below))
            call_id = values.get("errand")
            if call_id is None:
                yield from messages
            elif reports:
                later = list(journal.get(call_id, ()))
                work = with_known_answers(merge_messages(messages, [later]), answers)
                yield _delegate_report(call_id, task.name, work)


def stored_ids(snapshot: StateSnapshot) -> set[str | None]:
    """Return the ids of all messages that a state and those of its unfinished levels have."""
    ids = {message.id for message in snapshot.values.get("messages") or ()}
    ids |= {message.id for message in snapshot.values.get("past") or ()}
    ids |= {message.id for message in task_messages(snapshot, {})}
    for task in snapshot.tasks:
        if (state := _state_below(task)) is not None and isinstance(state.values, Mapping):
            ids |= stored_ids(state)
    return ids


def _state_below(task: PregelTask) -> StateSnapshot | None:
    """Return the state of the graph that a task runs, None where that is not this run's to take.

    A team's is not: what its speakers said and did is in its session, and undone with that.
    """
    state = task.state if isinstance(task.state, StateSnapshot) else None
    values = {} if state is None else state.values
    return None if isinstance(values, Mapping) and _is_of_team(values) else state


def _delegate_report(call_id: str, worker: str, messages: Sequence[AnyMessage]) -> ToolMessage:
    """Write a delegate's work as the answer to its call: its messages are not the parent's."""
    work = work_done(messages)
    lines = [OUTCOME_UNKNOWN, f"What {worker} did until then:", work] if work else [OUTCOME_UNKNOWN]
    return ToolMessage(
        "\n".join(lines),
        id=f"answer_{call_id}",
        tool_call_id=call_id,
        name=worker,
        status="error",
    )


def _calls(message: AnyMessage) -> list[ToolCall | InvalidToolCall]:
    return [*calls_of(message)] if isinstance(message, AIMessage) else []


def _with_tool_name(message: AnyMessage, tools: Mapping[str | None, str | None]) -> AnyMessage:
    if not isinstance(message, ToolMessage) or message.tool_call_id not in tools:
        return message
    return message.model_copy(update={"name": tools[message.tool_call_id]})


def active_path(snapshot: StateSnapshot) -> str | None:
    """Return the whole active path; a level stores the part below it only when it returns."""
    path = snapshot.values.get("current_active_agent")
    for task in snapshot.tasks:
        if not path or path.partition("/")[0] != task.name:
            continue
        if isinstance(task.state, StateSnapshot) and task.state.values:
            below = active_path(task.state)
            return f"{task.name}/{below}" if below else task.name
    return path


def _has_several_writes(value: object) -> bool:
    return isinstance(value, Mapping) and "$writes" in value
