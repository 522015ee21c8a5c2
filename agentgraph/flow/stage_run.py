"""One run of a stage: its gates, its deadline, its report, and what is told of it.

All stages have the same anatomy: the gate before, the work, the gate after. A check that does not
pass raises `StageFailure`; what follows from that is decided in `decisions`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from agentgraph.agents.run.inputs import Block
from agentgraph.clock import clock
from agentgraph.flow.audit.flow_run import step_data, verdict_data
from agentgraph.flow.audit.stage_report import ValidationResult
from agentgraph.flow.members import (
    Answer,
    Function,
    Member,
    MemberRun,
    call_function,
    faults_in,
    name_of,
    read_as,
)
from agentgraph.flow.stage import NO_STAGE, Stage
from agentgraph.flow.stages.failure import StageFailure, class_of_guard, error_text
from agentgraph.flow.stages.stage_guards import StageInterceptor
from agentgraph.flow.state import ReportValues
from agentgraph.graphs.task import task_id_of
from agentgraph.guards import Decision, FailureClass, Gate, Guards, Subject
from agentgraph.guards.nodes.site import Site, inside_stage
from agentgraph.guards.records.pauses import catch_up
from agentgraph.interception import Admission, inside_tool, intercepted_by
from agentgraph.stream import StageEvent, StageStatus, emit
from agentgraph.usage import Usage

logger = logging.getLogger("agentgraph")

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@dataclass(slots=True)
class StageRun:
    """One run of a stage, or of one worker in the work stage."""

    name: str
    attempt: int
    path: str
    """The path of the flow."""
    settings: Stage = NO_STAGE
    media: Sequence[Block] = ()
    """The images and files of the task, which its members are shown with their requests."""
    worker: str = ""
    key: str = ""
    """Identifies the piece of work within its attempt."""
    turn: str = ""
    """The run of the flow that it belongs to."""
    interceptor: StageInterceptor | None = None
    """The guards, None without any."""
    visit: str = ""
    """Identifies the visit to the flow, where one turn may visit it several times."""
    is_part: bool = False
    """Whether it belongs to the run before it: the gate of a stage, or a further wave of work."""
    started_at: float = field(default_factory=lambda: clock().wall())
    verdicts: list[ValidationResult] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    output: Any = None
    """What it has made so far: a human may be asked about it."""

    @property
    def site(self) -> Site | None:
        """The flow's guards at this stage."""
        return None if self.interceptor is None else self.interceptor.site

    def policy_for(self, failure: StageFailure) -> Guards | None:
        """Return the guards that decide on a failure: those of the worker, else of the stage."""
        if self.interceptor is None:
            return None
        return self.interceptor.guards.policies[failure.worker or self.name]

    @property
    def label(self) -> str:
        """The name by which checks and questions call it."""
        return self.worker or self.name

    async def tell(self, status: StageStatus, verdict: Mapping[str, object] | None = None) -> None:
        """Record and emit that the stage has begun or ended."""
        self._record(status=status, verdict=verdict_data(verdict, payloads=self.has_payloads))
        await emit(
            StageEvent(
                agent=self.path,
                stage=self.name,
                status=status,
                attempt=self.attempt,
                worker=self.worker,
                verdict=verdict,
            )
        )

    async def record(self, update: Mapping[str, Any], config: RunnableConfig) -> None:
        """Record what a node writes to the flow's state, as far as the flow's result has it.

        The log of a session gets the end of the flow, without its text, which the log has anyhow.
        """
        task = task_id_of(config)
        if data := step_data(update, task, payloads=self.has_payloads):
            self._record(**data)
        if self.site is not None and update.get("end"):
            data = step_data({"end": update["end"]}, task, payloads=False)
            await self.site.log(kind="stage", data={**self._about, **data})

    def _record(self, **data: object) -> None:
        if self.site is not None:
            self.site.record("stage", **{**self._about, **data})

    @property
    def _about(self) -> dict[str, object]:
        about = {"stage": self.name, "attempt": self.attempt, "worker": self.worker}
        return {**about, "turn": self.turn}

    @property
    def has_payloads(self) -> bool:
        """Whether the records have the texts of users and models."""
        audit = None if self.site is None else self.site.policy.audit
        return audit is not None and audit.payloads

    async def catch_up(self, config: RunnableConfig) -> None:
        """Read what another process has stored of the account, where a run goes on."""
        site = self.site
        if site is not None and site.ledger is None and site.account.may_ask:
            await catch_up(site.account, config)

    # Gates.

    async def check_before(
        self, value: object, available: Sequence[str] = (), requires: Sequence[str] = ()
    ) -> None:
        """Check what goes into the stage: required artifacts, headroom, the user's gate.

        A brief `requires` artifacts beside those of the stage.
        """
        names = dict.fromkeys((*self.settings.requires, *requires))
        absent_names = [name for name in names if name not in available]
        problems = [f"{name!r} is required, and no summary has it" for name in absent_names]
        self.note("before", "requires", problems)
        if problems:
            raise StageFailure("spec_malformed", "gate", "; ".join(problems), problems)
        await self._check_headroom()
        await self._check_gate(self.settings.before, "before", value)

    async def check_after(self, value: object) -> None:
        """Check what the stage has made, by the user's gate."""
        self.output = value
        await self._check_gate(self.settings.after, "after", value)

    async def check_work(self, work: Stage, summaries: object) -> None:
        """Check what the work stage has brought, by its gate: it ends where this stage begins."""
        await self._check_gate(work.after, "before", summaries)

    def note(
        self, side: str, check: str, problems: Sequence[str] = (), confidence: float | None = None
    ) -> None:
        """Note the result of a check."""
        gate = f"{self.label}:{side}"
        passed = not problems
        self.verdicts.append(ValidationResult(gate, check, passed, tuple(problems), confidence))

    async def note_error(self, check: str, error: Exception) -> None:
        """Note and record a check that could not be made, and in whose way nothing stands."""
        logger.info("the %s has failed", check, exc_info=error)
        what = f"the {check} has failed"
        # The report is for the developer, the record for whoever reads the session too.
        self.note("after", check, [f"{what}: {type(error).__name__}: {error}"])
        cause = f"{what}: {error_text(error)}"
        if self.site is not None:
            await self.site.decide(Decision("allow", check, cause, "", {"stage": self.name}))

    def note_failure(self, failure: StageFailure) -> None:
        """Note why the stage has failed, where no check has done so."""
        if all(verdict.passed for verdict in self.verdicts):
            self.note("after", failure.guard, failure.problems)

    async def _check_headroom(self) -> None:
        if self.site is None:
            return
        for spend in self.site.account.spends_under(self.site.policy):
            denial = spend.exhausted()
            own = self.settings.budget
            if denial is None and own is not None and spend.budget is not own:
                denial = spend.lacks(own)  # a worker begins only with all that it may need
            self.note("before", "budget", () if denial is None else [denial.cause])
            if denial is not None:
                raise StageFailure("cost_overrun", denial.guard, denial.cause)

    async def _check_gate(self, gate: Gate | None, side: str, value: object) -> None:
        if gate is None:
            return
        text = value if isinstance(value, str) else to_json(value, fallback=str).decode()
        context = {"stage": self.name, "worker": self.worker, "attempt": self.attempt}
        subject = Subject(self.label, text=text, context=context)
        result = await gate.check(subject, "pre" if side == "before" else "post", self.label)
        if self.site is not None:
            self.site.record("gate", **result.to_dict())
        for check in result.checks:
            if check.status != "skipped":
                failed = check.stands_in_the_way
                problem = f"{check.message}{f' ({check.evidence})' if check.evidence else ''}"
                self.note(side, check.name.partition(":")[0], [problem] if failed else ())
        if not result.passed:
            failure_class = result.failure_class or "schema_failure"
            problems = [c.message for c in result.checks if c.stands_in_the_way]
            evidence = {"validation": result.to_dict()}
            raise StageFailure(failure_class, "gate", result.cause, problems, evidence)

    def check_hop(self, target: str, hops: int) -> None:
        """Check whether a worker may hand over to a peer, after so many hops."""
        if self.site is None:
            return
        limit, grants = self.site.policy.hops, self.site.account.spending.grants
        decision = None if limit is None else limit.check(hops, grants)
        if decision is not None and not decision.allows:
            raise StageFailure("deadlock", decision.guard, decision.cause)
        self.site.record("handoff", source=self.site.place.path, target=target, hop=True)

    async def admit(self, workers: Sequence[str]) -> Admission:
        """Count the workers that begin now, and say which may not."""
        if self.interceptor is None:
            return Admission()
        return await self.interceptor.dispatch(workers, levels=0)  # the stage is no level

    # Work.

    def learn(self, text: str, question: str = "") -> None:
        """Note a brief or its result: what is new begins the count of model calls anew."""
        if self.site is not None:
            self.site.account.learn(text, question)

    async def in_time(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the work, which is cut off at the deadlines of stage and flow."""
        if self.site is None:
            return await work()
        with inside_stage(self.site.policy.deadlines.stage()):
            return await self.site.cut_off(work)

    async def ask(
        self,
        member: Member | Function,
        text: str,
        schema: type[M] | None = None,
        arguments: Sequence[object] = (),
    ) -> Any:
        """Ask a member, or call a function; return its answer, in the form of the schema."""
        if not isinstance(member, Member):
            value = await call_function(member, *arguments)
        else:
            answer = await self._run(member, text)
            value = answer.text if answer.output is None else answer.output
        if schema is not None:
            return self.read(schema, value)
        if value is None or (isinstance(value, str) and not value.strip()):
            name = member.name if isinstance(member, Member) else name_of(member)
            raise StageFailure("schema_failure", "gate", f"{name} has answered nothing")
        return value

    async def answer_of(self, member: Member, text: str) -> Answer:
        """Run a worker; raises `StageFailure` where a guard has ended it."""
        return await self._run(member, text)

    async def _run(self, member: Member, text: str) -> Answer:
        key = "/".join([*filter(None, (self.turn, self.visit)), self.name])
        key = f"{key}/{self.attempt}/{self.key or 0}"
        run = MemberRun.begin(key, f"{self.path}/{self.name}/")
        try:
            if self.interceptor is None:
                answer = await member.ask(text, self.media, run)
            else:
                with intercepted_by(self.interceptor), inside_tool(self.name):
                    answer = await member.ask(text, self.media, run)
        finally:
            self.usage = Usage.sum([self.usage, Usage.of_run(run.part)])
        if run.part.is_resumed and self.site is not None and answer.account is not None:
            # An earlier process may have run the member to its end: then no node has read it.
            self.site.account.absorb(answer.account)
        if answer.closed_by:
            failure_class: Any = answer.failure_class or class_of_guard(answer.closed_by)
            raise StageFailure(
                failure_class,
                answer.closed_by,
                answer.cause or answer.text,
                is_rejected=answer.is_rejected,
            )
        return answer

    def read(self, schema: type[M], value: object) -> M:
        """Return a value in a form, and note the check; `StageFailure` where it does not fit."""
        try:
            result = read_as(schema, value)
        except ValidationError as error:
            problems = faults_in(error)
            self.note("after", "schema", problems)
            failure_class: FailureClass = (
                "spec_malformed" if self.name == "plan" else "schema_failure"
            )
            cause = f"the answer does not fit {schema.__name__}: {'; '.join(problems)}"
            raise StageFailure(failure_class, "gate", cause, problems) from error
        self.note("after", "schema")
        return result

    # The report.

    def report(self, output: object = None) -> dict[str, ReportValues]:
        """Return the report of this run, for the state."""
        key = f"{self.started_at:017.6f}/{self.attempt}/{self.name}/{self.worker}/{self.key}"
        values: ReportValues = {
            "stage": self.name,
            "attempt": self.attempt,
            "worker": self.worker,
            "started_at": self.started_at,
            "seconds": max(0.0, clock().wall() - self.started_at),
            "usage": self.usage.to_dict(),
            "verdicts": [_values_of(verdict) for verdict in self.verdicts],
            "output": output,
            "is_part": self.is_part,
        }
        return {key: values}


_FIELDS = tuple(item.name for item in fields(ValidationResult))


def _values_of(verdict: ValidationResult) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in _FIELDS}
