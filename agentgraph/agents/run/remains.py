"""What a run that has not come to its end leaves: to readers, to its resumption, to a session."""

from __future__ import annotations

from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.types import StateSnapshot

from agentgraph.agents.nodes.state import merge_messages
from agentgraph.agents.run.decisions import reachable_questions
from agentgraph.agents.run.recovery import (
    Answers,
    Journal,
    active_path,
    left_messages,
    recover,
    reports_of_orphans,
    task_messages,
)
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.participant import Remains


def remains_of_run(
    agent: AgentSpec,
    snapshot: StateSnapshot,
    journal: Journal,
    *,
    is_over: bool,
    answers: Answers,
) -> Remains:
    """Return what a run leaves, from the state of its graph and from its journal.

    Of a run that is over, what is open is answered, as the next turn of a thread does it.
    """
    if not is_over:
        questions = reachable_questions(snapshot, agent, agent.name)
        askers = {question.id: path for path, question in questions}
        messages = messages_so_far(snapshot, journal)
        return Remains(messages, active_path(snapshot), snapshot.values, askers)
    recovery = recover(snapshot, journal, answers)
    messages = merge_messages(snapshot.values.get("messages") or [], [recovery.messages])
    return Remains(messages, recovery.active, {**snapshot.values, **recovery.values})


def messages_so_far(snapshot: StateSnapshot, journal: Journal) -> list[AnyMessage]:
    """Return the messages of a thread for a reader, with those that an unfinished run has made.

    A call that runs or waits is shown without an answer: only the next turn decides that its
    outcome is unknown.
    """
    new_messages = left_messages(snapshot, journal, reports=False)
    return merge_messages(snapshot.values.get("messages") or [], [new_messages])


def unsaved_messages(snapshot: StateSnapshot, journal: Journal) -> list[AnyMessage]:
    """Return those messages in a cut-off run's journal that no checkpoint has."""
    stored_messages = [*(snapshot.values.get("messages") or ()), *task_messages(snapshot, {})]
    ids = {message.id for message in stored_messages}
    return [message for message in journal.get(None, ()) if message.id not in ids]


def left_for_resume(
    snapshot: StateSnapshot, journal: Journal
) -> tuple[list[AnyMessage], dict[str, ToolMessage]]:
    """Return what a run that goes on with decisions does not find in its state.

    These are messages in the journal that no checkpoint has, and the reports of removed agents.
    """
    return unsaved_messages(snapshot, journal), reports_of_orphans(snapshot)
