"""A site: one agent at work for one outside input, with everything that its guards need to know.

Every function of the guards at a node takes a `Site`. It records decisions and actions before they
take effect, and knows the deadline of the work.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TypedDict, TypeVar, Unpack

from langchain_core.messages.ai import UsageMetadata

from agentgraph.clock import clock
from agentgraph.errors import GuardStopped, ModelError, kind_of
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.canonical import exact_digest
from agentgraph.guards.mechanisms.deadlines import Deadline, Layer
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import ANYWHERE, Account
from agentgraph.guards.records.pending_writes import (
    MEMORY_CHANNEL,
    PendingWrites,
    Resumption,
)
from agentgraph.guards.records.record import ACTS, Record, RecordKind, StepKind
from agentgraph.interception import Ledger
from agentgraph.running import current_run, outer_run
from agentgraph.stream import GuardEvent, emit
from agentgraph.timeouts import cut_off
from agentgraph.usage import Usage

T = TypeVar("T")

_DIGITS = 16
"""How many hexadecimal digits of a digest are in a record."""


class StepFields(TypedDict, total=False):
    """What a record says of a step."""

    tool: str
    call_id: str
    args: object
    result: object
    failed: bool
    usage: UsageMetadata | None
    decision: Decision
    data: Mapping[str, object]


_TOLERANCE_S = 0.1
"""How much the wall clock and the timer of a limit may differ."""


@dataclass(frozen=True, slots=True)
class Site:
    """One agent at work for one outside input; `policy` is the one that applies to this agent."""

    policy: Policy
    place: Place
    account: Account
    thread_id: str = ""
    ledger: Ledger | None = None
    """The log of the session around it, None outside of a session."""
    pending_writes: PendingWrites | None = None
    """Records each model call before it is made, where each step is stored before the next."""
    resumption: Resumption | None = None
    """The resumption of the node after a human's decision, None without one or in a session."""

    @property
    def path(self) -> str:
        """Return the path of the agent, from the root of the outermost tree."""
        return f"{self.account.path_prefix}{self.place.path}"

    @property
    def level(self) -> int:
        """Return the level of the agent; the root of the outermost tree is on level 1."""
        return self.account.level + self.place.depth

    @property
    def speaker(self) -> str:
        """Return the name of the session's current speaker, "" outside of a session."""
        return self.ledger.speaker if self.ledger is not None else ""

    def record(self, kind: RecordKind, **data: object) -> int | None:
        """Record what is about to happen, or has happened; return the record's number."""
        return self._write(kind, data)

    def record_usage(self, parent: int | None, data: Mapping[str, object]) -> None:
        """Record what the model call with that record number has used."""
        self._write("settled", data, parent=parent)

    async def decide(self, decision: Decision) -> Decision:
        """Record a decision, emit its event on the run's stream, and return it."""
        await self.record_decision(decision)
        await emit(GuardEvent(agent=self.place.path, decision=decision.to_dict()))
        return decision

    async def record_decision(self, decision: Decision, **data: object) -> None:
        """Record a decision without an event: the stream shows it otherwise, or need not."""
        values = decision.to_dict()
        self._write("decision", data, values)
        if self.policy.extra_guards:
            await self.note("decision", decision=decision)
            if decision.action == "correct":
                await self.note("correction", decision=decision)
        if self.ledger is not None:
            await self.ledger.write({"kind": "decision", "agent": self.place.path, **values})
        if self.account.outer_ledger is not None:
            await self.account.outer_ledger.write(self.path, {"kind": "decision", **values})

    async def decide_by_table(
        self, decision: Decision, *, attempts: int = 0, possible: bool = False
    ) -> Decision:
        """Record and return the decision table's answer to a guard's decision on a failure.

        `attempts` is the number of attempts so far. Where an action that lets the run go on is not
        `possible` here, the action after it is taken at once.
        """
        policy = self.policy
        if not decision.failure_class:
            return await self.decide(decision)
        final = policy.table.decide(
            decision.failure_class,
            policy.tier,
            made=attempts,
            possible=possible,
            guard=decision.guard,
            cause=decision.cause,
            evidence=decision.evidence,
        )
        return await self.decide(final)

    async def log_effect(self, entry: Entry) -> None:
        """Store what an action has come to: in the session's log, or in that of the thread."""
        await self.log(kind="effect", entry=entry.to_dict())
        await self.account.log_effects()

    async def log(self, **data: object) -> bool:
        """Write to the session's log, which outlives a kill; return False outside of a session."""
        outer = self.account.outer_ledger
        if self.ledger is not None:
            await self.ledger.write({"agent": self.place.path, **data})
        if outer is not None:
            await outer.write(self.path, data)
        return self.ledger is not None or outer is not None

    # The records that the guards of users fold.

    async def note(self, kind: StepKind, **fields: Unpack[StepFields]) -> None:
        """Fold what has happened into the memories of users' guards, and store these.

        In a session they are written to the log, and where each step is stored before the next one
        to the pending writes of the node: a kill loses none of them. Elsewhere they are stored with
        the account when the node ends. It is free where there is no such guard.
        """
        if not self.policy.extra_guards:
            return
        await self.recall()
        self.fold(kind, **fields)
        memories = self.account.extra.dump()
        if self.pending_writes is not None:
            await self.pending_writes.write(memories, MEMORY_CHANNEL)
        await self.log(kind="memory", memories=memories)

    def fold(self, kind: StepKind, **fields: Unpack[StepFields]) -> None:
        """Fold what has happened into the memories of users' guards; they are stored later."""
        record = self._record_of(kind, fields)
        for key, guard in self.policy.extra_guards:
            try:
                self.account.extra.fold(key, guard, record)
            except Exception as error:
                cause = f"fold() has failed: {kind_of(error)}"
                self.account.postpone(ANYWHERE, Decision("abort", guard.name, cause))
        self.account.has_acted = True  # so the node stores the account

    def _record_of(self, kind: StepKind, fields: StepFields) -> Record:
        account, usage, decision = self.account, fields.get("usage"), fields.get("decision")
        account.record_count += 1
        return Record(
            kind,
            self.path,
            1 if self.ledger is None else self.ledger.attempt,
            account.record_count,
            clock().wall(),
            fields.get("tool", ""),
            fields.get("call_id", ""),
            _digest(fields.get("args")),
            _digest(fields.get("result")),
            fields.get("failed", False),
            None if usage is None else Usage.of({self.path: usage}, {}),
            None if decision is None else decision.to_dict(),
            run=account.run_id,
            thread=self.thread_id,
            step=account.steps,
            data=fields.get("data", {}),
        )

    async def recall(self) -> None:
        """Read the memories that a killed process stored in this node, once for each level."""
        account, pending_writes = self.account, self.pending_writes
        if pending_writes is None or pending_writes.namespace in account.recalled_levels:
            return
        account.recalled_levels.add(pending_writes.namespace)
        if not pending_writes.may_have_run:
            return
        for memories in await pending_writes.read(MEMORY_CHANNEL):
            account.extra.merge(memories)

    def _write(
        self,
        kind: RecordKind,
        data: Mapping[str, object],
        decision: Mapping[str, object] | None = None,
        parent: int | None = None,
    ) -> int | None:
        if self.ledger is not None and kind in ACTS:
            self.ledger.act(self.place.path, asks=kind == "model")
        if self.account.outer_ledger is not None and kind in ACTS:
            self.account.outer_ledger.act(self.path, asks=kind == "model")
        if self.policy.audit is None:
            return None
        record = self.policy.audit.record(
            self.account.run_id,
            kind,
            agent=self.path,
            thread=self.thread_id,
            step=self.account.spending.progress.steps,
            decision=decision,
            data=data,
            parent=parent,
            is_regulated=self.policy.tier == "regulated",
        )
        return record.seq

    def deadline(self) -> Deadline | None:
        """Return the deadline of the stage or of the whole input, whichever comes first.

        The stage's deadline moves by the time that the reader of the events kept the run waiting.
        """
        current = _stage.get()
        if current is None:
            return self.account.deadline
        stage, held_s = current
        pause_s = _held_s() - held_s
        if pause_s:
            stage = stage.shifted(pause_s)
        outer = self.account.deadline
        return stage if outer is None or stage.at < outer.at else stage.shorter(outer)

    async def cut_off(
        self,
        work: Callable[[], Awaitable[T]],
        step_s: float | None = None,
        layer: Layer = "step",
    ) -> T:
        """Return the result of a call that is cut off at the deadline, or after `step_s` seconds.

        Where it does not end then, it is left behind.
        """
        if step_s is None and self.deadline() is None:
            return await work()
        return await cut_off(work, partial(self.time_limit, step_s, layer))

    async def until_deadline(self, check: Awaitable[T]) -> T | Decision:
        """Return what a check finds, or the denial of the deadline that passes before."""
        deadline = self.deadline()
        if deadline is None:
            return await check
        try:
            with self.time_limit():
                return await check
        except Overdue:
            return deadline.check()

    def time_limit(self, step_s: float | None = None, layer: Layer = "step") -> in_time:
        """Return a context that is cut off at the deadline, or after a step's or tool's seconds."""
        return in_time(self.deadline(), step_s, layer)


