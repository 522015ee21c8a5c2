"""The node `settle_calls`: what follows once the parallel calls of a message have answers.

One transfer, or the help request, or all delegations; or what a tool has decided. The node
`call_tools` settles a message with one call by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage
from langgraph.graph import END
from langgraph.types import Command, Send

from agentgraph.agents.nodes.calls import (
    HELP_REQUESTED,
    PendingCalls,
    answer,
    emit_answers,
    emit_call,
    progress,
    refusal,
    transfer_text,
)
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.routes import delegation, workers_begin
from agentgraph.agents.nodes.state import NEXT_MOVE, AgentState, CallOutcome, merge_messages
from agentgraph.agents.spec.tools import REQUEST_HELP
from agentgraph.clock import new_id
from agentgraph.history import calls_of
from agentgraph.interception import current_interceptor
from agentgraph.running import record_messages, recorded_messages
from agentgraph.stream import AIMessageEvent, emit

W = TypeVar("W")

Commands: TypeAlias = list[Command[str]]


@dataclass(frozen=True, slots=True)
class _Move:
    """A call to move the conversation: by a transfer tool, `request_help` or a `Handoff`."""

    call_id: str
    tool: str
    target: str
    """The path of the agent below this one; empty for a request for help."""
    reason: str
    summary: str = ""

    @property
    def is_help(self) -> bool:
        return self.tool == REQUEST_HELP and not self.target


def settle_calls(level: Level) -> Callable[[AgentState], Awaitable[Commands]]:
    """Make the node for a level; where calls are still open, the route behind it leads to them."""

    async def settle(state: AgentState) -> Commands:
        pending = PendingCalls.last(state.get("messages", []), state.get("asked"))
        if pending is None:
            return [Command()]
        if guard := (state.get("turn") or {}).get("closed"):
            answers = await emit_answers(level, pending, close(pending, guard))
            return [Command(update={"messages": answers})]
        if pending.malformed_calls or pending.work(level):
            return [Command()]
        return await conclude(level, pending, state.get("outcomes") or (), state)

    return settle


async def conclude(
    level: Level, pending: PendingCalls, outcomes: Sequence[CallOutcome], state: AgentState
) -> Commands:
    """Decide what follows once all ordinary calls have answers.

    What a tool has decided wins, then delegations, then the first transfer or help request.
    """
    handoffs = [_Move(o["call_id"], **o["transfer"]) for o in outcomes if "transfer" in o]
    signals = [
        _move_of(level, call) for call in pending.open_calls if call["name"] in level.toolset.moves
    ]
    moves = [*handoffs, *signals]
    if any(key in outcome for outcome in outcomes for key in ("goto", "parent", "finish")):
        return await _follow_tools(level, pending, outcomes, moves, state)
    if level.agent.handoff == "delegate":
        delegations = [move for move in moves if not move.is_help]
        if delegations:
            return await _delegate_all(level, pending, delegations, len(handoffs))
    if moves and moves[0].is_help:
        return await _ask_for_help(level, pending, moves, state)
    if moves:
        return await _transfer(level, pending, moves, state)
    return [await _return_or_loop(level, pending)]


async def _follow_tools(
    level: Level,
    pending: PendingCalls,
    outcomes: Sequence[CallOutcome],
    moves: Sequence[_Move],
    state: AgentState,
) -> Commands:
    """Do what tools have decided: leave this graph, go to a node of it, or finish the turn."""
    reason = "a tool of the same message has decided otherwise"
    refusals = await emit_answers(level, pending, _refuse(moves, reason))
    if any("parent" in outcome for outcome in outcomes):
        return await _leave(level, pending, outcomes, refusals, state)
    goto = [target for outcome in outcomes for target in outcome.get("goto", ())]
    text = next((o["finish"]["text"] for o in outcomes if "finish" in o), "")
    if text and not goto and (hold := _held_back(text)):
        return [Command(update={"messages": refusals, **hold})]
    if goto:
        await pending.report_unrun(refusals)
    messages = [*refusals, *([await _speak(level, text)] if text else [])]
    if nodes := [target for target in goto if target != END]:
        return [Command(update={"messages": messages}, goto=nodes)]
    return [Command(update={"messages": messages, NEXT_MOVE: "end"})]


async def _leave(
    level: Level,
    pending: PendingCalls,
    outcomes: Sequence[CallOutcome],
    refusals: Sequence[ToolMessage],
    state: AgentState,
) -> list[Command[str]]:
    """Leave this graph by the first command to the parent; all others are refused.

    LangGraph carries nothing but the command's update to the parent, and drops the run of this
    graph: so the update gets the messages of this visit. In an agent's own tree the run ends
    instead, and the node of the sub-agent returns its messages as always.
    """
    departures, surplus = _split([o for o in outcomes if "parent" in o])
    targets = [target for outcome in departures for target in outcome["parent"]["goto"]]
    update: dict[str, Any] = {}
    for outcome in departures:
        update |= outcome["parent"]["update"]
    reason = f"another call has left for {', '.join(map(_name, targets)) or 'the parent graph'}"
    answers = [*refusals, *_refuse_outcomes(pending, surplus, reason)]
    if level.above is None:
        messages = merge_messages(state.get("messages", []), [answers])
        new_messages = _since(messages, state.get("turn") or {})
        to_parent = Command(
            graph=Command.PARENT, goto=targets, update={**update, "messages": new_messages}
        )
        return [to_parent]
    if (objection := await _objection(level.above, targets, level, state)) is not None:
        answers += _refuse_outcomes(pending, departures, objection)
        return [Command(update={"messages": answers})]
    return [Command(update={"messages": answers, "to_parent": {"goto": targets, "update": update}})]


def _split(
    departures: list[CallOutcome],
) -> tuple[list[CallOutcome], list[CallOutcome]]:
    """Return the commands that are followed, and the others; several can only be `Send`s."""
    if all(isinstance(target, Send) for o in departures for target in o["parent"]["goto"]):
        return departures, []
    return departures[:1], departures[1:]


def _refuse_outcomes(
    pending: PendingCalls, outcomes: Sequence[CallOutcome], reason: str
) -> list[ToolMessage]:
    names = {call["id"]: call["name"] for call in pending.message.tool_calls}
    return [refusal(o["call_id"], names.get(o["call_id"], ""), reason) for o in outcomes]


def _since(messages: Sequence[AnyMessage], turn: Mapping[str, Any]) -> list[AnyMessage]:
    """Return the messages of this visit, all of them where its begin is no longer known."""
    ids = [message.id for message in messages]
    since = turn.get("since")
    return list(messages[ids.index(since) + 1 :] if since in ids else messages)


async def _objection(
    above: Level, targets: Sequence[Any], level: Level, state: AgentState
) -> str | None:
    """Return why the guards forbid the move to another agent, None where they allow it."""
    interceptor = current_interceptor()
    agents = {child.name for child in above.agent.children}
    target = next((name for name in map(_name, targets) if name in agents), None)
    if interceptor is None or target is None:
        return None
    objection = await interceptor.handoff(target, progress(level.history(state)))
    return None if objection is None else objection.why


def _name(target: Any) -> str:
    return str(getattr(target, "node", target))


async def _transfer(
    level: Level, pending: PendingCalls, moves: Sequence[_Move], state: AgentState
) -> Commands:
    """Make the first transfer of a message and refuse the others."""
    move, *surplus = moves
    name = move.target.rpartition("/")[2]
    interceptor = current_interceptor()
    if interceptor is not None:
        levels = move.target.count("/") + 1
        digest = progress(level.history(state))
        brief = f"{pending.message.text}\n{move.reason}\n{move.summary}".strip()
        objection = await interceptor.handoff(name, digest, levels=levels, brief=brief)
        if objection is not None:
            return await _refuse_all(level, pending, moves, objection.why)
    refusals = _refuse(surplus, f"the conversation was transferred to {name}")
    text = transfer_text(name, move.reason, move.summary)
    transfer = level.marked(answer(move.call_id, move.tool, text), f"{level.path}/{move.target}")
    messages = await emit_answers(level, pending, [transfer, *refusals])
    record_messages(messages)
    await emit(level.routing_event("transfer", move.target, move.reason))
    return [Command(update={"messages": messages, "current_active_agent": move.target})]


async def _ask_for_help(
    level: Level, pending: PendingCalls, moves: Sequence[_Move], state: AgentState
) -> Commands:
    """End this level's run, so that its supervisor goes on, unless the guards forbid that."""
    move, *surplus = moves
    objection = await _objection_to_return(level, state)
    if objection is not None:
        return await _refuse_all(level, pending, moves, objection)
    refusals = await emit_answers(level, pending, _refuse(surplus, "help was requested"))
    reason = move.reason or "no reason given"
    text = f"{HELP_REQUESTED}{level.supervisor}: {reason}"
    supervisor_path = level.path.rpartition("/")[0]
    request = level.marked(answer(move.call_id, REQUEST_HELP, text), supervisor_path)
    messages = [request, *refusals]
    return [Command(update={"messages": messages, "help_reason": reason})]


