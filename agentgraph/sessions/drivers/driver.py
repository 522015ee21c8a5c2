"""The driver of one session: claims the session when there is work, and has it executed.

A hub has a driver for each session that was opened or woken in it. The store decides whether the
driver's claim makes its hub the owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from langgraph.store.base import BaseStore

from agentgraph.clock import clock
from agentgraph.errors import (
    Quarantined,
    RoundConflict,
    SessionClosed,
    SessionError,
    StaleOwner,
    kind_of,
)
from agentgraph.routing import TransitionGraph
from agentgraph.running import inside_ownership
from agentgraph.sessions.drivers.execution import Execution, ExecutionHub
from agentgraph.sessions.drivers.lease import is_gone
from agentgraph.sessions.drivers.quarantine import QuarantinedSession, check_records, load_readable
from agentgraph.sessions.drivers.subscribers import Subscribers
from agentgraph.sessions.envelopes.envelope import EV_CANCELLED, EV_ROUND_FAILED, Envelope
from agentgraph.sessions.log import InboxEntry, StoredSession
from agentgraph.sessions.log.protocol import DamagedSession, is_unknown
from agentgraph.sessions.rounds.owned_session import OwnedSession, SessionHandle, load_state
from agentgraph.sessions.rounds.round import RETRIES
from agentgraph.sessions.state.record import Parent, SessionRecord, session_key
from agentgraph.sessions.state.rules import Rules
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.sessions.team.inner_id import known_ids
from agentgraph.sessions.team.supervisor import Supervisor

logger = logging.getLogger("agentgraph")

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class OtherDrivers(Protocol):
    """What a driver needs of the drivers of its hub."""

    def wake(self, session_id: str) -> None:
        """Wake the driver of a session, so that it looks for work."""
        ...

    def dismiss(self, session_id: str) -> None:
        """Forget the driver of a session that has ended."""
        ...


class DriverHub(ExecutionHub, Protocol):
    """What a driver needs of its hub."""

    subscribers: Subscribers
    store: BaseStore | None

    @property
    def drivers(self) -> OtherDrivers:
        """Return all drivers of the hub."""
        ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task for as long as the hub is open."""
        ...

    def team_of(self, record: SessionRecord) -> CompiledTeam:
        """Return the team whose code a session needs; `Quarantined` if it is not registered."""
        ...

    def handle(self, record: SessionRecord) -> SessionHandle:
        """Return the session's handle, which participants get."""
        ...

    def on_appended(self, session: OwnedSession, envelopes: Sequence[Envelope]) -> None:
        """Notify of envelopes that were appended to a session that this hub owns."""
        ...


