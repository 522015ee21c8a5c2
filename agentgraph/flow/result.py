"""What a flow gives: its outcome, why it ended so, and what each of its stages did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, TypeAdapter

from agentgraph.display import code, escaped, panel, prose, row
from agentgraph.errors import ConfigurationError
from agentgraph.flow.audit.flow_run import FlowRun, flow_runs, outermost
from agentgraph.flow.audit.stage_report import StageReport, reports_of
from agentgraph.flow.display.run_picture import picture_of_stages, table_of_stages
from agentgraph.guards import FailureClass, Record
from agentgraph.outcomes import Interrupt
from agentgraph.usage import Usage

T = TypeVar("T")

_JSON = TypeAdapter(Any)
_OWN = ("status", "outcome", "text", "success", "reason", "failure_class", "replans", "thread_id")

Status: TypeAlias = Literal["finished", "aborted", "waiting"]
Mast: TypeAlias = Literal["specification", "inter_agent", "verification"]

_MAST: Mapping[FailureClass, Mast] = {
    "spec_malformed": "specification",
    "infinite_loop": "specification",
    "cost_overrun": "specification",
    "deadlock": "inter_agent",
    "no_progress": "inter_agent",
    "provider_error": "inter_agent",
    "schema_failure": "verification",
    "unsafe_output": "verification",
}


def mast_of(failure_class: FailureClass) -> Mast:
    """Return the category of a failure in the MAST taxonomy of multi-agent failures."""
    return _MAST[failure_class]


@dataclass(frozen=True, slots=True)
class FlowResult(Generic[T]):
    """The end of a flow, or the questions that it waits with.

    result = await flow.ainvoke("A report on tides")
    result.outcome, result.status        # an object of the `outcome` schema, "finished"
    for stage in result.stages: ...
    """

    status: Status
    outcome: T | None = None
    text: str = ""
    """The outcome in words; why the flow was aborted, where it was."""
    success: bool | None = None
    """What the oracle says of the outcome, None without one."""
    reason: str = ""
    """Why it has ended: "finished", or the guard or the failure that has ended it."""
    failure_class: FailureClass | None = None
    replans: int = 0
    stages: tuple[StageReport, ...] = ()
    usage: Usage = field(default_factory=Usage)
    interrupts: tuple[Interrupt, ...] = ()
    thread_id: str = ""

    @classmethod
    def of_values(
        cls,
        values: Mapping[str, Any],
        outcome: type[BaseModel] | None = None,
        *,
        is_over: bool = True,
        **fields: Any,
    ) -> FlowResult[Any]:
        """Read a result from the flow's state, or from an audit, with other `fields`.

        Without a `usage` it is that of the stages.
        """
        end: Mapping[str, Any] = values.get("end") or {}
        if not is_over:
            end = {"status": "waiting", "reason": ""}
        value = end.get("outcome")
        stages = reports_of(values.get("reports") or {})
        fields.setdefault("usage", _usage_of(stages))
        return FlowResult(
            status=end.get("status", "aborted"),
            outcome=value if outcome is None or value is None else outcome.model_validate(value),
            text=str(end.get("text") or ""),
            success=end.get("success"),
            reason=str(end.get("reason", "failed")),
            failure_class=end.get("failure_class"),
            replans=max(0, (values.get("attempt") or 1) - 1),
            stages=stages,
            **fields,
        )

    @classmethod
    def from_records(
        cls, records: Iterable[Record], outcome: type[BaseModel] | None = None
    ) -> FlowResult[Any]:
        """Rebuild the result of a flow from the records of its run in an audit trail.

            audit = AuditTrail(JSONLSink("audit.jsonl"), payloads=True)
            [*_, last] = audit.runs(thread_id)
            result = FlowResult.from_records(audit.records(last), outcome=Report)

        `outcome` is the flow's. Without `payloads` there are no texts: no outcome, no outputs and
        no problems. A run without an end is "waiting", whatever it waits for. Of several runs it is
        the last one. Raises `ConfigurationError` where the records have no flow.
        """
        runs = outermost(flow_runs(records))
        if not runs:
            raise ConfigurationError("there is no run of a flow in these records")
        return cls.of_run(runs[-1], outcome)

    @classmethod
    def of_run(cls, run: FlowRun, outcome: type[BaseModel] | None = None) -> FlowResult[Any]:
        """Read a result from a run in an audit."""
        values = run.values
        fields = {"usage": run.usage, "thread_id": run.thread}
        return cls.of_values(values, outcome, is_over=values["end"] is not None, **fields)

    @property
    def output(self) -> T | None:
        """The outcome, as agents call it: for whoever asks a flow as it asks an agent."""
        return self.outcome

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        values: dict[str, Any] = _JSON.dump_python(
            {
                **{name: getattr(self, name) for name in _OWN},
                "stages": [report.to_dict() for report in self.stages],
                "usage": self.usage.to_dict(),
                "interrupts": [interrupt.to_dict() for interrupt in self.interrupts],
            },
            mode="json",
            fallback=str,
        )
        return values

    def _repr_html_(self) -> str:
        parts = [prose(self.text)] if self.text else []
        parts += [interrupt._repr_html_() for interrupt in self.interrupts]
        if self.stages:
            is_aborted = self.status == "aborted"
            parts += [table_of_stages(self.stages)]
            parts += [picture_of_stages(self.stages, self.replans, is_aborted=is_aborted)]
        parts.append(row("usage", escaped(self.usage.summary())))
        if self.reason:
            parts.append(row("reason", code(self.reason)))
        if self.success is not None:
            parts.append(row("oracle", "a success" if self.success else "no success"))
        return panel(f"flow {self.status}", *parts)


def _usage_of(stages: Iterable[StageReport]) -> Usage:
    """Sum up the usage of stages, those left out that asked no model."""
    parts = {str(n): r.usage for n, r in enumerate(stages) if r.usage.total_tokens}
    return replace(Usage.of_parts(parts), by_agent={})
