"""The node `call_tools`: every call of a message gets exactly one answer, and one thing follows.

It is entered three ways: after a model's message, by a `Send` for each of several calls, and once
more when they have all answered. Ordinary calls run first; then one transfer, or the help request,
or all delegations; only then does the message lead anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send

from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.progress import MOVED, NOT_EXECUTED, progress
from agentgraph.agents.nodes.run_tool import ToolResult, ToolRunner, tell_unrun
from agentgraph.agents.nodes.state import AgentState, CallOutcome
from agentgraph.agents.spec.toolset import REQUEST_HELP
from agentgraph.clock import new_id
from agentgraph.history import calls_of
from agentgraph.interception import current_interceptor
from agentgraph.patching import read_state
from agentgraph.running import entered, note
from agentgraph.stream import AIMessageEvent, ToolResponseEvent, emit

W = TypeVar("W")

Commands: TypeAlias = list[Command[str]]
Node: TypeAlias = Callable[[AgentState, RunnableConfig], Awaitable[Commands]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model's message with calls, and what has come of them so far."""

    message: AIMessage
    answers: dict[str, ToolMessage]
    number: int
    """Which of this level's messages with calls it is, since its turn or its visit began."""

    async def tell_unrun(self, answers: Iterable[ToolMessage]) -> None:
        """Have it seen which calls were answered without anything that ran."""
        await tell_unrun(calls_of(self.message), answers, str(self.message.id))

    def open(self, calls: Iterable[ToolCall]) -> list[ToolCall]:
        return [call for call in calls if call["id"] not in self.answers]


@dataclass(frozen=True, slots=True)
class _Move:
    """A wish to move the conversation: by a transfer tool, by `request_help`, by a `Handoff`."""

    call_id: str
    tool: str
    target: str
    reason: str
    summary: str = ""

    @property
    def is_help(self) -> bool:
        return self.tool == REQUEST_HELP


def call_tools(level: Level, runner: ToolRunner) -> Node:
    """Make the node for a level."""

    async def run(state: AgentState, config: RunnableConfig) -> Commands:
        sent: Any = state.get("sent")
        if sent is not None:
            known = _progress(level, state, config)
            result = await runner.run(sent, config, known)
            return [*_applied(result), Command(goto="call_tools")]
        asked = _last_asked(state)
        if asked is None:
            return [Command(goto=level.entry)]
        return await _settle(level, runner, asked, state, config)

    return run


async def _settle(
    level: Level, runner: ToolRunner, asked: _Asked, state: AgentState, config: RunnableConfig
) -> Commands:
    done: Commands = []
    closed = (state.get("turn") or {}).get("closed")
    if closed:
        return [Command(update={"messages": _unmade(asked, closed)}, goto="__end__")]
    malformed = await _answer_malformed(level, asked)
    if malformed:
        done.append(Command(update={"messages": malformed}))
    waiting = asked.open(
        c for c in asked.message.tool_calls if not level.toolset.is_signal(c["name"])
    )
    outcomes = list(state.get("outcomes") or ())
    if len(waiting) > 1 or any(c["name"] in level.toolset.errands for c in waiting):
        return [*done, *await _sent(level, asked, waiting)]
    if waiting:
        known = _progress(level, state, config)
        result = await runner.run(_sending(asked, waiting[0]), config, known)
        done += _applied(result, keep_outcome=False)
        outcomes += [result.outcome]
        asked.answers.update({m.tool_call_id: m for m in result.answers})
    asked.answers.update({m.tool_call_id: m for m in malformed})
    return [*done, *await _conclude(level, asked, outcomes, state)]


async def _conclude(
    level: Level, asked: _Asked, outcomes: Sequence[CallOutcome], state: AgentState
) -> Commands:
    """Decide what follows once all ordinary calls have answered."""
    goto = [target for outcome in outcomes for target in outcome.get("goto", ())]
    returned = [_returned(o) for o in outcomes if "transfer" in o]
    finish = next((o["finish"] for o in outcomes if "finish" in o), None)
    called = [
        _called(level, c)
        for c in asked.open(asked.message.tool_calls)
        if level.toolset.is_signal(c["name"])
    ]
    if goto or finish is not None:
        refused = _refuse([*returned, *called], "a tool of the same message has decided otherwise")
        if finish is not None and not goto and (held := _held_back(finish["text"])):
            return [Command(update={"messages": refused, **held}, goto=level.entry)]
        if goto:
            await asked.tell_unrun(refused)
        messages = [*refused, *(await _finished(level, finish) if finish is not None else ())]
        after: Any = goto or level.end
        return [Command(update={"messages": messages}, goto=after)]
    moves = [*returned, *called]
    if level.agent.handoff == "delegate":
        delegations = [move for move in moves if not move.is_help]
        if delegations:
            return await _delegated(level, asked, delegations)
    if moves:
        return await _move(level, asked, moves[0], moves[1:], state)
    return [await _return_or_loop(level, asked)]


