"""Turns that are cancelled: what is known of them, as they have no packet.

The journal of a turn has what was done in this process, and its checkpoint what was done before, if
the turn was interrupted or its process died.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.types import StateSnapshot

from agentgraph.guards import SHARE
from agentgraph.guards.records.audit_trail import run_ended
from agentgraph.history import OUTCOME_UNKNOWN, open_calls, with_known_answers, work_done
from agentgraph.running import Journal
from agentgraph.sessions.envelopes.packet import UnfinishedTurn
from agentgraph.sessions.rounds.ledger import look_up_actions
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.rounds.round import Round


async def unfinished_turn(
    session: OwnedSession, speaker: str, snapshot: StateSnapshot | None
) -> UnfinishedTurn:
    """Return what is known of a turn of the present round that is cancelled; its tasks end.

    `snapshot` is the state of the round's graph, None if the round has no checkpoint.
    """
    attempt = max(session.attempts, 1)
    round = Round(session, speaker, session.state.round, attempt, session.state)
    await session.tasks.end_round(speaker, round.number, attempt, "expired")
    _, journal = session.journals.get(speaker, (attempt, {}))
    usage = session.unfinished_usage.get(speaker, {})
    # Without counts the process that ran the round is dead: what it spent is not known.
    fields = round.ledger().take_packet_fields() or {"lost": SHARE * (attempt - 1)}
    # What a session of one leaves is found by its speaker.
    has_actions = session.state.effects and not session.state.is_single
    answers = await look_up_actions(round.ledger()) if has_actions else {}
    return UnfinishedTurn(_whole(journal, snapshot, speaker, answers), usage, fields)


def end_cancelled_input(session: OwnedSession, input: int) -> None:
    """Write to the audit trail that an input ended as its round was cancelled."""
    input_id, guards = f"{session.id}@{input}", session.guards
    if guards is not None and session.audited_input == input_id:
        session.audited_input = ""
        run_ended(guards.audit, input_id, session.id, "cancelled")


def _whole(
    messages: Journal,
    snapshot: StateSnapshot | None,
    speaker: str,
    answers: Mapping[str, ToolMessage],
) -> list[AnyMessage]:
    """Return the messages of a turn in order, also those that its checkpoint has.

    What delegates have done until now answers the calls that they serve; `answers` has what is
    known of actions that were cut off, by the ids of the calls.
    """
    journal: Journal = {}
    for task in snapshot.tasks if snapshot is not None else ():
        if task.name == speaker and isinstance(task.state, StateSnapshot):
            for call_id, message in _messages_in(task.state, None):
                journal.setdefault(call_id, []).append(message)
    for call_id, later in messages.items():
        journal.setdefault(call_id, []).extend(later)
    for call_id, part in journal.items():
        journal[call_id] = with_known_answers(part, answers)
    whole = _once(journal.get(None, []))
    return [*whole, *_reports(whole, journal)]


def _messages_in(
    snapshot: StateSnapshot, call_id: str | None
) -> Iterator[tuple[str | None, AnyMessage]]:
    """Yield the messages of an unfinished graph, each with the call that a delegate serves."""
    values: Mapping[str, Any] = snapshot.values if isinstance(snapshot.values, Mapping) else {}
    if "session" in values and "round" in values:
        return  # a team: what its speakers have done is in its session
    call_id = values.get("errand") or call_id
    messages = [*(values.get("past") or ()), *(values.get("messages") or ())]
    if "current_active_agent" not in values:  # a foreign graph, whose input is the history
        inputs = [n for n, message in enumerate(messages) if isinstance(message, HumanMessage)]
        messages = messages[inputs[-1] + 1 if inputs else 0 :]
    yield from ((call_id, message) for message in messages)
    for task in snapshot.tasks:
        if isinstance(task.result, Mapping):
            writes = task.result.get("messages") or ()
            batches = writes["$writes"] if isinstance(writes, Mapping) else [writes]
            yield from ((call_id, message) for batch in batches for message in batch)
        elif isinstance(task.state, StateSnapshot):
            yield from _messages_in(task.state, call_id)


def _once(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Return the messages of models and tools, each once and as it was last."""
    by_id = {message.id: message for message in messages}
    return [message for message in by_id.values() if isinstance(message, AIMessage | ToolMessage)]


def _reports(messages: list[AnyMessage], journal: Journal) -> Iterator[ToolMessage]:
    for call in open_calls(messages):
        work = work_done(_once(journal.get(call["id"], [])))
        if work:
            text = f"{OUTCOME_UNKNOWN}\nWhat was done until then:\n{work}"
            yield ToolMessage(text, tool_call_id=call["id"] or "", status="error")
