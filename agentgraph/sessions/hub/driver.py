"""The driver of one session: takes it when something is to be done, and has it executed.

A hub has a driver for each session that it was asked about; whether it owns the session is between
the driver and the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from agentgraph.clock import clock
from agentgraph.errors import Quarantined, RoundConflict, SessionClosed, StaleOwner, kind_of
from agentgraph.routing import TransitionGraph
from agentgraph.sessions.hub.execution import Execution, ExecutionHub
from agentgraph.sessions.hub.lease import is_gone
from agentgraph.sessions.log import StoredSession
from agentgraph.sessions.rounds.owned_session import OwnedSession, SessionHandle, load_state
from agentgraph.sessions.state.envelope import EV_ROUND_FAILED, Envelope
from agentgraph.sessions.state.record import Parent, SessionRecord
from agentgraph.sessions.state.rules import Rules
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.sessions.team.inner_session import inner_ids
from agentgraph.sessions.team.supervisor import Supervisor

logger = logging.getLogger("agentgraph")

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class DriverHub(ExecutionHub, Protocol):
    """What a driver needs of its hub."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something as long as the hub is open."""
        ...

    def wake(self, session_id: str) -> None:
        """Have a session looked at."""
        ...

    def dismiss(self, session_id: str) -> None:
        """Forget the driver of a session that has ended."""
        ...

    def team_of(self, record: SessionRecord) -> CompiledTeam:
        """Return the team whose code a session needs; `Quarantined` where it is unknown."""
        ...

    def handle(self, record: SessionRecord) -> SessionHandle:
        """Return what participants hold of a session."""
        ...

    def on_appended(self, session: OwnedSession, envelopes: Sequence[Envelope]) -> None:
        """Take note of what was appended to a session that this hub owns."""
        ...


