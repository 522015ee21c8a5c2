"""A run of a flow, as the records of an audit trail have it.

Each stage records what it has written to the flow's state: its report, and at last the end. So the
records of a run give the state that its result was made of. A step that was killed, and has run
again, has recorded that twice under one key; the later one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgraph.guards import AuditTrail, Record, folded
from agentgraph.usage import Usage

_SPENDING = ("model", "settled")
_TEXTS_OF_VERDICTS = ("problems", "cause")


@dataclass(slots=True)
class FlowRun:
    """One run of a flow."""

    flow: str
    """The path of the flow, its name where it runs by itself."""
    run: str
    """The id of the outside input that it belongs to."""
    turn: str
    """Tells it from other runs of this flow for the same input."""
    thread: str = ""
    records: list[Record] = field(default_factory=list)
    """Its stages, and what its members have spent."""
    steps: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What each step has written to the flow's state, by the key of the step."""
    attempt: int = 1
    """Which plan was at work last."""
    exit: Mapping[str, Any] | None = None
    """How the run was over for its caller, None while it is not."""
    judgement: bool | None = None
    """What the oracle has said later."""

    @property
    def values(self) -> dict[str, Any]:
        """The channels of the flow's state of which its result is made."""
        reports = {key: report for step in self.steps.values() for key, report in _reports_in(step)}
        ends = [step["end"] for step in self.steps.values() if step.get("end")]
        end = {**ends[-1]} if ends else self._exit_as_end
        if end is not None and self.judgement is not None:
            end["success"] = self.judgement
        return {"reports": reports, "attempt": self.attempt, "end": end}

    @property
    def usage(self) -> Usage:
        """What the run has used: as its caller was told, else what it has spent so far."""
        figures = (self.exit or {}).get("usage")
        return Usage.from_dict(figures) if isinstance(figures, Mapping) else self.spend

    @property
    def spend(self) -> Usage:
        """What all its model calls come to: those before a human's decision or a kill too."""
        agents = dict.fromkeys(record.agent for record in self.records if record.kind in _SPENDING)
        return Usage.of_parts({agent: self._usage_of(agent) for agent in agents})

    def _usage_of(self, agent: str) -> Usage:
        spend = folded(record for record in self.records if record.agent == agent).spend
        return Usage(spend.input_tokens, spend.output_tokens, spend.total_tokens, spend.usd)

    @property
    def _exit_as_end(self) -> dict[str, Any] | None:
        """The end of a run that no stage has ended: it has failed, or was cancelled."""
        if self.exit is None:
            return None
        names = ("reason", "failure_class", "success")
        own = {name: self.exit[name] for name in names if self.exit.get(name) is not None}
        return {"status": self.exit.get("status") or "aborted", **own}


def flow_runs(records: Iterable[Record]) -> list[FlowRun]:
    """Return the runs of flows in these records, which may be of several runs, in their order."""
    fold = _Fold()
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record.run, []).append(record)
    for own in runs.values():
        fold.current.clear()
        for record in sorted(own, key=lambda record: record.seq):
            fold.take(record)
    return [*fold.runs.values()]


def outermost(runs: Iterable[FlowRun]) -> list[FlowRun]:
    """Return the runs of flows that are no parts of other flows."""
    every = [*runs]
    return [
        run
        for run in every
        if not any(o.run == run.run and run.flow.startswith(f"{o.flow}/") for o in every)
    ]


@dataclass(slots=True)
class _Fold:
    """The runs of flows in the records so far."""

    runs: dict[tuple[str, str, str], FlowRun] = field(default_factory=dict)
    current: dict[str, FlowRun] = field(default_factory=dict)
    """The run that is under way, by the path of its flow."""

    def take(self, record: Record) -> None:
        """Add the record that comes next."""
        data = record.data
        if record.kind == "stage" and isinstance(data.get("turn"), str):
            self._add_stage(record, data)
        elif record.kind in _SPENDING:
            for path, flow in self.current.items():
                if record.agent.startswith(f"{path}/"):
                    flow.records.append(record)
        elif record.kind == "end" and (run := self.current.get(str(data.get("flow")))):
            run.exit = data
        elif record.kind == "judgement":
            key = record.run, str(data.get("flow")), str(data.get("turn"))
            if key in self.runs:
                self.runs[key].judgement = bool(data.get("success"))

    def _add_stage(self, record: Record, data: Mapping[str, Any]) -> None:
        path = _path_of_flow(record.agent, data)
        key = record.run, path, data["turn"]
        run = self.runs.setdefault(key, FlowRun(path, *key[::2], record.thread))
        self.current[path] = run
        run.attempt = max(run.attempt, data["attempt"])
        run.records.append(record)
        run.exit = None  # what comes after the end of a run goes on with it
        if step := data.get("key"):
            run.steps.pop(step, None)
            run.steps[step] = data


def _path_of_flow(agent: str, data: Mapping[str, Any]) -> str:
    """Return the path of a flow from that of its stage, or of the worker of its stage."""
    names = [str(data["stage"]), *filter(None, [data.get("worker")])]
    return agent.removesuffix("/" + "/".join(names))


def judge(audit: AuditTrail, flow: str, thread: str, success: bool) -> bool:
    """Record what the oracle says of the last outcome on a thread; False where there is none."""
    for run_id in reversed(audit.runs()):
        for run in reversed(flow_runs(audit.records(run_id))):
            if run.flow == flow and run.thread == thread and run.values["end"]:
                if not audit.knows(run_id):
                    audit.resume(run_id)
                data = {"flow": flow, "turn": run.turn, "success": success}
                audit.record(run_id, "judgement", agent=flow, thread=thread, data=data)
                return True
    return False


# What a step records.


def step_data(update: Mapping[str, Any], key: str, *, payloads: bool) -> dict[str, Any]:
    """Return what is recorded of a step's update of the state, {} where it is no report or end."""
    reports, end = update.get("reports") or {}, update.get("end")
    reports = getattr(reports, "value", reports)  # the first stage overwrites those of earlier runs
    if not reports and end is None:
        return {}
    data: dict[str, Any] = {"status": "reported", "key": key}
    if reports:
        data["reports"] = {
            name: report if payloads else _report_without_texts(report)
            for name, report in reports.items()
        }
    if end is not None:
        data["end"] = end if payloads else {**end, "outcome": None, "cause": "", "text": ""}
    return data


def verdict_data(
    verdict: Mapping[str, object] | None, *, payloads: bool
) -> Mapping[str, object] | None:
    """Return what is recorded of a verdict."""
    if verdict is None or payloads:
        return verdict
    return {name: value for name, value in verdict.items() if name not in _TEXTS_OF_VERDICTS}


def _report_without_texts(report: Mapping[str, Any]) -> dict[str, Any]:
    verdicts = [{**verdict, "problems": ()} for verdict in report["verdicts"]]
    return {**report, "verdicts": verdicts, "output": None}


def _reports_in(step: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    reports = step.get("reports")
    return reports.items() if isinstance(reports, Mapping) else ()
