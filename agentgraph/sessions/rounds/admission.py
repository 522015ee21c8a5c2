"""Admission: which inbox entries may enter the log now, in which order, and as which envelopes.

This is the only place that turns inbox entries into envelopes. It works on a `Page` and writes
nothing: `OwnedSession` appends the page.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.log import InboxEntry
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import round_audience

_REQUESTS = frozenset(
    {
        ev.EV_CANCELLED,
        ev.EV_DECISION,
        ev.EV_REWOUND,
        ev.EV_SESSION_CLOSED,
        ev.EV_SESSION_INVITE_ACK,
        ev.EV_SESSION_INVITE_REJECT,
        ev.EV_SESSION_LEFT,
        ev.EV_SESSION_RELEASED,
    }
)
"""The types of requests to the session; they are not the words of a participant."""


_STOP_REQUESTS = frozenset({ev.EV_CANCELLED, ev.EV_REWOUND})


def admissible(
    state: SessionState, entries: Sequence[InboxEntry], *, at_boundary: bool
) -> tuple[list[InboxEntry], InboxEntry | None]:
    """Return the entries that may be admitted now, and the first stop request, which they precede.

    `entries` are in the order of arrival.
    """
    earlier, request = before_stop(entries)
    return [entry for entry in earlier if may_enter(state, entry, at_boundary=at_boundary)], request


def before_stop(entries: Sequence[InboxEntry]) -> tuple[list[InboxEntry], InboxEntry | None]:
    """Return the entries before the first stop request, in the order of arrival, and the request.

    A stop request ends the round under way: `Stop` carries it out, once the round is cancelled.
    """
    for place, entry in enumerate(entries):
        if entry.draft.event_type in _STOP_REQUESTS:
            return [*entries[:place]], entry
    return [*entries], None


def may_enter(state: SessionState, entry: InboxEntry, *, at_boundary: bool = True) -> bool:
    """Tell whether an entry of the inbox may be admitted now.

    Texts and packets enter between rounds only, and not while the session waits for a decision or
    for its participants. A request to close that a round of the session has made enters when that
    round is over. All other entries enter at any time. In a session of one a text enters in place
    of a decision, and takes the question back.
    """
    if _closes(entry) and not at_boundary:
        own_round = entry.draft.event_data.get("after_round")
        return own_round != state.round or state.status != "active"
    if entry.draft.event_type not in ev.SUBSTANTIVE:
        return True
    if state.is_single and state.status == "waiting_decision":
        return at_boundary and not state.is_runnable
    return at_boundary and state.status in ("active", "waiting_human")


def admit_all(page: Page, entries: Collection[InboxEntry]) -> None:
    """Admit entries of the inbox, the most urgent first.

    In a session of one each text is answered by a run of its own: the others stay in the inbox.
    """
    for entry in sorted(entries, key=_urgency):
        if not (page.state.is_single and _has_run(page.state) and _is_said(entry)):
            _admit(page, entry)


def _has_run(state: SessionState) -> bool:
    """Tell whether a run is under way or waits for a decision, or begins now."""
    return any(name not in state.humans for name in state.due)


def _is_said(entry: InboxEntry) -> bool:
    return entry.draft.event_type in ev.SUBSTANTIVE


def admit_rest(page: Page, entries: Collection[InboxEntry]) -> None:
    """Admit the remaining entries before the session ends; requests among them need no envelope.

    If the last round has asked to close the session, its reason is that of the end.
    """
    for entry in sorted(entries, key=_urgency):
        if entry.envelope_id not in page.admitted_ids:
            page.admitted_ids.add(entry.envelope_id)
            if "after_round" in entry.draft.event_data and _closes(entry):
                page.close(entry.draft.event_data["reason"])
            elif entry.draft.event_type not in _REQUESTS:
                page.add(entry.sender_id, entry.draft, envelope_id=entry.envelope_id)


def begin_log(page: Page, record: SessionRecord) -> None:
    """Begin the log of a new session: it invites its participants, or opens at once."""
    for name in record.invited:
        data = {"invitee": name, "creator": record.creator}
        page.note(ev.EV_SESSION_INVITE, data, audience=[name])
    if not record.invited:
        _open(page)


def _admit(page: Page, entry: InboxEntry) -> None:
    page.admitted_ids.add(entry.envelope_id)
    draft, sender = entry.draft, entry.sender_id
    data, state = draft.event_data, page.state
    kind = draft.event_type
    if kind == ev.EV_SESSION_CLOSED:
        page.close(data["reason"])
    elif kind == ev.EV_DECISION:
        question = state.interrupts.get(str(data["interrupt_id"]))
        if question is not None and "decision" not in question:
            answer = replace(draft, audience=round_audience(state, question.get("speaker")))
            page.add(sender, answer, envelope_id=entry.envelope_id)
    elif kind == ev.EV_SESSION_RELEASED:
        agent = _agent_after_human(page, data["agent"])
        if state.status == "waiting_human" and agent is not None:
            page.release(agent, envelope_id=entry.envelope_id, metadata=draft.metadata)
    elif kind in (ev.EV_SESSION_INVITE_ACK, ev.EV_SESSION_INVITE_REJECT):
        _answer_invite(page, entry)
    elif kind == ev.EV_SESSION_LEFT:
        _leave(page, data["participant"])
    elif kind in ev.SUBSTANTIVE:
        _say(page, entry)
    else:
        page.add(sender, draft, envelope_id=entry.envelope_id)


def _say(page: Page, entry: InboxEntry) -> None:
    """Admit a text or a packet."""
    draft, sender, state = entry.draft, entry.sender_id, page.state
    is_packet = draft.event_type == ev.EV_PACKET
    updates = draft.event_data.get("context_updates") if is_packet else None
    if sender not in state.due and updates and (updates.get("set") or updates.get("delete")):
        # A packet of a sender without the floor is not folded as a turn, so its context updates
        # are written before it, as an envelope of their own.
        page.add(sender, Draft(ev.EV_CONTEXT_SET, updates, audience=draft.audience))
    page.say(sender, draft, envelope_id=entry.envelope_id)


def _agent_after_human(page: Page, preferred_agent: str | None) -> str | None:
    """Return the agent that goes on when a human releases the conversation.

    The preferred agent, else the one that was interrupted, had the conversation or spoke last, else
    the first one.
    """
    state = page.state
    candidates = [preferred_agent, *(state.cancelled_decision or {}).get("speakers", ())]
    candidates += [state.conversation.previous_agent_id, state.last_speaker_id]
    candidates += [page.rules.graph.initial_speaker, *state.participant_order]
    agents = [name for name in state.participant_order if name not in state.humans]
    return next((name for name in candidates if name is not None and name in agents), None)


def _answer_invite(page: Page, entry: InboxEntry) -> None:
    """Count an answer to an invitation; it may open or close the session."""
    state, invitee = page.state, entry.sender_id
    if invitee in state.acks or invitee not in state.participant_order:
        return
    page.add(invitee, entry.draft, envelope_id=entry.envelope_id)
    is_rejected = entry.draft.event_type == ev.EV_SESSION_INVITE_REJECT
    if state.status != "pending":
        return _leave(page, invitee) if is_rejected else None
    quorum = int(entry.draft.metadata.get("needed", 0))
    if is_rejected and len(_invitees(page)) - 1 < quorum:
        return page.close("invite_rejected")
    if is_rejected:
        page.note(ev.EV_SESSION_LEFT, {"participant": invitee})
    if len(page.state.acks) >= quorum or _all_accepted(page):
        _open(page)


def _all_accepted(page: Page) -> bool:
    """Tell whether all invited participants who have not left have accepted."""
    return all(name in page.state.acks for name in _invitees(page))


def _invitees(page: Page) -> list[str]:
    """Return the invited participants who have not left."""
    state = page.state
    invitees = [name for name in state.humans if name != state.creator_id]
    return [name for name in invitees if name in state.participant_order]


def _open(page: Page) -> None:
    first = page.rules.graph.initial_speaker
    first = page.state.creator_id if first == "human" else first
    data = {
        "creator": page.state.creator_id,
        "participants": list(page.state.participant_order),
        "initial_speaker": first,
    }
    page.note(ev.EV_SESSION_OPENED, data)


def _leave(page: Page, name: str) -> None:
    """Remove a participant; if it had the floor, its turn fails for good."""
    if name not in page.state.participant_order:
        return
    was_due = name in page.state.due
    page.note(ev.EV_SESSION_LEFT, {"participant": name})
    if all(present in page.state.humans for present in page.state.participant_order):
        page.close("no_participants")
    elif page.state.status == "pending" and _all_accepted(page):
        _open(page)  # the session does not wait for a participant who has left
    if was_due:
        failure = {"speaker": name, "round": page.state.round, "attempt": 0, "code": "left"}
        page.fail({**failure, "message": f"{name} left the session"}, final=True)


def _urgency(entry: InboxEntry) -> tuple[bool, int, int]:
    """Return the sort key of an entry: by priority, then arrival; a request to close comes last."""
    return _closes(entry), -entry.draft.priority, entry.order


def _closes(entry: InboxEntry) -> bool:
    return entry.draft.event_type == ev.EV_SESSION_CLOSED
