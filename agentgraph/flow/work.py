"""The work stage: a node for each worker, and what has become of each piece of work.

LangGraph does not wait until the results of a node are stored while others still run. A process
that is killed then would do finished work again. So a worker's node writes its entry to the pending
writes of the checkpoint that the wave began from, and reads it there when it is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from pydantic_core import to_json
from typing_extensions import TypedDict

from agentgraph.flow import prompts
from agentgraph.flow.members import Answer, Function, Member, as_json, call_function, object_in
from agentgraph.flow.result import mast_of
from agentgraph.flow.stage import NO_STAGE, Stage
from agentgraph.flow.stage_run import StageRun
from agentgraph.flow.stages.failure import StageFailure, failure_in
from agentgraph.flow.state import FlowState, ReportValues
from agentgraph.flow.topology import Debate, Entry, Failure, Item, Topology
from agentgraph.flow.values import Brief, Plan, Summary, plan_of, text_of_brief
from agentgraph.graphs.task import read_state
from agentgraph.guards import CostBudget
from agentgraph.guards.records.pending_writes import PendingWrites, pending_writes_of
from agentgraph.running import current_run

_CHANNEL = "agentgraph_finished"
_KEYS = ("messages", "task", "attempt", "plan", "entries", "turn")


@dataclass(frozen=True, slots=True)
class WorkStage:
    """The workers of a flow, and the forms of what passes between them and the other stages."""

    topology: Topology
    workers: Mapping[str, Member | Function]
    brief: type[Brief]
    summary: type[Summary]

    # What has become of the work.

    def plan_in(self, state: FlowState) -> Plan:
        """Return the plan that is at work."""
        return plan_of(self.brief).model_validate(state["plan"])

    def entries_in(self, state: FlowState) -> dict[str, Entry]:
        """Return the entries of the present attempt, by their keys within it."""
        prefix = f"{state['attempt']}/"
        entries = state.get("entries") or {}
        return {
            key.removeprefix(prefix): entry
            for key, entry in entries.items()
            if key.startswith(prefix)
        }

    def summaries_in(self, state: FlowState) -> list[Summary]:
        """Return the summaries that are aggregated."""
        entries = self.entries_in(state)
        keys = self.topology.results(self.plan_in(state), entries)
        return [self.summary_in(entries[key]) for key in keys if entries[key].get("summary")]

    async def is_over(self, state: FlowState) -> bool:
        """Tell whether nothing more is due; those in a debate are asked whether they agree."""
        plan, entries = self.plan_in(state), self.entries_in(state)
        if not self.topology.due(plan, entries):
            return True
        if not isinstance(debate := self.topology, Debate):
            return False
        summaries = [self.summary_in(entries[key]) for key in debate.answers(plan, entries)]
        return bool(summaries and await call_function(debate.agree or _say_the_same, summaries))

    def summary_in(self, entry: Entry) -> Summary:
        """Return the summary of an entry that has one."""
        return self.summary.model_validate(entry["summary"])

    def check_results(self, state: FlowState) -> None:
        """Raise the failure of the stage where workers have failed: that of the first one."""
        entries = self.entries_in(state)
        keys = self.topology.results(self.plan_in(state), entries)
        failures = [
            (entries[key]["worker"], failure)
            for key in keys
            if (failure := entries[key].get("failure")) is not None
        ]
        if failures:
            problems = [f"{worker}: {failure['cause']}" for worker, failure in failures]
            problems += self._work_not_begun(state)
            rejections = [entry for entry in failures if entry[1]["is_rejected"]]
            worker, first = (rejections or failures)[0]
            failure_class: Any = first["failure_class"]
            raise StageFailure(
                failure_class,
                first["guard"],
                "; ".join(problems),
                problems,
                is_rejected=bool(rejections),
                worker=worker,
            )

    def has_failures(self, state: FlowState) -> bool:
        """Tell whether any work of the present attempt has failed."""
        return any(entry.get("failure") for entry in self.entries_in(state).values())

    def _work_not_begun(self, state: FlowState) -> list[str]:
        numbers = {key.rpartition(".")[2] for key in self.entries_in(state)}
        briefs = enumerate(self.plan_in(state).briefs)
        return [f"{b.worker}: was not begun" for n, b in briefs if str(n) not in numbers]

    def wave(
        self, stage: StageRun, items: Sequence[Item], stages: Mapping[str, Stage]
    ) -> Sequence[Item]:
        """Return the first of the pieces of work that the purse can pay for at the same time.

        The budget of a worker is reserved before it begins; what has not enough then, waits for
        what others leave.
        """
        if stage.site is None:
            return items
        purses = stage.site.account.spends_under(stage.site.policy)
        tokens, dollars = 0, Decimal(0)
        for count, item in enumerate(items):
            budget = stages.get(item.brief.worker, NO_STAGE).budget
            if budget is None:
                continue
            tokens, dollars = tokens + (budget.tokens or 0), dollars + (budget.dollars or 0)
            worst_case = CostBudget(tokens=tokens, usd=dollars)
            if count and any(purse.lacks(worst_case) for purse in purses):
                return items[:count]
        return items

    # The node of a worker.

    async def run(
        self, stage: StageRun, state: FlowState, config: RunnableConfig
    ) -> tuple[str, Entry, Mapping[str, ReportValues]]:
        """Run a worker on its brief, unless it has finished; return its entry and its report."""
        await stage.catch_up(config)
        key = f"{state['attempt']}/{stage.key}"
        finished_work = FinishedWork.of(config)
        work = await finished_work.read(key, stage)
        if work is None:
            await stage.tell("started")
            entry, verdict = await self._entry_of(stage, state)
            work = Work(
                key=key, entry=entry, report=stage.report(entry["summary"]), verdict=verdict
            )
            await finished_work.write(work, stage)
        # Only now: work that events tell as finished is never done again.
        await stage.tell("failed" if work["entry"]["failure"] else "finished", work["verdict"])
        return key, work["entry"], work["report"]

    async def _entry_of(
        self, stage: StageRun, state: FlowState
    ) -> tuple[Entry, Mapping[str, object]]:
        """Return what a worker has brought, or why nothing, and the verdict that events tell."""
        try:
            summary, transfer = await stage.in_time(partial(self._work, stage, state))
        except GraphBubbleUp:
            raise
        except Exception as error:
            return self.failed(stage, failure_in(error))
        verdict = {"passed": True, "confidence": summary.confidence}
        values = as_json(summary)
        return Entry(worker=stage.worker, summary=values, failure=None, transfer=transfer), verdict

    def failed(self, stage: StageRun, problem: StageFailure) -> tuple[Entry, Mapping[str, object]]:
        """Return the entry of a worker that brings nothing, and the verdict that events tell."""
        stage.note_failure(problem)
        mast = mast_of(problem.failure_class)
        verdict = {"passed": False, "problems": [*problem.problems], "mast": mast}
        failure = Failure(
            failure_class=problem.failure_class,
            guard=problem.guard,
            cause=problem.cause,
            is_rejected=problem.is_rejected,
        )
        return Entry(worker=stage.worker, summary=None, failure=failure, transfer=None), verdict

    async def _work(self, stage: StageRun, state: FlowState) -> tuple[Summary, str | None]:
        """Let a worker do its brief; return its summary, and the peer that it hands over to."""
        task, entries = state["sent"], self.entries_in(state)
        brief = stage.read(self.brief, task["brief"])
        shown = [self.summary_in(entries[key]) for key in task["shown"] if key in entries]
        artifacts = [name for name in brief.requires if name not in self.workers]
        await stage.check_before(as_json(brief), _names_in(entries), artifacts)
        request = f"{stage.worker} {brief.task}"
        stage.learn(request)
        worker, transfer = self.workers[stage.worker], None
        if isinstance(worker, Member):
            answer = await stage.answer_of(worker, self._text_for(brief, shown))
            transfer = answer.transfer if answer.transfer in self.workers else None
            if transfer is not None:
                stage.check_hop(transfer, sum(1 for e in entries.values() if e.get("transfer")))
            value = _value_of(answer) or (f"Handed over to {transfer}." if transfer else "")
            if worker.schema is not None and isinstance(value, str):
                value = object_in(value)
        else:
            value = await call_function(worker, brief, shown)
        summary = self._as_summary(stage, value)
        stage.learn(summary.text, request)
        await stage.check_after(as_json(summary))
        return summary, transfer

    def _text_for(self, brief: Brief, shown: Sequence[Summary]) -> str:
        if self.topology.name == "debate" and shown:
            return f"{text_of_brief(brief)}\n\n{prompts.answers_of_others(shown)}"
        return text_of_brief(brief, shown)

    def _as_summary(self, stage: StageRun, value: object) -> Summary:
        """Return a worker's answer as a summary; a text, or any other object, is put into one."""
        worker = {"worker": stage.worker}
        values = value.model_dump() if isinstance(value, Summary) else as_json(value)
        if isinstance(values, Mapping) and "text" in values:
            summary = stage.read(self.summary, {**values, **worker})
        else:
            text = values if isinstance(values, str) else to_json(values, fallback=str).decode()
            artifacts = values if isinstance(values, Mapping) else {}
            values = {"text": text if values is not None else "", "artifacts": artifacts}
            summary = stage.read(self.summary, {**values, **worker})
        if not summary.text.strip() and not summary.artifacts:
            raise StageFailure("schema_failure", "gate", f"{stage.worker} has answered nothing")
        return summary


