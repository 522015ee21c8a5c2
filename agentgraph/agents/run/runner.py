"""Run an agent on an input or on decisions, from the start to a reply or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphRecursionError
from langgraph.types import Command, StateSnapshot

from agentgraph.agents.run.cut_off_effects import CutOffEffects
from agentgraph.agents.run.decisions import (
    DecisionLog,
    Questions,
    overdue_questions,
    refuses_decision,
    rejections,
)
from agentgraph.agents.run.inputs import (
    Continuation,
    Decisions,
    Input,
    MessageInput,
    decisions_of,
    messages_of,
)
from agentgraph.agents.run.recovery import (
    Recovery,
    has_orphans,
    is_finished,
)
from agentgraph.agents.run.remains import left_for_resume, unsaved_messages
from agentgraph.agents.run.reply import (
    RESULT_KEYS,
    Outcome,
    Reply,
    closing_events,
    questions_of,
    reply_to,
)
from agentgraph.agents.run.threads import ThreadQueues, Threads, turn_id_of
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.clock import new_id
from agentgraph.errors import (
    GuardStopped,
    RoutingError,
    kind_of,
)
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import run_whole
from agentgraph.graphs.task import with_saver
from agentgraph.guards import AuditTrail, Decision, Effect
from agentgraph.guards.nodes.agent_graph import COMPENSATE
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.audit_trail import (
    run_began,
    run_continued,
    run_ended,
    run_took_over,
)
from agentgraph.guards.records.pauses import note_actions
from agentgraph.guards.records.pending_writes import PendingWrites
from agentgraph.interception import outer_call
from agentgraph.outcomes import Interrupt
from agentgraph.running import Run, record_messages
from agentgraph.storage import with_first_read
from agentgraph.stream import AnyEvent
from agentgraph.telling import EventEmitter, ModelCallbacks, PutEvent, event_stream


def new_run(
    thread_id: str | None, config: RunnableConfig | None, owner: ThreadQueues
) -> tuple[Run, RunnableConfig]:
    """Return a run on a thread, by default on that of the config or on a new one."""
    configurable = (config or {}).get("configurable", {})
    thread_id = thread_id or str(configurable.get("thread_id") or new_id())
    run_config: RunnableConfig = {
        **(config or {}),
        "configurable": {**configurable, "thread_id": thread_id},
    }
    return Run(new_id(), thread_id, owner), run_config


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of a turn: new messages, or decisions on a waiting run."""

    graph_input: Any
    known_ids: frozenset[str | None]
    """The ids of the messages from before the run."""
    earlier: Sequence[AnyMessage] = ()
    """The messages of an earlier attempt that no checkpoint has."""
    turn: str = ""
    """The id of a turn that has begun already."""
    checkpoint: CheckpointTuple | None = None
    """The thread's last checkpoint, which the run need not load once more."""
    effects: CutOffEffects | None = None
    """What an earlier run has done that was cut off."""
    decided_ids: frozenset[str] = frozenset()
    """The questions whose decisions it goes on with."""


