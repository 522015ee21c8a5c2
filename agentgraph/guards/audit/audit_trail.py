"""The audit trail: numbers the records of each run and hands them to a sink."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Literal, get_args

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError, GuardStopped, kind_of
from agentgraph.guards.audit.fold import Trail, folded
from agentgraph.guards.audit.record import Record, RecordKind, Sink
from agentgraph.guards.audit.sinks import MemorySink
from agentgraph.guards.decision import Decision

log = logging.getLogger("agentgraph")

OnFailure = Literal["log", "stop"]

_MOST_RUNS = 1_024


@dataclass(slots=True)
class _Numbering:
    seq: int
    """The number of the last record."""
    has_warned: bool = False


class AuditTrail:
    """Number the records of each run and hand them to a sink."""

    def __init__(self, sink: Sink | None = None, on_failure: OnFailure = "log") -> None:
        faults = []
        if sink is not None and not all(
            callable(getattr(sink, name, None)) for name in ("write", "read")
        ):
            faults.append(f"AuditTrail({sink!r}): give a sink, which has write() and read()")
        if on_failure not in get_args(OnFailure):
            faults.append(f'AuditTrail(on_failure={on_failure!r}): give "log" or "stop"')
        if faults:
            raise ConfigurationError(faults)
        self.sink: Sink = MemorySink() if sink is None else sink
        self.on_failure: OnFailure = on_failure
        self._runs: OrderedDict[str, _Numbering] = OrderedDict()
        self._floor = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"AuditTrail({type(self.sink).__name__}, {self.on_failure!r})"

    def record(
        self,
        run: str,
        kind: RecordKind,
        *,
        agent: str = "",
        thread: str = "",
        step: int = 0,
        decision: Decision | Mapping[str, object] | None = None,
        data: Mapping[str, object] | None = None,
        parent: int | None = None,
    ) -> Record:
        """Write down what is about to happen or has just happened."""
        values = decision.to_dict() if isinstance(decision, Decision) else decision
        with self._lock:
            numbering = self._runs.get(run) or self._numbering(run)
            self._runs.move_to_end(run)
            seq = numbering.seq = numbering.seq + 1
        record = Record(
            run, seq, clock().wall(), kind, agent, thread, step, values, data or {}, parent
        )
        try:
            self.sink.write(record)
        except Exception as error:
            self._fail(run, "written", error)
        return record

    def knows(self, run: str) -> bool:
        """Tell whether it has numbered records of a run."""
        return run in self._runs

    def resume(self, run: str) -> int:
        """Go on after the last record that the sink has of a run, and return its number."""
        try:
            last = max((record.seq for record in self.sink.read(run)), default=0)
        except Exception as error:
            self._fail(run, "read", error)
            last = 0
        with self._lock:
            numbering = self._numbering(run)
            numbering.seq = max(numbering.seq, last)
            return numbering.seq

    def trail(self, run: str) -> Trail:
        """Add up what the sink has of a run."""
        return folded(self.sink.read(run))

    def flush(self) -> None:
        """Have the sink keep for good what it has, if it can."""
        getattr(self.sink, "flush", _no_operation)()

    def close(self) -> None:
        """Have the sink let go of what it holds, if it can."""
        getattr(self.sink, "close", _no_operation)()

    def _numbering(self, run: str) -> _Numbering:
        numbering = self._runs.get(run)
        if numbering is None:
            # Above every run that was forgotten, which may be this one.
            numbering = self._runs[run] = _Numbering(self._floor)
            if len(self._runs) > _MOST_RUNS:
                _, oldest = self._runs.popitem(last=False)
                self._floor = max(self._floor, oldest.seq)
        self._runs.move_to_end(run)
        return numbering

    def _fail(self, run: str, verb: str, error: Exception) -> None:
        kind = kind_of(error)
        if self.on_failure == "stop":
            cause = f"the audit trail cannot be {verb} ({kind}): no step goes unrecorded"
            evidence = {"run": run, "error": kind}
            raise GuardStopped(Decision("abort", "audit", cause, "", evidence)) from error
        with self._lock:
            numbering = self._numbering(run)
            had_warned, numbering.has_warned = numbering.has_warned, True
        if not had_warned:
            log.warning("the audit trail of run %s cannot be %s: %s", run, verb, kind)


def _no_operation() -> None: ...


_LONGEST = 2_000


def run_began(
    audit: AuditTrail | None, run: str, thread: str, text: str = "", **data: object
) -> None:
    """Record that a run begins, and with what."""
    values = {"text": text[:_LONGEST]} if text else {}
    _record(audit, run, "input", thread, {**values, **data})


def run_continued(audit: AuditTrail | None, run: str) -> None:
    """Go on with the numbers of what another process has recorded of a run."""
    if audit is not None:
        with suppress(GuardStopped):
            audit.resume(run)


def run_ended(audit: AuditTrail | None, run: str, thread: str, reason: str, **data: object) -> None:
    """Record that a run is over, and why."""
    _record(audit, run, "end", thread, {"reason": reason, **data})


def _record(
    audit: AuditTrail | None,
    run: str,
    kind: Literal["input", "end"],
    thread: str,
    data: Mapping[str, object],
) -> None:
    if audit is not None:
        with suppress(GuardStopped):
            audit.record(run, kind, thread=thread, data=data)
