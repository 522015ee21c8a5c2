"""The runs of a flow on threads: one at a time on each, from an input or from decisions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph import START
from langgraph.types import Command, StateSnapshot

from agentgraph.agents.run.cut_off_effects import CutOffEffects, is_cut_off, look_up_all
from agentgraph.agents.run.decisions import (
    DecisionLog,
    Questions,
    decisions_in,
    overdue_questions,
    reachable_questions,
    refuses_decision,
    rejections,
)
from agentgraph.agents.run.inputs import (
    Continuation,
    Decisions,
    Input,
    decisions_of,
    messages_of,
)
from agentgraph.agents.run.recovery import is_finished
from agentgraph.agents.run.reply import questions_of
from agentgraph.agents.run.runner import new_run
from agentgraph.agents.run.threads import queues_of, thread_config, turn_id_of
from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError, RoutingError, kind_of
from agentgraph.flow.audit.flow_run import judge
from agentgraph.flow.result import FlowResult
from agentgraph.flow.spec import FlowSpec
from agentgraph.flow.stages.failure import class_of_guard
from agentgraph.flow.state import ReportValues, aborted_end, new_turn
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import run_whole, whole_state
from agentgraph.graphs.task import with_saver
from agentgraph.guards import AuditTrail, Effect
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.nodes.agent_graph import COMPENSATE
from agentgraph.guards.records.audit_trail import (
    run_began,
    run_continued,
    run_ended,
    run_took_over,
)
from agentgraph.guards.records.effect_log import EffectLog
from agentgraph.interception import outer_call
from agentgraph.outcomes import Interrupt
from agentgraph.running import Run, inside_run
from agentgraph.stream import AnyEvent, FinalStateEvent, InterruptEvent
from agentgraph.telling import EventEmitter, ModelCallbacks, PutEvent, event_stream
from agentgraph.usage import Usage


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of a run: new messages, decisions, or None where it goes on."""

    graph_input: Any
    earlier: Mapping[str, ReportValues] = field(default_factory=dict)
    """The reports of stages that earlier processes have run."""
    effects: Sequence[Entry] = ()
    """What the run before has done, which was cut off."""
    decided_ids: frozenset[str] = frozenset()
    """The questions whose decisions it goes on with."""