def state_of_task(state: FlowState, config: RunnableConfig, *, is_guarded: bool) -> FlowState:
    """Return the state of a worker's task, which a `Send` has started with its brief alone."""
    keys = (*_KEYS, "guarded") if is_guarded else _KEYS
    return cast("FlowState", {**read_state(config, keys), "sent": state["sent"]})


async def _say_the_same(summaries: Sequence[Summary]) -> bool:
    return len({summary.text.strip() for summary in summaries}) == 1


def available_names(summaries: Sequence[Summary]) -> list[str]:
    """Return what stages and briefs may require: workers with a summary, and their artifacts."""
    return [name for summary in summaries for name in (summary.worker, *summary.artifacts)]


def _names_in(entries: Mapping[str, Entry]) -> list[str]:
    """Return what a brief may require, read from the entries as they are stored."""
    return [
        name
        for entry in entries.values()
        if (summary := entry.get("summary"))
        for name in (entry["worker"], *(summary.get("artifacts") or ()))
    ]


def _value_of(answer: Answer) -> Any:
    return answer.text if answer.output is None else answer.output


class Work(TypedDict):
    """A finished piece of work."""

    key: str
    entry: Entry
    report: Mapping[str, ReportValues]
    verdict: Mapping[str, object]
    """What events say of its end."""


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """The finished work of one wave; nothing is stored where the flow is not."""

    pending_writes: PendingWrites | None

    @classmethod
    def of(cls, config: RunnableConfig) -> FinishedWork:
        """Return the finished work of the wave that a node belongs to."""
        return cls(pending_writes_of(config))

    async def read(self, key: str, stage: StageRun) -> Work | None:
        """Return the work under a key, None where it is not finished.

        What all finished work of the wave has spent and done is added to the flow's account: the
        graph's state has it only when the wave is over.
        """
        if self.pending_writes is None or not _may_run_again(stage):
            return None
        work: Work | None = None
        for value in await self.pending_writes.read(_CHANNEL):
            if stage.site is not None and value["account"] is not None:
                stage.site.account.merge(value["account"])
            if value["work"]["key"] == key:
                work = value["work"]
        return work

    async def write(self, work: Work, stage: StageRun) -> None:
        """Write what is finished, with the account; it is stored when this returns."""
        if self.pending_writes is not None:
            account = None if stage.site is None else stage.site.account.dump()
            await self.pending_writes.write({"work": work, "account": account}, _CHANNEL)


def _may_run_again(stage: StageRun) -> bool:
    """Tell whether the work may have been finished by another process: each read costs."""
    run, site = current_run(), stage.site
    return run is None or run.is_resumed or (site is not None and site.ledger is not None)
