"""Runs of an agent on threads: one at a time on each, nothing of an unfinished one lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from langchain_core.messages import AnyMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphRecursionError
from langgraph.types import Command
from langgraph.types import Interrupt as RawInterrupt

from agentgraph.agents.nodes.state import merge_messages
from agentgraph.agents.run.decisions import Questions, check_storable, reachable
from agentgraph.agents.run.reply import (
    Interrupt,
    Outcome,
    Reply,
    closing_events,
    questions_of,
    reply_to,
)
from agentgraph.agents.run.takeover import Leftovers, ended, is_finished, leftovers, unsaved
from agentgraph.agents.run.turns import Turns
from agentgraph.clock import clock, new_id
from agentgraph.errors import (
    AgentGraphError,
    ConfigurationError,
    GuardStopped,
    RoutingError,
    kind_of,
)
from agentgraph.guards import Decision, Guards
from agentgraph.guards.audit.audit_trail import run_began, run_continued, run_ended
from agentgraph.guards.nodes.agent_graph import COMPENSATE
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pauses import note_actions
from agentgraph.guards.records.pending_writes import PendingWrites
from agentgraph.patching import AnyCompiledGraph
from agentgraph.running import Run, inside_run, note, outer_run
from agentgraph.stream import Event
from agentgraph.telling import Listener, Put, Teller, follow

if TYPE_CHECKING:
    from agentgraph.agents.spec.agent import Agent


Said: TypeAlias = str | AnyMessage | Sequence[AnyMessage]
Input: TypeAlias = Said | Command[Any]
Known: TypeAlias = frozenset[str | None]
"""The ids of the messages that are not a run's own."""


@dataclass(frozen=True, slots=True)
class _Start:
    """What a turn starts from."""

    given: Any
    known: Known
    earlier: Sequence[AnyMessage] = ()
    """What an attempt before this one did, and no checkpoint has."""
    turn: str = ""
    """The id of the turn, where it has begun already."""