class Runner:
    """Run one agent's graph."""

    def __init__(
        self,
        agent: AgentSpec,
        graph: AnyCompiledGraph,
        saver: object,
        effects: Mapping[str, Effect],
    ) -> None:
        self._agent = agent
        self.graph = graph
        self._effects = effects
        self._threads = Threads(agent, graph, saver, effects)
        self._own_audit = None if agent.policy is None else agent.policy.audit

    @property
    def _audit(self) -> AuditTrail | None:
        """The trail of this agent's inputs; what a tool of another agent runs is no input."""
        is_own = self._own_audit is not None and outer_call() is None
        return self._own_audit if is_own else None

    async def answer(
        self,
        input: Input | Decisions | Continuation,
        thread_id: str | None,
        context: Any,
        config: RunnableConfig | None,
    ) -> Reply[Any]:
        """Run an input to its end, once the thread is free.

        Raises `AgentGraphError("inside_run")` where the run would wait for itself: for a
        run around it, or through other runs.
        """
        run, config = new_run(thread_id, config, self._threads.queues)
        async with self._threads.hold(run):
            return await self._turn(run, input, context, config)

    def stream(
        self, input: Input, thread_id: str | None, context: Any, config: RunnableConfig | None
    ) -> AsyncGenerator[AnyEvent, None]:
        """Run an input and yield its events; closing the generator cancels the run.

        The events of a run that fails end with an `ErrorEvent`, then the error is raised.
        """

        async def produce(put_event: PutEvent) -> None:
            run, run_config = new_run(thread_id, config, self._threads.queues)
            emitter = EventEmitter(run, self._agent.name, put_event)
            run_config = merge_configs(run_config, {"callbacks": [ModelCallbacks(emitter)]})
            try:
                async with self._threads.hold(run):
                    run.tell = emitter.emit
                    reply = await self._turn(run, input, context, run_config)
                    for event in closing_events(reply):
                        await emitter.emit(event)
            except Exception as error:
                await emitter.emit_failure(error)
                raise
            finally:
                run.tell = None  # a cut-off run is kept, and must not keep its events

        return event_stream(produce)

    async def interrupts(self, thread_id: str) -> tuple[Interrupt, ...]:
        """Return the open questions of a thread."""
        return questions_of(await self._threads.questions(thread_id))

    async def history(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread, with those of an unfinished run."""
        return await self._threads.messages(thread_id)

    async def forget(self, thread_id: str) -> None:
        """Delete a thread."""
        await self._threads.forget(thread_id)

    async def _turn(
        self,
        run: Run,
        input: Input | Decisions | Continuation,
        context: Any,
        config: RunnableConfig,
    ) -> Reply[Any]:
        """Run one turn; the caller has acquired the thread."""
        if isinstance(input, Command):
            input = decisions_of(input)
        if isinstance(input, Continuation):
            start = await self._start_from_cut_off_run(run)
        elif isinstance(input, Decisions):
            start = await self._start_from_decisions(input, run)
        else:
            start = await self._start_from_messages(input, run, context, config)
        try:
            outcome = await self._run_audited(start, run, context, config)
        except Exception as error:
            if refuses_decision(error):
                await self._threads.reopen(run.thread_id, start.decided_ids)
            raise
        if outcome.interrupts:
            asked_ids = {question.id for question in outcome.interrupts}
            await self._threads.reopen(run.thread_id, start.decided_ids & asked_ids)
            questions, path = await self._threads.new_questions(run.thread_id)
            agents = {question.id: asker for asker, question in questions}
            outcome = replace(outcome, agents=agents, active=path)
        reply = self._reply(run, outcome, start)
        if not outcome.interrupts:
            messages = outcome.values.get("messages") or ()
            self._threads.keep_unmet(run, start.earlier, messages)
        else:
            await self._note_actions(run)
        return reply

    async def _start_from_messages(
        self, input: MessageInput, run: Run, context: Any, config: RunnableConfig
    ) -> _Start:
        """Take over the work of an unfinished run; undo it first if a guard has ended that run."""
        messages = messages_of(input)  # first, because a bad input must change nothing
        latest = await self._threads.checkpoint(run.thread_id, run)
        is_cut_off = latest is not None and not is_finished(latest)
        if latest is not None and is_cut_off:
            latest = await self._settle_denials(latest, run, context, config)
        effects = await self._left_effects(run, latest)
        if (is_cut_off or effects is not None) and await self._threads.prepare_compensation(
            run.thread_id, latest, effects
        ):
            turn = effects.record.turn if effects is not None else turn_id_of(latest) or ""
            compensation = _Start(None, frozenset(), turn=turn)
            await self._run_audited(compensation, run, context, config)
            latest = await self._threads.checkpoint(run.thread_id, run)
            effects = await self._left_effects(run, latest)
        return await self._take_over(run, messages, latest, effects)

    async def _settle_denials(
        self, latest: CheckpointTuple, run: Run, context: Any, config: RunnableConfig
    ) -> CheckpointTuple | None:
        """Deny what nobody has decided in time, and undo what that ends; return what is then last.

        That is the default of such a question; a question that is still in time is dropped instead.
        A rejection that a killed process has stored is carried out too.
        """
        snapshot = await self._threads.snapshot(run.thread_id)
        if not overdue_questions(snapshot, latest) and not rejections(snapshot, latest):
            return latest
        self._refuse_other_agent(run.thread_id, snapshot)
        questions = Questions.of(snapshot, latest)
        denial = await self._resume(run, snapshot, latest, questions, Decisions({}))
        outcome = await self._run_audited(denial, run, context, config)
        run.is_resumed, run.reports = False, {}
        if not outcome.interrupts:
            self._threads.queues.unfinished_runs.pop(run.thread_id, None)
        return await self._threads.checkpoint(run.thread_id, run)

    async def _left_effects(self, run: Run, latest: CheckpointTuple | None) -> CutOffEffects | None:
        """Return what the last run has done if it was cut off; None where no tool has effects."""
        if not self._effects:
            return None
        return await self._threads.cut_off_effects(run.thread_id, latest)

    async def _take_over(
        self,
        run: Run,
        messages: Sequence[AnyMessage],
        latest: CheckpointTuple | None,
        effects: CutOffEffects | None,
    ) -> _Start:
        """Begin a turn after what an unfinished run has left, with its effects."""
        recovery = await self._threads.recovery(run.thread_id, latest, effects)
        start = _start_of_turn(run, recovery, messages, latest)
        if effects is None:
            return start
        start.graph_input["guarded"] = effects.account(run.id)
        await self._threads.log_again(run, effects)
        return replace(start, effects=effects)

    async def _start_from_cut_off_run(self, run: Run) -> _Start:
        """Go on with a run that was cut off, from its last checkpoint.

        A task that had no result runs again from its start. Raises `RoutingError` where no run was
        cut off, or where it waits for decisions.
        """
        latest = await self._threads.checkpoint(run.thread_id, run)
        effects = await self._left_effects(run, latest)
        if (
            effects is not None
            and effects.is_undoing
            and await self._threads.prepare_compensation(run.thread_id, latest, effects)
        ):
            latest = await self._threads.checkpoint(run.thread_id, run)
        snapshot = await self._threads.snapshot(run.thread_id)
        self._refuse_other_agent(run.thread_id, snapshot)
        if latest is None or is_finished(latest):
            # Its first checkpoint was not stored; this process, or the log of its effects, may know
            # its messages all the same.
            start = await self._take_over(run, [], latest, effects)
            if not start.graph_input["messages"]:
                raise RoutingError(
                    f"no run on thread {run.thread_id!r} was cut off: go on with a message",
                    code="not_cut_off",
                )
            return start
        questions = Questions.of(snapshot, latest)
        if overdue_questions(snapshot, latest):
            return await self._resume(run, snapshot, latest, questions, Decisions({}))
        if questions.open_ids and not questions.decisions:
            raise RoutingError(
                f"the run on thread {run.thread_id!r} was not cut off, it waits for decisions on "
                f"{', '.join(sorted(questions.open_ids))}: resume it with them",
                code="waits_for_decisions",
            )
        is_ahead = effects is not None and not effects.is_undoing and effects.is_ahead_of(snapshot)
        has_passed = is_ahead and not questions.open_ids
        # From its state it would forget what it has done, and do it again.
        if has_passed or (has_orphans(snapshot) and not questions.decisions):
            return await self._take_over(run, [], latest, effects)
        if questions.decisions:
            return await self._resume(run, snapshot, latest, questions, Decisions({}))
        run.is_resumed = True
        messages = snapshot.values.get("messages") or []
        asked = max((n for n, m in enumerate(messages) if isinstance(m, HumanMessage)), default=-1)
        known_ids = frozenset(message.id for message in messages[: asked + 1])
        earlier = unsaved_messages(snapshot, run.journal)
        return _Start(None, known_ids, earlier, turn_id_of(latest) or run.id, latest)

    async def _start_from_decisions(self, answers: Decisions, run: Run) -> _Start:
        """Refuse decisions on questions that are not open; LangGraph would ignore them silently.

        The same decision once more goes on with a run that was cut off after it.
        """
        snapshot = await self._threads.snapshot(run.thread_id)
        turn = self._refuse_other_agent(run.thread_id, snapshot)
        latest = await self._threads.checkpoint(run.thread_id, run)
        log = DecisionLog(run.thread_id, self._threads.saver, latest)
        if COMPENSATE in snapshot.next:  # the decision was accepted, and is being carried out
            log.refuse_others(answers.values, await log.on(answers.values.keys()))
            run.is_resumed = True
            known_ids = frozenset(message.id for message in snapshot.values.get("messages", ()))
            return _Start(None, known_ids, turn=turn["id"], checkpoint=latest)
        questions = Questions.of(snapshot, latest)
        new_values = await questions.accept(answers.values, log, turn.get("id", ""))
        if new_values:
            answers = Decisions(new_values, answers.sender)
            return await self._resume(run, snapshot, latest, questions, answers)
        try:
            return await self._start_from_cut_off_run(run)
        except RoutingError:  # it was not cut off: it has ended, or waits for another decision
            await log.refuse(answers.values.keys())
            raise

    async def _resume(
        self,
        run: Run,
        snapshot: StateSnapshot,
        latest: CheckpointTuple | None,
        questions: Questions,
        answers: Decisions,
    ) -> _Start:
        """Go on with decisions once they are stored, and with those of a run that was cut off."""
        run.is_resumed = True
        turn = (snapshot.values.get("turn") or {}).get("id", "")
        log = DecisionLog(run.thread_id, self._threads.saver, latest)
        known_ids = frozenset(message.id for message in snapshot.values.get("messages", ()))
        decisions = await questions.store(answers, log, snapshot, turn)
        earlier, run.reports = left_for_resume(snapshot, run.journal)
        resume: Command[Any] = Command(resume=decisions)
        ids = frozenset(decisions)
        return _Start(resume, known_ids, earlier, turn, latest, decided_ids=ids)

    def _refuse_other_agent(self, thread_id: str, snapshot: StateSnapshot) -> Mapping[str, Any]:
        """Return the turn of a thread; raise `RoutingError` where it is another agent's."""
        turn: Mapping[str, Any] = snapshot.values.get("turn") or {}
        owner = turn.get("agent", self._agent.name)
        if owner != self._agent.name:
            raise RoutingError(
                f"on thread {thread_id!r} the agent {owner!r} is at work, not "
                f"{self._agent.name!r}: let {owner!r} go on with it",
                code="other_agent",
            )
        return turn

    async def _run_audited(
        self, start: _Start, run: Run, context: Any, config: RunnableConfig
    ) -> Outcome:
        """Run a turn, and record its begin and its end in the audit trail."""
        audit = self._audit
        turn, thread = start.turn or run.id, run.thread_id
        if start.turn:
            run_continued(audit, turn)
        else:
            last = start.graph_input["messages"][-1:]
            run_began(audit, turn, thread, str(last[0].text) if last else "")
        if start.effects is not None:
            run_took_over(audit, turn, thread, start.effects.entries.values())
        try:
            outcome = await self._run(start, context, config)
        except BaseException as error:
            is_failure = isinstance(error, Exception)
            reason = "failed" if is_failure else "cancelled"
            run_ended(audit, turn, thread, reason, error=kind_of(error))
            raise
        if not outcome.interrupts:
            guard = (outcome.values.get("turn") or {}).get("closed")
            run_ended(audit, turn, thread, guard or "answered")
        return outcome

    async def _run(self, start: _Start, context: Any, config: RunnableConfig) -> Outcome:
        if start.checkpoint is not None:
            config = with_saver(config, with_first_read(self._threads.saver, start.checkpoint))
        try:
            result: Any = await run_whole(
                self.graph,
                start.graph_input,
                config,
                result_keys=RESULT_KEYS,
                context=context,
                durability=self._agent.durability,
                version="v2",
            )
        except GraphRecursionError as error:  # as a decision of the guards
            decision = Decision("abort", "recursion_limit", str(error), "infinite_loop")
            raise GuardStopped(decision) from error
        return Outcome(result.value or {}, result.interrupts)

    def _reply(self, run: Run, outcome: Outcome, start: _Start) -> Reply[Any]:
        """Read the reply; keep a run that waits for a decision, with its journal."""
        queues = self._threads.queues
        if outcome.interrupts:
            queues.keep(run)
        else:
            queues.unfinished_runs.pop(run.thread_id, None)
        return reply_to(self._agent, run, outcome, start.known_ids)

    async def _note_actions(self, run: Run) -> None:
        """Store which actions run after a human's answer, for the process that resumes."""
        account = run.account
        has_actions = isinstance(account, Account) and account.waits_with_actions
        if not has_actions and run.checkpoint_id is not None:
            return
        # Also for a saver that does not report to the run what it has stored.
        latest = await self._threads.checkpoint(run.thread_id)
        if isinstance(account, Account) and has_actions and latest is not None:
            await note_actions(account, PendingWrites(self._threads.saver, latest.config))


def _start_of_turn(
    run: Run,
    recovery: Recovery,
    messages: Sequence[AnyMessage],
    latest: CheckpointTuple | None,
) -> _Start:
    """Return the start of a turn with new messages, after what an unfinished run has left."""
    values = {**recovery.values, "messages": [*recovery.messages, *messages]}
    if recovery.active is not None:
        values["current_active_agent"] = recovery.active
    run.journal.clear()  # all of its messages are in the input now
    run.results.clear()
    record_messages(values["messages"])
    known_ids = frozenset(message.id for message in values["messages"])
    return _Start(values, known_ids, checkpoint=latest)