class FlowRuns:
    """Runs one flow's graph."""

    def __init__(
        self, flow: FlowSpec, graph: AnyCompiledGraph, saver: Any, effects: Mapping[str, Effect]
    ) -> None:
        self._flow, self._graph, self._saver = flow, graph, saver
        self._effects = effects
        self._queues = queues_of(saver)

    async def answer(
        self,
        input: Input | Decisions | Continuation,
        thread_id: str | None,
        context: Any,
        config: RunnableConfig | None,
    ) -> FlowResult[Any]:
        """Run an input to its end, or to its questions, once the thread is free."""
        run, run_config = new_run(thread_id, config, self._queues)
        return await self._answer_on(run, input, context, run_config)

    def stream(
        self,
        input: Input | Decisions | Continuation,
        thread_id: str | None,
        context: Any,
        config: RunnableConfig | None,
    ) -> AsyncGenerator[AnyEvent, None]:
        """Run an input and yield its events; closing the generator cancels the run."""

        async def produce(put_event: PutEvent) -> None:
            run, run_config = new_run(thread_id, config, self._queues)
            emitter = EventEmitter(run, self._flow.name, put_event)
            run_config = merge_configs(run_config, {"callbacks": [ModelCallbacks(emitter)]})
            try:
                run.tell = emitter.emit
                result = await self._answer_on(run, input, context, run_config)
                for question in result.interrupts:
                    await emitter.emit(
                        InterruptEvent(
                            agent=question.agent or self._flow.name,
                            id=question.id,
                            payload=question.payload,
                            response_schema=question.response_schema,
                        )
                    )
                reason = None if result.status != "aborted" else result.reason
                usage = result.usage.to_dict()
                await emitter.emit(
                    FinalStateEvent(text=result.text, usage=usage, close_reason=reason)
                )
            except Exception as error:
                await emitter.emit_failure(error)
                raise
            finally:
                run.tell = None

        return event_stream(produce)

    async def history(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread: what was asked, and the outcomes."""
        snapshot = await whole_state(self._graph, thread_config(thread_id))
        return [*(snapshot.values.get("messages") or ())]

    async def result(self, thread_id: str) -> FlowResult[Any]:
        """Return the result of the last run on a thread, as far as it has come."""
        snapshot = await whole_state(self._graph, thread_config(thread_id), subgraphs=True)
        if not snapshot.values and not snapshot.next:
            raise RoutingError(f"there is no run on thread {thread_id!r}", code="unknown_thread")
        return FlowResult.of_values(
            snapshot.values,
            self._flow.outcome,
            is_over=not snapshot.next,
            interrupts=self._questions_in(snapshot),
            thread_id=thread_id,
        )

    async def questions(self, thread_id: str) -> tuple[Interrupt, ...]:
        """Return the open questions of a thread."""
        questions = self._questions_in(await self._snapshot(thread_id))
        decisions = decisions_in(await self._latest(thread_id)) if questions else {}
        return tuple(question for question in questions if question.id not in decisions)

    def _questions_in(self, snapshot: StateSnapshot) -> tuple[Interrupt, ...]:
        name = self._flow.name
        return questions_of((name, question) for _, question in reachable_questions(snapshot))

    async def forget(self, thread_id: str) -> None:
        """Delete a thread."""
        async with self._queues.take(thread_id, self._saver):
            await self._graph.checkpointer.adelete_thread(thread_id)  # type: ignore[union-attr]

    def judge(self, thread_id: str, success: bool) -> None:
        """Record the oracle's answer on the last outcome of a thread."""
        audit = None if self._flow.policy is None else self._flow.policy.audit
        if audit is None:
            raise ConfigurationError(
                f"the flow {self._flow.name!r} has no audit trail to record it: "
                "give guards=Guards.batch(audit=AuditTrail(JSONLSink(…)))"
            )
        if not judge(audit, self._flow.name, thread_id, success):
            raise RoutingError(
                f"the audit has no end of the flow {self._flow.name!r} on thread {thread_id!r}: "
                "judge a flow that has ended, by a flow with the same sink",
                code="not_ended",
            )

    async def _answer_on(
        self,
        run: Run,
        input: Input | Decisions | Continuation,
        context: Any,
        config: RunnableConfig,
    ) -> FlowResult[Any]:
        async with self._queues.take(run.thread_id, self._saver, run):
            run.began_at = clock().wall()
            try:
                with inside_run(run):
                    result = await self._turn(run, input, context, config)
                self._queues.unfinished_runs.pop(run.thread_id, None)
                return result
            except BaseException:
                self._queues.keep(run)  # its tools may still be at work
                raise
            finally:
                run.has_ended, run.outer = True, None

    async def _turn(
        self,
        run: Run,
        input: Input | Decisions | Continuation,
        context: Any,
        config: RunnableConfig,
    ) -> FlowResult[Any]:
        if isinstance(input, Command):
            input = decisions_of(input)
        if isinstance(input, Continuation):
            start = await self._start_from_cut_off_run(run)
        elif isinstance(input, Decisions):
            start = await self._start_from_decisions(run, input)
        else:
            start = await self._start_from_messages(run, messages_of(input), context, config)
        return await self._run_audited(run, start, context, config)

    async def _run_audited(
        self, run: Run, start: _Start, context: Any, config: RunnableConfig
    ) -> FlowResult[Any]:
        """Run the graph, and record its begin and its end in the audit trail."""
        audit = self._audit
        if run.is_resumed:
            run_continued(audit, run.id)
        else:
            text = str(start.graph_input["messages"][-1].text)
            run_began(audit, run.id, run.thread_id, text, flow=self._flow.name)
            run_took_over(audit, run.id, run.thread_id, start.effects)
        try:
            result = await self._run(run, start, context, config)
        except BaseException as error:
            is_failure = isinstance(error, Exception)
            reason = "failed" if is_failure else "cancelled"
            name = self._flow.name
            run_ended(audit, run.id, run.thread_id, reason, flow=name, error=kind_of(error))
            raise
        if result.status != "waiting":
            self._record_end(audit, run, result)
        return result

    def _record_end(self, audit: AuditTrail | None, run: Run, result: FlowResult[Any]) -> None:
        run_ended(
            audit,
            run.id,
            run.thread_id,
            result.reason,
            flow=self._flow.name,
            status=result.status,
            failure_class=result.failure_class,
            success=result.success,
            replans=result.replans,
            usage=result.usage.to_dict(),
        )

    @property
    def _audit(self) -> AuditTrail | None:
        policy = self._flow.policy
        return None if policy is None or outer_call() is not None else policy.audit

    # How runs start.

    async def _start_from_messages(
        self, run: Run, messages: Sequence[AnyMessage], context: Any, config: RunnableConfig
    ) -> _Start:
        """Begin a new input; a run before it that was ended and is not undone yet is undone first.

        One that was cut off, or that waits, is replaced: its task is answered so, and what it has
        done is undone with the new input, should that be aborted.
        """
        latest = await self._latest(run.thread_id)
        if latest is not None and not is_finished(latest):
            latest = await self._settle(run, latest, context, config)
        effects = await self._cut_off_effects(run, latest)
        run.turn_ids = {turn_id_of(latest), pending_turn_id(latest), run.id}
        replaced_messages: list[AnyMessage] = []
        if latest is not None and not is_finished(latest):
            replaced_messages = [*_pending_input(latest).get("messages", ())]
            replaced_messages.append(self._replace(run.thread_id, latest))
        graph_input: dict[str, Any] = {
            "messages": [*replaced_messages, *messages],
            "turn": new_turn(run.id, self._flow.name),
            "attempt": 0,
        }
        if effects is None:
            return _Start(graph_input)
        graph_input["guarded"] = effects.account(run.id)
        record = effects.logged_for(run.id, run.turn_ids - {run.id}, {})
        await EffectLog(self._graph.checkpointer, run.thread_id).store(record)  # type: ignore[arg-type]
        return _Start(graph_input, effects=tuple(effects.entries.values()))

    async def _settle(
        self, run: Run, latest: CheckpointTuple, context: Any, config: RunnableConfig
    ) -> CheckpointTuple | None:
        """End a run that only has to be undone, or whose question nobody has decided in time."""
        thread_id = run.thread_id
        snapshot = await self._snapshot(thread_id)
        effects = await self._cut_off_effects(run, latest)
        if effects is not None and effects.is_undoing and COMPENSATE not in snapshot.next:
            await self._begin_undoing(thread_id, effects)
            snapshot = await self._snapshot(thread_id)
        is_denied = overdue_questions(snapshot, latest) or rejections(snapshot, latest)
        if is_denied or COMPENSATE in snapshot.next:
            earlier = Run(pending_turn_id(latest) or run.id, thread_id, self._queues)
            earlier.is_resumed, earlier.tell = True, run.tell
            with inside_run(earlier):
                start = await self._resume(earlier, snapshot, latest, Decisions({}))
                await self._run_audited(earlier, start, context, config)
        return await self._latest(thread_id)

    async def _begin_undoing(self, thread_id: str, effects: CutOffEffects) -> None:
        """Lead a run to its undoing that has begun it, although its stored state is behind that."""
        guard = effects.record.undone_by
        turn = {**new_turn(effects.record.turn, self._flow.name), "closed": guard}
        end = aborted_end(guard, "", class_of_guard(guard))
        update = {"turn": turn, "guarded": effects.account(), "end": end}
        step: Command[Any] = Command(goto=COMPENSATE, update=update)
        await self._graph.aupdate_state(thread_config(thread_id), step, as_node="finalize")

    def _replace(self, thread_id: str, latest: CheckpointTuple) -> AnyMessage:
        """Record that a run was replaced before it came to an end; return what its task gets."""
        turn_id = pending_turn_id(latest) or ""
        fields = {"flow": self._flow.name, "status": "aborted"}
        run_ended(self._audit, turn_id, thread_id, "replaced", **fields)
        text = f"{self._flow.name} was cut off before the end, and a new task took its place."
        return AIMessage(text, id=f"outcome_{turn_id}")

    async def _start_from_cut_off_run(self, run: Run) -> _Start:
        """Go on with a run that was cut off: what has finished is not done again."""
        latest = await self._latest(run.thread_id)
        if latest is None or is_finished(latest):
            raise RoutingError(
                f"no run on thread {run.thread_id!r} was cut off: go on with a message",
                code="not_cut_off",
            )
        effects = await self._cut_off_effects(run, latest)
        if effects is not None and effects.is_undoing:
            snapshot = await self._snapshot(run.thread_id)
            if COMPENSATE not in snapshot.next:
                await self._begin_undoing(run.thread_id, effects)
                latest = await self._latest(run.thread_id)
        snapshot = await self._go_on(run, latest)
        return await self._resume(run, snapshot, latest, Decisions({}))

    async def _start_from_decisions(self, run: Run, answers: Decisions) -> _Start:
        """Refuse decisions on questions that are not open; LangGraph would ignore them silently.

        The same decision once more goes on with a run that was cut off after it.
        """
        latest = await self._latest(run.thread_id)
        snapshot = await self._go_on(run, latest)
        log = DecisionLog(run.thread_id, self._graph.checkpointer, latest)  # type: ignore[arg-type]
        if COMPENSATE in snapshot.next:  # the decision was accepted, and is being carried out
            log.refuse_others(answers.values, await log.on(answers.values.keys()))
            return _Start(None, earlier=_reports_in(snapshot))
        questions = Questions.of(snapshot, latest)
        new_values = await questions.accept(answers.values, log, run.id)
        if new_values:
            return await self._resume(run, snapshot, latest, Decisions(new_values, answers.sender))
        if (
            latest is None
            or is_finished(latest)
            or (questions.open_ids and not questions.decisions)
        ):
            await log.refuse(answers.values.keys())
        return await self._start_from_cut_off_run(run)

    async def _resume(
        self, run: Run, snapshot: StateSnapshot, latest: CheckpointTuple | None, answers: Decisions
    ) -> _Start:
        """Go on with decisions once they are stored, and with those of a run that was cut off."""
        log = DecisionLog(run.thread_id, self._graph.checkpointer, latest)  # type: ignore[arg-type]
        questions = Questions.of(snapshot, latest)
        decisions = await questions.store(answers, log, snapshot, run.id)
        resume: Any = Command(resume=decisions) if decisions else None
        return _Start(resume, _reports_in(snapshot), decided_ids=frozenset(decisions))

    async def _reopen(self, run: Run, ids: Collection[str]) -> None:
        """Open those questions again that are still asked after a run that had their decisions."""
        if ids:
            latest = await self._latest(run.thread_id)
            log = DecisionLog(run.thread_id, self._graph.checkpointer, latest)  # type: ignore[arg-type]
            await log.reopen(ids, await self._snapshot(run.thread_id))

    async def _go_on(self, run: Run, latest: CheckpointTuple | None) -> StateSnapshot:
        """Let a run be the one that was cut off, or that waits; return the state of its thread."""
        snapshot = await self._snapshot(run.thread_id)
        owner = (snapshot.values.get("turn") or {}).get("agent", self._flow.name)
        if owner != self._flow.name:
            raise RoutingError(
                f"on thread {run.thread_id!r} {owner!r} is at work, not {self._flow.name!r}: "
                f"let {owner!r} go on with it",
                code="other_agent",
            )
        run.is_resumed, run.id = True, pending_turn_id(latest) or run.id
        run.turn_ids = {run.id}
        return snapshot

    async def _latest(self, thread_id: str) -> CheckpointTuple | None:
        saver: Any = self._graph.checkpointer
        latest: CheckpointTuple | None = await saver.aget_tuple(thread_config(thread_id))
        return latest

    async def _snapshot(self, thread_id: str) -> StateSnapshot:
        return await whole_state(self._graph, thread_config(thread_id), subgraphs=True)

    async def _cut_off_effects(
        self, run: Run, latest: CheckpointTuple | None
    ) -> CutOffEffects | None:
        """Return what the thread's last run has done if it was cut off, None without actions."""
        if not self._effects:
            return None
        log = EffectLog(self._graph.checkpointer, run.thread_id)  # type: ignore[arg-type]
        first = await log.first_part()
        if first is None or not is_cut_off(first, latest, turn_id_of(latest)):
            return None
        record = await log.read() or first
        earlier = self._queues.unfinished_runs.get(run.thread_id)
        return await look_up_all(record, self._effects, earlier)

    async def _run(
        self, run: Run, start: _Start, context: Any, config: RunnableConfig
    ) -> FlowResult[Any]:
        try:
            output = await run_whole(
                self._graph,
                start.graph_input,
                with_saver(config, self._graph.checkpointer),  # type: ignore[arg-type]
                context=context,
                durability=self._flow.durability,
                version="v2",
            )
        except Exception as error:
            if refuses_decision(error):
                await self._reopen(run, start.decided_ids)
            raise
        asked_ids = {question.id for question in output.interrupts}
        await self._reopen(run, start.decided_ids & asked_ids)
        return self._result(run, start, output.value or {}, output.interrupts)

    def _result(
        self, run: Run, start: _Start, values: Mapping[str, Any], interrupts: Any
    ) -> FlowResult[Any]:
        reports: Mapping[str, ReportValues] = values.get("reports") or {}
        usages = [*self._usages_of(reports)]
        if interrupts:  # stages have been at work that have no report yet
            usages = [*self._usages_of(start.earlier), Usage.of_run(run)]
        return FlowResult.of_values(
            values,
            self._flow.outcome,
            is_over=not interrupts,
            usage=Usage.sum(usages),
            interrupts=questions_of((self._flow.name, question) for question in interrupts),
            thread_id=run.thread_id,
        )

    def _usages_of(self, reports: Mapping[str, ReportValues]) -> Iterator[Usage]:
        for report in reports.values():
            prefix = f"{self._flow.name}/{report['stage']}/"
            yield Usage.from_dict(report["usage"]).under(prefix)


def _reports_in(snapshot: StateSnapshot) -> dict[str, ReportValues]:
    """Return the reports in a state, with those of tasks that have finished beside others."""
    reports: dict[str, ReportValues] = {**(snapshot.values.get("reports") or {})}
    for task in snapshot.tasks:
        if isinstance(task.result, Mapping):
            reports |= task.result.get("reports") or {}
    return reports


def pending_turn_id(latest: CheckpointTuple | None) -> str | None:
    """Return the id of a thread's turn, also of one whose input is stored and nothing else yet."""
    turn = None if latest is None else _pending_input(latest).get("turn")
    return turn["id"] if turn else turn_id_of(latest)


def _pending_input(latest: CheckpointTuple) -> Mapping[str, Any]:
    """Return an input that is stored, and of which nothing else is yet; else nothing."""
    values = latest.checkpoint["channel_values"].get(START)
    return values if isinstance(values, Mapping) else {}
