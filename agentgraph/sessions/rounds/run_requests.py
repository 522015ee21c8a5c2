"""Requests to cancel one run: what waits in the inbox is withdrawn, what is under way is stopped.

The owner of a session decides, so that the request and the admission of the run's input cannot both
win. A run that has ended by then stays as it is, and so does every other run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.log import InboxEntry, Log
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.state.fold import decision_of, fold
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import SessionRecord

RUN = "run"
"""The key of the run's id in the data of a request to cancel, which else is for any run."""
_PAGE = 200


def run_of_request(entry: InboxEntry) -> str | None:
    """Return the id of the run that a request is to cancel; None for other entries."""
    run_id = entry.draft.event_data.get(RUN)
    is_request = entry.draft.event_type == ev.EV_CANCELLED
    return run_id if is_request and isinstance(run_id, str) else None


@dataclass(slots=True)
class RunRequests:
    """The requests among the entries of an inbox that can be carried out without a stop."""

    entries: list[InboxEntry]
    """The entries that are left."""
    withdrawals: list[tuple[InboxEntry, InboxEntry]] = field(default_factory=list)
    """Requests, each with the input that it withdraws."""
    void: list[InboxEntry] = field(default_factory=list)
    """Requests whose runs have ended."""

    @classmethod
    async def among(
        cls, entries: Sequence[InboxEntry], log: Log, record: SessionRecord
    ) -> RunRequests:
        """Find them; a request to cancel the run under way is left among the entries."""
        requests = cls([*entries])
        for request in entries:
            run_id = run_of_request(request)
            if run_id is None:
                continue
            target = next((entry for entry in entries if entry.envelope_id == run_id), None)
            if target is not None:
                requests.withdrawals.append((request, target))
                requests._remove(request, target)
            elif not await is_under_way(log, record, run_id):
                requests.void.append(request)
                requests._remove(request)
        return requests

    def __bool__(self) -> bool:
        return bool(self.withdrawals or self.void)

    def carry_out(self, page: Page) -> None:
        """Put a note in the place of each input that is withdrawn: its id stays known."""
        page.admitted_ids.update(request.envelope_id for request in self.void)
        for request, target in self.withdrawals:
            page.admitted_ids.add(request.envelope_id)
            if target.envelope_id in page.admitted_ids:
                continue  # two have asked for it
            page.admitted_ids.add(target.envelope_id)
            reason = str(request.draft.event_data.get("reason"))
            data = {"reason": reason, "by": request.sender_id}
            draft = Draft(ev.EV_WITHDRAWN, data, audience=target.draft.audience)
            page.add(target.sender_id, draft, envelope_id=target.envelope_id)

    def _remove(self, *entries: InboxEntry) -> None:
        ids = {entry.envelope_id for entry in entries}
        self.entries = [entry for entry in self.entries if entry.envelope_id not in ids]


async def is_under_way(log: Log, record: SessionRecord, run_id: str) -> bool:
    """Tell whether somebody is at work on a run, and not on another one."""
    envelope = await log.find(record.key, run_id)
    if envelope is None or (envelope.is_substantive and decision_of(envelope) is None):
        return False  # what decides nothing is answered by the run that is under way already
    state = await state_at(log, record, envelope.sequence - 1)
    while page := await log.read(record.key, state.sequence, _PAGE):
        for later in page:
            state = fold(state, later)
            if not state.is_runnable:
                return False
    return True