class SessionDriver:
    """Drives one session of a hub, in a task that ends when the session rests.

    A hub that does not own the session wakes its driver all the same: `_take` then finds that
    another hub has it, and the driver rests.
    """

    def __init__(self, hub: DriverHub, session_id: str) -> None:
        self._hub = hub
        self._id = session_id
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._execution: Execution | None = None
        self._is_stopped = False
        self._is_over = False
        self._failure_count = 0
        self.quarantine: Quarantined | None = None
        """Why the session cannot run here, if it cannot."""

    @property
    def session(self) -> OwnedSession | None:
        """The session, while this hub owns it."""
        return self._execution.session if self._execution is not None else None

    @property
    def is_resting(self) -> bool:
        """Whether nothing is under way."""
        return self._task is None or self._task.done()

    def wake(self) -> None:
        """Look at the session: something may have come in, or come due."""
        if self.session is not None:
            self.session.may_have_inbox = True
        self._news.set()
        if self.is_resting and not self._is_stopped:
            self._task = self._hub.spawn(self._drive())
            self._task.add_done_callback(lambda _: self._on_rest())

    def notice(self, envelopes: Sequence[Envelope]) -> None:
        """Show the supervisor what was appended, and wake inner sessions whose round is over."""
        if self._execution is not None and self._execution.supervisor is not None:
            self._execution.supervisor.notice(envelopes)
        for envelope in envelopes:
            data = envelope.event_data
            if envelope.event_type == EV_ROUND_FAILED and data.get("final") is True:
                self._wake_inner([data["speaker"]], data["round"])

    def try_again(self) -> None:
        """Look again at a session that could not run here."""
        if self.quarantine is not None:
            self.quarantine = None
            self.wake()

    async def stop(self) -> None:
        """Break off for good, and give the session back: another hub begins its round again."""
        self._is_stopped = True
        session = self.session
        was_running = not self.is_resting and session is not None and session.is_running
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        session = self.session
        await self._let_go()
        if session is not None:
            # To stop on purpose is no failure of the round.
            attempts = max(session.attempts - 1, 0) if was_running else None
            await self._hub.log.release(self._id, self._hub.lease.owner, attempts=attempts)

    def _on_rest(self) -> None:
        if self._is_over and self.is_resting:
            self._hub.dismiss(self._id)
        self._hub.subscribers.notify(self._id)

    async def _drive(self) -> None:
        """Execute the session until it rests; no error gets out, the session must go on."""
        while self._news.is_set():
            self._news.clear()
            try:
                if self._execution is None:
                    self._execution = await self._take()
                if (execution := self._execution) is not None and await execution.run():
                    self._is_over = True
                    self._wake_inner(execution.team.inner_teams, execution.session.state.round)
                    await self._let_go()
                self._failure_count = 0
            except RoundConflict:
                # An append whose outcome nobody knew has got there after all: see what it came to.
                await self._let_go()
                self._news.set()
            except (StaleOwner, SessionClosed):
                await self._let_go()
            except Quarantined as fault:
                await self._let_go()
                if str(fault) != str(self.quarantine):  # once, though it is looked at again
                    logger.error("session %s is quarantined: %s", self._id, fault)
                self.quarantine = fault
                await self._hub.log.release(self._id, self._hub.lease.owner)
            except Exception as error:
                # The store may be away for a while; whatever it was, the session must go on.
                await self._let_go()
                kind = kind_of(error)
                logger.error("session %s is tried again: %s", self._id, kind, exc_info=error)
                self._failure_count += 1
                await clock().sleep(min(_PAUSE_S * 2**self._failure_count, _LONGEST_PAUSE_S))
                self._news.set()

    async def _let_go(self) -> None:
        """Forget all that only an owner may go by."""
        execution, self._execution = self._execution, None
        if execution is not None and execution.supervisor is not None:
            await execution.supervisor.stop()

    def _wake_inner(self, teams: Sequence[str], round: int) -> None:
        """Have the sessions looked at that were opened for a round which is over."""
        for name in teams:
            for session_id in inner_ids(self._id, round, name):
                self._hub.wake(session_id)
        for session_id in self.session.inner_ids if self.session is not None else ():
            self._hub.wake(session_id)

    async def _take(self) -> Execution | None:
        """Take the session, if it needs somebody and nobody else has it."""
        hub = self._hub
        stored_session = await hub.log.load(self._id)
        if stored_session is None:
            self._is_over = True
            return None
        if stored_session.state is not None and stored_session.state.is_ended:
            self._is_over = True
            await self._clear_away(stored_session)
            return None
        if stored_session.record.serves:
            await self._close_orphan(stored_session)
            return None  # it runs within a round of its outer session
        team = hub.team_of(stored_session.record)
        rules = team.rules_of(stored_session.record)
        # Before the claim: should the lease lapse meanwhile, the ownership is verified.
        lease_number = hub.lease.number
        epoch = await self._claim()
        if epoch is None:
            return None
        # Once more, as the owner before this one may have written until the claim.
        stored_session = await hub.log.load(self._id)
        if stored_session is None:
            return None
        handle = hub.handle(stored_session.record)
        session = OwnedSession(
            hub.log,
            stored_session.record,
            rules,
            await load_state(hub.log, stored_session),
            epoch,
            stored_session.attempts,
            on_appended=hub.on_appended,
            owner=hub.lease.owner,
            handle=handle,
            guards=team.active_guards,
            effects=team.effects,
        )
        speaker = team.supervisor_speaker
        supervisor = Supervisor(session, handle, speaker, hub.spawn) if speaker else None
        self.quarantine = None
        return Execution(hub, session, team, lease_number, self._news, supervisor)

    async def _claim(self) -> int | None:
        owner = self._hub.lease.owner
        return await self._hub.log.claim(self._id, owner, clock().wall(), is_gone=is_gone)

    async def _clear_away(self, stored_session: StoredSession) -> None:
        """Clear away what an owner has left that died as soon as the session had ended."""
        if stored_session.owner is not None and await self._claim() is not None:
            await self._hub.saver.adelete_thread(self._id)
            await self._hub.log.release(self._id, self._hub.lease.owner)

    async def _close_orphan(self, stored_session: StoredSession) -> None:
        """Close an inner session whose outer one is no longer in the round that it serves."""
        hub, record = self._hub, stored_session.record
        outer = await hub.log.load(record.parent.session_id) if record.parent is not None else None
        if record.parent is not None and outer is not None and _serves(record.parent, outer.state):
            return
        epoch = await self._claim()
        if epoch is None:
            return
        # No rule is asked any more, and the inner team may be unknown here.
        rules = Rules(TransitionGraph(record.creator))
        state = await load_state(hub.log, stored_session)
        await OwnedSession(hub.log, record, rules, state, epoch).close("round_over")
        await hub.log.release(self._id, hub.lease.owner)
        self._is_over = True
        self._wake_inner(record.agents, state.round)  # some of them may be teams


def _serves(parent: Parent, outer: SessionState | None) -> bool:
    if outer is None:
        return True  # there is no snapshot, and only its log can tell
    is_under_way = outer.round == parent.round and parent.speaker in outer.due
    return is_under_way and not outer.is_ended
