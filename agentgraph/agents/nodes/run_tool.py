"""Run one tool call by LangGraph's `ToolNode`, and read its result.

A call passes middleware and guards between `ToolNode` and its tool. The result can be messages and
updates, a `Command` with a goto, a `Handoff` or a `Finish`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolInvocationError
from langgraph.types import Command

from agentgraph.agents.nodes.attempt import (
    AskedModels,
    ToolAttempt,
    asked_models,
    current_attempt,
    recording_tool,
    run_wrappers,
)
from agentgraph.agents.nodes.calls import (
    TRANSFER_MADE,
    CallTask,
    current_visit,
    emit_answer,
    report_unrun,
)
from agentgraph.agents.nodes.level import Level, check_leaving, check_targets, targets_of
from agentgraph.agents.nodes.middleware import Middleware
from agentgraph.agents.nodes.state import CallOutcome
from agentgraph.agents.spec.output import OutputFormat
from agentgraph.agents.spec.tree import Tree, name_at
from agentgraph.blocking import Abort
from agentgraph.errors import AgentGraphError, ConfigurationError, kind_of, suggestion
from agentgraph.graphs.task import whole_state
from agentgraph.interception import (
    ToolUse,
    current_interceptor,
    current_ledger,
    inside_tool,
)
from agentgraph.outcomes import NOTES, Finish, Handoff, Note, collect_notes
from agentgraph.participant import Membership
from agentgraph.running import CallEnd, current_run, in_tool, inside_call, record_messages

logger = logging.getLogger("agentgraph")

Execute = Callable[[ToolCallRequest], Awaitable[Any]]


class ToolRunner:
    """Run the tools of a level."""

    def __init__(self, level: Level, middleware: Middleware) -> None:
        self._level = level
        self._middleware = middleware
        self._node = ToolNode(
            [recording_tool(tool) for tool in level.toolset.ordinary.values()],
            handle_tool_errors=_explain,
            awrap_tool_call=self._around,
        )

    async def run(
        self, call_task: CallTask, config: RunnableConfig, progress: str = ""
    ) -> ToolAttempt:
        """Run a call; return the attempt with its writes, which include exactly one answer.

        Errors of the tool become the answer; interrupts, cancellation and stops of guards pass.
        Raises `RoutingError` where the tool's `Command` leads to no node, and `ConfigurationError`
        where LangGraph cannot run the tool at all.
        """
        call = call_task["call"]
        namespace = config.get("configurable", {}).get("checkpoint_ns", "")
        task, run = f"{namespace} {call['id']}", current_run()
        outcome: CallOutcome = {"call_id": call["id"] or ""}
        attempt = ToolAttempt(
            call, call_task["position"], task, config, outcome, progress, run, self._level.path
        )
        output = self._level.toolset.output
        if output is not None and call["name"] in output.names:
            checked_output = _check_output(output, call)
            attempt.has_run = checked_output.status != "error"
            result: Any = {"messages": [checked_output]}
        else:
            with collect_notes(attempt.notes if self._level.membership is not None else None):
                result = await self._run(attempt, config)
        attempt.is_over = True
        for part in result if isinstance(result, list) else [result]:
            await self._read(part, attempt)
        if not attempt.answers and not attempt.has_removed_all:
            default = ToolMessage(f"{call['name']} is done.", tool_call_id=call["id"] or "")
            await self._read({"messages": [default]}, attempt)
        if not attempt.has_run:
            await report_unrun([call], attempt.answers, call_task["message_id"])
        if any(answer.status == "error" for answer in attempt.answers):
            # A call that failed has changed nothing, but a refused handoff must be reported.
            attempt.notes[:] = [note for note in attempt.notes if note["kind"] == "rejected"]
        if attempt.notes:
            notes = [{**note, "call_id": call["id"] or ""} for note in attempt.notes]
            attempt.updates.append({NOTES: notes})
        return attempt

    async def _run(self, attempt: ToolAttempt, config: RunnableConfig) -> Any:
        """Run an ordinary tool by `ToolNode`, which calls `_around` for each call."""
        current_attempt.set(attempt)
        # With the state in the request: otherwise `ToolNode` would copy every channel of the graph.
        request = {"__type": "tool_call_with_context", "tool_call": attempt.call}
        work = self._node.ainvoke({**request, "state": whole_state(config)}, config)
        # Outside of ToolNode, which would turn a guard's stop into an answer.
        return await attempt.stops.outside(work)

    async def _around(self, request: ToolCallRequest, execute: Execute) -> Any:
        """Run a tool inside of middleware and guards, with the whole history in its state."""
        own: Any = request.state
        messages = self._level.history(own)
        state = {**own, "messages": messages}
        runtime = replace(request.runtime, state=state)
        # `override` takes any field; its type names three of them.
        request = request.override(state=state, runtime=runtime)  # type: ignore[call-arg]
        attempt = current_attempt.get()
        attempt.history = messages
        key = self._key(request, own.get("turn") or {}, attempt.position)

        async def innermost(request: ToolCallRequest) -> Any:
            attempt.has_run = True
            if (result := attempt.earlier_result()) is not None:
                return result  # inside of the wrappers, which see it as a new result
            run: Callable[[ToolCallRequest], Awaitable[Any]]
            if request.tool is not None:
                tool: Any = _OutcomeTool(request.tool, attempt)
                run = partial(_execute, execute, attempt, tool)
            else:  # guards see it too: a model may call a missing tool again and again
                run = self._answer_unknown
            return await _run_guarded(request, key, messages, run, attempt)

        with inside_call(messages, key) as ends:
            try:
                answer = await self._run_wrapped(request, innermost, attempt)
            except GraphBubbleUp:
                raise  # the call waits for a human, and has not ended
            except Exception:
                _end_call(ends, went_well=False)
                raise
        went_well = not (isinstance(answer, ToolMessage) and answer.status == "error")
        _end_call(ends, went_well=went_well)
        return answer

    async def _run_wrapped(
        self, request: ToolCallRequest, innermost: Execute, attempt: ToolAttempt
    ) -> Any:
        """Run a tool inside of middleware, if there is any around tools."""
        if not self._middleware.wraps_tools:
            return await innermost(request)
        wrap = partial(self._middleware.call_tool, request)
        return await run_wrappers(attempt.path, "wrap_tool_call", wrap, innermost, attempt.run)

    async def _answer_unknown(self, request: ToolCallRequest) -> Any:
        """Answer a call of a tool that does not exist with the names of all that can be called.

        The call of an agent that was removed while it served the call is answered with its work.
        """
        name, toolset = request.tool_call["name"], self._level.toolset
        if (report := current_attempt.get().report) is not None:
            return report
        form = () if toolset.output is None else toolset.output.names
        names = [*toolset.ordinary, *(signal.name for signal in toolset.signals), *form]
        text = f"Error: {name} is not a valid tool: {suggestion(name, names)}."
        return ToolMessage(text, tool_call_id=request.tool_call["id"], name=name, status="error")

    def _key(self, request: ToolCallRequest, turn: Mapping[str, Any], position: str) -> str:
        """Return a call's key, which is the same when the call runs again, in any process."""
        configurable = request.runtime.config.get("configurable", {})
        parts: Sequence[Any] = (
            configurable.get("thread_id"),
            turn.get("id"),
            self._level.path,
            current_visit(),
            position,
            request.tool_call["name"],
            # A call that was edited on a fork is another one. In a session a round that runs again
            # asks its model again, which may write the same call differently.
            request.tool_call["args"] if current_ledger() is None else "",
        )
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()

    async def _read(self, part: Any, attempt: ToolAttempt) -> None:
        """Add a tool's result to the attempt: a `Command`, or an update with messages."""
        update: Mapping[str, Any] = part
        if isinstance(part, Command):
            update = self._read_command(part, attempt)
        raw = convert_to_messages(update.get("messages") or [])
        messages = [await self._adopt(message, attempt) for message in raw]
        attempt.updates.append({**update, **({"messages": messages} if messages else {})})
        attempt.answers += [m for m in messages if isinstance(m, ToolMessage)]

    def _read_command(self, command: Command[Any], attempt: ToolAttempt) -> Mapping[str, Any]:
        """Store the goto of a tool's `Command`, which replaces the return to the model.

        Returns the command's update to this graph.
        """
        name, targets = attempt.call["name"], targets_of(command)
        update: dict[str, Any] = dict(command.update or {})
        if command.graph is not None:
            check_leaving(self._level, name, command, targets, attempt.config)
            messages = update.pop("messages", None) or []
            attempt.outcome["parent"] = {"goto": targets, "update": update}
            update = {"messages": messages}
        else:
            check_targets(self._level, name, targets)
            if targets:
                attempt.outcome["goto"] = targets
        return {**update, "messages": _without_history(update, attempt.history)}

    async def _adopt(self, message: BaseMessage, attempt: ToolAttempt) -> BaseMessage:
        """Make a tool's message the answer to its call, even if it names another call."""
        if not isinstance(message, ToolMessage):
            return message
        call_id, name = attempt.call["id"] or "", attempt.call["name"]
        update: dict[str, Any] = {
            "id": f"answer_{call_id}",
            "tool_call_id": call_id,
            "name": message.name or name,
        }
        if message.content == []:  # what a tool found, and not an empty message: refused by many
            update["content"] = "[]"
        if isinstance(message.artifact, Handoff | Finish):
            update |= {"artifact": None, **await self._decide(message.artifact, attempt)}
        answer = message.model_copy(update=update)
        record_messages([answer])
        if "transfer" not in attempt.outcome:  # what the transfer leads to is not known yet
            await emit_answer(self._level, answer, name)
        return answer

    async def _decide(self, decision: Handoff | Finish, attempt: ToolAttempt) -> dict[str, Any]:
        """Store a tool's decision in the attempt, and return an update with the answer's text."""
        if isinstance(decision, Finish):
            attempt.outcome["finish"] = {"text": decision.text, "reason": decision.reason}
            if self._level.membership is not None:
                value = {"reason": decision.reason, "summary": decision.text}
                attempt.notes.append(_note("finish", attempt.call, value))
            return {"content": decision.text or decision.reason}
        team, paths = self._level.membership, self._paths()
        path = Tree.of(self._level.agent).find(decision.target)
        path = path if path in paths else None
        is_in_team = team is not None and not team.is_alone
        if team is not None and is_in_team and (decision.target in team.peers or path is None):
            return await self._hand_over(team, decision, attempt)
        if path is None:
            advice = suggestion(decision.target, [name_at(path) for path in paths])
            text = f"Not transferred: there is no agent {decision.target!r} here: {advice}."
            attempt.has_run = False
            return {"content": text, "status": "error"}
        attempt.outcome["transfer"] = {
            "tool": attempt.call["name"],
            "target": path,
            "reason": decision.reason,
            "summary": decision.summary,
        }
        return {"content": f"{TRANSFER_MADE}{name_at(path)}"}

    def _paths(self) -> list[str]:
        """Return the paths of the agents to which a tool may pass the conversation.

        A delegate answers this agent, so it can only be one of its own sub-agents.
        """
        agent = self._level.agent
        paths = Tree.of(agent).paths.values()
        return [path for path in paths if path and (agent.handoff == "sticky" or "/" not in path)]

    async def _hand_over(
        self, team: Membership, handoff: Handoff, attempt: ToolAttempt
    ) -> dict[str, Any]:
        """Hand the conversation to a peer, which ends the turn, if team and guards agree."""
        verdict = team.judge(handoff)
        interceptor = current_interceptor()
        if verdict.is_hop and verdict.accepted is not None and interceptor is not None:
            refusal = await interceptor.handoff(verdict.accepted.target, attempt.progress)
            if refusal is not None:
                verdict = team.refuse(*refusal)
        if verdict.accepted is None:
            value = {**asdict(handoff), "told": verdict.text}
            attempt.notes.append(_note("rejected", attempt.call, value))
            attempt.has_run = False
            return {"content": verdict.text, "status": "error"}
        attempt.notes.append(_note("handoff", attempt.call, asdict(verdict.accepted)))
        attempt.outcome["finish"] = {"text": "", "reason": "handoff"}
        return {"content": verdict.text}


