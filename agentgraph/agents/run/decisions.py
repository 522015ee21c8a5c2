"""The decisions of humans: checked against a thread's open questions, and stored at once.

LangGraph stores a decision together with what comes of it. A process that is killed in between
would ask again, and might get the opposite of the answer that it has acted on. So a decision is
stored before the run goes on with it, beside the checkpoint that asks, as a pending write of no
task. Its key there is made of the question's id, and savers keep the first write of a key: of two
processes that decide at once, also on a store without locks, both read what the first has written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.errors import is_invalid_resume
from langgraph.types import Interrupt, StateSnapshot

from agentgraph.agents.run.inputs import Decisions
from agentgraph.agents.run.recovery import ORPHAN
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.clock import clock
from agentgraph.errors import AlreadyDecided, ConfigurationError, RoutingError
from agentgraph.guards.mechanisms.escalation import is_overdue, is_rejected
from agentgraph.participant import Participant

_CHANNEL = "agentgraph_decisions"
_MOST_CHECKPOINTS = 1_000
"""How many checkpoints back a decision is looked for that somebody else has made."""


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision on a question of a thread."""

    interrupt_id: str
    decision: object
    decided_at: float
    sender: str | None
    """Who has decided, None where that is not known."""
    turn: str
    """The id of the turn that asks."""
    number: int = 0
    """How many decisions on the question were withdrawn before, as they did not fit it."""
    is_withdrawn: bool = False

    def error(self, thread_id: str) -> AlreadyDecided:
        """Return the error for whoever decides the same question later."""
        return AlreadyDecided(
            f"thread {thread_id!r}",
            self.interrupt_id,
            self.decision,
            decided_at=datetime.fromtimestamp(self.decided_at, UTC),
            sender=self.sender,
        )


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of a thread, by their ids."""

    open_ids: frozenset[str]
    """The questions that have no decision."""
    decisions: Mapping[str, StoredDecision]
    """The decisions that are stored and not carried out: the run was cut off that did so."""
    closed_ids: frozenset[str]
    """The questions whose decision was carried out."""
    orphan_ids: frozenset[str]
    """The questions of agents that no longer exist: no decision would reach them."""

    @classmethod
    def of(cls, snapshot: StateSnapshot, latest: CheckpointTuple | None) -> Questions:
        """Read the questions of a thread from its state and from its checkpoint, which has all."""
        asked_ids = frozenset(question.id for _, question in reachable_questions(snapshot))
        stored_ids, closed_ids = _stored_questions(latest)
        if not _is_dead_end(snapshot):
            # No decision reaches them because an attempt that was cut off has passed them.
            closed_ids = stored_ids
        decisions = {key: item for key, item in decisions_in(latest).items() if key in asked_ids}
        return cls(
            asked_ids - decisions.keys(),
            decisions,
            frozenset(closed_ids - asked_ids),
            frozenset(stored_ids - closed_ids - asked_ids),
        )

    async def accept(
        self, decisions: Mapping[str, object], log: DecisionLog, turn: str | None
    ) -> dict[str, object]:
        """Return the decisions on open questions; {} where the run has gone on with all of them.

        Raises `AlreadyDecided` for a question that was decided otherwise, or whose turn is over,
        `RoutingError` with the code `agent_gone` or `unknown_interrupt`, and `ConfigurationError`
        for a decision that the saver cannot store.
        """
        if orphans := sorted(decisions.keys() & self.orphan_ids):
            ids = ", ".join(orphans)
            raise RoutingError(
                f"the agent that asked {ids} on thread {log.thread_id!r} is no longer in "
                "the tree: put it back, or go on with a new message",
                code="agent_gone",
            )
        new = {key: value for key, value in decisions.items() if key in self.open_ids}
        earlier = await log.on(decisions.keys() - new.keys())
        log.refuse_others(decisions, earlier)
        strange_ids = decisions.keys() - self.open_ids - self.closed_ids - earlier.keys()
        if strange_ids or not (new or earlier):
            raise self._refusal(log.thread_id, decisions, sorted(map(str, strange_ids)))
        if not new and any(decision.turn != turn for decision in earlier.values()):
            await log.refuse(decisions.keys())
        _check_storable(new, log.saver)
        return new

    async def store(
        self, answers: Decisions, log: DecisionLog, snapshot: StateSnapshot, turn: str
    ) -> dict[str, object]:
        """Store decisions; return all with which the run goes on.

        These are the denials of questions whose time is over, and what a run was cut off with too.
        """
        overdue_ids = set(overdue_questions(snapshot, log.latest)) - answers.values.keys()
        denials = dict.fromkeys(overdue_ids, "reject")
        await log.store(denials, "the time limit", turn)
        await log.store(answers.values, answers.sender, turn)
        earlier = {key: item.decision for key, item in self.decisions.items()}
        return {**earlier, **denials, **answers.values}

    def _refusal(
        self, thread_id: str, decisions: Mapping[str, object], strange_ids: Sequence[str]
    ) -> RoutingError:
        names = ", ".join(strange_ids or map(str, decisions))
        remark = "" if strange_ids else " (decided already)"
        questions = ", ".join(sorted(self.open_ids)) or "nothing; go on with a message"
        fault = f"does not wait for {names}{remark}" if decisions else "was given no decision"
        return RoutingError(
            f"thread {thread_id!r} {fault}: it waits for {questions}", code="unknown_interrupt"
        )


@dataclass(slots=True)
class DecisionLog:
    """The decisions that were made on a thread."""

    thread_id: str
    saver: BaseCheckpointSaver[Any]
    latest: CheckpointTuple | None
    """The thread's last checkpoint: what is decided now is stored beside it."""

    async def on(self, ids: Collection[str]) -> dict[str, StoredDecision]:
        """Return what was decided on these questions, as far as it is known.

        The thread may have passed them long ago.
        """
        decisions = {key: item for key, item in decisions_in(self.latest).items() if key in ids}
        if len(decisions) == len(ids):
            return decisions
        config: Any = {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}
        async for checkpoint in self.saver.alist(config, limit=_MOST_CHECKPOINTS):
            decisions |= {k: item for k, item in decisions_in(checkpoint).items() if k in ids}
        return decisions

    async def refuse(self, ids: Collection[str]) -> None:
        """Raise `AlreadyDecided` for the first of these questions that has a decision."""
        for decision in (await self.on(ids)).values():
            raise decision.error(self.thread_id)

    def refuse_others(
        self, decisions: Mapping[str, object], earlier: Mapping[str, StoredDecision]
    ) -> None:
        """Raise `AlreadyDecided` where a question has another decision than is given now."""
        for key, stored_decision in earlier.items():
            if not self._is_same(decisions[key], stored_decision.decision):
                raise stored_decision.error(self.thread_id)

    async def store(self, decisions: Mapping[str, object], sender: str | None, turn: str) -> None:
        """Store decisions: they are durable when this returns.

        Raises `AlreadyDecided` where another process has decided otherwise meanwhile.
        """
        if self.latest is None or not decisions:
            return
        numbers = _withdrawals(self.latest)
        now = clock().wall()
        for key, decision in decisions.items():
            number = numbers.get(key, 0)
            await self._write(StoredDecision(key, decision, now, sender, turn, number))
        earlier = decisions_in(await self.saver.aget_tuple(self.latest.config))
        self.refuse_others(decisions, {key: earlier[key] for key in decisions})

    async def reopen(self, ids: Collection[str], snapshot: StateSnapshot) -> None:
        """Open those questions again that are still asked after a run that had their decisions."""
        decisions = decisions_in(self.latest)
        for _, question in reachable_questions(snapshot):
            if question.id in ids and question.id in decisions:
                decision = decisions[question.id]
                await self._write(replace(decision, decision=None, is_withdrawn=True))

    async def _write(self, entry: StoredDecision) -> None:
        assert self.latest is not None
        suffix = "/withdrawn" if entry.is_withdrawn else ""
        key = f"{entry.interrupt_id}/{entry.number}{suffix}"
        values = {name: getattr(entry, name) for name in StoredDecision.__slots__}
        await self.saver.aput_writes(self.latest.config, [(_CHANNEL, values)], key)

    def _is_same(self, decision: object, earlier: object) -> bool:
        dump = self.saver.serde.dumps_typed
        try:
            return bool(decision == earlier) or dump(decision) == dump(earlier)
        except Exception:  # what cannot be compared or stored is not what was stored
            return False


