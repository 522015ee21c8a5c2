"""Runs of an agent on threads: one at a time on each, nothing of an unfinished one lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.types import Command
from langgraph.types import Interrupt as RawInterrupt

from agentgraph.agents.call_model import AGENT_TAG
from agentgraph.agents.content import citations_of
from agentgraph.agents.reply import Interrupt, Reply, Usage
from agentgraph.agents.state import merge_messages
from agentgraph.agents.takeover import (
    Leftovers,
    is_finished,
    leftovers,
    reachable_interrupts,
)
from agentgraph.agents.turns import Turns
from agentgraph.clock import new_id
from agentgraph.errors import AgentGraphError, GuardStopped, RoutingError
from agentgraph.guards import Decision
from agentgraph.patching import AnyCompiledGraph
from agentgraph.running import Run, current_run, inside_run, note
from agentgraph.stream import (
    ErrorEvent,
    Event,
    FinalStateEvent,
    InterruptEvent,
    TokenEvent,
)

if TYPE_CHECKING:
    from agentgraph.agents.agent import Agent

__all__ = ["Input", "Runner"]

Input: TypeAlias = str | AnyMessage | Sequence[AnyMessage]

QUEUE_SIZE = 64


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a run left behind."""

    values: Mapping[str, Any]
    interrupts: Sequence[RawInterrupt]
    known: frozenset[str | None]
    """The ids of the messages that are not the run's own."""


