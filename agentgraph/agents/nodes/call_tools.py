"""The node `call_tools`: every call of a message gets exactly one answer, then one step follows.

The node is entered in three ways: after a model's message, by a `Send` for each of several calls,
and again when all calls have answers. Ordinary calls run first; then one transfer, or the help
request, or all delegations; only then does the message lead to another node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send

from agentgraph.agents.nodes.attempt import ToolAttempt
from agentgraph.agents.nodes.calls import (
    CallTask,
    PendingCalls,
    answer,
    emit_answer,
    progress,
    refusal,
    transfer_text,
)
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.run_tool import ToolRunner
from agentgraph.agents.nodes.state import AgentState, CallOutcome
from agentgraph.agents.spec.tools import REQUEST_HELP
from agentgraph.clock import new_id
from agentgraph.history import calls_of
from agentgraph.interception import current_interceptor
from agentgraph.patching import read_state
from agentgraph.running import record_messages, recorded_messages
from agentgraph.stream import AIMessageEvent, emit

W = TypeVar("W")

Commands: TypeAlias = list[Command[str]]
Node: TypeAlias = Callable[[AgentState, RunnableConfig], Awaitable[Commands]]


@dataclass(frozen=True, slots=True)
class _Move:
    """A call to move the conversation: by a transfer tool, `request_help` or a `Handoff`."""

    call_id: str
    tool: str
    target: str
    reason: str
    summary: str = ""

    @property
    def is_help(self) -> bool:
        return self.tool == REQUEST_HELP


def call_tools(level: Level, runner: ToolRunner) -> Node:
    """Make the node for a level.

    It returns `Command`s only, one per update: LangGraph merges those of parallel tasks.
    """

    async def run(state: AgentState, config: RunnableConfig) -> Commands:
        call_task = cast("CallTask | None", state.get("sent"))
        if call_task is not None:
            attempt = await runner.run(call_task, config, _progress(level, state, config))
            return [*_writes(attempt), Command(goto="call_tools")]
        pending = PendingCalls.last(state)
        if pending is None:
            return [Command(goto=level.entry)]
        return await _settle(level, runner, pending, state, config)

    return run


async def _settle(
    level: Level,
    runner: ToolRunner,
    pending: PendingCalls,
    state: AgentState,
    config: RunnableConfig,
) -> Commands:
    """Answer the open calls of a message; when all have answers, decide what follows."""
    commands: Commands = []
    guard = (state.get("turn") or {}).get("closed")
    if guard:
        return [Command(update={"messages": _close(pending, guard)}, goto="__end__")]
    corrections = await _answer_malformed(level, pending)
    if corrections:
        commands.append(Command(update={"messages": corrections}))
    calls = [c for c in pending.open_calls if c["name"] not in level.toolset.moves]
    outcomes = list(state.get("outcomes") or ())
    if len(calls) > 1 or any(c["name"] in level.toolset.agents for c in calls):
        return [*commands, *await _send_all(level, pending, calls)]
    if calls:
        now = _progress(level, state, config)
        attempt = await runner.run(pending.task(calls[0]), config, now)
        commands += _writes(attempt, keep_outcome=False)
        outcomes += [attempt.outcome]
        pending.answers.update({m.tool_call_id: m for m in attempt.answers})
    pending.answers.update({m.tool_call_id: m for m in corrections})
    return [*commands, *await _conclude(level, pending, outcomes, state)]


async def _conclude(
    level: Level, pending: PendingCalls, outcomes: Sequence[CallOutcome], state: AgentState
) -> Commands:
    """Decide what follows once all ordinary calls have answers.

    A tool's own goto or `Finish` wins, then delegations, then the first transfer or help request.
    """
    goto = [target for outcome in outcomes for target in outcome.get("goto", ())]
    handoffs = [_Move(o["call_id"], **o["transfer"]) for o in outcomes if "transfer" in o]
    finish = next((o["finish"] for o in outcomes if "finish" in o), None)
    signals = [
        _move_of(level, call) for call in pending.open_calls if call["name"] in level.toolset.moves
    ]
    moves = [*handoffs, *signals]
    if goto or finish is not None:
        refusals = _refuse(moves, "a tool of the same message has decided otherwise")
        if finish is not None and not goto and (hold := _held_back(finish["text"])):
            return [Command(update={"messages": refusals, **hold}, goto=level.entry)]
        if goto:
            await pending.report_unrun(refusals)
        text = "" if finish is None else finish["text"]
        messages = [*refusals, *([await _speak(level, text)] if text else [])]
        destination: Any = goto or level.end
        return [Command(update={"messages": messages}, goto=destination)]
    if level.agent.handoff == "delegate":
        delegations = [move for move in moves if not move.is_help]
        if delegations:
            return await _delegate_all(level, pending, delegations)
    if moves and moves[0].is_help:
        return await _ask_for_help(level, pending, moves, state)
    if moves:
        return await _transfer(level, pending, moves, state)
    return [await _return_or_loop(level, pending)]


async def _transfer(
    level: Level, pending: PendingCalls, moves: Sequence[_Move], state: AgentState
) -> Commands:
    """Make the first transfer of a message and refuse the others."""
    move, *surplus = moves
    interceptor = current_interceptor()
    if interceptor is not None:
        objection = await interceptor.handoff(move.target, progress(level.history(state)))
        if objection is not None:
            return await _refuse_all(level, pending, moves, objection.why)
    refusals = _refuse(surplus, f"the conversation was transferred to {move.target}")
    text = transfer_text(move.target, move.reason, move.summary)
    transfer = level.marked(answer(move.call_id, move.tool, text), f"{level.path}/{move.target}")
    messages = [transfer, *refusals]
    record_messages(messages)
    await emit(level.routing_event("transfer", move.target, move.reason))
    update = {"messages": messages, "current_active_agent": move.target}
    return [Command(update=update, goto=move.target)]


async def _ask_for_help(
    level: Level, pending: PendingCalls, moves: Sequence[_Move], state: AgentState
) -> Commands:
    """End this level's run, so that its supervisor goes on, unless the guards forbid that."""
    move, *surplus = moves
    objection = await _objection_to_return(level, state)
    if objection is not None:
        return await _refuse_all(level, pending, moves, objection)
    refusals = _refuse(surplus, "help was requested")
    reason = move.reason or "no reason given"
    text = f"Help requested of {level.supervisor}: {reason}"
    supervisor_path = level.path.rpartition("/")[0]
    request = level.marked(answer(move.call_id, REQUEST_HELP, text), supervisor_path)
    messages = [request, *refusals]
    return [Command(update={"messages": messages, "help_reason": reason}, goto="__end__")]


