"""The audit trail: numbers the records of each run and hands them to a sink."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Literal, Self, TypeGuard, get_args

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError, GuardStopped, kind_of
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.records.record import Record, RecordKind, Sink
from agentgraph.guards.records.sinks import MemorySink
from agentgraph.guards.records.trail import Trail, folded

log = logging.getLogger("agentgraph")

OnFailure = Literal["log", "stop"]

_MOST_RUNS = 1_024
"""How many runs have a counter; the run that was recorded longest ago is forgotten first."""
_LONGEST_TEXT = 2_000


@dataclass(slots=True)
class _RunCounter:
    """The counter of one run's records."""

    seq: int
    """The number of the last record."""
    has_warned: bool = False


class AuditTrail(BuiltInGuard):
    """Number the records of each run and hand them to a sink.

        Guards(audit=AuditTrail(JSONLSink("audit.jsonl"), on_failure="stop"))

    Without a sink records stay in this process's memory. Where a sink fails, `on_failure="log"`
    warns once a run and goes on; "stop" ends the run before it does anything unrecorded. None
    stops a run that is regulated, and no other.

    With `payloads` the records of a flow have the texts of users and models: what its stages have
    made, and what was wrong with it. Then `FlowResult.from_records` rebuilds the flow's result.
    """

    setting = "audit"
    summary = "AuditTrail(): records what was decided and done, in memory or in a file"
    short_form = "a sink, which has write() and read()"
    is_input_wide = True

    def __init__(
        self,
        sink: Sink | None = None,
        on_failure: OnFailure | None = None,
        *,
        payloads: bool = False,
    ) -> None:
        faults = []
        if sink is not None and not _is_sink(sink):
            faults.append(f"AuditTrail({sink!r}): give a sink, which has write() and read()")
        if on_failure not in (None, *get_args(OnFailure)):
            faults.append(f'AuditTrail(on_failure={on_failure!r}): give "log" or "stop"')
        if not isinstance(payloads, bool):
            faults.append(f"AuditTrail(payloads={payloads!r}): give True or False")
        if faults:
            raise ConfigurationError(faults)
        self.sink: Sink = MemorySink() if sink is None else sink
        self.on_failure: OnFailure | None = on_failure
        self.payloads = payloads
        self._runs: OrderedDict[str, _RunCounter] = OrderedDict()
        self._floor = 0
        """The highest number of all forgotten runs: where such a run goes on, its numbers begin
        above it, so that no number is given twice."""
        self._lock = Lock()

    def __repr__(self) -> str:
        settings = "" if self.on_failure is None else f", {self.on_failure!r}"
        payloads = ", payloads=True" if self.payloads else ""
        return f"AuditTrail({type(self.sink).__name__}{settings}{payloads})"

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the trail that writes to this sink."""
        return cls(value) if _is_sink(value) and not isinstance(value, type) else None

    def tighter(self, outer: Self) -> Self:
        """Return the outer trail: split over two, neither would show what happened in a run."""
        return outer

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
        is_regulated: bool = False,
    ) -> Record:
        """Record what is about to happen or has just happened, and return the record.

        Raises `GuardStopped` where the sink fails and the trail is to stop the run, as it does by
        default for a run that is regulated.
        """
        values = decision.to_dict() if isinstance(decision, Decision) else decision
        with self._lock:
            counter = self._runs.get(run) or self._counter(run)
            self._runs.move_to_end(run)
            seq = counter.seq = counter.seq + 1
        record = Record(
            kind,
            agent,
            seq=seq,
            at=clock().wall(),
            decision=values,
            run=run,
            thread=thread,
            step=step,
            data=data or {},
            parent=parent,
        )
        try:
            self.sink.write(record)
        except Exception as error:
            self._fail(run, "written", error, is_regulated)
        return record

    def knows(self, run: str) -> bool:
        """Tell whether this process has numbered records of a run."""
        return run in self._runs

    def resume(self, run: str, *, is_regulated: bool = False) -> int:
        """Continue the numbers after the last record of a run in the sink; return that number.

        Call it where another process has begun the run, and so has numbered records of it.
        """
        try:
            last = max((record.seq for record in self.sink.read(run)), default=0)
        except Exception as error:
            self._fail(run, "read", error, is_regulated)
            last = 0
        with self._lock:
            counter = self._counter(run)
            counter.seq = max(counter.seq, last)
            return counter.seq

    def runs(self, thread: str | None = None) -> list[str]:
        """Return the ids of the runs in the sink, the first first; those of one thread, if given.

            [*_, last] = agent.policy.audit.runs("42")
            print(agent.policy.audit.trail(last))

        Raises `ConfigurationError` for a sink that cannot list its runs.
        """
        list_runs: Callable[[], list[str]] | None = getattr(self.sink, "runs", None)
        if list_runs is None:
            raise ConfigurationError(f"{type(self.sink).__name__} has no runs(): it lists no runs")
        runs = list_runs()
        return runs if thread is None else [run for run in runs if self._is_of(thread, run)]

    def _is_of(self, thread: str, run: str) -> bool:
        return any(record.thread == thread for record in self.sink.read(run))

    def records(self, run: str) -> list[Record]:
        """Return the records of a run, by their numbers."""
        return self.sink.read(run)

    def trail(self, run: str) -> Trail:
        """Return the fold of a run's records: its path, spend, decisions and end."""
        return folded(self.sink.read(run))

    def flush(self) -> None:
        """Flush the sink, if it has a `flush()`."""
        getattr(self.sink, "flush", _no_operation)()

    def close(self) -> None:
        """Close the sink, if it has a `close()`."""
        getattr(self.sink, "close", _no_operation)()

    def _counter(self, run: str) -> _RunCounter:
        counter = self._runs.get(run)
        if counter is None:
            counter = self._runs[run] = _RunCounter(self._floor)
            if len(self._runs) > _MOST_RUNS:
                _, oldest = self._runs.popitem(last=False)
                self._floor = max(self._floor, oldest.seq)
        self._runs.move_to_end(run)
        return counter

    def _fail(self, run: str, verb: str, error: Exception, is_regulated: bool) -> None:
        kind = kind_of(error)
        if self.on_failure == "stop" or (self.on_failure is None and is_regulated):
            cause = f"the audit trail cannot be {verb} ({kind}): no step goes unrecorded"
            evidence = {"run": run, "error": kind}
            raise GuardStopped(Decision("abort", "audit", cause, "", evidence)) from error
        with self._lock:
            counter = self._counter(run)
            had_warned, counter.has_warned = counter.has_warned, True
        if not had_warned:
            log.warning("the audit trail of run %s cannot be %s: %s", run, verb, kind)