async def _objection_to_return(level: Level, state: AgentState) -> str | None:
    """Return why a sub-agent must not return to its supervisor once more, None if it may."""
    interceptor = current_interceptor()
    if interceptor is None or level.supervisor is None or state.get("errand") is not None:
        return None  # a delegate only answers its call
    history = level.history(state)
    work = progress(history, by_work=True)
    objection = await interceptor.handoff(level.supervisor, progress(history), returns_from=work)
    return None if objection is None else objection.why


async def _refuse_all(
    level: Level, pending: PendingCalls, moves: Iterable[_Move], reason: str
) -> Commands:
    """Answer all moves of a message with the reason for their refusal; the model goes on."""
    refusals = await emit_answers(level, pending, _refuse(moves, reason))
    await pending.report_unrun(refusals)
    return [Command(update={"messages": refusals})]


async def _return_or_loop(level: Level, pending: PendingCalls) -> Command[str]:
    """End the turn with an output or with direct results, else go back to the model."""
    toolset, calls = level.toolset, pending.message.tool_calls
    output = toolset.output
    if output is not None:
        for call in calls:
            if call["name"] in output.names and _has_answer(pending, call):
                value = output.of_call(call["name"], call["args"])
                return Command(update={"output": value, NEXT_MOVE: "end"})
    ordinary = [c for c in calls if c["name"] in toolset.ordinary]
    is_direct = (
        bool(ordinary)
        and len(ordinary) == len(calls_of(pending.message))
        and all(toolset.ordinary[c["name"]].return_direct for c in ordinary)
        and all(_has_answer(pending, c) for c in ordinary)
    )
    if not is_direct:
        return Command()
    text = "\n\n".join(str(pending.answers[c["id"] or ""].text) for c in ordinary)
    if hold := _held_back(text):
        return Command(update=hold)
    return Command(update={"messages": [await _speak(level, text)], NEXT_MOVE: "end"})


