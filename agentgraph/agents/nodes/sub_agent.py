"""The node of a sub-agent: enter it with the conversation, bring back only what is new.

The history is handed over with the run and not as input, so that a nested graph neither stores its
parent's messages nor returns them; a resumed node runs from its top and hands them over again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic_core import to_json

from agentgraph.agents.nodes.call_tools import answer
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.progress import work_of
from agentgraph.agents.nodes.run_tool import current_visit, inside_visit
from agentgraph.agents.nodes.state import AgentState, made
from agentgraph.clock import new_id
from agentgraph.errors import AgentGraphError, ModelError, kind_of
from agentgraph.history import answer_malformed, open_calls, repair, work_done
from agentgraph.interception import Interceptor, current_interceptor
from agentgraph.participant import Graph
from agentgraph.patching import read_state
from agentgraph.running import current_run, handed_over, joined, note
from agentgraph.stream import AIMessageEvent, ErrorEvent, RoutingEvent, ToolResponseEvent, emit

Node: TypeAlias = Callable[[AgentState, RunnableConfig], Awaitable[Command[str]]]
Result: TypeAlias = Mapping[str, Any]


def sub_agent(level: Level, name: str, graph: Graph, shared: Sequence[str]) -> Node:
    """Make the node of an agent of ours; `shared` are the channels that cross into it."""

    async def enter(state: AgentState, config: RunnableConfig) -> Command[str]:
        sent: Any = state.get("sent")
        if sent is not None:
            state = read_state(config, ("messages", "rewritten", "turn", *shared))  # type: ignore[assignment]
        given = _given(state, shared)
        messages = level.history(state)
        turn_id = (state.get("turn") or {}).get("id", "")
        if sent is None:
            with joined(turn_id), handed_over(messages), inside_visit(str(state.get("asked", 0))):
                active = _rest(state, name)
                result = await graph.ainvoke({**given, "current_active_agent": active})
            fresh = _new(result, messages)
            return await _entered(level, name, fresh, result, _changed(given, result, shared))
        call: ToolCall = sent["call"]
        own, inherited = _task(call, sent, messages)
        visit_of = inside_visit(sent["position"])
        with joined(turn_id), handed_over(inherited, call["id"]), visit_of:
            result = await graph.ainvoke({**given, "messages": own, "errand": call["id"]})
        given_ids = {message.id for message in own}
        fresh = [m for m in _new(result, [*inherited, *own]) if m.id not in given_ids]
        update = _changed(given, result, shared)
        if result.get("output") is not None:
            fresh = [AIMessage(to_json(result["output"]).decode())]
        return await _answered(level, name, sent, fresh, update, result.get("help_reason"))

    return enter


def foreign_agent(
    level: Level, name: str, graph: Graph, *, is_team: bool = False, keeps_time: bool = False
) -> Node:
    """Make the node of a graph that is not ours: it gets the messages, and keeps none of them.

    A team is told where it is held. One that keeps time by itself ends as its guards say, and is
    not cut off from here.
    """

    async def enter(state: AgentState, config: RunnableConfig) -> Command[str]:
        sent: Any = state.get("sent")
        if sent is not None:
            state = read_state(config, ("messages", "rewritten", "turn"))  # type: ignore[assignment]
        messages = level.history(state)
        if sent is not None:
            own, inherited = _task(sent["call"], sent, messages)
            messages = [*inherited, *own]
        messages = [_identified(message) for message in repair(messages)]
        known = {message.id for message in messages}
        given: dict[str, Any] = {"messages": list(messages)}
        if is_team:
            turn_id = (state.get("turn") or {}).get("id", "")
            visit = "" if sent is None else f"@{current_visit()}>{sent['position']}"
            visit = visit.replace("/", ".")  # it is one part of a path
            given["place"] = {"path": f"{level.path}/{name}{visit}", "turn": turn_id}
        with handed_over((), sent and sent["call"]["id"]):
            timer = None if keeps_time else current_interceptor()
            result = await _asked(level, name, graph, given, timer)
        # Only what was said and done: a summary that it keeps for itself is no part of this.
        fresh = answer_malformed(
            message
            for message in result.get("messages") or ()  # which a team that goes on has none of
            if message.id not in known and isinstance(message, AIMessage | ToolMessage)
        )
        _account(f"{level.path}/{name}", fresh, result.get("team_usage"))
        if sent is None:
            note(fresh)
        for message in fresh:
            if isinstance(message, AIMessage) and message.text:
                await emit(_said(level, name, message))
        update: dict[str, Any] = {}
        if (guard := result.get("stopped_by")) and "turn" in state:
            update["turn"] = {**state["turn"], "closed": guard}
        if sent is not None:
            return await _answered(level, name, sent, fresh, update, None)
        return await _entered(level, name, fresh, {}, update)

    return enter


async def _asked(
    level: Level, name: str, graph: Graph, given: Mapping[str, Any], timer: Interceptor | None
) -> Mapping[str, Any]:
    try:
        with nullcontext() if timer is None else timer.time_limit():
            result: Mapping[str, Any] = await graph.ainvoke(given)
    except GraphBubbleUp:
        raise
    except Exception as error:
        if isinstance(error, AgentGraphError) and not isinstance(error, TimeoutError):
            raise
        # The boundary to graphs of others: whatever they raise, users catch one type.
        told = str(error) if isinstance(error, AgentGraphError) else kind_of(error)
        failure = ModelError(f"the graph of agent {name!r} failed: {told}")
        path = f"{level.path}/{name}"
        await emit(ErrorEvent(agent=path, code=failure.code, message=str(failure)))
        raise failure from error
    return result


def _task(
    call: ToolCall, sent: Mapping[str, Any], messages: Sequence[AnyMessage]
) -> tuple[list[AnyMessage], list[AnyMessage]]:
    """Return what a delegate is given as its own, and what it inherits."""
    if sent["alone"]:
        request = str(call["args"].get("request") or "")
        return [HumanMessage(request, id=f"request_{call['id']}")], []
    texts = {call["id"]: sent["text"]}
    pending = [
        answer(c["id"] or "", c["name"] or "", texts.get(c["id"], "Others work on this."))
        for c in open_calls(messages)
    ]
    return [], [*messages, *pending]


def _identified(message: AnyMessage) -> AnyMessage:
    """Give an id to what `repair` has put in, so that it is not taken for new afterwards."""
    return message if message.id else message.model_copy(update={"id": new_id()})


def _account(path: str, fresh: Sequence[AnyMessage], team: object) -> None:
    """Record what a foreign graph has used, except by agents of ours in it, which did so.

    A team says by itself what its agents have used.
    """
    run = current_run()
    if run is None:
        return
    recorded = {message.id for made in run.journal.values() for message in made}
    for message in fresh:
        if isinstance(message, AIMessage) and message.id not in recorded:
            model = str(message.response_metadata.get("model_name") or "")
            run.record_usage(path, message.usage_metadata, model)
    for below, used in team.items() if isinstance(team, Mapping) else ():
        run.record_told(f"{path}/{below}", used)


def _given(state: AgentState, shared: Sequence[str]) -> dict[str, Any]:
    values: Mapping[str, Any] = state
    return {key: values[key] for key in ("turn", *shared) if key in values}


def _changed(given: Mapping[str, Any], result: Result, shared: Sequence[str]) -> dict[str, Any]:
    # Only what changed: two delegates that return the same untouched value would collide.
    return {
        key: result[key]
        for key in ("turn", *shared)
        if key in result and result[key] != given.get(key)
    }


def _rest(state: AgentState, name: str) -> str | None:
    head, _, rest = (state.get("current_active_agent") or "").partition("/")
    return rest or None if head == name else None


def _new(result: Result, inherited: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return what a sub-agent has said and done; how it rewrote the past for itself stays there."""
    messages = made(result)
    if not result.get("rewritten"):
        # A hook may have replaced an inherited message, by its id: that is for the parent too.
        return messages
    known = {message.id for message in inherited}
    return [message for message in messages if message.id not in known]