def _digest(value: object) -> str:
    return "" if value is None else exact_digest(value)[:_DIGITS]


def stop_error(decision: Decision) -> GuardStopped:
    """Return the error that carries a decision from inside a node to the node's wrapper."""
    return GuardStopped(decision, f"{decision.guard}: {decision.cause}")


_stage: ContextVar[tuple[Deadline, float] | None] = ContextVar("agentgraph_stage", default=None)
"""The stage's deadline, and how long readers had kept the run waiting when it was set."""


@contextmanager
def inside_stage(deadline: Deadline | None) -> Iterator[None]:
    """Apply a deadline to the code in this context, in addition to that of an outer stage."""
    current = _stage.get()
    held_s = _held_s()
    outer = None if current is None else current[0].shifted(held_s - current[1])
    stage = outer if deadline is None else deadline.shorter(outer)
    token = _stage.set(None if stage is None else (stage, held_s))
    try:
        yield
    finally:
        _stage.reset(token)


def _held_s() -> float:
    run = outer_run()
    return run.reader_wait_s if run is not None else 0.0


class Overdue(ModelError, TimeoutError):
    """A deadline has passed."""

    code = "deadline"

    def __init__(self, layer: Layer, seconds: float) -> None:
        self.layer = layer
        when = f"after {seconds:.6g} s" if seconds > 0 else "at once"
        super().__init__(f"cut off {when} by the deadline of the {layer}")