async def _move(
    level: Level, asked: _Asked, move: _Move, others: list[_Move], state: AgentState
) -> Commands:
    if move.is_help:
        refused = _refuse(others, "help was requested")
        reason = move.reason or "no reason given"
        why_not = await _stuck(level, state)
        if why_not is not None:
            refused = _refuse([move, *others], why_not)
            await asked.tell_unrun(refused)
            return [Command(update={"messages": refused}, goto=level.entry)]
        told = answer(move.call_id, REQUEST_HELP, f"Help requested of {level.supervisor}: {reason}")
        update = {"messages": [told, *refused], "help_reason": reason}
        return [Command(update=update, goto="__end__")]
    interceptor = current_interceptor()
    if interceptor is not None:
        refusal = await interceptor.handoff(move.target, progress(level.history(state)))
        if refusal is not None:
            refused = _refuse([move, *others], refusal.why)
            await asked.tell_unrun(refused)
            return [Command(update={"messages": refused}, goto=level.entry)]
    refused = _refuse(others, f"the conversation was transferred to {move.target}")
    told = answer(move.call_id, move.tool, transfer_text(move.target, move.reason, move.summary))
    note([told, *refused])
    await emit(level.routed("transfer", move.target, move.reason))
    update = {"messages": [told, *refused], "current_active_agent": move.target}
    return [Command(update=update, goto=move.target)]


async def _stuck(level: Level, state: AgentState) -> str | None:
    """Say why a sub-agent is not to go back to its supervisor once more, if it is not."""
    interceptor = current_interceptor()
    if interceptor is None or level.supervisor is None or state.get("errand") is not None:
        return None  # who runs an errand answers its call
    digest = progress(level.history(state))
    refusal = await interceptor.handoff(level.supervisor, digest, is_return=True)
    return None if refusal is None else refusal.why


async def _return_or_loop(level: Level, asked: _Asked) -> Command[str]:
    output = level.toolset.output
    ordinary = [c for c in asked.message.tool_calls if c["name"] in level.toolset.ordinary]
    if output is not None:
        for call in asked.message.tool_calls:
            found = asked.answers.get(call["id"] or "")
            if call["name"] == output.name and found is not None and found.status == "success":
                return Command(goto=level.end, update={"output": output.dump(call["args"])})
    direct = (
        bool(ordinary)
        and len(ordinary) == len(calls_of(asked.message))
        and all(level.toolset.ordinary[c["name"]].return_direct for c in ordinary)
        and all(asked.answers[c["id"] or ""].status != "error" for c in ordinary)
    )
    if not direct:
        return Command(goto=level.entry)
    text = "\n\n".join(str(asked.answers[c["id"] or ""].text) for c in ordinary)
    if held := _held_back(text):
        return Command(goto=level.entry, update=held)
    return Command(goto=level.end, update={"messages": [await _said(level, text)]})


def _progress(level: Level, state: AgentState, config: RunnableConfig) -> str:
    if level.seat is None:
        return ""
    if "sent" in state:
        state = read_state(config, ("messages", "rewritten"))  # type: ignore[assignment]
    return progress(level.history(state))


def transfer_text(target: str, reason: str, summary: str) -> str:
    """Say that the conversation has moved, and what the receiver should know."""
    lines = [f"{MOVED}{target}"]
    lines += [f"Reason: {reason}"] if reason else []
    lines += [f"Summary: {summary}"] if summary else []
    return "\n".join(lines)


def answer(call_id: str, tool: str, text: str, *, failed: bool = False) -> ToolMessage:
    """Answer a call; the id follows from the call's, so that a later answer replaces this one."""
    return ToolMessage(
        text,
        id=f"answer_{call_id}",
        tool_call_id=call_id,
        name=tool,
        status="error" if failed else "success",
    )


def _last_asked(state: AgentState) -> _Asked | None:
    answers: dict[str, ToolMessage] = {}
    for message in reversed(state.get("messages", [])):
        if isinstance(message, ToolMessage):
            answers[message.tool_call_id] = message
        if isinstance(message, AIMessage) and calls_of(message):
            return _Asked(message, answers, state.get("asked", 0))
    return None


def _called(level: Level, call: ToolCall) -> _Move:
    args = call["args"]
    return _Move(
        call["id"] or "",
        call["name"],
        level.toolset.transfers.get(call["name"], ""),
        str(args.get("reason") or ""),
        str(args.get("summary") or ""),
    )


def _returned(outcome: CallOutcome) -> _Move:
    return _Move(outcome["call_id"], **outcome["transfer"])


async def _answer_malformed(level: Level, asked: _Asked) -> list[ToolMessage]:
    answers = []
    for call in asked.message.invalid_tool_calls:
        if call["id"] not in asked.answers:
            text = f"Not executed: the arguments are not valid JSON: {call['args']!r}. Try again."
            answers.append(answer(call["id"] or "", call["name"] or "tool", text, failed=True))
    for told in answers:
        await _tell(level, told)
    await asked.tell_unrun(answers)
    return answers


