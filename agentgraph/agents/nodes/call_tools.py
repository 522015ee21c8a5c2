"""The node `call_tools`: it answers a call of a tool, in its own step or in a task of its own.

The node is entered after a model's message, and by a `Send` for each of several calls. Where a
message has one call, the node also settles what the call has led to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from agentgraph.agents.nodes.attempt import ToolAttempt
from agentgraph.agents.nodes.calls import (
    CallTask,
    PendingCalls,
    emit_answer,
    emit_answers,
    progress,
    refusal,
)
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.routes import workers_begin
from agentgraph.agents.nodes.run_tool import ToolRunner
from agentgraph.agents.nodes.settle_calls import Commands, admit, close, conclude
from agentgraph.agents.nodes.state import AgentState, merge_messages
from agentgraph.graphs.task import read_state
from agentgraph.patching import updates_of

Node: TypeAlias = Callable[[AgentState, RunnableConfig], Awaitable[Commands]]


def call_tools(level: Level, runner: ToolRunner) -> Node:
    """Make the node for a level.

    It returns `Command`s only, one per update: LangGraph merges those of parallel tasks.
    """

    async def run(state: AgentState, config: RunnableConfig) -> Commands:
        call_task = cast("CallTask | None", state.get("sent"))
        if call_task is not None:
            return _writes(await runner.run(call_task, config, _progress(level, state, config)))
        pending = PendingCalls.last(state.get("messages", []), state.get("asked"))
        if pending is None:
            return [Command()]
        if guard := (state.get("turn") or {}).get("closed"):
            answers = await emit_answers(level, pending, close(pending, guard))
            return [Command(update={"messages": answers})]
        return await _answer(level, runner, pending, state, config)

    return run


async def _answer(
    level: Level,
    runner: ToolRunner,
    pending: PendingCalls,
    state: AgentState,
    config: RunnableConfig,
) -> Commands:
    """Answer the malformed calls of a message, and its only other call; admit several ones."""
    corrections = await _answer_malformed(level, pending)
    commands: Commands = [Command(update={"messages": corrections})] if corrections else []
    work = pending.work(level)
    if len(work) > 1 or any(call["name"] in level.toolset.agents for call in work):
        return [*commands, await _admit_agents(level, pending, work)]
    outcomes = list(state.get("outcomes") or ())
    if work:
        attempt = await runner.run(pending.task(work[0]), config, _progress(level, state, config))
        commands += _writes(attempt, keep_outcome=False)
        outcomes += [attempt.outcome]
        pending.answers.update({m.tool_call_id: m for m in attempt.answers})
    pending.answers.update({m.tool_call_id: m for m in corrections})
    if any("parent" in outcome for outcome in outcomes):  # the command takes them along
        batches = [update.get("messages", []) for update in updates_of(commands)]
        messages = merge_messages(state.get("messages", []), batches)
        state = {**state, "messages": messages}
    return [*commands, *await conclude(level, pending, outcomes, state)]


async def _admit_agents(
    level: Level, pending: PendingCalls, calls: Sequence[ToolCall]
) -> Command[str]:
    """Refuse those calls of agents that the guards do not admit; the others run in parallel.

    Those that have to wait stay open: the node is entered again for them.
    """
    agent_calls = [call for call in calls if call["name"] in level.toolset.agents]
    admitted_calls, objections = await admit(agent_calls, [call["name"] for call in agent_calls])
    refusals = await emit_answers(
        level, pending, [refusal(c["id"] or "", c["name"], reason) for c, reason in objections]
    )
    if refusals and not admitted_calls:  # otherwise the guards see the replies of the admitted ones
        await pending.report_unrun(refusals)
    return Command(update={"messages": refusals, **workers_begin(len(admitted_calls))})


async def _answer_malformed(level: Level, pending: PendingCalls) -> list[ToolMessage]:
    """Answer the calls whose arguments are no JSON: a provider refuses unanswered calls."""
    answers = []
    for call in pending.malformed_calls:
        text = f"the arguments are not valid JSON: {call['args']!r}. Try again."
        answers.append(refusal(call["id"] or "", call["name"] or "tool", text))
    for message in answers:
        await emit_answer(level, message)
    if answers:
        await pending.report_unrun(answers)
    return answers


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
