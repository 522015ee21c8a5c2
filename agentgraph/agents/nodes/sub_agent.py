"""The node of a sub-agent: it hands the conversation over, and returns only new messages.

The history is handed over with the run and not as input, so that a nested graph neither stores nor
returns its parent's messages. A resumed node runs from its start and hands them over again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic_core import to_json

from agentgraph.agents.nodes.calls import (
    CallTask,
    answer,
    current_visit,
    emit_answer,
    inside_visit,
    work_of,
)
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.memory import Delegate, ask, with_memory
from agentgraph.agents.nodes.routes import SETTLE_CALLS
from agentgraph.agents.nodes.state import AgentState, own_messages
from agentgraph.errors import AgentGraphError, ModelError
from agentgraph.graphs.public_graph import run_inside
from agentgraph.graphs.task import read_state
from agentgraph.history import answer_malformed, open_calls, repair, work_done
from agentgraph.interception import Interceptor, current_interceptor
from agentgraph.participant import Graph, split_stop
from agentgraph.remote import read_messages, with_ids
from agentgraph.running import current_run, handed_over, record_messages, shared_run
from agentgraph.stream import AIMessageEvent, ErrorEvent, RoutingEvent, emit, media_of

Node: TypeAlias = Callable[[AgentState, RunnableConfig], Awaitable[Command[str]]]
Result: TypeAlias = Mapping[str, Any]

_OWN_KEYS = ("messages", "rewritten", "past", "current_active_agent", "to_parent", "help_reason")
_RESULT_KEYS = (*_OWN_KEYS, "turn", "output")
"""The channels of a sub-agent's graph that its node reads, beside those that it shares."""


def sub_agent(level: Level, name: str, graph: Graph, channels: Sequence[str]) -> Node:
    """Make the node of an `Agent`; `channels` are the patchers' channels that it shares."""
    result_keys = tuple(dict.fromkeys((*_RESULT_KEYS, *channels)))

    async def enter(state: AgentState, config: RunnableConfig) -> Command[str]:
        call_task = cast("CallTask | None", state.get("sent"))
        if call_task is not None:
            keys = ("messages", "rewritten", "turn", *channels)
            state = read_state(config, keys)  # type: ignore[assignment]
        values = _crossing_values(state, channels)
        messages = level.history(state)
        turn_id = (state.get("turn") or {}).get("id", "")
        if call_task is None:
            visit = inside_visit(str(state.get("asked", 0)))
            with shared_run(turn_id), handed_over(messages), visit:
                path = _path_below(state, name)
                values_below = {**values, "current_active_agent": path}
                result = await run_inside(graph, values_below, result_keys)
            new_messages = _new_messages(result, messages)
            update = _changes(values, result, channels)
            return await _return(level, name, new_messages, result, update)
        call_id = call_task["call"]["id"]
        own, inherited_messages = _task_messages(call_task, messages)
        visit = inside_visit(call_task["position"])
        with shared_run(turn_id), handed_over(inherited_messages, call_id), visit:
            values_below = {**values, "messages": own, "errand": call_id}
            result = await run_inside(graph, values_below, result_keys)
        own_ids = {message.id for message in own}
        new_messages = _new_messages(result, [*inherited_messages, *own])
        new_messages = [m for m in new_messages if m.id not in own_ids]
        update = _changes(values, result, channels)
        if result.get("output") is not None:
            new_messages = [AIMessage(to_json(result["output"]["value"]).decode())]
        if departure := result.get("to_parent"):
            outcome = {"call_id": call_id, "goto": departure["goto"]}
            update = {
                **update,
                **departure["update"],
                "outcomes": [outcome] if departure["goto"] else [],
            }
        return await _answer_call(
            level, name, call_task, new_messages, update, result.get("help_reason")
        )

    return enter


