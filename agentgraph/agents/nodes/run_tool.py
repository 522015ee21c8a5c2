"""One tool call: run by LangGraph's `ToolNode`, read for what it leads to."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    InvalidToolCall,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolInvocationError
from langgraph.types import Command

from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.middleware import Middleware, Stops
from agentgraph.agents.nodes.recorded import RunningCall, current_call, known_result, recorded
from agentgraph.agents.nodes.state import CallOutcome
from agentgraph.errors import RoutingError
from agentgraph.interception import SkippedCall, ToolUse, current_interceptor, without_interception
from agentgraph.outcomes import Finish, Handoff, Note, collecting
from agentgraph.participant import Seat
from agentgraph.patching import whole_state
from agentgraph.running import CallEnd, current_run, in_tool, inside_call, note
from agentgraph.stream import ToolResponseEvent, emit

# ToolNode calls the wrapper; what it must know beside the call travels around ToolNode.
_position: ContextVar[str] = ContextVar("agentgraph_position", default="")
_stops: ContextVar[Stops] = ContextVar("agentgraph_stops")
_visit: ContextVar[str] = ContextVar("agentgraph_visit", default="")
_result: ContextVar[ToolResult] = ContextVar("agentgraph_result")


def current_visit() -> str:
    """Name the visits that this code is part of, the same whenever it runs again."""
    return _visit.get()


@contextmanager
def inside_visit(position: str) -> Iterator[None]:
    """Tell the visits that one turn makes to the same sub-agent apart."""
    token = _visit.set(f"{_visit.get()}>{position}")
    try:
        yield
    finally:
        _visit.reset(token)


@dataclass(slots=True)
class ToolResult:
    """What a call wrote, and what it leads to."""

    outcome: CallOutcome
    updates: list[dict[str, Any]] = field(default_factory=list)
    answers: list[ToolMessage] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    progress: str = ""
    """How far the conversation had come when the tool was called."""
    unrun: bool = False
    """Whether it was answered although nothing ran for it."""


class ToolRunner:
    """Run the tools of a level."""

    def __init__(self, level: Level, middleware: Middleware) -> None:
        self._level = level
        self._middleware = middleware
        self._node = ToolNode(
            [recorded(tool) for tool in level.toolset.ordinary.values()],
            handle_tool_errors=_explain,
            awrap_tool_call=self._around,
        )

    async def run(
        self, sent: Mapping[str, Any], config: RunnableConfig, progress: str = ""
    ) -> ToolResult:
        """Run a call; its errors become its answer, interrupts and cancellation pass through."""
        call: ToolCall = sent["call"]
        output = self._level.toolset.output
        result = ToolResult({"call_id": call["id"] or ""}, progress=progress)
        if output is not None and call["name"] == output.name:
            checked = _checked_output(output.dump, call)
            result.unrun = checked.status == "error"
            raw: Any = {"messages": [checked]}
        else:
            namespace = config.get("configurable", {}).get("checkpoint_ns", "")
            running = RunningCall(call, f"{namespace} {call['id']}", current_run())
            result.unrun = True  # unless its wrappers have it run
            _result.set(result)
            with collecting(result.notes if self._level.seat is not None else None):
                raw = await self._run(running, sent["position"], config)
        for part in raw if isinstance(raw, list) else [raw]:
            await self._read(part, call, result)
        if not result.answers:
            silent = ToolMessage(f"{call['name']} is done.", tool_call_id=call["id"] or "")
            await self._read({"messages": [silent]}, call, result)
        if result.unrun:
            await tell_unrun([call], result.answers, sent["message_id"])
        if any(answer.status == "error" for answer in result.answers):
            # A call that failed has changed nothing; that it was refused is to be told.
            result.notes[:] = [note for note in result.notes if note["kind"] == "rejected"]
        if result.notes:
            noted = [{**note, "call_id": call["id"] or ""} for note in result.notes]
            result.updates.append({"notes": noted})
        return result

    async def _run(self, running: RunningCall, position: str, config: RunnableConfig) -> Any:
        _position.set(position)
        current_call.set(running)
        _stops.set(stops := Stops())
        # With its state: by itself `ToolNode` would copy every channel of the graph to read it.
        given = {"__type": "tool_call_with_context", "tool_call": running.call}
        work = self._node.ainvoke({**given, "state": whole_state(config)}, config)
        # Outside of ToolNode, which would make an answer of a stop.
        return await stops.outside(work)

    async def _read(self, part: Any, call: ToolCall, result: ToolResult) -> None:
        update: Mapping[str, Any] = part
        if isinstance(part, Command):
            self._read_goto(part, call, result)
            update = part.update or {}
        written = convert_to_messages(update.get("messages") or [])
        messages = [await self._adopt(message, call, result) for message in written]
        result.updates.append({**update, **({"messages": messages} if messages else {})})
        result.answers += [m for m in messages if isinstance(m, ToolMessage)]

    def _read_goto(self, command: Command[Any], call: ToolCall, result: ToolResult) -> None:
        if command.graph is not None:
            raise RoutingError(
                f"the tool {call['name']!r} sent a Command to another graph, which would lose what "
                "this one has done: return a Handoff"
            )
        goto = [command.goto] if not isinstance(command.goto, list | tuple) else list(command.goto)
        goto = [self._level.end if target == END else target for target in goto if target]
        for target in goto:
            name = getattr(target, "node", target)
            if name not in self._level.nodes and name != END:
                raise RoutingError(
                    f"the tool {call['name']!r} goes to {name!r}, which is no node of "
                    f"{self._level.agent.name!r}: there are {', '.join(sorted(self._level.nodes))}"
                )
        if goto:
            result.outcome["goto"] = goto

    async def _adopt(self, message: Any, call: ToolCall, result: ToolResult) -> Any:
        if not isinstance(message, ToolMessage):
            return message
        # Whatever call it names, it answers this one, and by its id only once.
        call_id = call["id"] or ""
        update: dict[str, Any] = {
            "id": f"answer_{call_id}",
            "tool_call_id": call_id,
            "name": call["name"],
        }
        if isinstance(message.artifact, Handoff | Finish):
            update |= {"artifact": None, **await self._decided(message.artifact, call, result)}
        told = message.model_copy(update=update)
        note([told])
        await emit(
            ToolResponseEvent(
                agent=self._level.path,
                tool=call["name"],
                content=str(told.text),
                call_id=call["id"] or "",
                status=told.status,
            )
        )
        return told

    async def _decided(
        self, decided: Handoff | Finish, call: ToolCall, result: ToolResult
    ) -> dict[str, Any]:
        if isinstance(decided, Finish):
            result.outcome["finish"] = {"text": decided.text, "reason": decided.reason}
            if self._level.seat is not None:
                value = {"reason": decided.reason, "summary": decided.text}
                result.notes.append(_note("finish", call, value))
            return {"content": decided.text or decided.reason}
        reachable = list(self._level.toolset.transfers.values())
        seat = self._level.seat
        if seat is not None and (decided.target in seat.peers or decided.target not in reachable):
            return await self._judged(seat, decided, call, result)
        if decided.target not in reachable:
            known = ", ".join(reachable) or "nobody"
            text = f"Not transferred: there is no agent {decided.target!r} here, only {known}."
            result.unrun = True
            return {"content": text, "status": "error"}
        result.outcome["transfer"] = {
            "tool": call["name"],
            "target": decided.target,
            "reason": decided.reason,
            "summary": decided.summary,
        }
        return {"content": f"Conversation transferred to {decided.target}"}

    async def _judged(
        self, seat: Seat, wished: Handoff, call: ToolCall, result: ToolResult
    ) -> dict[str, Any]:
        """Hand the conversation to another of the team, if the team agrees: that ends the turn."""
        verdict = seat.judge(wished)
        interceptor = current_interceptor()
        if verdict.is_hop and verdict.accepted is not None and interceptor is not None:
            refusal = await interceptor.handoff(verdict.accepted.target, result.progress)
            if refusal is not None:
                verdict = seat.refuse(*refusal)
        if verdict.accepted is None:
            told = {**asdict(wished), "told": verdict.text}
            result.notes.append(_note("rejected", call, told))
            result.unrun = True
            return {"content": verdict.text, "status": "error"}
        result.notes.append(_note("handoff", call, asdict(verdict.accepted)))
        result.outcome["finish"] = {"text": "", "reason": "handoff"}
        return {"content": verdict.text}

    async def _around(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        own: Any = request.state
        whole = self._level.history(own)
        state = {**own, "messages": whole}
        runtime = replace(request.runtime, state=state)
        # `override` takes any field; its type names three of them.
        request = request.override(state=state, runtime=runtime)  # type: ignore[call-arg]
        key = self._key(request, own.get("turn") or {})

        async def innermost(request: ToolCallRequest) -> Any:
            _result.get().unrun = False
            running = current_call.get()
            if running is not None and (known := known_result(running)) is not None:
                return known  # inside of the wrappers: they see it as they would have
            if request.tool is None:  # a model that asks for what is not there may go on and on
                return await self._used(request, key, whole, partial(execute, request))
            outspoken = request.override(tool=_Outspoken(request.tool))  # type: ignore[arg-type]
            return await self._used(request, key, whole, partial(execute, outspoken))

        with inside_call(whole, key) as ends:
            try:
                answer = await self._middleware.call_tool(request, innermost)
            except GraphBubbleUp:
                raise  # it waits for a human: that is no end
            except Exception:
                _tell(ends, went_well=False)
                raise
        went_well = not (isinstance(answer, ToolMessage) and answer.status == "error")
        _tell(ends, went_well=went_well)
        return answer

    async def _used(
        self,
        request: ToolCallRequest,
        key: str,
        whole: Sequence[AnyMessage],
        run: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Run a tool by way of whoever is on duty, who stands beside it and not in it."""
        interceptor = current_interceptor()
        if interceptor is None:
            return await run()
        call = request.tool_call

        async def unattended() -> Any:
            # A graph that a tool runs is no part of this one: it has accounts of its own.
            with without_interception(), in_tool(True):
                return await run()

        asked = next((m for m in reversed(whole) if isinstance(m, AIMessage)), None)
        message_id = str(asked.id) if asked is not None else ""
        use = partial(ToolUse, request.tool, call["name"], call["args"], key, message_id)
        with in_tool(False):
            return await _stops.get().inside(lambda run: interceptor.run_tool(use(run)), unattended)

    def _key(self, request: ToolCallRequest, turn: Mapping[str, Any]) -> str:
        configurable = request.runtime.config.get("configurable", {})
        parts: Sequence[Any] = (
            configurable.get("thread_id"),
            turn.get("id"),
            self._level.path,
            _visit.get(),
            _position.get(),
            request.tool_call["name"],
        )
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _tell(ends: Sequence[CallEnd], *, went_well: bool) -> None:
    for end in ends:
        end(went_well)