def _refuse(moves: Iterable[_Move], why: str) -> list[ToolMessage]:
    return [answer(m.call_id, m.tool, f"{NOT_EXECUTED}{why}", failed=True) for m in moves]


def _unmade(asked: _Asked, guard: str) -> list[ToolMessage]:
    """Answer what is open where a guard has ended the turn."""
    open_calls = [c for c in calls_of(asked.message) if c["id"] not in asked.answers]
    why = f"{NOT_EXECUTED}{guard} has ended the turn"
    # What was stopped after it had run is told: its effect is there.
    returned = {m.tool_call_id: m for m in entered() if isinstance(m, ToolMessage)}
    return [
        returned.get(c["id"] or "") or answer(c["id"] or "", c["name"] or "tool", why, failed=True)
        for c in open_calls
    ]


def _position(asked: _Asked, call_id: str | None) -> str:
    index = [c["id"] for c in asked.message.tool_calls].index(call_id)
    return f"{asked.number}/{index}"


def _sending(asked: _Asked, call: ToolCall) -> dict[str, Any]:
    position = _position(asked, call["id"])
    return {"call": call, "position": position, "message_id": str(asked.message.id)}


def _send(level: Level, asked: _Asked, call: ToolCall) -> Send:
    sent = _sending(asked, call)
    child = level.toolset.errands.get(call["name"])
    if child is not None:
        return Send(child, {"sent": {**sent, "alone": True}})
    return Send("call_tools", {"sent": sent})


async def _sent(level: Level, asked: _Asked, calls: Sequence[ToolCall]) -> Commands:
    """Have several calls run at a time; of sub-agents among them no more than may."""
    errands = [call for call in calls if call["name"] in level.toolset.errands]
    kept, refused = await _dispatched(level, errands, [call["name"] for call in errands])
    told = [
        answer(call["id"] or "", call["name"], f"{NOT_EXECUTED}{why}", failed=True)
        for call, why in refused
    ]
    if not kept:  # else what those reply is seen
        await asked.tell_unrun(told)
    sent = [_send(level, asked, call) for call in calls if call not in errands or call in kept]
    return [Command(update={"messages": told}, goto=sent or level.entry)]


async def _delegated(level: Level, asked: _Asked, moves: Sequence[_Move]) -> Commands:
    kept, refused = await _dispatched(level, moves, [move.target for move in moves])
    told = [message for move, why in refused for message in _refuse([move], why)]
    if not kept:
        await asked.tell_unrun(told)
    sent = [await _delegate(level, asked, move) for move in kept]
    goto: Any = sent or level.entry
    return [Command(update={"messages": told}, goto=goto)]


async def _dispatched(
    level: Level, wishes: Sequence[W], workers: Sequence[str]
) -> tuple[list[W], list[tuple[W, str]]]:
    """Return who may begin, and who not and why."""
    interceptor = current_interceptor()
    refusals = await interceptor.dispatch(workers) if interceptor is not None and workers else {}
    kept = [wish for position, wish in enumerate(wishes) if position not in refusals]
    return kept, [(wishes[position], why) for position, why in refusals.items()]


async def _delegate(level: Level, asked: _Asked, move: _Move) -> Send:
    await emit(level.routed("delegate", move.target, move.reason))
    text = transfer_text(move.target, move.reason, move.summary)
    call = ToolCall(name=move.tool, args={}, id=move.call_id, type="tool_call")
    sent = _sending(asked, call)
    return Send(move.target, {"sent": {**sent, "alone": False, "text": text}})


def _applied(result: ToolResult, *, keep_outcome: bool = True) -> Commands:
    commands: Commands = [Command(update=update) for update in result.updates]
    if keep_outcome and len(result.outcome) > 1:
        commands.append(Command(update={"outcomes": [result.outcome]}))
    return commands


async def _finished(level: Level, finish: dict[str, str]) -> list[AIMessage]:
    return [await _said(level, finish["text"])] if finish["text"] else []


def _held_back(text: str) -> dict[str, Any]:
    """Return what has a text judged before it is said, nothing where nobody judges."""
    interceptor = current_interceptor()
    return dict(interceptor.defer_text(text)) if interceptor is not None and text else {}


async def _said(level: Level, text: str) -> AIMessage:
    message = AIMessage(text, id=new_id(), name=level.agent.name)
    note([message])
    await emit(AIMessageEvent(agent=level.path, text=text, message_id=str(message.id)))
    return message


async def _tell(level: Level, told: ToolMessage) -> None:
    await emit(
        ToolResponseEvent(
            agent=level.path,
            tool=told.name or "",
            content=str(told.text),
            call_id=told.tool_call_id,
            status=told.status,
        )
    )