class Runner:
    """Run one agent's graph."""

    def __init__(self, agent: Agent, graph: AnyCompiledGraph, saver: object) -> None:
        self._agent = agent
        self._graph = graph
        self._saver = saver
        self._turns = _turns_of(saver)
        guards = agent.guards
        self._audit = guards.audit if isinstance(guards, Guards) else None

    async def answer(
        self, input: Input, thread_id: str | None, context: Any, config: RunnableConfig | None
    ) -> Reply:
        """Run an input to its end."""
        run, own = self._begun(thread_id, config)
        async with self._on_thread(run):
            return await self._turn(run, input, context, own)

    def stream(
        self, input: Input, thread_id: str | None, context: Any, config: RunnableConfig | None
    ) -> AsyncGenerator[Event, None]:
        """Run an input and yield what happens."""

        async def produce(put: Put) -> None:
            run, own = self._begun(thread_id, config)
            teller = Teller(run, self._agent.name, put)
            own = merge_configs(own, {"callbacks": [Listener(teller)]})
            try:
                async with self._on_thread(run):
                    run.tell = teller.tell
                    reply = await self._turn(run, input, context, own)
                    for event in closing_events(reply):
                        await teller.tell(event)
            except Exception as error:
                await teller.tell_failure(error)
                raise
            finally:
                run.tell = None  # a run that was cut off is kept, and must not keep its events

        return follow(produce)

    async def interrupts(self, thread_id: str) -> tuple[Interrupt, ...]:
        """Return the questions that a thread waits for."""
        return questions_of(await self._asked(thread_id))

    async def history(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread, those that the next turn would take over included."""
        snapshot = await self._graph.aget_state(_thread(thread_id))
        left = await self._taken_over(thread_id, await self._saved(thread_id))
        return merge_messages(snapshot.values.get("messages", []), [left.messages])

    async def forget(self, thread_id: str) -> None:
        """Delete a thread."""
        async with self._turns.take(thread_id, self._saver):
            self._turns.cut_off.pop(thread_id, None)
            await self._graph.checkpointer.adelete_thread(thread_id)  # type: ignore[union-attr]

    def _begun(
        self, thread_id: str | None, config: RunnableConfig | None
    ) -> tuple[Run, RunnableConfig]:
        given = (config or {}).get("configurable", {})
        thread_id = thread_id or str(given.get("thread_id") or new_id())
        outer = outer_run()
        if outer is not None and outer.thread_id == thread_id and outer.owner is self._turns:
            raise AgentGraphError(
                f"a run on thread {thread_id!r} cannot wait for another on the same thread: "
                "give the inner one a thread of its own",
                code="inside_run",
            )
        own: RunnableConfig = {
            **(config or {}),
            "configurable": {**given, "thread_id": thread_id},
        }
        return Run(new_id(), thread_id, self._turns), own

    @asynccontextmanager
    async def _on_thread(self, run: Run) -> AsyncIterator[None]:
        """Wait for the run's turn; what an attempt before it has done is its own."""
        async with self._turns.take(run.thread_id, self._saver):
            run.began_at = clock().wall()  # that others were at work here is no time of its own
            kept = self._turns.cut_off.get(run.thread_id)
            if kept is not None:
                run.journal = {errand: list(made) for errand, made in kept.journal.items()}
                run.results = dict(kept.results)
            with inside_run(run):
                try:
                    yield
                except BaseException:
                    self._turns.keep(run)
                    raise
                finally:
                    run.has_ended = True

    async def _turn(self, run: Run, input: Input, context: Any, config: RunnableConfig) -> Reply:
        if isinstance(input, Command):
            start = await self._decided(input, run)
        else:
            start = await self._prepared(input, run, context, config)
        outcome = await self._audited(start, run, context, config)
        if outcome.interrupts:
            asked = await self._asked(run.thread_id)
            outcome = replace(outcome, asked_by={question.id: path for path, question in asked})
        reply = self._reply(run, outcome, start.known)
        self._keep_lost(run, start.earlier, outcome)
        if outcome.interrupts:
            await self._note_actions(run)
        return reply

    async def _note_actions(self, run: Run) -> None:
        """Note for other processes what is to become of actions once a human has answered."""
        account, saver = run.account, self._graph.checkpointer
        waits = isinstance(account, Account) and account.waits_with_actions
        if not waits and run.stored is not None:
            return
        saved = await self._saved(run.thread_id)  # which also asks a saver that has not told
        if isinstance(account, Account) and waits and saved is not None:
            await note_actions(account, PendingWrites(saver, saved.config))

    async def _audited(
        self, start: _Start, run: Run, context: Any, config: RunnableConfig
    ) -> Outcome:
        """Run a turn, and have it on record when it began and how it ended."""
        turn, thread = start.turn or run.id, run.thread_id
        if start.turn:
            run_continued(self._audit, turn)
        else:
            said = start.given["messages"][-1:]
            text = str(said[0].text) if said else ""
            run_began(self._audit, turn, thread, text)
        try:
            outcome = await self._run(start.given, context, config)
        except BaseException as error:
            is_failure = isinstance(error, Exception)
            reason = "failed" if is_failure else "cancelled"
            run_ended(self._audit, turn, thread, reason, error=kind_of(error))
            raise
        if not outcome.interrupts:
            closed = (outcome.values.get("turn") or {}).get("closed")
            run_ended(self._audit, turn, thread, closed or "answered")
        return outcome

    async def _asked(self, thread_id: str) -> list[tuple[str, RawInterrupt]]:
        snapshot = await self._graph.aget_state(_thread(thread_id), subgraphs=True)
        return list(reachable(snapshot, self._agent, self._agent.name))

    async def _prepared(
        self, input: Said, run: Run, context: Any, config: RunnableConfig
    ) -> _Start:
        messages = _messages(input)  # what is no input must change nothing
        saved = await self._saved(run.thread_id, run)
        if saved is not None and not is_finished(saved) and await self._is_to_be_undone(saved):
            start = _Start(None, frozenset(), turn=_turn_id(saved) or "")
            await self._audited(start, run, context, config)
            saved = await self._saved(run.thread_id, run)
        left = await self._taken_over(run.thread_id, saved)
        given = {**left.values, "messages": [*left.messages, *messages]}
        if left.active is not None:
            given["current_active_agent"] = left.active
        run.journal.clear()  # what it held is in the input now
        run.results.clear()
        note(given["messages"])
        return _Start(given, frozenset(message.id for message in given["messages"]))

    async def _is_to_be_undone(self, saved: CheckpointTuple) -> bool:
        """Tell whether what was ended on a thread is undone next, and see to it that it is."""
        thread = _thread(str(saved.config["configurable"]["thread_id"]))
        snapshot = await self._graph.aget_state(thread, subgraphs=True)
        if COMPENSATE in snapshot.next:
            return True
        left = await self._taken_over(thread["configurable"]["thread_id"], saved)
        saver: Any = self._graph.checkpointer
        update = await ended(saver, snapshot, left)
        if update is not None:
            step = Command(goto=COMPENSATE, update=update)
            await self._graph.aupdate_state(thread, step, as_node="call_model")
        return update is not None

    async def _decided(self, command: Command[Any], run: Run) -> _Start:
        """Refuse decisions that nothing waits for; LangGraph would end such a run in silence."""
        run.is_resumed = True
        snapshot = await self._graph.aget_state(_thread(run.thread_id), subgraphs=True)
        turn = snapshot.values.get("turn") or {}
        owner = turn.get("agent", self._agent.name)
        if owner != self._agent.name:
            raise RoutingError(
                f"on thread {run.thread_id!r} the agent {owner!r} is at work, not "
                f"{self._agent.name!r}: give it the decision",
                code="other_agent",
            )
        saved = await self._saved(run.thread_id, run)
        known = frozenset(message.id for message in snapshot.values.get("messages", ()))
        if COMPENSATE in snapshot.next:  # it has been decided, and is being carried out
            return _Start(None, known, turn=turn["id"])
        accepted = Questions.of(snapshot, saved).accept(run.thread_id, _decisions(command))
        saver: Any = self._graph.checkpointer
        check_storable(accepted, saver)
        earlier = unsaved(snapshot, run.journal)
        return _Start(Command(resume=accepted), known, earlier, turn.get("id", ""))

    async def _saved(self, thread_id: str, run: Run | None = None) -> CheckpointTuple | None:
        """Return what is stored of a thread.

        What was kept of a run is forgotten where another process has deleted the thread, or has
        gone on with it: it has told its model what was known, and to tell it again would be wrong.
        """
        saver: Any = self._graph.checkpointer
        kept = self._turns.cut_off.get(thread_id)
        last = kept.stored if kept else None
        saved: CheckpointTuple | None = await saver.aget_tuple(_thread(thread_id))
        turn = _turn_id(saved)
        moved_on = kept is not None and bool(kept.turns) and turn not in kept.turns
        deleted = last and (not saved or await saver.aget_tuple(_thread(thread_id, last)) is None)
        if moved_on or deleted:
            self._turns.drop(kept)
            if run is not None:
                run.journal.clear()
                run.results.clear()
        if run is not None:
            run.turns |= {turn, run.id}
        for one in (kept, run):
            if one is not None and saved is not None:
                one.note_stored(saved.config)
        return saved

    async def _taken_over(self, thread_id: str, saved: CheckpointTuple | None) -> Leftovers:
        kept = self._turns.cut_off.get(thread_id)
        journal = {} if kept is None else kept.journal
        if not journal and (saved is None or is_finished(saved)):
            return Leftovers()
        # By its id: the state of the latest checkpoint would show what finished since as its own,
        # though new input drops it.
        config = _thread(thread_id) if saved is None else saved.config
        return leftovers(await self._graph.aget_state(config, subgraphs=True), journal)

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


def _turn_id(saved: CheckpointTuple | None) -> str | None:
    turn = saved.checkpoint["channel_values"].get("turn") if saved is not None else None
    return turn.get("id") if turn else None


def _thread(thread_id: str, checkpoint_id: str | None = None) -> RunnableConfig:
    at = {"checkpoint_ns": "", "checkpoint_id": checkpoint_id} if checkpoint_id else {}
    return {"configurable": {"thread_id": thread_id, **at}}


def _decisions(command: Command[Any]) -> Any:
    if command.goto or command.update or command.graph:
        raise ConfigurationError(
            "of a Command only `resume` is an input: Command(resume={interrupt.id: decision})",
            code="input",
        )
    return command.resume


def _messages(input: Said) -> list[AnyMessage]:
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