def _has_answer(pending: PendingCalls, call: ToolCall) -> bool:
    reply = pending.answers.get(call["id"] or "")  # a tool may have removed all messages
    return reply is not None and reply.status != "error"


async def _delegate_all(
    level: Level, pending: PendingCalls, moves: Sequence[_Move], handoff_count: int
) -> Commands:
    """Run the transfers of a message as delegations, in parallel.

    A `Handoff` of a tool is one too; it has an answer already, so no route would find it.
    """
    admitted_moves, objections = await admit(moves, [move.target for move in moves])
    refused_ids = {move.call_id for move, _ in objections}
    # A `Handoff` has its answer, by which it would not be seen to wait.
    busy = f"{len(admitted_moves)} agents are at work already: ask again"
    objections += [
        (move, busy)
        for move in moves[:handoff_count]
        if move not in admitted_moves and move.call_id not in refused_ids
    ]
    refusals = await emit_answers(
        level, pending, [refusal(m.call_id, m.tool, reason) for m, reason in objections]
    )
    if not admitted_moves:
        await pending.report_unrun(refusals)
    for move in admitted_moves:
        await emit(level.routing_event("delegate", move.target, move.reason))
        if move.tool in level.toolset.moves:  # a tool that returned a `Handoff` has its event
            args = {"reason": move.reason, "summary": move.summary}
            await emit_call(level, move.tool, args, move.call_id)
    if not handoff_count:
        return [Command(update={"messages": refusals, **workers_begin(len(admitted_moves))})]
    sends = [_delegation(level, pending, move) for move in admitted_moves]
    return [Command(update={"messages": refusals}, goto=sends)]


def _delegation(level: Level, pending: PendingCalls, move: _Move) -> Send:
    call = ToolCall(name=move.tool, args={}, id=move.call_id, type="tool_call")
    return delegation(level, pending, call, move.reason, move.summary, move.target)


async def admit(
    candidates: Sequence[W], workers: Sequence[str]
) -> tuple[list[W], list[tuple[W, str]]]:
    """Return the candidates that begin now, and those that may not begin, each with the reason.

    All others have to wait: once the first ones are done, they are candidates again.
    """
    interceptor = current_interceptor()
    if interceptor is None or not workers:
        return list(candidates), []
    refusals, most_at_once, _ = await interceptor.dispatch(workers)
    admitted = [c for position, c in enumerate(candidates) if position not in refusals]
    return admitted[:most_at_once], [(candidates[at], why) for at, why in refusals.items()]


def close(pending: PendingCalls, guard: str) -> list[ToolMessage]:
    """Answer the open calls of a turn that a guard has ended."""
    calls = [c for c in calls_of(pending.message) if c["id"] not in pending.answers]
    # A call that was stopped after its tool had run keeps its result: its effect has happened.
    results = {m.tool_call_id: m for m in recorded_messages() if isinstance(m, ToolMessage)}
    return [
        results.get(c["id"] or "")
        or refusal(c["id"] or "", c["name"] or "tool", f"{guard} has ended the turn")
        for c in calls
    ]


def _refuse(moves: Iterable[_Move], reason: str) -> list[ToolMessage]:
    return [refusal(move.call_id, move.tool, reason) for move in moves]


def _move_of(level: Level, call: ToolCall) -> _Move:
    """Read the call of a transfer tool or of `request_help`."""
    args = call["args"]
    return _Move(
        call["id"] or "",
        call["name"],
        level.toolset.transfers.get(call["name"], ""),
        str(args.get("reason") or ""),
        str(args.get("summary") or ""),
    )


def _held_back(text: str) -> dict[str, Any]:
    """Return the update that has a text judged before it is sent, {} where no guard judges."""
    interceptor = current_interceptor()
    return dict(interceptor.defer_text(text)) if interceptor is not None and text else {}


async def _speak(level: Level, text: str) -> AIMessage:
    """Emit and return a tool's text as an answer of this agent."""
    message = level.marked(AIMessage(text, id=new_id(), name=level.agent.name))
    record_messages([message])
    await emit(AIMessageEvent(agent=level.path, text=text, message_id=str(message.id)))
    return message