class in_time:
    """Cut a block off at a deadline or after a step's time; `Overdue` says which it was."""

    # Neither a generator nor a `Deadline` for the step: every call of a run enters it.
    __slots__ = ("_at", "_layer", "_limit", "_seconds")

    def __init__(
        self, deadline: Deadline | None, step_s: float | None = None, layer: Layer = "step"
    ) -> None:
        current = clock()
        now = current.wall()
        self._layer: Layer = layer
        self._at = math.inf if step_s is None else now + step_s
        if deadline is not None and deadline.at <= self._at:
            self._at, self._layer = deadline.at, deadline.layer
        self._seconds = self._at - now
        self._limit = current.timeout(None if self._at == math.inf else self._seconds)

    def __enter__(self) -> None:
        self._limit.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._limit.__exit__(kind, error, traceback)
        except TimeoutError as timeout:
            error = timeout
        if not isinstance(error, TimeoutError):
            return
        # A timeout that this limit has not caused, such as one of a provider's client, passes.
        if self._at - clock().wall() > _TOLERANCE_S:
            raise error
        raise Overdue(self._layer, self._seconds) from error


def close(account: Account, reason: str, cause: str, failure_class: str = "") -> None:
    """End the run of an account; the close reason names the guard, and the cause says why."""
    account.closed_by, account.closed_because = reason, cause
    run = current_run()
    if run is not None:
        run.causes[reason] = cause
        run.failure_classes[reason] = failure_class
