"""Sessions whose record is damaged or whose code is missing: what may still be done with them.

Such a session runs no round. It can be closed and left, and expires; all of this needs neither the
damaged records nor the session's rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgraph.clock import clock
from agentgraph.errors import Quarantined
from agentgraph.routing import TransitionGraph
from agentgraph.sessions.envelopes.envelope import EV_SESSION_CLOSED, EV_SESSION_LEFT, Envelope
from agentgraph.sessions.log import InboxEntry, Log, StoredSession
from agentgraph.sessions.log.protocol import DamagedSession
from agentgraph.sessions.rounds.admission import admit_all
from agentgraph.sessions.rounds.branch import Branch, state_at
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.state.expectations import expire, expires_at
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rewind import is_live
from agentgraph.sessions.state.rules import Rules
from agentgraph.sessions.state.state import SessionState, with_fields

REQUESTS = frozenset({EV_SESSION_CLOSED, EV_SESSION_LEFT})
"""The types of requests that a session in quarantine still carries out."""

_CHECKED_ENVELOPES = 200
"""How many of the last envelopes are checked when a hub takes a session; the others when read."""


async def load_readable(log: Log, session_id: str) -> StoredSession | None:
    """Return a session as far as its records can be read, None if it is unknown."""
    try:
        return await log.load(session_id)
    except DamagedSession as damage:
        if damage.stored_session is None:
            raise
        return damage.stored_session


async def readable_state(log: Log, stored_session: StoredSession) -> SessionState:
    """Return a session's state: its snapshot, else what its log folds to up to the damage."""
    if stored_session.state is not None:
        return stored_session.state
    try:
        return await state_at(log, stored_session.record, stored_session.head)
    except DamagedSession as damage:
        whole = max((damage.sequence or 1) - 1, 0)
        return await state_at(log, stored_session.record, whole)


async def check_records(
    log: Log, session_id: str, known_damage: Quarantined | None
) -> tuple[StoredSession, Sequence[Envelope]] | None:
    """Return a session and its last envelopes; raise `Quarantined` if any of them is damaged.

    Damage that is known already is looked at again, wherever it was. The cost does not depend on
    the length of the log.
    """
    stored_session = await log.load(session_id)
    if stored_session is None:
        return None
    state, checked_after = stored_session.state, max(0, stored_session.head - _CHECKED_ENVELOPES)
    if state is not None and state.live:
        await Branch(log, state).read(checked_after)
        last: Sequence[Envelope] = ()  # those of other branches are missing
    else:
        last = await log.read(session_id, checked_after)
    if isinstance(known_damage, DamagedSession):
        await log.inbox(session_id)  # else the next admission reads it
        was_live = state is None or is_live(state, known_damage.sequence)
        if known_damage.sequence is not None and was_live:
            await log.read(known_damage.session_id, known_damage.sequence - 1, 1)
    return stored_session, last


class QuarantinedSession:
    """A session in quarantine: carries out what it is still asked, for the hub that owns it."""

    def __init__(self, log: Log, session_id: str) -> None:
        self._log = log
        self._id = session_id

    async def has_work(self) -> bool:
        """Tell whether the session was asked to close or to let somebody leave, or has expired."""
        stored_session = await load_readable(self._log, self._id)
        if stored_session is None or stored_session.record.serves:
            return False
        state = stored_session.state
        if state is not None and state.is_ended:
            return False
        return _is_expired(stored_session.record) or bool(await self._requests())

    async def work(self, rules: Rules | None, epoch: int) -> OwnedSession | None:
        """Do it, under an epoch; return the session, None if it is gone.

        Without `rules`, the code of which is missing, nobody leaves who has the floor: the rules
        say who has it next.
        """
        stored_session = await load_readable(self._log, self._id)
        if stored_session is None:
            return None
        record = stored_session.record
        state = await readable_state(self._log, stored_session)
        session = OwnedSession(
            self._log,
            record,
            rules or Rules(TransitionGraph(record.creator)),
            # What is appended follows the last envelope, though those before cannot all be read.
            with_fields(state, sequence=stored_session.head),
            epoch,
            stored_session.attempts,
        )
        requests = await self._requests()
        leaves = [entry for entry in requests if entry.draft.event_type == EV_SESSION_LEFT]
        if rules is None:
            due = session.state.due
            leaves = [entry for entry in leaves if entry.draft.event_data["participant"] not in due]
        if _is_expired(record):
            await session.write(expire)
        elif any(entry.draft.event_type == EV_SESSION_CLOSED for entry in requests):
            await session.write(lambda page: admit_all(page, requests))
        elif leaves:
            await session.write(lambda page: admit_all(page, leaves))
        return session

    async def _requests(self) -> list[InboxEntry]:
        entries = await self._log.inbox(self._id)
        return [entry for entry in entries if entry.draft.event_type in REQUESTS]


def _is_expired(record: SessionRecord) -> bool:
    at = expires_at(record)
    return at is not None and at <= clock().wall()