def decisions_in(checkpoint: CheckpointTuple | None) -> dict[str, StoredDecision]:
    """Return the decisions in force beside a checkpoint, by the ids of their questions."""
    entries = _entries(checkpoint)
    withdrawals = {(entry.interrupt_id, entry.number) for entry in entries if entry.is_withdrawn}
    return {
        entry.interrupt_id: entry
        for entry in entries
        if (entry.interrupt_id, entry.number) not in withdrawals
    }


def _entries(checkpoint: CheckpointTuple | None) -> list[StoredDecision]:
    writes = (checkpoint.pending_writes if checkpoint is not None else None) or ()
    return [StoredDecision(**value) for _, channel, value in writes if channel == _CHANNEL]


def _withdrawals(checkpoint: CheckpointTuple) -> dict[str, int]:
    """Return how many decisions were withdrawn, by the ids of their questions."""
    counts: dict[str, int] = defaultdict(int)
    for entry in _entries(checkpoint):
        counts[entry.interrupt_id] += entry.is_withdrawn
    return counts


def _check_storable(decisions: Mapping[str, object], saver: BaseCheckpointSaver[Any]) -> None:
    """Raise `ConfigurationError` for a decision that the saver cannot store, before any is."""
    for key, decision in decisions.items():
        try:
            saver.serde.dumps_typed(decision)
        except Exception as error:
            kind = type(decision).__name__
            raise ConfigurationError(
                f"the decision on {key} cannot be stored: {kind} is a type that the checkpoint "
                "saver cannot write; give a JSON value",
                code="input",
            ) from error


