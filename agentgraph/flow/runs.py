"""The runs of a flow on threads: one at a time on each, from an input or from decisions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.types import Command, StateSnapshot

from agentgraph.agents.run.decisions import (
    Questions,
    denials,
    overdue_questions,
    reachable_questions,
)
from agentgraph.agents.run.inputs import Input, decisions_of, messages_of
from agentgraph.agents.run.reply import questions_of
from agentgraph.agents.run.threads import queues_of, thread_config
from agentgraph.clock import clock, new_id
from agentgraph.errors import ConfigurationError, RoutingError, kind_of
from agentgraph.flow.audit.flow_run import judge
from agentgraph.flow.result import FlowResult
from agentgraph.flow.spec import FlowSpec
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import run_whole, whole_state
from agentgraph.graphs.task import with_saver
from agentgraph.guards import AuditTrail
from agentgraph.guards.records.audit_trail import run_began, run_continued, run_ended
from agentgraph.interception import outer_call
from agentgraph.outcomes import Interrupt
from agentgraph.running import Run, inside_run
from agentgraph.stream import AnyEvent, FinalStateEvent, InterruptEvent
from agentgraph.telling import EventEmitter, ModelCallbacks, PutEvent, event_stream
from agentgraph.usage import Usage


class Continuation:
    """Stands for an input where a run that was cut off is to go on."""


class FlowRuns:
    """Runs one flow's graph."""

    def __init__(self, flow: FlowSpec, graph: AnyCompiledGraph, saver: Any) -> None:
        self._flow, self._graph, self._saver = flow, graph, saver
        self._queues = queues_of(saver)

    async def answer(
        self,
        input: Input | Continuation,
        thread_id: str | None,
        context: Any,
        config: RunnableConfig | None,
    ) -> FlowResult[Any]:
        """Run an input to its end, or to its questions, once the thread is free."""
        run, run_config = self._new_run(thread_id, config)
        return await self._answer_on(run, input, context, run_config)

    def stream(
        self,
        input: Input | Continuation,
        thread_id: str | None,
        context: Any,
        config: RunnableConfig | None,
    ) -> AsyncGenerator[AnyEvent, None]:
        """Run an input and yield its events; closing the generator cancels the run."""

        async def produce(put_event: PutEvent) -> None:
            run, run_config = self._new_run(thread_id, config)
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
        config = thread_config(thread_id)
        return self._questions_in(await whole_state(self._graph, config, subgraphs=True))

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

    def _new_run(
        self, thread_id: str | None, config: RunnableConfig | None
    ) -> tuple[Run, RunnableConfig]:
        values = (config or {}).get("configurable", {})
        thread_id = thread_id or str(values.get("thread_id") or new_id())
        run_config: RunnableConfig = {
            **(config or {}),
            "configurable": {**values, "thread_id": thread_id},
        }
        return Run(new_id(), thread_id, self._queues), run_config

    async def _answer_on(
        self, run: Run, input: Input | Continuation, context: Any, config: RunnableConfig
    ) -> FlowResult[Any]:
        async with self._queues.take(run.thread_id, self._saver, run):
            run.began_at = clock().wall()
            try:
                with inside_run(run):
                    return await self._turn(run, input, context, config)
            finally:
                run.has_ended, run.outer = True, None

    async def _turn(
        self, run: Run, input: Input | Continuation, context: Any, config: RunnableConfig
    ) -> FlowResult[Any]:
        graph_input = await self._start(run, input)
        audit = self._audit
        if run.is_resumed:
            run_continued(audit, run.id)
        else:
            text = str(graph_input["messages"][-1].text)
            run_began(audit, run.id, run.thread_id, text, flow=self._flow.name)
        try:
            result = await self._run(run, graph_input, context, config)
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

    async def _start(self, run: Run, input: Input | Continuation) -> Any:
        """Return what the graph is run with: new messages, decisions, or None to go on."""
        if not isinstance(input, Continuation | Command):
            return {"messages": messages_of(input)}
        config = thread_config(run.thread_id)
        snapshot = await whole_state(self._graph, config, subgraphs=True)
        turn = snapshot.values.get("turn") or {}
        run.is_resumed = True
        if isinstance(input, Command):
            decisions = await self._accepted(run.thread_id, snapshot, input)
            run.id = turn.get("id") or run.id
            return Command(resume=decisions)
        if not snapshot.next:
            raise RoutingError(
                f"no run on thread {run.thread_id!r} was cut off: go on with a message",
                code="not_cut_off",
            )
        run.id = turn.get("id") or run.id
        return None

    async def _accepted(
        self, thread_id: str, snapshot: StateSnapshot, command: Command[Any]
    ) -> Mapping[str, Any]:
        saver: Any = self._graph.checkpointer
        latest = await saver.aget_tuple(thread_config(thread_id))
        questions = Questions.of(snapshot, latest)
        decisions = questions.accept(thread_id, decisions_of(command), saver)
        if questions.open_ids - decisions.keys():
            return {**denials(overdue_questions(snapshot)), **decisions}
        return decisions

    async def _run(
        self, run: Run, graph_input: Any, context: Any, config: RunnableConfig
    ) -> FlowResult[Any]:
        output = await run_whole(
            self._graph,
            graph_input,
            with_saver(config, self._graph.checkpointer),  # type: ignore[arg-type]
            context=context,
            durability=self._flow.durability,
            version="v2",
        )
        return self._result(run, output.value or {}, output.interrupts)

    def _result(self, run: Run, values: Mapping[str, Any], interrupts: Any) -> FlowResult[Any]:
        return FlowResult.of_values(
            values,
            self._flow.outcome,
            is_over=not interrupts,
            usage=Usage.of_run(run),
            interrupts=questions_of((self._flow.name, question) for question in interrupts),
            thread_id=run.thread_id,
        )
