"""Stop requests: entries of the inbox that end the round under way, by the hand of its owner.

The owner cancels the round first, and then carries out the request, so that the log has what is
known of the round's turns. The order of arrival counts: what arrived before a stop request is
admitted before it, and what arrived after it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentgraph.errors import ConfigurationError
from agentgraph.sessions.envelopes.packet import UnfinishedTurn, cancelled_round
from agentgraph.sessions.log import InboxEntry
from agentgraph.sessions.rounds.admission import admit_all, may_enter
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.state import SessionState


@dataclass(frozen=True, slots=True)
class Rewind:
    """What has to be known to go back to an earlier state."""

    then: SessionState
    effects: Sequence[Mapping[str, object]]
    """What was done, or may have been done, since then."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop request, and what has to be known to carry it out."""

    request: InboxEntry
    earlier: Sequence[InboxEntry]
    """The entries that arrived before it."""
    turns: Mapping[str, UnfinishedTurn]
    """By speaker, what is known of the turns that were under way."""
    attempt: int
    rewind: Rewind | None = None
    """None if the request is to cancel, and no more."""

    def carry_out(self, page: Page) -> None:
        """Cancel the round under way, and go back if that is requested.

        If none is under way, a request to cancel is for the round that earlier entries begin.
        """
        page.admitted_ids.add(self.request.envelope_id)
        # No model is asked who answers a text, as nobody will.
        page.rules = replace(page.rules, asker=None)
        if self.rewind is None:
            if not page.state.is_under_way:
                self._admit_earlier(page)
            self._cancel(page, self.request.envelope_id)
        elif not self.rewind.then.is_ended:
            self._cancel(page)
            self._admit_earlier(page)
            for entry in self.earlier:
                if entry.envelope_id not in page.admitted_ids and not page.ends:
                    # A session of one takes texts one by one; nobody will answer these.
                    page.admitted_ids.add(entry.envelope_id)
                    page.add(entry.sender_id, entry.draft, envelope_id=entry.envelope_id)
            self._go_back(page, self.rewind)

    def _admit_earlier(self, page: Page) -> None:
        state = page.state
        admit_all(page, [entry for entry in self.earlier if may_enter(state, entry)])

    def _cancel(self, page: Page, envelope_id: str | None = None) -> None:
        state = page.state
        if not state.is_under_way or page.ends:
            return
        request, nothing = self.request, UnfinishedTurn()
        reason = str(request.draft.event_data.get("reason") or "rewound")
        about = (state.round, self.attempt, reason, request.sender_id)
        turns = {name: self.turns.get(name, nothing) for name in state.due}
        try:
            page.cancel(cancelled_round(turns, *about), envelope_id=envelope_id)
        except ConfigurationError:  # it has values that no log can store
            turns = dict.fromkeys(turns, nothing)
            page.cancel(cancelled_round(turns, *about), envelope_id=envelope_id)

    def _go_back(self, page: Page, rewind: Rewind) -> None:
        if page.ends:
            return
        data = {
            "to": rewind.then.sequence,
            "by": self.request.sender_id,
            "effects": [dict(effect) for effect in rewind.effects],
        }
        request = self.request
        metadata = request.draft.metadata
        page.rewind(data, rewind.then, envelope_id=request.envelope_id, metadata=metadata)