async def _objection_to_return(level: Level, state: AgentState) -> str | None:
    """Return why a sub-agent must not return to its supervisor once more, None if it may."""
    interceptor = current_interceptor()
    if interceptor is None or level.supervisor is None or state.get("errand") is not None:
        return None  # a delegate only answers its call
    digest = progress(level.history(state))
    objection = await interceptor.handoff(level.supervisor, digest, is_return=True)
    return None if objection is None else objection.why


async def _refuse_all(
    level: Level, pending: PendingCalls, moves: Iterable[_Move], reason: str
) -> Commands:
    """Answer all moves of a message with the reason for their refusal; the model goes on."""
    refusals = _refuse(moves, reason)
    await pending.report_unrun(refusals)
    return [Command(update={"messages": refusals}, goto=level.entry)]


async def _return_or_loop(level: Level, pending: PendingCalls) -> Command[str]:
    """End the turn with an output or with direct results, else go back to the model."""
    toolset, calls = level.toolset, pending.message.tool_calls
    output = toolset.output
    if output is not None:
        for call in calls:
            reply = pending.answers.get(call["id"] or "")
            if call["name"] in output.names and reply is not None and reply.status == "success":
                return Command(
                    goto=level.end, update={"output": output.of_call(call["name"], call["args"])}
                )
    ordinary = [c for c in calls if c["name"] in toolset.ordinary]
    is_direct = (
        bool(ordinary)
        and len(ordinary) == len(calls_of(pending.message))
        and all(toolset.ordinary[c["name"]].return_direct for c in ordinary)
        and all(pending.answers[c["id"] or ""].status != "error" for c in ordinary)
    )
    if not is_direct:
        return Command(goto=level.entry)
    text = "\n\n".join(str(pending.answers[c["id"] or ""].text) for c in ordinary)
    if hold := _held_back(text):
        return Command(goto=level.entry, update=hold)
    return Command(goto=level.end, update={"messages": [await _speak(level, text)]})