async def _run_guarded(
    request: ToolCallRequest,
    key: str,
    messages: Sequence[AnyMessage],
    run: Callable[[ToolCallRequest], Awaitable[Any]],
    attempt: ToolAttempt,
) -> Any:
    """Run a tool by way of the guards; the guards belong to the run, the tool's code does not."""
    interceptor = current_interceptor()
    if interceptor is None:
        return await run(request)
    call = request.tool_call

    async def run_unguarded(args: Mapping[str, object] | None = None) -> Any:
        own = request if args is None else request.override(tool_call={**call, "args": {**args}})
        # A graph that a tool runs is no part of this graph, but of its input.
        with inside_tool(call["name"]), in_tool(True):
            return await run(own)

    caller = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
    message_id = str(caller.id) if caller is not None else ""
    use = partial(ToolUse, request.tool, call["name"], call["args"], key, message_id)
    with in_tool(False):
        return await attempt.stops.inside(
            lambda run: interceptor.run_tool(use(run, call["id"] or "")), run_unguarded
        )


async def _execute(
    execute: Execute,
    attempt: ToolAttempt,
    tool: Any,
    request: ToolCallRequest,
) -> Any:
    """Run a tool by `ToolNode`; what fails there and not in the tool, no model can mend."""
    attempt.is_inside = False
    path = f"{attempt.path}/{attempt.call['name']}"
    token = asked_models.set(AskedModels(attempt.run, path))
    try:
        return await execute(request.override(tool=tool))
    except GraphBubbleUp:
        raise
    except Exception as error:
        name = attempt.call["name"]
        logger.info("the tool %r failed", name, exc_info=error)
        if not attempt.is_inside:
            what = f"the tool {name!r} cannot be run"
            mistake = ConfigurationError(f"{what}: {error}", public=f"{what}: {kind_of(error)}")
            mistake.__cause__ = error
            attempt.stops.stop_by(mistake)  # whatever the middleware makes of it
        raise
    finally:
        asked_models.reset(token)