async def _entered(
    level: Level,
    name: str,
    fresh: Sequence[AnyMessage],
    result: Result,
    update: dict[str, Any],
) -> Command[str]:
    update["messages"] = list(fresh)
    reason = result.get("help_reason")
    closed = (result.get("turn") or {}).get("closed")
    if reason is not None and not closed:
        await emit(_helped(level, name, reason))
        return Command(
            goto="continue_conversation", update={**update, "current_active_agent": None}
        )
    rest = result.get("current_active_agent")
    update["current_active_agent"] = f"{name}/{rest}" if rest else name
    if result.get("output") is not None:
        update["output"] = result["output"]
    return Command(goto="__end__", update=update)


async def _answered(
    level: Level,
    name: str,
    sent: Mapping[str, Any],
    fresh: Sequence[AnyMessage],
    update: dict[str, Any],
    help_reason: str | None,
) -> Command[str]:
    text = _last_text(fresh)
    call: ToolCall = sent["call"]
    interceptor = current_interceptor()
    if interceptor is not None:
        brief = sent.get("text") or str(call["args"])
        await interceptor.report(name, brief, text, sent["message_id"], work_of(fresh))
    if help_reason is not None:
        await emit(_helped(level, name, help_reason))
        text = f"{name} asks for help: {help_reason}\n{work_done(fresh)}".strip()
    told = answer(call["id"] or "", call["name"], text or f"{name} gave no answer.")
    note([told])
    await emit(_responded(level, told))
    return Command(goto="call_tools", update={**update, "messages": [told]})


def _last_text(messages: Sequence[AnyMessage]) -> str:
    for message in reversed(messages):
        if isinstance(message, AIMessage) and message.text:
            return str(message.text)
    return ""


def _helped(level: Level, name: str, reason: str) -> RoutingEvent:
    return RoutingEvent(
        agent=f"{level.path}/{name}",
        kind="help",
        source=name,
        target=level.agent.name,
        reason=reason,
    )


def _said(level: Level, name: str, message: AIMessage) -> AIMessageEvent:
    return AIMessageEvent(
        agent=f"{level.path}/{name}", text=str(message.text), message_id=message.id or ""
    )


def _responded(level: Level, told: ToolMessage) -> ToolResponseEvent:
    return ToolResponseEvent(
        agent=level.path,
        tool=told.name or "",
        content=str(told.text),
        call_id=told.tool_call_id,
        status=told.status,
    )