def _is_sink(value: object) -> TypeGuard[Sink]:
    return all(callable(getattr(value, name, None)) for name in ("write", "read"))


def _no_operation() -> None: ...


# The begin and the end of a run; `audit` is None without a trail. A trail that cannot be written
# never stops them: nothing has been done yet, or everything has.


def run_began(
    audit: AuditTrail | None, run: str, thread: str, text: str = "", **data: object
) -> None:
    """Record that a run begins, with the text and other data of its input."""
    is_whole = audit is not None and audit.payloads
    values = {"text": text if is_whole else text[:_LONGEST_TEXT]} if text else {}
    _record(audit, run, "input", thread, {**values, **data})


def run_continued(audit: AuditTrail | None, run: str) -> None:
    """Continue the record numbers that another process has given to a run."""
    if audit is not None:
        with suppress(GuardStopped):
            audit.resume(run)


def run_took_over(
    audit: AuditTrail | None, run: str, thread: str, entries: Iterable[Entry]
) -> None:
    """Record the actions of an earlier run that was cut off, which this run has in its saga."""
    for entry in entries:
        data = {"tool": entry.tool, "key": entry.key, "state": entry.state, "taken_over": True}
        _record(audit, run, "effect", thread, data)


def run_ended(audit: AuditTrail | None, run: str, thread: str, reason: str, **data: object) -> None:
    """Record that a run is over, and why."""
    _record(audit, run, "end", thread, {"reason": reason, **data})


def _record(
    audit: AuditTrail | None,
    run: str,
    kind: Literal["input", "effect", "end"],
    thread: str,
    data: Mapping[str, object],
) -> None:
    if audit is not None:
        with suppress(GuardStopped):
            audit.record(run, kind, thread=thread, data=data)