class Runner:
    """Run one agent's graph."""

    def __init__(self, agent: Agent, graph: AnyCompiledGraph, saver: object) -> None:
        self._agent = agent
        self._graph = graph
        self._turns = _turns_of(saver)

    async def answer(
        self, input: Input, thread_id: str | None, context: Any, config: RunnableConfig | None
    ) -> Reply:
        """Run an input to its end."""
        async with self._on(thread_id, config) as (run, config):
            given, known = await self._prepared(input, run, config)
            outcome = await self._run(given, known, context, config)
            return self._reply(run, outcome)

    async def resume(
        self,
        thread_id: str,
        decisions: Mapping[str, object],
        context: Any,
        config: RunnableConfig | None,
    ) -> Reply:
        """Go on with decisions."""
        async with self._on(thread_id, config) as (run, config):
            known = await self._expected(thread_id, decisions, config)
            outcome = await self._run(Command(resume=dict(decisions)), known, context, config)
            return self._reply(run, outcome)

    async def stream(
        self, input: Input, thread_id: str | None, context: Any, config: RunnableConfig | None
    ) -> AsyncGenerator[Event, None]:
        """Run an input and yield what happens; the run has a task of its own, ended with this."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE_SIZE)

        async def produce() -> None:
            async with self._on(thread_id, config) as (run, own_config):
                sequence = 0
                told: set[str] = set()

                async def put(event: Event) -> None:
                    nonlocal sequence
                    sequence += 1
                    stamp: dict[str, Any] = {
                        "thread_id": run.thread_id,
                        "run_id": run.id,
                        "sequence": sequence,
                    }
                    if not event.agent:
                        stamp["agent"] = self._agent.name
                    if isinstance(event, ErrorEvent):
                        told.add(event.message)
                    await queue.put(replace(event, **stamp))

                try:
                    given, known = await self._prepared(input, run, own_config)
                    await self._run_streaming(run, given, known, context, own_config, put)
                except Exception as error:
                    failure = _told(error)
                    if failure.message not in told:
                        await put(failure)
                    raise

        async def run_and_end() -> None:
            try:
                await produce()
            finally:
                if not task.cancelling():
                    await queue.put(None)

        task = asyncio.ensure_future(run_and_end())
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            await _end(task)

    async def history(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread, those that the next turn would take over included."""
        snapshot = await self._graph.aget_state(_thread(thread_id))
        left = await self._taken_over(thread_id)
        return merge_messages(snapshot.values.get("messages", []), [left.messages])

    async def forget(self, thread_id: str) -> None:
        """Delete a thread."""
        async with self._turns.take(thread_id):
            self._turns.cut_off.pop(thread_id, None)
            await self._graph.checkpointer.adelete_thread(thread_id)  # type: ignore[union-attr]

    @asynccontextmanager
    async def _on(
        self, thread_id: str | None, config: RunnableConfig | None
    ) -> AsyncIterator[tuple[Run, RunnableConfig]]:
        given = (config or {}).get("configurable", {})
        thread_id = thread_id or str(given.get("thread_id") or new_id())
        outer = current_run()
        if outer is not None and outer.thread_id == thread_id and outer.owner is self._turns:
            raise AgentGraphError(
                f"a run on thread {thread_id!r} cannot wait for another on the same thread: "
                "give the inner one a thread of its own",
                code="inside_run",
            )
        run = Run(new_id(), thread_id, self._turns)
        own: RunnableConfig = {
            **(config or {}),
            "configurable": {**given, "thread_id": thread_id},
        }
        async with self._turns.take(thread_id):
            kept = self._turns.cut_off.get(thread_id)
            if kept is not None:
                run.journal = {errand: list(made) for errand, made in kept.journal.items()}
                run.results = dict(kept.results)
            with inside_run(run):
                try:
                    yield run, own
                except BaseException:
                    self._turns.cut_off[thread_id] = run
                    raise

    async def _prepared(
        self, input: Input, run: Run, config: RunnableConfig
    ) -> tuple[dict[str, Any], frozenset[str | None]]:
        left = await self._taken_over(run.thread_id)
        messages = _messages(input)
        given = {**left.values, "messages": [*left.messages, *messages]}
        if left.active is not None:
            given["current_active_agent"] = left.active
        run.journal.clear()  # what it held is in the input now
        note(given["messages"])
        return given, frozenset(message.id for message in given["messages"])

    async def _taken_over(self, thread_id: str) -> Leftovers:
        saver: Any = self._graph.checkpointer
        kept = self._turns.cut_off.get(thread_id)
        journal = {} if kept is None else kept.journal
        saved = await saver.aget_tuple(_thread(thread_id))
        if not journal and (saved is None or is_finished(saved)):
            return Leftovers()
        # By its id: the state of the latest checkpoint would show what finished since as its own,
        # though new input drops it.
        config = _thread(thread_id) if saved is None else saved.config
        return leftovers(await self._graph.aget_state(config, subgraphs=True), journal)

    async def _expected(
        self, thread_id: str, decisions: Mapping[str, object], config: RunnableConfig
    ) -> frozenset[str | None]:
        """Refuse decisions that nothing waits for; LangGraph would end such a run in silence."""
        snapshot = await self._graph.aget_state(_thread(thread_id), subgraphs=True)
        pending = set(reachable_interrupts(snapshot))
        unknown = sorted(set(decisions) - pending)
        if not decisions or unknown:
            saver: Any = self._graph.checkpointer
            saved = await saver.aget_tuple(_thread(thread_id))
            raise _refused(thread_id, unknown, pending, _asked(saved))
        return frozenset(message.id for message in snapshot.values.get("messages", ()))

    async def _run(
        self, given: Any, known: frozenset[str | None], context: Any, config: RunnableConfig
    ) -> _Outcome:
        with _limits_told():
            result: Any = await self._graph.ainvoke(
                given,
                config,
                context=context,
                durability=self._agent.durability,
                version="v2",
            )
        return _Outcome(result.value or {}, result.interrupts, known)

    async def _run_streaming(
        self,
        run: Run,
        given: Any,
        known: frozenset[str | None],
        context: Any,
        config: RunnableConfig,
        put: Callable[[Event], Any],
    ) -> None:
        outcome = _Outcome({}, (), known)
        with _limits_told():
            async for part in self._graph.astream(
                given,
                config,
                context=context,
                durability=self._agent.durability,
                stream_mode=["messages", "custom", "values"],
                subgraphs=True,
                version="v2",
            ):
                if part["type"] == "values":
                    if not part["ns"]:
                        outcome = _Outcome(part["data"], part.get("interrupts", ()), known)
                    continue
                event = _event_of(part)
                if event is not None:
                    await put(event)
        reply = self._reply(run, outcome)
        for question in reply.interrupts:
            await put(
                InterruptEvent(
                    agent=reply.agent,
                    id=question.id,
                    payload=question.payload,
                    response_schema=question.response_schema,
                )
            )
        await put(
            FinalStateEvent(
                agent=reply.agent,
                text=reply.text,
                usage=reply.usage.to_dict(),
                close_reason=reply.close_reason,
            )
        )

    def _reply(self, run: Run, outcome: _Outcome) -> Reply:
        if outcome.interrupts:
            self._turns.cut_off[run.thread_id] = run
        else:
            self._turns.cut_off.pop(run.thread_id, None)
        values = outcome.values
        fresh = _fresh(values.get("messages") or [], outcome.known)
        spoken = [m for m in fresh if isinstance(m, AIMessage) and m.text]
        path = values.get("current_active_agent")
        interrupts = tuple(
            Interrupt(i.id, i.value, getattr(i, "response_schema", None))
            for i in outcome.interrupts
        )
        return Reply(
            text=str(spoken[-1].text) if spoken and not interrupts else "",
            agent=f"{self._agent.name}/{path}" if path else self._agent.name,
            thread_id=run.thread_id,
            output=self._output(values.get("output"), path),
            messages=tuple(fresh),
            usage=Usage.of_run(run),
            interrupts=interrupts,
            close_reason=(values.get("turn") or {}).get("closed"),
            citations=tuple(citations_of(spoken[-1])) if spoken else (),
        )

    def _output(self, stored: object, path: str | None) -> object | None:
        if stored is None:
            return None
        from agentgraph.agents.output import OutputFormat

        agent: Any = self._agent
        for name in (path or "").split("/") if path else ():
            agent = next(p for p in agent.sub_agents if p.name == name)
        form = getattr(agent, "response_format", None)
        return stored if form is None else OutputFormat(form).load(stored)


