"""Decisions that humans give, checked against what a thread waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Interrupt, StateSnapshot

from agentgraph.errors import ConfigurationError, RoutingError
from agentgraph.participant import Participant


@dataclass(frozen=True, slots=True)
class Questions:
    """The ids of a thread's questions: those that wait, those decided, those nobody asks now."""

    waiting: frozenset[str]
    decided: frozenset[str]
    orphaned: frozenset[str]

    @classmethod
    def of(cls, snapshot: StateSnapshot, saved: CheckpointTuple | None) -> Questions:
        """Read them from a thread's state, and from what was stored, whoever asked."""
        waiting = frozenset(question.id for _, question in reachable(snapshot))
        asked, decided = _stored(saved)
        if not _is_dead_end(snapshot):
            decided = asked  # an attempt that was cut off has gone past what nothing reaches
        return cls(waiting, frozenset(decided - waiting), frozenset(asked - decided - waiting))

    def accept(self, thread_id: str, decisions: Mapping[str, object]) -> dict[str, object]:
        """Return the decisions that are waited for; one given again is left out."""
        if not isinstance(decisions, Mapping):
            raise RoutingError(
                "decisions are given by the ids of their interrupts: {interrupt.id: decision}",
                code="unknown_interrupt",
            )
        if gone := sorted(decisions.keys() & self.orphaned):
            raise RoutingError(
                f"the agent that asked {', '.join(gone)} on thread {thread_id!r} is no longer in "
                "the tree: put it back, or go on with a new message",
                code="agent_gone",
            )
        unknown = sorted(map(str, decisions.keys() - self.waiting - self.decided))
        accepted = {key: value for key, value in decisions.items() if key in self.waiting}
        if unknown or not accepted:
            given = ", ".join(unknown or map(str, decisions)) or "no decision"
            told = "" if unknown or not decisions else " (decided already)"
            waiting = ", ".join(sorted(self.waiting)) or "nothing; go on with a message"
            raise RoutingError(
                f"thread {thread_id!r} does not wait for {given}{told}: it waits for {waiting}",
                code="unknown_interrupt",
            )
        return accepted


def check_storable(decisions: Mapping[str, object], saver: BaseCheckpointSaver[Any] | None) -> None:
    """Refuse a decision that cannot be written down: it would be lost half-way."""
    if saver is None:
        return
    for key, decision in decisions.items():
        try:
            saver.serde.dumps_typed(decision)
        except Exception as error:
            kind = type(decision).__name__
            raise ConfigurationError(
                f"the decision on {key} cannot be stored: {kind} is nothing that the checkpoint "
                "saver can write; give what JSON has",
                code="input",
            ) from error


def reachable(
    snapshot: StateSnapshot, agent: Participant | None = None, path: str = ""
) -> Iterator[tuple[str, Interrupt]]:
    """Yield the questions that a resume would reach, each with the path of who asks.

    A nested graph that was rebuilt without the agent that asked would end in silence.
    """
    for task in snapshot.tasks:
        if task.result is not None:
            continue  # it has gone on, though with durability "exit" its own state is not stored
        if isinstance(task.state, StateSnapshot):
            below = _below(agent, task.name)
            yield from reachable(task.state, below, f"{path}/{task.name}" if below else path)
        else:
            yield from ((path, interrupt) for interrupt in task.interrupts)


def _below(agent: Any, name: str) -> Participant | None:
    tools = getattr(agent, "agent_tools", ())
    members = (*getattr(agent, "sub_agents", ()), *(tool.agent for tool in tools))
    return next((member for member in members if member.name == name), None)


def _is_dead_end(snapshot: StateSnapshot) -> bool:
    """Tell whether a level is unfinished and has nobody left to go on with."""
    nested = [task.state for task in snapshot.tasks if isinstance(task.state, StateSnapshot)]
    return not snapshot.tasks or any(_is_dead_end(state) for state in nested if state.values)


def _stored(saved: CheckpointTuple | None) -> tuple[set[str], set[str]]:
    asked: dict[str, set[str]] = defaultdict(set)
    finished: set[str] = set()
    for task, channel, value in (saved.pending_writes or ()) if saved is not None else ():
        if channel == "__interrupt__":
            asked[task] |= {interrupt.id for interrupt in value}
        elif not channel.startswith("__error"):
            finished.add(task)
    decided = {i for task, ids in asked.items() if task in finished for i in ids}
    return {i for ids in asked.values() for i in ids}, decided