def refuses_decision(error: BaseException) -> bool:
    """Tell whether a question has refused its decision, and may be decided again.

    LangGraph marks such an error, which may be the cause of others.
    """
    cause: BaseException | None = error
    while cause is not None and not is_invalid_resume(cause):
        cause = cause.__cause__
    return cause is not None


def overdue_questions(snapshot: StateSnapshot, latest: CheckpointTuple | None) -> list[str]:
    """Return the ids of a thread's escalations that nobody has decided in time: they are denied."""
    known_ids = decisions_in(latest).keys()
    return [
        question.id
        for _, question in reachable_questions(snapshot)
        if is_overdue(question.value) and question.id not in known_ids
    ]


def rejections(snapshot: StateSnapshot, latest: CheckpointTuple | None) -> list[str]:
    """Return the ids of a thread's escalations that a human has rejected and that are still asked.

    The process was killed that carried it out.
    """
    decisions = decisions_in(latest)
    return [
        question.id
        for _, question in reachable_questions(snapshot)
        if question.id in decisions and is_rejected(question.value, decisions[question.id].decision)
    ]


def reachable_questions(
    snapshot: StateSnapshot, agent: Participant | AgentSpec | None = None, path: str = ""
) -> Iterator[tuple[str, Interrupt]]:
    """Yield the questions that a resume would reach, each with the path of its agent.

    A resume of any other question would have no effect and no error: LangGraph skips a nested graph
    whose node does not exist. `snapshot` has the orphaned tasks.
    """
    for task in snapshot.tasks:
        if task.result is not None or task.path == ORPHAN:
            continue  # the task has finished; with durability "exit" its state does not show that
        child = _child(agent, task.name)
        below = f"{path}/{task.name}" if child else path
        # The state of a graph with a memory is not that of the delegate which asks.
        if isinstance(task.state, StateSnapshot) and task.state.tasks:
            yield from reachable_questions(task.state, child, below)
        else:
            yield from ((below, interrupt) for interrupt in task.interrupts)


def _child(agent: Participant | AgentSpec | None, name: str) -> Participant | None:
    children = agent.children if isinstance(agent, AgentSpec) else ()
    return next((child for child in children if child.name == name), None)


def _is_dead_end(snapshot: StateSnapshot) -> bool:
    """Tell whether a level is unfinished and none of its nodes to run next exists."""
    tasks = [task for task in snapshot.tasks if task.path != ORPHAN]
    levels = [task.state for task in tasks if isinstance(task.state, StateSnapshot)]
    return not tasks or any(_is_dead_end(state) for state in levels if state.values)


def _stored_questions(latest: CheckpointTuple | None) -> tuple[set[str], set[str]]:
    """Return the ids of a checkpoint's questions, and of those whose tasks were resumed since."""
    ids_by_task: dict[str, set[str]] = defaultdict(set)
    done_tasks: set[str] = set()
    for task, channel, value in (latest.pending_writes or ()) if latest is not None else ():
        if channel == "__interrupt__":
            ids_by_task[task] |= {interrupt.id for interrupt in value}
        elif not channel.startswith("__error"):
            done_tasks.add(task)
    closed_ids = {i for task, ids in ids_by_task.items() if task in done_tasks for i in ids}
    return {i for ids in ids_by_task.values() for i in ids}, closed_ids