def _without_history(update: Mapping[str, Any], history: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Return the messages of a tool's update without those of the history that it repeats."""
    raw = update.get("messages") or []
    messages = convert_to_messages(raw if isinstance(raw, list | tuple) else [raw])
    known_messages = {message.id: message for message in history} if len(messages) > 1 else {}
    return [m for m in messages if m.id is None or known_messages.get(m.id) != m]


def _end_call(ends: Sequence[CallEnd], *, went_well: bool) -> None:
    for end in ends:
        end(went_well)


def _note(kind: Literal["handoff", "rejected", "finish"], call: ToolCall, value: Any) -> Note:
    return {"key": f"{call['id']}/{kind}", "kind": kind, "name": call["name"], "value": value}


class _OutcomeTool:
    """A tool whose `Handoff` or `Finish` passes through `ToolNode`, as an answer's artifact."""

    def __init__(self, tool: BaseTool, attempt: ToolAttempt) -> None:
        self._tool = tool
        self._attempt = attempt

    async def ainvoke(self, call: Any, config: RunnableConfig) -> Any:
        self._attempt.is_inside = True
        try:
            result = await self._tool.ainvoke(call, config)
        except Abort as error:
            raise self._failure(error) from error
        self._attempt.is_inside = False
        if isinstance(result, Handoff | Finish):
            return ToolMessage("", tool_call_id=call["id"], name=call["name"], artifact=result)
        return result

    def _failure(self, error: Abort) -> Exception:
        """Return the error of the call, to which no model can react unless it is a `SystemExit`."""
        if isinstance(error.__cause__, SystemExit):
            return RuntimeError(f"the tool tried to end the process: {error.__cause__.code}")
        what = f"the tool {self._tool.name!r} failed"
        failure = AgentGraphError(f"{what}: {error}", code=error.code, public=what)
        self._attempt.stops.stop_by(failure)
        return failure


def _explain(error: ToolInvocationError) -> str:
    # ToolNode reads the annotation: only arguments that do not fit are answered inside of the
    # middleware. All other errors pass through the middleware, which may retry the call.
    return f"Error: {type(error).__name__}: {error}\nCorrect the call, or go on without it."


def _check_output(output: OutputFormat, call: ToolCall) -> ToolMessage:
    """Check the call that contains the agent's answer in a form, and answer it without a tool."""
    try:
        output.of_call(call["name"], call["args"])
    except ValueError as error:
        text, status = f"The answer does not fit its form: {error}. Correct it.", "error"
    else:
        text, status = output.accepted, "success"
    return ToolMessage(text, tool_call_id=call["id"] or "", name=call["name"], status=status)