_shared_turns: WeakKeyDictionary[object, Turns] = WeakKeyDictionary()


def _turns_of(saver: object) -> Turns:
    """Return the queues of a checkpointer, shared by all agents that run on it."""
    return _shared_turns.setdefault(saver, Turns())


def _thread(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def _messages(input: Input) -> list[AnyMessage]:
    raw: Any = [("user", input)] if isinstance(input, str) else input
    messages: Any = convert_to_messages(raw if isinstance(raw, list | tuple) else [raw])
    return [m if m.id else m.model_copy(update={"id": new_id()}) for m in messages]


def _fresh(messages: Sequence[AnyMessage], known: frozenset[str | None]) -> Sequence[AnyMessage]:
    """Return what came after the last message that was there before."""
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].id in known:
            return [m for m in messages[position + 1 :] if m.id not in known]
    return [m for m in messages if isinstance(m, AIMessage)][-1:]


def _event_of(part: Any) -> Event | None:
    if part["type"] == "custom":
        return part["data"] if isinstance(part["data"], Event) else None
    chunk, metadata = part["data"]
    agent = metadata.get(AGENT_TAG)
    if agent is None or not isinstance(chunk, AIMessageChunk) or not chunk.text:
        return None
    return TokenEvent(agent=agent, text=str(chunk.text), message_id=chunk.id or "")


def _told(error: Exception) -> ErrorEvent:
    if isinstance(error, AgentGraphError):
        return ErrorEvent(code=error.code, message=str(error))
    # Not its text: whoever listens may be a stranger, and that could hold anything.
    return ErrorEvent(code="error", message=f"the run failed: {type(error).__name__}")


def _asked(saved: Any) -> set[str]:
    """Return the ids of all interrupts that the checkpoint holds, whoever asked."""
    writes = (saved.pending_writes or ()) if saved is not None else ()
    return {i.id for _, channel, value in writes if channel == "__interrupt__" for i in value}


def _refused(
    thread_id: str, unknown: Sequence[str], pending: set[str], asked: set[str]
) -> RoutingError:
    if gone := sorted(set(unknown) & asked):
        return RoutingError(
            f"the agent that asked {', '.join(gone)} on thread {thread_id!r} is no longer in the "
            "tree: put it back, or go on with a new message",
            code="agent_gone",
        )
    waiting = ", ".join(sorted(pending)) or "nothing"
    given = ", ".join(unknown) or "no decision"
    return RoutingError(
        f"thread {thread_id!r} does not wait for {given}: it waits for {waiting}",
        code="unknown_interrupt",
    )


class _limits_told:
    """Say in our own terms that LangGraph's limit was reached."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, GraphRecursionError):
            decision = Decision("abort", "recursion_limit", str(error), "infinite_loop")
            raise GuardStopped(decision) from error


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait until it has put away what it did."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # seen, so that asyncio does not complain
