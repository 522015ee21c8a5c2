"""The decisions of humans, checked against the open questions of a thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Interrupt, StateSnapshot

from agentgraph.agents.run.recovery import ORPHAN
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.errors import ConfigurationError, RoutingError
from agentgraph.guards.mechanisms.escalation import is_overdue
from agentgraph.participant import Participant


@dataclass(frozen=True, slots=True)
class Questions:
    """The ids of a thread's questions."""

    open_ids: frozenset[str]
    """The open questions."""
    closed_ids: frozenset[str]
    """The questions that have a decision."""
    orphan_ids: frozenset[str]
    """The questions of agents that no longer exist: no decision would reach them."""

    @classmethod
    def of(cls, snapshot: StateSnapshot, latest: CheckpointTuple | None) -> Questions:
        """Read the questions of a thread from its state and from its checkpoint, which has all."""
        open_ids = frozenset(question.id for _, question in reachable_questions(snapshot))
        stored_ids, closed_ids = _stored_questions(latest)
        if not _is_dead_end(snapshot):
            # No decision reaches them because an attempt that was cut off has passed them.
            closed_ids = stored_ids
        orphan_ids = stored_ids - closed_ids - open_ids
        return cls(open_ids, frozenset(closed_ids - open_ids), frozenset(orphan_ids))

    def accept(
        self,
        thread_id: str,
        decisions: Mapping[str, object],
        saver: BaseCheckpointSaver[Any] | None,
    ) -> dict[str, object]:
        """Return the decisions on open questions, without those that are decided already.

        Raises `RoutingError` with the code `agent_gone` or `unknown_interrupt`, and
        `ConfigurationError` for a decision that the saver cannot store.
        """
        if not isinstance(decisions, Mapping):
            raise RoutingError(
                "decisions are given by the ids of their interrupts: {interrupt.id: decision}",
                code="unknown_interrupt",
            )
        if orphans := sorted(decisions.keys() & self.orphan_ids):
            ids = ", ".join(orphans)
            raise RoutingError(
                f"the agent that asked {ids} on thread {thread_id!r} is no longer in "
                "the tree: put it back, or go on with a new message",
                code="agent_gone",
            )
        strange = sorted(map(str, decisions.keys() - self.open_ids - self.closed_ids))
        accepted = {key: value for key, value in decisions.items() if key in self.open_ids}
        if strange or not accepted:
            names = ", ".join(strange or map(str, decisions))
            remark = "" if strange else " (decided already)"
            questions = ", ".join(sorted(self.open_ids)) or "nothing; go on with a message"
            fault = f"does not wait for {names}{remark}" if decisions else "was given no decision"
            raise RoutingError(
                f"thread {thread_id!r} {fault}: it waits for {questions}",
                code="unknown_interrupt",
            )
        _check_storable(accepted, saver)
        return accepted


def _check_storable(
    decisions: Mapping[str, object], saver: BaseCheckpointSaver[Any] | None
) -> None:
    """Raise `ConfigurationError` for a decision that the saver cannot store.

    Otherwise the run would fail only after it has gone on with the decision.
    """
    if saver is None:
        return
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


def overdue_questions(snapshot: StateSnapshot) -> list[str]:
    """Return the ids of a thread's escalations whose time limit has passed: they are denied."""
    questions = reachable_questions(snapshot)
    return [question.id for _, question in questions if is_overdue(question.value)]


def denials(ids: Iterable[str]) -> dict[str, object]:
    """Return the decisions that deny these questions."""
    return dict.fromkeys(ids, "reject")


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