def foreign_agent(
    level: Level, name: str, graph: Graph, *, is_team: bool = False, keeps_time: bool = False
) -> Node:
    """Make the node of a foreign graph or a team: it gets the messages, and does not store them.

    A graph with a memory of its own keeps it, except as a delegate. A team also gets its place in
    the tree. With `keeps_time` the graph's own guards end it in time,
    and this node sets no time limit.
    """
    graph = with_memory(graph)
    delegate = Delegate.of(graph)

    async def enter(state: AgentState, config: RunnableConfig) -> Command[str]:
        call_task = cast("CallTask | None", state.get("sent"))
        if call_task is not None:
            state = read_state(config, ("messages", "rewritten", "turn"))  # type: ignore[assignment]
        messages = level.history(state)
        if call_task is not None:
            own, inherited_messages = _task_messages(call_task, messages)
            messages = [*inherited_messages, *own]
        messages = with_ids(repair(messages))
        input_ids = {message.id for message in messages}
        values: dict[str, Any] = {"messages": list(messages)}
        if is_team:
            values["place"] = _place(level, name, state, call_task)
        with handed_over((), call_task and call_task["call"]["id"]):
            timer = None if keeps_time else current_interceptor()
            run = run_inside(graph, values) if is_team else ask(graph, delegate, values)
            result = await _run_foreign(level, name, run, timer)
        new_messages, guard = _answers_in(result, input_ids)
        _record_usage(f"{level.path}/{name}", new_messages, result.get("team_usage"))
        if call_task is None:
            path = f"{level.path}/{name}"
            new_messages = [
                level.marked(m, path) if isinstance(m, AIMessage) else m for m in new_messages
            ]
            record_messages(new_messages)
        await _emit_texts(level, name, new_messages)
        update: dict[str, Any] = {}
        guard = result.get("stopped_by") if is_team else guard
        if guard and "turn" in state:
            update["turn"] = {**state["turn"], "closed": guard}
        if call_task is not None:
            return await _answer_call(level, name, call_task, new_messages, update, None)
        return await _return(level, name, new_messages, {}, update)

    return enter


def _answers_in(
    result: Result, input_ids: Collection[str | None]
) -> tuple[list[AnyMessage], str | None]:
    """Return the new messages of a foreign graph, and the guard that has ended its run.

    Only answers and calls: a summary that the graph makes for itself does not belong here.
    """
    messages = read_messages(result.get("messages") or ())  # a waiting team: none
    new_messages, guard = split_stop([m for m in messages if m.id not in input_ids])
    answers = (m for m in new_messages if isinstance(m, AIMessage | ToolMessage))
    return answer_malformed(answers), guard


async def _emit_texts(level: Level, name: str, messages: Sequence[AnyMessage]) -> None:
    for message in messages:
        if isinstance(message, AIMessage) and (message.text or media_of(message)):
            await emit(_text_event(level, name, message))


async def _return(
    level: Level,
    name: str,
    new_messages: Sequence[AnyMessage],
    result: Result,
    update: dict[str, Any],
) -> Command[str]:
    """End a visit after a transfer; this level goes on only if the sub-agent requested help."""
    update["messages"] = list(new_messages)
    reason = result.get("help_reason")
    closed_by = (result.get("turn") or {}).get("closed")
    if reason is not None and not closed_by:
        await emit(_help_event(level, name, reason))
        return Command(
            goto="continue_conversation", update={**update, "current_active_agent": None}
        )
    if (departure := result.get("to_parent")) and not closed_by and departure["goto"]:
        update = {**update, "current_active_agent": None, **departure["update"]}
        update["messages"] = list(new_messages)
        return Command(goto=departure["goto"], update=update)
    below = result.get("current_active_agent")
    update["current_active_agent"] = f"{name}/{below}" if below else name
    if result.get("output") is not None:
        update["output"] = result["output"]
    return Command(goto="__end__", update=update)


async def _answer_call(
    level: Level,
    name: str,
    call_task: CallTask,
    new_messages: Sequence[AnyMessage],
    update: dict[str, Any],
    help_reason: str | None,
) -> Command[str]:
    """End a delegation: the delegate's last text, or its request for help, answers the call."""
    call, text = call_task["call"], _last_text(new_messages)
    interceptor = current_interceptor()
    if interceptor is not None:
        brief = call_task.get("text") or str(call["args"])
        await interceptor.report(name, brief, text, call_task["message_id"], work_of(new_messages))
    if help_reason is not None:
        await emit(_help_event(level, name, help_reason))
        text = f"{name} asks for help: {help_reason}\n{work_done(new_messages)}".strip()
    message = answer(call["id"] or "", call["name"], text or f"{name} gave no answer.")
    record_messages([message])
    await emit_answer(level, message)
    return Command(goto=SETTLE_CALLS, update={**update, "messages": [message]})


