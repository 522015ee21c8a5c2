"""Runs of an agent on threads: one at a time on each, nothing of an unfinished one lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from langchain_core.messages import AnyMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.types import Command, StateSnapshot

from agentgraph.agents.decisions import Questions
from agentgraph.agents.reply import Outcome, Reply, reply_to
from agentgraph.agents.state import merge_messages
from agentgraph.agents.streaming import Put, Teller, closing_events, follow
from agentgraph.agents.takeover import Leftovers, is_finished, leftovers, unsaved
from agentgraph.agents.turns import Turns
from agentgraph.clock import new_id
from agentgraph.errors import AgentGraphError, ConfigurationError, GuardStopped
from agentgraph.guards import Decision
from agentgraph.patching import AnyCompiledGraph
from agentgraph.running import Run, inside_run, note, outer_run
from agentgraph.stream import Event

if TYPE_CHECKING:
    from agentgraph.agents.agent import Agent

__all__ = ["Input", "Runner"]

Input: TypeAlias = str | AnyMessage | Sequence[AnyMessage]
Known: TypeAlias = frozenset[str | None]
"""The ids of the messages that are not a run's own."""


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
            given, known = await self._prepared(input, run)
            return self._reply(run, await self._run(given, context, config), known)

    async def resume(
        self,
        thread_id: str,
        decisions: Mapping[str, object],
        context: Any,
        config: RunnableConfig | None,
    ) -> Reply:
        """Go on with decisions."""
        async with self._on(thread_id, config) as (run, config):
            snapshot = await self._graph.aget_state(_thread(thread_id), subgraphs=True)
            accepted = await self._accepted(thread_id, snapshot, decisions)
            known = frozenset(message.id for message in snapshot.values.get("messages", ()))
            earlier = unsaved(snapshot, run.journal)
            outcome = await self._run(Command(resume=accepted), context, config)
            reply = self._reply(run, outcome, known)
            self._keep_lost(run, earlier, outcome)
            return reply

    def stream(
        self, input: Input, thread_id: str | None, context: Any, config: RunnableConfig | None
    ) -> AsyncGenerator[Event, None]:
        """Run an input and yield what happens."""

        async def produce(put: Put) -> None:
            async with self._on(thread_id, config) as (run, own):
                teller = Teller(run, self._agent.name, put)
                try:
                    given, known = await self._prepared(input, run)
                    outcome = await self._run_telling(teller, given, context, own)
                except Exception as error:
                    await teller.tell_failure(error)
                    raise
                for event in closing_events(self._reply(run, outcome, known)):
                    await teller.tell(event)

        return follow(produce)

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
        outer = outer_run()
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
                    self._turns.keep(run)
                    raise

    async def _prepared(self, input: Input, run: Run) -> tuple[dict[str, Any], Known]:
        left = await self._taken_over(run.thread_id)
        messages = _messages(input)
        given = {**left.values, "messages": [*left.messages, *messages]}
        if left.active is not None:
            given["current_active_agent"] = left.active
        run.journal.clear()  # what it held is in the input now
        run.results.clear()
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

    async def _accepted(
        self, thread_id: str, snapshot: StateSnapshot, decisions: Mapping[str, object]
    ) -> dict[str, object]:
        """Refuse decisions that nothing waits for; LangGraph would end such a run in silence."""
        saver: Any = self._graph.checkpointer
        questions = Questions.of(snapshot, await saver.aget_tuple(_thread(thread_id)))
        return questions.accept(thread_id, decisions)

    def _keep_lost(self, run: Run, earlier: Sequence[AnyMessage], outcome: Outcome) -> None:
        """Leave to the next turn what an attempt before this one did and this one did not meet."""
        ids = {message.id for message in outcome.values.get("messages") or ()}
        lost = [message for message in earlier if message.id not in ids]
        if lost and not outcome.interrupts:
            run.journal = {None: lost}
            self._turns.keep(run)

    async def _run(self, given: Any, context: Any, config: RunnableConfig) -> Outcome:
        with _limits_told():
            result: Any = await self._graph.ainvoke(
                given,
                config,
                context=context,
                durability=self._agent.durability,
                version="v2",
            )
        return Outcome(result.value or {}, result.interrupts)

    async def _run_telling(
        self, teller: Teller, given: Any, context: Any, config: RunnableConfig
    ) -> Outcome:
        parts: Any = self._graph.astream(
            given,
            config,
            context=context,
            durability=self._agent.durability,
            stream_mode=["messages", "custom", "values"],
            subgraphs=True,
            version="v2",
        )
        async with aclosing(parts):
            with _limits_told():
                return await teller.tell_parts(parts)

    def _reply(self, run: Run, outcome: Outcome, known: Known) -> Reply:
        if outcome.interrupts:
            self._turns.keep(run)
        else:
            self._turns.cut_off.pop(run.thread_id, None)
        return reply_to(self._agent, run, outcome, known)


_shared_turns: WeakKeyDictionary[object, Turns] = WeakKeyDictionary()


def _turns_of(saver: object) -> Turns:
    """Return the queues of a checkpointer, shared by all agents that run on it."""
    return _shared_turns.setdefault(saver, Turns())


def _thread(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def _messages(input: Input) -> list[AnyMessage]:
    raw: Any = [("user", input)] if isinstance(input, str) else input
    if isinstance(raw, Mapping) or raw is None:
        raise ConfigurationError(
            f"the input {input!r} is no text, message or list of messages", code="input"
        )
    messages: Any = convert_to_messages(raw if isinstance(raw, list | tuple) else [raw])
    return [m if m.id else m.model_copy(update={"id": new_id()}) for m in messages]


class _limits_told:
    """Say in our own terms that LangGraph's limit was reached."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, GraphRecursionError):
            decision = Decision("abort", "recursion_limit", str(error), "infinite_loop")
            raise GuardStopped(decision) from error