def _note(kind: Literal["handoff", "rejected", "finish"], call: ToolCall, value: Any) -> Note:
    return {"key": f"{call['id']}/{kind}", "kind": kind, "name": call["name"], "value": value}


class _Outspoken:
    """Stand in for a tool whose `Handoff` or `Finish` must reach us through `ToolNode`."""

    def __init__(self, tool: BaseTool) -> None:
        self._tool = tool

    async def ainvoke(self, call: Any, config: RunnableConfig) -> Any:
        try:
            result = await self._tool.ainvoke(call, config)
        except SystemExit as error:  # it would end the server, and all that runs there
            raise RuntimeError(f"the tool tried to end the process: {error.code}") from error
        if isinstance(result, Handoff | Finish):
            return ToolMessage("", tool_call_id=call["id"], name=call["name"], artifact=result)
        return result


def _explain(error: ToolInvocationError) -> str:
    # ToolNode reads the annotation: arguments that do not fit are answered inside of the
    # middleware, everything else passes through it, where it can be retried, and ends here too.
    return f"Error: {type(error).__name__}: {error}\nMend the call, or do without it."


def _checked_output(dump: Callable[[object], object], call: ToolCall) -> ToolMessage:
    try:
        dump(call["args"])
    except ValueError as error:
        text, status = f"The answer does not fit its form: {error}\nMend it.", "error"
    else:
        text, status = "Answered in the form that was asked for.", "success"
    return ToolMessage(text, tool_call_id=call["id"] or "", name=call["name"], status=status)


async def tell_unrun(
    calls: Iterable[ToolCall | InvalidToolCall], answers: Iterable[ToolMessage], message_id: str
) -> None:
    """Tell whoever is on duty which of a message's calls were answered, and how."""
    interceptor = current_interceptor()
    if interceptor is None:
        return
    by_id = {call["id"] or "": call for call in calls}
    for told in answers:
        call = by_id[told.tool_call_id]
        failed = told.status == "error"
        await interceptor.tool_skipped(
            SkippedCall(told.name or "", call["args"], message_id, told.text, failed)
        )