async def _send_all(level: Level, pending: PendingCalls, calls: Sequence[ToolCall]) -> Commands:
    """Run several calls in parallel; those that enter sub-agents only if the guards admit them."""
    agent_calls = [call for call in calls if call["name"] in level.toolset.agents]
    names = [call["name"] for call in agent_calls]
    admitted_calls, objections = await _admit(agent_calls, names)
    refusals = [refusal(c["id"] or "", c["name"], reason) for c, reason in objections]
    if not admitted_calls:  # otherwise the guards see the replies of the admitted ones
        await pending.report_unrun(refusals)
    sends = [
        _send(level, pending, call)
        for call in calls
        if call not in agent_calls or call in admitted_calls
    ]
    return [Command(update={"messages": refusals}, goto=sends or level.entry)]


def _send(level: Level, pending: PendingCalls, call: ToolCall) -> Send:
    # Send the call, never the state: a checkpoint would store the state once for each call.
    call_task = pending.task(call)
    child = level.toolset.agents.get(call["name"])
    if child is not None:
        return Send(child, {"sent": {**call_task, "alone": True}})
    return Send("call_tools", {"sent": call_task})


async def _delegate_all(level: Level, pending: PendingCalls, moves: Sequence[_Move]) -> Commands:
    """Run the transfers of a message as delegations, in parallel."""
    admitted_moves, objections = await _admit(moves, [move.target for move in moves])
    refusals = [refusal(m.call_id, m.tool, reason) for m, reason in objections]
    if not admitted_moves:
        await pending.report_unrun(refusals)
    goto: Any = [await _delegate(level, pending, m) for m in admitted_moves] or level.entry
    return [Command(update={"messages": refusals}, goto=goto)]


async def _delegate(level: Level, pending: PendingCalls, move: _Move) -> Send:
    await emit(level.routing_event("delegate", move.target, move.reason))
    text = transfer_text(move.target, move.reason, move.summary)
    call = ToolCall(name=move.tool, args={}, id=move.call_id, type="tool_call")
    return Send(move.target, {"sent": {**pending.task(call), "alone": False, "text": text}})


async def _admit(
    candidates: Sequence[W], workers: Sequence[str]
) -> tuple[list[W], list[tuple[W, str]]]:
    """Return the candidates that may begin, and the others, each with the reason."""
    interceptor = current_interceptor()
    objections = await interceptor.dispatch(workers) if interceptor is not None and workers else {}
    admitted = [c for position, c in enumerate(candidates) if position not in objections]
    return admitted, [(candidates[position], why) for position, why in objections.items()]


async def _answer_malformed(level: Level, pending: PendingCalls) -> list[ToolMessage]:
    """Answer the calls whose arguments are no JSON: a provider refuses unanswered calls."""
    answers = []
    for call in pending.message.invalid_tool_calls:
        if call["id"] not in pending.answers:
            text = f"the arguments are not valid JSON: {call['args']!r}. Try again."
            answers.append(refusal(call["id"] or "", call["name"] or "tool", text))
    for message in answers:
        await emit_answer(level, message)
    if answers:
        await pending.report_unrun(answers)
    return answers


def _close(pending: PendingCalls, guard: str) -> list[ToolMessage]:
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


def _writes(attempt: ToolAttempt, *, keep_outcome: bool = True) -> Commands:
    """Return a call's writes; the outcome of a task of its own is read in the next super-step."""
    commands: Commands = [Command(update=update) for update in attempt.updates]
    if keep_outcome and len(attempt.outcome) > 1:
        commands.append(Command(update={"outcomes": [attempt.outcome]}))
    return commands


def _progress(level: Level, state: AgentState, config: RunnableConfig) -> str:
    """Return the digest of the conversation's progress, which only handoffs in a team need."""
    if level.membership is None:
        return ""
    if "sent" in state:
        state = read_state(config, ("messages", "rewritten"))  # type: ignore[assignment]
    return progress(level.history(state))


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
