"""How what waited is admitted: by what it is, the urgent first."""

from __future__ import annotations

from collections.abc import Sequence

from agentgraph.sessions.log import InboxEntry
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Draft
from agentgraph.sessions.state.page import Page

REQUESTS = frozenset(
    {
        ev.EV_DECISION,
        ev.EV_SESSION_CLOSED,
        ev.EV_SESSION_INVITE_ACK,
        ev.EV_SESSION_INVITE_REJECT,
        ev.EV_SESSION_LEFT,
        ev.EV_SESSION_RELEASED,
    }
)
"""What is asked of a session, and not said in it."""


def take_all(page: Page, ready: Sequence[InboxEntry]) -> None:
    """Admit what waited."""
    for waiting in ready:
        take_in(page, waiting)


def take_in(page: Page, waiting: InboxEntry) -> None:
    """Admit one thing that waited."""
    page.admitted_ids.add(waiting.envelope_id)
    draft, sender = waiting.draft, waiting.sender_id
    data, state = draft.event_data, page.state
    kind = draft.event_type
    if kind == ev.EV_SESSION_CLOSED:
        page.close(data["reason"])
    elif kind == ev.EV_DECISION:
        asked = state.interrupts.get(str(data["interrupt_id"]))
        if asked is not None and "decision" not in asked:
            page.add(sender, draft, envelope_id=waiting.envelope_id)
    elif kind == ev.EV_SESSION_RELEASED:
        agent = heir(page, data["agent"])
        if state.status == "waiting_human" and agent is not None:
            page.release(agent, envelope_id=waiting.envelope_id)
    elif kind in (ev.EV_SESSION_INVITE_ACK, ev.EV_SESSION_INVITE_REJECT):
        answer_invite(page, waiting)
    elif kind == ev.EV_SESSION_LEFT:
        leave(page, data["participant"])
    elif kind in ev.SUBSTANTIVE:
        updates = data.get("context_updates") if kind == ev.EV_PACKET else None
        if sender not in state.due and updates and (updates.get("set") or updates.get("delete")):
            # Who has not the floor may write the context all the same: ahead, so that it counts.
            page.add(sender, Draft(ev.EV_CONTEXT_SET, updates, audience=draft.audience))
        page.say(sender, draft, envelope_id=waiting.envelope_id)
    else:
        page.add(sender, draft, envelope_id=waiting.envelope_id)


def heir(page: Page, named: str | None) -> str | None:
    """Return who goes on when a human lets the conversation go: who is named, or had it before."""
    state = page.state
    known = [named, state.conversation.previous_agent_id, state.last_speaker_id]
    known += [page.rules.graph.initial_speaker, *state.participant_order]
    agents = [name for name in state.participant_order if name not in state.humans]
    return next((name for name in known if name is not None and name in agents), None)


def answer_invite(page: Page, waiting: InboxEntry) -> None:
    """Count an answer to an invitation, and open or close the session by it."""
    state, who = page.state, waiting.sender_id
    if state.status != "pending" or who in state.acks:
        return
    page.add(who, waiting.draft, envelope_id=waiting.envelope_id)
    if waiting.draft.event_type == ev.EV_SESSION_INVITE_REJECT:
        page.close("invite_rejected")
    elif len(page.state.acks) >= int(waiting.draft.metadata.get("needed", 0)) or _have_all(page):
        open_session(page)


def _have_all(page: Page) -> bool:
    """Tell whether all who were invited, and have not left again, have accepted."""
    state = page.state
    invited = [name for name in state.humans if name != state.creator_id]
    here = [name for name in invited if name in state.participant_order]
    return all(name in state.acks for name in here)


def open_session(page: Page) -> None:
    """Let it begin."""
    first = page.rules.graph.initial_speaker
    first = page.state.creator_id if first == "human" else first
    told = {
        "creator": page.state.creator_id,
        "participants": list(page.state.participant_order),
        "initial_speaker": first,
    }
    page.note(ev.EV_SESSION_OPENED, told)


def leave(page: Page, who: str) -> None:
    """Let a participant go; a turn of theirs has failed."""
    if who not in page.state.participant_order:
        return
    was_due = who in page.state.due
    page.note(ev.EV_SESSION_LEFT, {"participant": who})
    if all(name in page.state.humans for name in page.state.participant_order):
        page.close("no_participants")
    elif page.state.status == "pending" and _have_all(page):
        open_session(page)  # whoever has left is not waited for
    if was_due:
        told = {"speaker": who, "round": page.state.round, "attempt": 0, "code": "left"}
        page.fail({**told, "message": f"{who} left the session"}, final=True)


def urgency(waiting: InboxEntry) -> tuple[bool, int, int]:
    """Order what waits: the urgent first, then by arrival, the request to close last."""
    closes = waiting.draft.event_type == ev.EV_SESSION_CLOSED
    return closes, -waiting.draft.priority, waiting.order
