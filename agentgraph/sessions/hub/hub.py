"""The hub: the sessions of a store, as one process sees and drives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Self, get_args
from weakref import WeakValueDictionary

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgraph.clock import Clock, clock, new_id, use_clock
from agentgraph.errors import ConfigurationError, Quarantined, SessionError
from agentgraph.patching import AnyCompiledGraph
from agentgraph.running import leave_run
from agentgraph.sessions.hub.audience import Audience
from agentgraph.sessions.hub.checkpoints import HeldSaver
from agentgraph.sessions.hub.conductor import Conductor
from agentgraph.sessions.hub.handlers import Handler, Handlers
from agentgraph.sessions.hub.lease import Pulse, new_owner
from agentgraph.sessions.hub.live import LiveSession, load_state
from agentgraph.sessions.hub.session import Session
from agentgraph.sessions.log import AppendNotice, Log, SessionSummary, open_log
from agentgraph.sessions.state.envelope import EV_HANDOFF, Envelope
from agentgraph.sessions.state.expectations import Expectation, next_due
from agentgraph.sessions.state.page import Page, ask_anew
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState, Status
from agentgraph.sessions.team.private_session import opened
from agentgraph.sessions.team.team import Team
from agentgraph.storage import LazySaver, open_saver

_LEASE_S = 30.0


class Hub:
    """Open one with `await Hub.open(url, teams=[…])`, best in an `async with`."""

    def __init__(
        self, log: Log, saver: BaseCheckpointSaver[Any], teams: Sequence[Team], lease_s: float
    ) -> None:
        self.log = log
        self.saver = saver
        self.held = HeldSaver(saver)
        self.owner = new_owner()
        self.audience = Audience()
        self.pulse = Pulse(self, lease_s)
        self._teams: dict[str, Team] = {}
        self._graphs: dict[str, AnyCompiledGraph] = {}
        self._conductors: dict[str, Conductor] = {}
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._context: Context = copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handlers = Handlers(self.spawn)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        for team in teams:
            self.register(team)

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        teams: Sequence[Team] = (),
        clock: Clock | None = None,
        lease_s: float = _LEASE_S,
    ) -> Hub:
        """Open a store: `memory` (the default), `sqlite:///file.db` or `postgresql://…`.

        Sessions that a dead hub has left unfinished go on at once.
        """
        hub = cls(open_log(url), open_saver(url or "memory"), teams, lease_s)
        await hub.start(clock)
        return hub

    async def start(self, own_clock: Clock | None) -> None:
        """Connect, and take over what is unfinished."""
        with use_clock(own_clock or clock()):
            self._context = copy_context()
        self._context.run(leave_run)  # a hub that a tool opens is no part of the tool's run
        await self.log.open()
        if isinstance(self.saver, LazySaver):
            await self.saver.aopen()
        await self.spawn(self.pulse.beat())
        self._unsubscribe = self.log.subscribe(self._on_changed)
        self.spawn(self.pulse.keep_alive())
        self.spawn(self.pulse.watch_time())
        await self.spawn(self.look())

    async def aclose(self) -> None:
        """Break off all rounds, which go on in the next hub, and let go of the store."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        # Brought to its end whoever gives up on it: half closed, it would keep its lease for ever.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._closed = True
        self._unsubscribe()
        for conductor in list(self._conductors.values()):
            await conductor.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.log.release_all(self.owner)
        self.audience.close()
        await self.log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def register(self, team: Team) -> None:
        """Make a team's agents known; two of one name are refused."""
        is_new = team.name not in self._teams
        known = self._teams.setdefault(team.name, team)
        if known is not team:
            raise ConfigurationError(
                f"two teams are called {team.name!r}: give one another name", code="team_name"
            )
        if is_new:
            for conductor in list(self._conductors.values()):
                conductor.try_again()

    async def session(
        self,
        team: Team | str,
        *,
        creator: str = "user",
        id: str | None = None,
        participants: Sequence[str] = (),
        context: Mapping[str, Any] | None = None,
        ttl: str | float | None = "2h",
        expectations: Sequence[Expectation | Mapping[str, Any]] | None = None,
        required_acks: int | None = None,
        invite_timeout: str | float | None = "10m",
    ) -> Session:
        """Open a session, or return the one of this id.

        `participants` are further humans. They and those of the team are invited; the session
        opens when all of them, or `required_acks`, have accepted.
        """
        self.check_open()
        if isinstance(team, str):
            team = self._known_team(team)
        self.register(team)
        record = self._context.copy().run(
            team.record,
            id if id is not None else new_id(),
            creator=creator,
            humans=participants,
            context=context,
            expectations=expectations,
            ttl=ttl,
            invite_timeout=invite_timeout,
            required_acks=required_acks,
        )
        return await self._created(team, record)

    async def get(self, id: str) -> Session:
        """Return a session of the store."""
        self.check_open()
        stored = await self.log.load(id)
        if stored is None:
            raise SessionError(f"there is no session {id!r}", code="unknown_session")
        session = self.handle(stored.record)
        session.see(await load_state(self.log, stored))
        self.conductor(id).wake()
        return session

    async def sessions(self, status: str | None = None) -> list[SessionSummary]:
        """List the sessions of the store, the oldest first."""
        self.check_open()
        if status is not None and status not in get_args(Status):
            known = ", ".join(get_args(Status))
            raise ConfigurationError(f"there is no status {status!r}: there are {known}")
        return await self.log.sessions(status)

    async def fork(self, session: Session, at: int) -> Session:
        """Begin a session that is the same up to an envelope; it goes on when it is used."""
        record = session.record
        envelopes = await self.log.read(record.session_id, 0, at)
        forked = self._context.copy().run(session.forked, new_id(), at)
        copies = [replace(one, session_id=forked.session_id) for one in envelopes]
        page = Page(session.state_at(copies, forked), self.team_of(record).rules_of(record))
        self._context.copy().run(ask_anew, page)
        copies, state = [*copies, *page.envelopes], page.state
        await self.log.create(forked, copies, state, due_at=next_due(forked, state), runnable=False)
        handle = self.handle(forked)
        await handle.refresh()
        return handle

    async def _created(self, team: Team, record: SessionRecord) -> Session:
        rules = team.rules_of(record)
        page = self._context.copy().run(
            lambda: opened(record, Page(SessionState.initial(record), rules))
        )
        due_at = next_due(record, page.state)
        if not await self.log.create(record, page.envelopes, page.state, due_at=due_at):
            session = await self.get(record.session_id)
            if session.record.team != team.name:
                raise SessionError(
                    f"session {record.session_id!r} is one of the team {session.record.team!r}",
                    code="other_team",
                )
            return session
        session = self.handle(record)
        session.see(page.state)
        self.pulse.schedule(due_at)
        return session

    # What conductors and sessions ask of their hub.

    def handle(self, record: SessionRecord) -> Session:
        """Return the one handle of a session."""
        session = self._sessions.get(record.session_id)
        if session is None:
            session = self._sessions[record.session_id] = Session(self, record)
        return session

    def conductor(self, session_id: str) -> Conductor:
        """Return the one conductor of a session."""
        conductor = self._conductors.get(session_id)
        if conductor is None:
            conductor = self._conductors[session_id] = Conductor(self, session_id)
        return conductor

    def dismiss(self, session_id: str) -> None:
        """Forget the conductor of a session that has ended: a hub sees many of them."""
        self._conductors.pop(session_id, None)

    def live(self, session_id: str) -> LiveSession | None:
        """Return the session as its owner has it, if that is this hub."""
        conductor = self.driven(session_id)
        return conductor.live if conductor is not None else None

    def driven(self, session_id: str) -> Conductor | None:
        """Return the conductor of a session, None where none was needed yet, or any more."""
        return self._conductors.get(session_id)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something as long as the hub is open."""
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def team_of(self, record: SessionRecord) -> Team:
        """Return the team whose code a session needs."""
        team = self._teams.get(record.team)
        if team is None:
            raise Quarantined(
                f"session {record.session_id!r} is one of the team {record.team!r}, which this hub "
                "does not know: give it to Hub.open(teams=[…])"
            )
        return team

    def graph_of(self, record: SessionRecord) -> AnyCompiledGraph:
        """Return the graph that runs a session, compiled once."""
        graph = self._graphs.get(record.team)
        if graph is None:
            graph = self._graphs[record.team] = self.team_of(record).compiled(self.held)
        return graph

    def on_appended(self, live: LiveSession, envelopes: Sequence[Envelope]) -> None:
        """Tell whoever waits what has been appended."""
        session = self._sessions.get(live.id)
        if session is not None:
            session.see(live.state)
            self._tell_handlers(session, envelopes)
        conductor = self._conductors.get(live.id)
        if conductor is not None:
            conductor.look(envelopes)
        self.pulse.schedule(live.due_at)
        self.audience.tell_change(live.id)

    def on(self, session: Session, event_type: str, handler: Handler) -> Callable[[], None]:
        """Call a handler with each new envelope of a type; the result ends it."""
        self._handlers.add(session.id, event_type, handler, after=session.state.sequence)
        return partial(self._handlers.remove, session.id, event_type, handler)

    # The hub's own tasks.

    def _on_changed(self, session_id: str | None) -> None:
        if self._closed:
            return
        for listened in self._handlers.sessions:
            if session_id in (None, listened) and self.live(listened) is None:
                self.spawn(self._catch_up(listened))
        if session_id is None:
            self.spawn(self.look())
        elif session_id in self._conductors and not isinstance(session_id, AppendNotice):
            self._conductors[session_id].wake()
        self.audience.tell_change(session_id)

    def wake_all(self) -> None:
        """Have all conductors look at their sessions."""
        for conductor in list(self._conductors.values()):
            conductor.wake()

    async def look(self) -> None:
        """See to all sessions that need somebody."""
        for session_id in await self.log.unfinished_sessions(clock().wall()):
            self.conductor(session_id).wake()

    def _tell_handlers(self, session: Session, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if envelope.event_type == EV_HANDOFF:
                self._escalate(session, envelope)
        told = self._handlers.told(session.id)
        if told is not None and envelopes and envelopes[0].sequence > told + 1:
            self.spawn(self._catch_up(session.id))  # another hub had the session until now
        else:
            self._handlers.tell(session.id, envelopes)

    async def _catch_up(self, session_id: str) -> None:
        """Let handlers hear what another hub has appended."""
        told = self._handlers.told(session_id)
        if told is not None:
            self._handlers.tell(session_id, await self.log.read(session_id, told))

    def _escalate(self, session: Session, envelope: Envelope) -> None:
        way = str(envelope.event_data.get("channel_escalation") or "same")
        team = self._teams.get(session.record.team)
        escalate = team.escalations.get(way) if team is not None else None
        if escalate is not None:
            self._handlers.call(partial(escalate, session), envelope)

    def _known_team(self, name: str) -> Team:
        team = self._teams.get(name)
        if team is None:
            known = ", ".join(self._teams) or "none"
            raise SessionError(f"there is no team {name!r}: there are {known}", code="unknown_team")
        return team

    def check_open(self) -> None:
        """Refuse what a closed hub is asked."""
        if self._closed:
            raise SessionError("the hub is closed: open another one", code="hub_closed")
