"""The inbox of a session as its handle uses it: puts entries in, and waits for what comes of them.

Entries are durable once they are in the inbox, whichever hub of the store drives the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from agentgraph.clock import new_id
from agentgraph.errors import Quarantined, SessionClosed, SessionError
from agentgraph.sessions.drivers.quarantine import REQUESTS
from agentgraph.sessions.envelopes.draft import Draft, signed
from agentgraph.sessions.envelopes.envelope import (
    EV_CANCELLED,
    EV_SESSION_CLOSED,
    SUBSTANTIVE,
    SYSTEM,
    Envelope,
)
from agentgraph.sessions.hub.reader import SessionReader
from agentgraph.sessions.log import InboxEntry
from agentgraph.sessions.log.blobs import store_of_draft
from agentgraph.sessions.rounds.admission import may_enter
from agentgraph.sessions.rounds.input_span import InputSpan
from agentgraph.sessions.rounds.round import current_round
from agentgraph.sessions.state.visibility import Audience


class SessionInbox(SessionReader):
    """The part of a `Session` that sends and waits."""

    async def _put_in_inbox(self, sender: str, draft: Draft) -> str:
        self._check_open()
        if self.record.serves:
            raise SessionError(
                f"session {self.id!r} serves a round of another session: speak to that one",
                code="inner_session",
            )
        fault = await self._present_quarantine()
        # After the end the log decides: it knows what it has accepted before.
        if fault is not None and draft.event_type not in REQUESTS and not self._now.is_ended:
            raise fault
        await store_of_draft(self._hub.log, self.key, draft)
        entry = InboxEntry(new_id(), sender, signed(draft))
        is_appended = await self._is_appended(entry)
        envelope_id = entry.envelope_id
        if not is_appended:
            envelope_id = await self._hub.log.enqueue(self.key, entry)
        self._hub.drivers.wake(self.key, has_entry=not is_appended)
        return envelope_id

    async def _is_appended(self, entry: InboxEntry) -> bool:
        """Append a message at once if this hub owns the session and nothing is under way.

        Tells whether it did. That saves a write. What has an idempotency key goes by way of the
        inbox, which knows what was accepted under it.
        """
        owned_session = self._hub.drivers.owned_session(self.key)
        draft = entry.draft
        if owned_session is None or draft.event_type not in SUBSTANTIVE:
            return False
        if draft.idempotency_key is not None or self._is_inside():
            return False
        # In the hub's context, which has its clock.
        return bool(await self._hub.spawn(owned_session.admit_at_rest(entry)))

    async def _begin(self, sender: str, drafts: Sequence[Draft]) -> str:
        """Append drafts at once, and let this hub run the session; return the id of the last."""
        self._check_open()
        if (fault := await self._present_quarantine()) is not None:
            raise fault
        for draft in drafts:
            await store_of_draft(self._hub.log, self.key, draft)
        entries = [
            InboxEntry(new_id(), SYSTEM, draft)  # what an earlier thread has left
            if draft.event_type == EV_CANCELLED
            else InboxEntry(new_id(), sender, signed(draft))
            for draft in drafts
        ]
        # In the hub's context, which has its clock.
        if not await self._hub.spawn(self._hub.drivers.begin(self.key, entries)):
            if (await self.refresh()).is_ended:
                raise SessionClosed(f"session {self.id!r} has ended")
            raise SessionError(f"something is under way in session {self.id!r}", code="busy")
        return entries[-1].envelope_id

    async def _request(self, sender: str, draft: Draft, or_else: str = "") -> str:
        """Put a request into the inbox, wait until it is carried out or refused; return its id.

        Inside a round of the same session it does not wait: the round would wait for itself.
        """
        envelope_id = await self._put_in_inbox(sender, draft)
        if self._is_inside():
            return envelope_id
        await self._hub.subscribers.wait_until(self.key, lambda: self._is_taken(envelope_id))
        if or_else and await self._hub.log.find(self.key, envelope_id) is None:
            raise SessionError(or_else, code="too_late")
        return envelope_id

    async def _admitted(self, envelope_id: str) -> Envelope:
        matches: list[Envelope] = []
        looks = count()

        async def is_in_log() -> bool:
            owned_session = self._hub.drivers.owned_session(self.key)
            envelope, is_noticed = None, False
            if owned_session is not None:
                envelope = owned_session.recent.find(envelope_id)
                # While this hub works on the session, it notices what is admitted.
                is_noticed = self._is_at_work and next(looks) > 0
            if envelope is None and not is_noticed:
                envelope = await self._hub.log.find(self.key, envelope_id)
            if envelope is not None:
                matches.append(envelope)
            elif self._now.is_ended:
                raise SessionClosed(f"session {self.id!r} ended before this was admitted")
            elif (fault := self.quarantine) is not None:
                raise fault
            return envelope is not None

        await self._hub.subscribers.wait_until(self.key, is_in_log)
        return matches[0]

    async def _settled_span(self, envelope_id: str) -> InputSpan:
        """Wait until the session has settled for an input, and return what has come of it."""
        envelope = await self._admitted(envelope_id)
        span = InputSpan(self.record, envelope.sequence - 1)

        async def has_settled() -> bool:
            await span.read(self._read_new)
            if span.has_settled:
                if await self._is_to_close():
                    return False
                await span.read(self._read_new)  # it may have closed meanwhile
                return True
            if not await self._has_settled():
                return False
            await span.read(self._read_new)  # what was appended before the look at the state
            return True

        await self._hub.subscribers.wait_until(self.key, has_settled)
        return span

    async def _is_to_close(self) -> bool:
        """Tell whether a request to close waits, such as a tool's, which its round precedes."""
        owned_session = self._hub.drivers.owned_session(self.key)
        if owned_session is not None:
            async with owned_session.lock:  # what is being admitted is in the log then
                if not owned_session.may_have_inbox:
                    return False
        entries = await self._hub.log.inbox(self.key)
        return any(entry.draft.event_type == EV_SESSION_CLOSED for entry in entries)

    async def _has_settled(self) -> bool:
        if self._is_at_work:
            return False
        if (fault := self.quarantine) is not None and not self._now.is_ended:
            raise fault
        # Read before the state: an entry that another hub admits meanwhile shows up in one of both.
        entries = await self._hub.log.inbox(self.key)
        state = await self.refresh()
        if state.is_ended:
            return True
        if state.is_runnable:
            return False
        return not any(may_enter(state, entry) for entry in entries)

    async def _is_taken(self, envelope_id: str) -> bool:
        entries = await self._hub.log.inbox(self.key)
        entries_of_it = [entry for entry in entries if entry.envelope_id == envelope_id]
        if entries_of_it:
            if self._is_at_work and entries_of_it[0].draft.event_type in REQUESTS:
                return False  # also a session in quarantine carries these out
            if (fault := self.quarantine) is not None:
                raise fault  # accepted, and carried out once the session can run again
            return False
        await self.refresh()
        return True

    async def _read_new(self, after: int, limit: int) -> list[Envelope]:
        """Return the envelopes after a sequence; the owner of the session remembers the last."""
        owned_session = self._hub.drivers.owned_session(self.key)
        if owned_session is not None:
            recent = owned_session.recent.between(after)
            if recent is not None:
                return recent[:limit]
        return await self._read(after, limit)

    async def _present_quarantine(self) -> Quarantined | None:
        """Return why the session cannot run now; what was found before is looked at again."""
        driver = self._hub.drivers.get(self.key)
        if driver is not None:
            await driver.check_again()
        return self.quarantine

    @property
    def _is_at_work(self) -> bool:
        """Whether this hub looks at the session now, or runs it."""
        driver = self._hub.drivers.get(self.key)
        return driver is not None and not driver.is_resting

    def _is_inside(self) -> bool:
        """Tell whether this code runs inside a round of this session or of its inner sessions."""
        round = current_round()
        if round is None:
            return False
        handle = round.session.handle
        return self.key in (round.session.id, handle.key if handle is not None else None)

    def _own_round(self) -> dict[str, int]:
        """Return the number of this session's round that this code runs in, under `after_round`."""
        round = current_round()
        session = round.session if round is not None else None
        while session is not None and session.id != self.key:
            session = session.outer
        return {} if session is None else {"after_round": session.state.round}

    def _round_audience(self) -> Audience:
        """Return the audience of this session's round that this code runs in, None outside."""
        round = current_round()
        if round is None or not self._is_inside():
            return None
        return round.audience if round.session.id == self.key else round.session.outer_audience