async def _run_foreign(
    level: Level, name: str, run: Awaitable[Result], timer: Interceptor | None
) -> Result:
    try:
        with nullcontext() if timer is None else timer.time_limit():
            return await run
    except GraphBubbleUp:
        raise
    except Exception as error:
        if isinstance(error, AgentGraphError) and not isinstance(error, TimeoutError):
            raise
        # The boundary to foreign graphs: users catch one type for all of their errors.
        failure = ModelError.of(f"the graph of agent {name!r}", error)
        await emit(ErrorEvent.of(failure, f"{level.path}/{name}"))
        raise failure from error


def _task_messages(
    call_task: CallTask, messages: Sequence[AnyMessage]
) -> tuple[list[AnyMessage], list[AnyMessage]]:
    """Return a delegate's own first messages, and the messages that it inherits."""
    call = call_task["call"]
    if call_task.get("alone"):
        request = str(call["args"].get("request") or "")
        return [HumanMessage(request, id=f"request_{call['id']}")], []
    texts = {call["id"]: call_task["text"]}
    pending = [
        answer(c["id"] or "", c["name"] or "", texts.get(c["id"], "Others work on this."))
        for c in open_calls(messages)
    ]
    return [], [*messages, *pending]


def _place(
    level: Level, name: str, state: AgentState, call_task: CallTask | None
) -> dict[str, str]:
    """Return the place of a team: its path in the tree, with the visit, and the turn's id."""
    turn_id = (state.get("turn") or {}).get("id", "")
    visit = "" if call_task is None else f"@{current_visit()}>{call_task['position']}"
    visit = visit.replace("/", ".")  # the visit is one part of a path
    return {"path": f"{level.path}/{name}{visit}", "turn": turn_id}


def _record_usage(path: str, new_messages: Sequence[AnyMessage], team_usage: object) -> None:
    """Record the usage of a foreign graph; an `Agent` inside has recorded its own already.

    A team reports the usage of its agents itself, as `team_usage`.
    """
    run = current_run()
    if run is None:
        return
    journal_ids = {message.id for messages in run.journal.values() for message in messages}
    for message in new_messages:
        if isinstance(message, AIMessage) and message.id not in journal_ids:
            run.record_usage_of(path, message)
    for below, figures in team_usage.items() if isinstance(team_usage, Mapping) else ():
        run.record_figures(f"{path}/{below}", figures)


def _crossing_values(state: AgentState, channels: Sequence[str]) -> dict[str, Any]:
    """Return the values that a nested graph gets as input: the turn and the patchers' channels."""
    values: Mapping[str, Any] = state
    return {key: values[key] for key in ("turn", *channels) if key in values}


def _changes(values: Mapping[str, Any], result: Result, channels: Sequence[str]) -> dict[str, Any]:
    # Only changed values: two delegates that return the same unchanged value would collide.
    return {
        key: result[key]
        for key in ("turn", *channels)
        if key in result and result[key] != values.get(key)
    }


def _path_below(state: AgentState, name: str) -> str | None:
    """Return the part of the active path below this sub-agent."""
    head, _, below = (state.get("current_active_agent") or "").partition("/")
    return below or None if head == name else None


def _new_messages(result: Result, inherited_messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages that a sub-agent added, without its rewriting of earlier messages."""
    messages = own_messages(result)
    if not result.get("rewritten"):
        # A hook may have replaced an inherited message, by its id; the parent gets that too.
        return messages
    inherited_ids = {message.id for message in inherited_messages}
    return [message for message in messages if message.id not in inherited_ids]


def _last_text(messages: Sequence[AnyMessage]) -> str:
    for message in reversed(messages):
        if isinstance(message, AIMessage) and message.text:
            return str(message.text)
    return ""


def _help_event(level: Level, name: str, reason: str) -> RoutingEvent:
    return RoutingEvent(
        agent=f"{level.path}/{name}",
        kind="help",
        source=name,
        target=level.agent.name,
        reason=reason,
    )


def _text_event(level: Level, name: str, message: AIMessage) -> AIMessageEvent:
    return AIMessageEvent(
        agent=f"{level.path}/{name}",
        text=str(message.text),
        message_id=message.id or "",
        blocks=media_of(message),
    )