class SessionDriver:
    """Drives one session of a hub, in a task that ends when the session has no work.

    The driver also runs if another hub owns the session: then `_take` fails to claim it, and the
    task ends.
    """

    def __init__(self, hub: DriverHub, session_id: str) -> None:
        self._hub = hub
        self._id = session_id
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._execution: Execution | None = None
        self._taking = asyncio.Lock()
        self._is_stopped = False
        self._is_over = False
        self._failure_count = 0
        self.quarantine: Quarantined | None = None
        """Why the session cannot run in this hub, None if it can."""
        self._reported_fault = ""
        """The fault that is in the process's log: a damaged session is tried again each second."""

    @property
    def session(self) -> OwnedSession | None:
        """The session, while this hub owns it."""
        return self._execution.session if self._execution is not None else None

    @property
    def is_resting(self) -> bool:
        """Whether no task of the driver is under way."""
        return self._task is None or self._task.done()

    def wake(self, *, has_entry: bool = True) -> None:
        """Look at the session: an agent or a timer may be due, and its inbox may have an entry."""
        if self.session is not None and has_entry:
            self.session.may_have_inbox = True
        self._news.set()
        if self.is_resting and not self._is_stopped:
            self._task = self._hub.spawn(self._drive())
            self._task.add_done_callback(lambda _: self._on_rest())

    async def begin(self, entries: Sequence[InboxEntry]) -> bool:
        """Append an input, or decisions, at once in this hub, and run it.

        Returns False, and has changed nothing, if something is under way in the session or waits,
        in whichever hub. One that another hub owns, and is at rest, is claimed from that hub.
        """
        for _ in range(2):
            execution = await self._own(at_rest=True)
            if execution is None:
                return False
            try:
                is_begun = await execution.begin(entries)
            except (StaleOwner, RoundConflict):
                await self._let_go()  # another hub has claimed it meanwhile
                continue
            if is_begun:
                self.wake(has_entry=False)
            return is_begun
        return False

    async def check_owner(self, stored_session: StoredSession) -> None:
        """Let go of a session that another hub has claimed, as is read in the store."""
        session = self.session
        if session is not None and session.epoch != stored_session.epoch and self.is_resting:
            await self._let_go()

    def notice(self, envelopes: Sequence[Envelope]) -> None:
        """Show new envelopes to the supervisor; wake the inner sessions of a round that is over."""
        if self._execution is not None and self._execution.supervisor is not None:
            self._execution.supervisor.notice(envelopes)
        if self.session is None:
            return
        for envelope in envelopes:
            data = envelope.event_data
            if envelope.event_type == EV_ROUND_FAILED and data.get("final") is True:
                self._wake_inner(self.session.record, [data["speaker"]], data["round"])
            elif envelope.event_type == EV_CANCELLED:
                self._wake_inner(self.session.record, data["speakers"], data["round"])

    def suspend(self, damage: DamagedSession) -> None:
        """Run no more rounds until the damage is repaired."""
        self._report(damage)
        self.wake()

    async def check_again(self) -> None:
        """Look whether what kept the session from running is still so; if not, go on."""
        if self.quarantine is None:
            return
        try:
            await self._check()
        except Quarantined as fault:
            self.quarantine = fault
        else:
            self.quarantine = None
            self.wake()

    def try_again(self) -> None:
        """Look again at a session that could not run in this hub."""
        if self.quarantine is not None:
            self.quarantine = None
            self.wake()

    async def hand_back(self, grace_s: float) -> bool:
        """Release the session once it rests, or after the grace; tell whether it was cut off."""
        task = self._task
        if task is not None:
            with suppress(TimeoutError), clock().timeout(grace_s):
                await asyncio.wait({task})
        is_at_work = not self.is_resting
        await self.stop()
        return is_at_work

    async def stop(self) -> None:
        """Cancel the session's work and release the session: another hub begins its round again."""
        self._is_stopped = True
        session = self.session
        was_running = not self.is_resting and session is not None and session.is_running
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        session = self.session
        if session is not None and was_running:
            await self._hub.live.hand_over(session)
        await self._let_go()
        if session is not None:
            # A stop is no failed attempt of the round.
            attempts = max(session.attempts - 1, 0) if was_running else None
            try:
                await self._hub.log.release(self._id, self._hub.lease.owner, attempts=attempts)
            except SessionError as error:
                if not is_unknown(error):  # else another hub has forgotten it
                    raise

    def _on_rest(self) -> None:
        if self._is_over and self.is_resting:
            self._hub.drivers.dismiss(self._id)
        self._hub.subscribers.notify(self._id)

    async def _drive(self) -> None:
        """Execute the session until there is no work; errors are logged, and the work goes on."""
        while self._news.is_set():
            self._news.clear()
            try:
                if self.quarantine is not None:
                    await self._let_go()  # it is owned again once its records are whole
                execution = await self._own()
                if execution is not None and await execution.run():
                    self._is_over = True
                    session = execution.session
                    teams = execution.team.inner_teams
                    self._wake_inner(session.record, teams, session.state.round)
                    await self._let_go()
                self._failure_count = 0
            except RoundConflict:
                # An append whose outcome was unknown is in the log after all: read the log again.
                await self._let_go()
                self._news.set()
            except (StaleOwner, SessionClosed):
                await self._let_go()
            except Quarantined as fault:
                await self._be_quarantined(fault)
            except Exception as error:
                await self._let_go()
                if isinstance(error, SessionError) and is_unknown(error):
                    self._is_over = True  # it was forgotten
                    continue
                # The store may be unreachable for a while; whatever the error, the session must go
                # on.
                kind = kind_of(error)
                text = "session %s is tried again: %s"
                logger.error(text, self._id, kind, exc_info=error, extra={"session": self._id})
                self._failure_count += 1
                await clock().sleep(min(_PAUSE_S * 2**self._failure_count, _LONGEST_PAUSE_S))
                self._news.set()

    def _report(self, fault: Quarantined) -> None:
        if str(fault) != self._reported_fault:
            self._reported_fault = str(fault)
            logger.error("session %s is quarantined: %s", self._id, fault)
        self.quarantine = fault

    async def _be_quarantined(self, fault: Quarantined) -> None:
        """Give the session back, after what it can still be asked to do."""
        session = self.session
        await self._let_go()
        self._report(fault)
        # A round that damage has interrupted is no failed attempt.
        was_running = session is not None and session.is_running
        attempts = max(session.attempts - 1, 0) if was_running and session is not None else None
        if was_running and session is not None:
            await self._hub.live.hand_over(session)
        with suppress(Quarantined):  # the request itself may be damaged
            await self._carry_out_requests()
        await self._hub.log.release(self._id, self._hub.lease.owner, attempts=attempts)

    async def _carry_out_requests(self) -> None:
        """Close the session, or let somebody leave, if that was asked; expire it in its time."""
        hub, quarantined_session = self._hub, QuarantinedSession(self._hub.log, self._id)
        if not await quarantined_session.has_work():
            return
        epoch = await self._claim()
        if epoch is None:
            return
        stored_session = await load_readable(hub.log, self._id)
        rules = None
        if stored_session is not None:
            with suppress(Quarantined):
                rules = hub.team_of(stored_session.record).rules_of(stored_session.record)
        session = await quarantined_session.work(rules, epoch)
        if session is not None and session.state.is_ended:
            self._is_over = True
            with inside_ownership(hub.ownership(self._id, epoch)):
                await hub.saver.adelete_thread(self._id)

    async def _check(self) -> None:
        """Raise `Quarantined` if the session's code is missing or its records are damaged."""
        hub = self._hub
        records = await check_records(hub.log, self._id, self.quarantine)
        if records is not None and not (record := records[0].record).serves:
            hub.team_of(record).rules_of(record)

    async def _let_go(self) -> None:
        """Drop the state that is valid only while this hub owns the session."""
        execution, self._execution = self._execution, None
        if execution is not None:
            self._hub.live.let_go(self._id)
        if execution is not None and execution.supervisor is not None:
            await execution.supervisor.stop()

    def _wake_inner(self, record: SessionRecord, teams: Sequence[str], round: int) -> None:
        """Wake the inner sessions that were opened for a round that is over."""
        for name in teams:
            for session_id in known_ids(record, round, name, 1 + RETRIES):
                self._hub.drivers.wake(session_key(record.tenant, session_id))
        for session_id in self.session.inner_ids if self.session is not None else ():
            self._hub.drivers.wake(session_id)

    async def _own(self, *, at_rest: bool = False) -> Execution | None:
        """Return the execution of the session, which this hub owns; None if it cannot own it."""
        async with self._taking:
            if self._execution is None:
                self._execution = await self._take(at_rest=at_rest)
            return self._execution

    async def _take(self, *, at_rest: bool) -> Execution | None:
        """Claim the session, if it has not ended and no other hub owns it; None otherwise.

        With `at_rest` another hub may own it, unless it has something under way there.
        """
        hub = self._hub
        if isinstance(self.quarantine, DamagedSession):
            await self._check()  # before the claim: a damaged session is looked at every second
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
            return None  # its outer session's round runs it
        team = hub.team_of(stored_session.record)
        rules = team.rules_of(stored_session.record)
        # Read before the claim: if the lease expires in between, the number shows it.
        lease_number = hub.lease.number
        epoch = await self._claim(at_rest=at_rest)
        if epoch is None:
            return None
        # Loaded again: the former owner may have written until the claim.
        records = await check_records(hub.log, self._id, None)
        if records is None:
            return None
        stored_session, last_envelopes = records
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
            around_append=hub.live.around_append,
        )
        if last_envelopes and last_envelopes[-1].sequence == session.state.sequence:
            session.recent.add(last_envelopes)
        speaker = team.supervisor_speaker
        speaker = team.supervisor_with(hub.store) if speaker is not None else None
        supervisor = Supervisor(session, handle, speaker, hub.spawn) if speaker else None
        self.quarantine = None
        hub.live.take(session)
        return Execution(hub, session, team, lease_number, self._news, supervisor)

    async def _claim(self, *, at_rest: bool = False) -> int | None:
        owner, now = self._hub.lease.owner, clock().wall()
        return await self._hub.log.claim(self._id, owner, now, is_gone=is_gone, at_rest=at_rest)

    async def _clear_away(self, stored_session: StoredSession) -> None:
        """Delete the checkpoints of an ended session whose owner died before it could do so."""
        if stored_session.owner is None:
            return
        epoch = await self._claim()
        if epoch is not None:
            with inside_ownership(self._hub.ownership(self._id, epoch)):
                await self._hub.saver.adelete_thread(self._id)
            await self._hub.log.release(self._id, self._hub.lease.owner)

    async def _close_orphan(self, stored_session: StoredSession) -> None:
        """Close an inner session whose outer session is not in its round any more."""
        hub, record = self._hub, stored_session.record
        outer = await hub.log.load(record.parent_key) if record.parent_key is not None else None
        if record.parent is not None and outer is not None and _serves(record.parent, outer.state):
            return
        epoch = await self._claim()
        if epoch is None:
            return
        # `close` asks no rule, and the inner team may be unknown in this process.
        rules = Rules(TransitionGraph(record.creator))
        state = await load_state(hub.log, stored_session)
        await OwnedSession(hub.log, record, rules, state, epoch).close("round_over")
        await hub.log.release(self._id, hub.lease.owner)
        self._is_over = True
        # Some of these agents may be teams.
        self._wake_inner(record, record.agents, state.round)


def _serves(parent: Parent, outer: SessionState | None) -> bool:
    if outer is None:
        return True  # the outer session has no snapshot, and only folding its log could tell
    is_under_way = outer.round == parent.round and parent.speaker in outer.due
    return is_under_way and not outer.is_ended
