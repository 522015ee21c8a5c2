"""The routes of an agent's graph: functions of its state that decide which node comes next.

LangGraph asks them after each run of a node, and after an `update_state` that writes as the node. A
node decides with a `Command` only where a tool has returned one: that is never asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolCall
from langgraph.graph import END
from langgraph.types import Send

from agentgraph.agents.nodes.calls import PendingCalls, transfer_text
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.state import NEXT_MOVE
from agentgraph.errors import RoutingError
from agentgraph.graphs.routes import AfterNode, Destinations, Route
from agentgraph.history import calls_of

SETTLE_CALLS = "settle_calls"
"""The node where the parallel calls of a message meet."""
_AFTER_CALLS = ("messages", "asked", "turn", "help_reason", "to_parent", "current_active_agent")


def after_router(level: Level) -> Route:
    """Return the route after the router: an intent's, the active sub-agent, or the model."""

    def route(after: AfterNode) -> Destinations:
        if isinstance(message := _written_last(after), AIMessage):
            return "call_tools" if message.tool_calls else END
        path = after.read("current_active_agent").get("current_active_agent")
        if path:
            return _child(level, path)
        return "continue_conversation"

    return route


def after_model(level: Level) -> Route:
    """Return the route after the model: the hooks behind it, its calls, or the end."""

    def route(after: AfterNode) -> Destinations:
        if _is_closed(after.read("turn")):
            return END
        return level.exits[0] if level.exits else _after_message(level, after)

    return route


def after_hook(level: Level, successor: str | None) -> Route:
    """Return the route after a hook: where it jumps to, else its successor, else the calls."""
    jumps = {"end": level.end, "model": level.entry, "tools": "call_tools"}

    def route(after: AfterNode) -> Destinations:
        if move := _next_move(after):
            return jumps[move]
        return _after_message(level, after) if successor is None else successor

    return route


def after_calls(level: Level) -> Route:
    """Return the route after calls: open calls first, then what they have led to, else the model.

    A parallel call does not see the others: all of them meet in one node before anything follows.
    """

    def route(after: AfterNode) -> Destinations:
        if after.is_sent:
            return SETTLE_CALLS
        state = after.read(*_AFTER_CALLS)
        messages: Sequence[AnyMessage] = state.get("messages", ())
        pending = PendingCalls.last(messages, state.get("asked"))
        if _is_closed(state):
            return "call_tools" if pending is not None and pending.has_open else END
        move = _next_move(after)
        if move == "end":
            return level.end
        if state.get("help_reason") is not None or state.get("to_parent") is not None:
            return END
        if path := state.get("current_active_agent"):
            return _child(level, path)
        if pending is None:
            return level.entry
        if isinstance(messages[-1], AIMessage) and messages[-1] is not pending.message:
            return level.end
        return _open_calls(level, pending, move)

    return route


def after_sub_agent(level: Level) -> Route:
    """Return the route after a state that was written as a sub-agent: its answer, or a call's."""

    def route(after: AfterNode) -> Destinations:
        state = after.read("messages", "current_active_agent")
        messages = state.get("messages") or [None]
        has_spoken = isinstance(messages[-1], AIMessage) and not calls_of(messages[-1])
        return END if has_spoken or state.get("current_active_agent") else SETTLE_CALLS

    return route


def _after_message(level: Level, after: AfterNode) -> Destinations:
    """Return where the model's last message leads: to its calls, or the end of the turn."""
    last = _written_last(after)
    if isinstance(last, AIMessage) and not last.invalid_tool_calls and len(last.tool_calls) < 2:
        return "call_tools" if last.tool_calls else level.end
    state = after.read("messages", "asked")
    messages: Sequence[AnyMessage] = state.get("messages", ())
    message = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
    pending = PendingCalls.last(messages, state.get("asked"))
    if pending is None or message is not pending.message:
        return level.end
    return _open_calls(level, pending, None)


def _written_last(after: AfterNode) -> object:
    """Return the last message that the node itself has written: often it alone decides."""
    batch = next((value for key, value in reversed(after.writes) if key == "messages"), None)
    return batch[-1] if isinstance(batch, list) and batch else batch


def _open_calls(level: Level, pending: PendingCalls, move: str | None) -> Destinations:
    """Return where the open calls of a message are answered, the model where none is open."""
    if not pending.has_open:
        return level.entry
    tools, work = level.toolset, pending.work(level)
    if (count := workers_of(move)) is not None:  # the guards have admitted the first ones
        delegations = [c for c in pending.open_calls if c["name"] in tools.transfers]
        workers = [c for c in work if c["name"] in tools.agents] if work else delegations
        later_calls = workers[count:]
        return [_send(level, pending, c) for c in work or delegations if c not in later_calls]
    has_agents = any(call["name"] in tools.agents for call in work)
    if len(work) < 2 or has_agents or pending.malformed_calls:
        return "call_tools"
    return [_send(level, pending, call) for call in work]


def _send(level: Level, pending: PendingCalls, call: ToolCall) -> Send:
    # Send the call, never the state: a checkpoint would store the state once for each call.
    name, args, task = call["name"], call["args"], pending.task(call)
    if name in level.toolset.agents:
        return Send(level.toolset.agents[name], {"sent": {**task, "alone": True}})
    if name in level.toolset.transfers:
        return delegation(level, pending, call, str(args.get("reason") or ""), _summary(args))
    return Send("call_tools", {"sent": task})


def workers_begin(count: int) -> dict[str, str]:
    """Return the update by which a node tells the route behind it how many workers begin."""
    return {NEXT_MOVE: f"{_WORKERS}{count}"}


def workers_of(move: str | None) -> int | None:
    """Return how many workers begin, None where a node has told something else."""
    return int(move.removeprefix(_WORKERS)) if move and move.startswith(_WORKERS) else None


_WORKERS = "workers "


def delegation(
    level: Level, pending: PendingCalls, call: ToolCall, reason: str, summary: str, target: str = ""
) -> Send:
    """Return the task of a delegate, which answers the call of a transfer."""
    target = target or level.toolset.transfers[call["name"]]
    short: ToolCall = {**call, "args": {}}
    text = transfer_text(target, reason, summary)
    return Send(target, {"sent": {**pending.task(short), "alone": False, "text": text}})


def _summary(args: dict[str, Any]) -> str:
    return str(args.get("summary") or "")


def _child(level: Level, path: str) -> str:
    """Return the sub-agent that an active path begins with."""
    name = path.partition("/")[0]
    names = [child.name for child in level.agent.children]
    if name not in names:
        raise RoutingError(
            f"{level.agent.name!r} has no sub-agent {name!r} to go on with: it has "
            f"{', '.join(names) or 'none'}"
        )
    return name


def _is_closed(state: Mapping[str, Any]) -> bool:
    return bool((state.get("turn") or {}).get("closed"))


def _next_move(after: AfterNode) -> str | None:
    return next((value for key, value in reversed(after.writes) if key == NEXT_MOVE), None)
