"""The hub: opens the sessions of a store, and drives them from this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Self
from weakref import WeakValueDictionary

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from agentgraph.clock import Clock, clock, new_id, use_clock
from agentgraph.driving.engine import Engine, LocalEngine
from agentgraph.errors import ConfigurationError, Quarantined, SessionError
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.guards import DEFAULT, Default
from agentgraph.interception import leave_tool
from agentgraph.routing import TransitionGraph
from agentgraph.routing.frozen_json import thaw
from agentgraph.routing.values import short
from agentgraph.running import Ownership, leave_run
from agentgraph.sessions.drivers.checkpoints import BufferedSaver
from agentgraph.sessions.drivers.drivers import Drivers
from agentgraph.sessions.drivers.lease import Lease
from agentgraph.sessions.drivers.live import LiveEvents
from agentgraph.sessions.drivers.quarantine import load_readable, readable_state
from agentgraph.sessions.drivers.subscribers import Handler, Handlers, Subscribers
from agentgraph.sessions.drivers.sweep import Sweep
from agentgraph.sessions.envelopes.envelope import EV_HANDOFF, Envelope
from agentgraph.sessions.hub.arguments import (
    check_store,
    differences,
    driving_faults,
    filter_faults,
    key_of,
)
from agentgraph.sessions.hub.erasure import check_erasable, erase
from agentgraph.sessions.hub.session import Session
from agentgraph.sessions.log import AppendNotice, Log, SessionQuery, SessionSummary, open_log
from agentgraph.sessions.log.blobs import shared_blobs
from agentgraph.sessions.log.live import LiveNotice, WatchNotice
from agentgraph.sessions.log.protocol import is_unknown
from agentgraph.sessions.log.rows import to_ascii, unknown_session
from agentgraph.sessions.rounds.admission import begin_log
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.single.team import Served, team_of, teams_of
from agentgraph.sessions.state.expectations import Expectation, next_due
from agentgraph.sessions.state.page import Page, ask_again
from agentgraph.sessions.state.record import (
    DEFAULT_TENANT,
    Parent,
    SessionRecord,
    session_key,
)
from agentgraph.sessions.state.rules import Rules
from agentgraph.sessions.state.state import SessionState, with_fields
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.sessions.team.inner_id import is_reserved
from agentgraph.sessions.team.opening import FaultReader, read_metadata
from agentgraph.storage import LazySaver, open_saver

LEASE_S = 30.0


class Hub:
    """The sessions of one store. Any number of hubs, in any process, may share a store.

    >>> async with await Hub.open("sqlite:///agents.db", serve=[team]) as hub:
    ...     session = await hub.session(team)
    """

    def __init__(
        self,
        log: Log,
        saver: BaseCheckpointSaver[Any],
        teams: Sequence[CompiledTeam],
        lease_s: float,
        store: BaseStore | None = None,
        engine: Engine | None = None,
    ) -> None:
        check_store(store)
        self.engine: Engine = LocalEngine() if engine is None else engine
        self.log = log
        self.store = store
        self.saver = saver
        self.checkpoints = BufferedSaver(saver)
        self.subscribers = Subscribers()
        self.drivers = Drivers(self, self.engine)
        self.lease = Lease(log, lease_s, self.drivers.wake_all)
        self.live = LiveEvents(log, self.lease, self.drivers, self.spawn)
        self._sweep = Sweep(log, self.drivers.wake_again, self.drivers.wake_suspended)
        self._teams: dict[str, CompiledTeam] = {}
        self._graphs: dict[str, AnyCompiledGraph] = {}
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._context: Context = copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handlers = Handlers(self.spawn)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._checks_epochs = False
        """Whether the saver can check the epoch of a session, as log and saver are one store."""
        self._is_closed = False
        self._close_task: asyncio.Task[None] | None = None
        for team in teams:
            self.register(team)

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        serve: Sequence[Served] = (),
        clock: Clock | None = None,
        lease_s: float = LEASE_S,
        store: BaseStore | None = None,
        engine: Engine | None = None,
    ) -> Hub:
        """Open a store: `memory` (the default), `sqlite:///file.db` or `postgresql://…`.

        `serve` lists the teams whose sessions this hub can run; `session` adds others. The tools of
        those without a store of their own get LangGraph's `store`. Sessions that a dead hub has
        left unfinished resume at once. `engine` decides who drives the sessions; by default this
        hub does, see `agentgraph.engines`.

        Raises `ConfigurationError` with every fault of the values, each value of `serve` that
        cannot be served among them.
        """
        reader = FaultReader()
        log = reader.read(lambda: open_log(url))
        saver = reader.read(lambda: open_saver("memory" if url is None else url))
        teams = reader.read(lambda: teams_of(serve))
        reader.read(lambda: check_store(store))
        reader.faults += driving_faults(clock, lease_s, engine)
        if log is None or saver is None or teams is None or reader.faults:
            raise reader.error("hub")
        hub = cls(log, saver, teams, lease_s, store, engine)
        hub._checks_epochs = getattr(hub.log, "is_beside_checkpoints", False)
        await hub.start(clock)
        return hub

    async def start(self, own_clock: Clock | None, *, is_part_of_run: bool = False) -> None:
        """Connect, and take over unfinished sessions.

        With `is_part_of_run` the guards of the tool that opens the hub hold over its sessions.
        """
        with use_clock(own_clock or clock()):
            self._context = copy_context()
        # Tasks of the hub run in this context, with the hub's clock, whichever call begins them.
        self._context.run(leave_run)  # a hub that a tool opens is no part of the tool's run
        if not is_part_of_run:
            self._context.run(leave_tool)
        await self.log.open()
        if isinstance(self.saver, LazySaver):
            await self.saver.aopen()
        await self.engine.open()
        await self.spawn(self.lease.prolong())
        self._unsubscribe = self.log.subscribe(self._on_changed)
        self.spawn(self.lease.keep_alive())
        self.spawn(self._sweep.run())
        self.spawn(self.live.relay.run())
        self.live.relay.notice(None)
        await self.spawn(self._sweep.wake_unfinished())

    async def drain(self, grace_s: float) -> int:
        """Take no more sessions, and hand back each one as it comes to rest, within the grace.

        What is sent meanwhile is for another hub of the store. Returns how many sessions were cut
        off in their rounds, which begin again there. Readers go on until `aclose`.
        """
        self.check_open()
        return await self.drivers.drain(grace_s)

    async def aclose(self) -> None:
        """Cancel all rounds, which begin again in the next hub, and close the store."""
        if self._close_task is None:
            self._close_task = asyncio.ensure_future(self._close())
        # Shielded against cancellation: a half-closed hub would prolong its lease for ever.
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        self._is_closed = True
        self._unsubscribe()
        await self.drivers.halt_all()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self.log.release_all(self.lease.owner)
            await self.engine.aclose()
        finally:
            self.subscribers.close()
            self.live.close()
            await self.log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def register(self, team: CompiledTeam) -> CompiledTeam:
        """Make a team known to this hub, and return it; a second one of the same name is refused.

        The team of an agent that is known already is not made again: the known one is returned.
        """
        if not isinstance(team, CompiledTeam):
            raise ConfigurationError(f"team={short(team)}: give a Team", code="served")
        known_team = self._teams.setdefault(team.name, team)
        if known_team is team:
            self.drivers.try_again()
        elif not known_team.serves_same(team):
            raise ConfigurationError(
                f"two that are served are called {team.name!r}: give one another name",
                code="team_name",
            )
        return known_team

    async def session(
        self,
        served: Served | str,
        *,
        creator: str = "user",
        id: str | None = None,
        participants: Sequence[str] = (),
        context: Mapping[str, Any] | None = None,
        ttl: str | float | Default | None = DEFAULT,
        expectations: Sequence[Expectation | Mapping[str, Any]] | None = None,
        required_acks: int | None = None,
        invite_timeout: str | float | None = "10m",
        tenant: str = DEFAULT_TENANT,
        metadata: Mapping[str, Any] | None = None,
        run_context: object = None,
    ) -> Session:
        """Open a session of a team, or of the one with this name; or return the one of this id.

        A session of this id is returned where it is one of this team and `creator`; a `context` or
        `run_context` that is given must be its own too. It keeps all else that it was opened with,
        its `metadata` too.

        `participants` are further humans. They and those of the team are invited; the session
        opens when all of them, or `required_acks`, have accepted within `invite_timeout`. It
        expires after `ttl`, which is a number of seconds or a text such as "30m"; None is never. By
        default a team's session expires after two hours; an agent's does not, nor is it closed when
        nobody speaks, unless `expectations` say so.

        An `id` is of one `tenant`: the sessions of two tenants never meet. `metadata` are what you
        note about the session, as JSON: `sessions` shows them, and selects by them. `run_context`
        is LangGraph's context of each of its runs (`context_schema`, `runtime.context`), a mapping,
        a dataclass or a pydantic model: it is stored as JSON, so it is no place for secrets, and
        reaches each agent as the agent declares it. `context` are the session's variables.

        Raises `ConfigurationError` with every fault of the values, `SessionError` for an unknown
        team, and with the code `session_exists` for the id of a session that differs.
        """
        self.check_open()
        if isinstance(id, str) and is_reserved(id):
            raise ConfigurationError(
                f"id={id!r}: hubs choose the ids that begin so; choose another one", code="session"
            )
        team = self._team(served) if isinstance(served, str) else team_of(served)
        team = self.register(team)
        record = self._context.copy().run(
            team.record,
            id if id is not None else new_id(),
            creator=creator,
            humans=participants,
            context=context,
            expectations=expectations,
            ttl=team.default_ttl if isinstance(ttl, Default) else ttl,
            invite_timeout=invite_timeout,
            required_acks=required_acks,
            tenant=tenant,
            metadata=metadata,
            run_context=run_context,
        )
        session = await self._create(team, record)
        if session is None:
            session = await self.get(record.session_id, tenant=tenant)
            if faults := [*differences(session.record, record, context, run_context)]:
                raise SessionError(
                    f"session {session.id!r} exists, and {', and '.join(faults)}: open it as "
                    "it is, or choose another id",
                    code="session_exists",
                )
        return session

    async def get(self, id: str, *, tenant: str = DEFAULT_TENANT) -> Session:
        """Return a session of the store; `SessionError` if the tenant has none of this id.

        One that serves a round of another session can be read, and nobody can speak in it.
        """
        self.check_open()
        key = key_of(id, tenant)
        stored_session = await load_readable(self.log, key)
        if stored_session is None:
            raise unknown_session(key)
        session = self.handle(stored_session.record)
        if stored_session.record.graph:  # else the record is damaged, and read in part
            session.record = stored_session.record
        driver = self.drivers.get(key)
        if driver is not None:
            await driver.check_owner(stored_session)
        session.update(await readable_state(self.log, stored_session))
        session.look()
        return session

    async def ping_store(self) -> None:
        """Raise `StorageError` if the store cannot be read at present."""
        self.check_open()
        await self.log.next_due()

    async def sessions(
        self,
        status: str | None = None,
        *,
        served: CompiledTeam | str | None = None,
        creator: str | None = None,
        person: str | None = None,
        tenant: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[SessionSummary]:
        """List the sessions of the store, the oldest first; each filter leaves out the others.

            page = await hub.sessions(tenant="acme", limit=50)
            page = await hub.sessions(tenant="acme", limit=50, after=page[-1].session_id)

        Those that serve a round of another session, for a team inside of a team, are left out. A
        `person` has opened a session, or takes part in it and is no agent. A
        session has `metadata` if it has each of these entries. `after` is the id of the last
        session listed before; in a list of all tenants (`tenant=None`) it is its `key`.

        Raises `ConfigurationError` for values that no session can have, `SessionError` if the
        session `after` is unknown.
        """
        self.check_open()
        faults = [*filter_faults(status, served, (creator, person), tenant, limit, after)]
        try:
            entries = read_metadata(metadata)
        except ConfigurationError as error:
            faults += error.faults
        if faults:
            raise ConfigurationError(faults, code="sessions")
        query = SessionQuery(
            status=status,
            team=served.name if isinstance(served, CompiledTeam) else served,
            creator=creator,
            person=person,
            tenant=tenant,
            metadata=entries,
            after=after if after is None or tenant is None else session_key(tenant, after),
            limit=limit,
            newest_first=newest_first,
            with_inner=False,
        )
        return await self.log.sessions(query)

    async def forget(self, id: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Erase a session: its log, inbox, checkpoints, and the sessions that serve its rounds.

        What drives it is stopped first, in any hub. Watchers end, and handles raise `SessionError`
        (`unknown_session`). Forks stay; the audit sinks and the store of agents are not the
        session's. If the process dies meanwhile, the session can be forgotten again.

        Raises `SessionError` if the tenant has no session of this id.
        """
        self.check_open()
        key = key_of(id, tenant)
        stored_session = await load_readable(self.log, key)
        if stored_session is None:
            raise unknown_session(key)
        check_erasable(stored_session.record)
        await self.spawn(erase(self, key))
        handle = self._sessions.pop(key, None)
        if handle is not None:
            handle.mark_forgotten()
        self._handlers.drop(key)
        self.subscribers.forget(key)
        self.live.forget(key)

    async def fork(self, session: Session, at: int) -> Session:
        """Begin a session with a copy of the envelopes up to `at`; it resumes when it is used."""
        record, run_in_context = session.record, self._context.copy().run
        envelopes = await self.log.read(record.key, 0, at)
        parent = Parent(record.session_id, at=at)
        created_at = run_in_context(lambda: clock().wall())
        id, secret = new_id(), new_id()
        fork = replace(record, session_id=id, secret=secret, parent=parent, created_at=created_at)
        copies = [replace(envelope, session_id=fork.session_id) for envelope in envelopes]
        # No rule is asked: a session whose code is missing can be forked too.
        rules = Rules(TransitionGraph(record.creator))
        state = await state_at(self.log, record, at)
        state = with_fields(state, session_id=fork.session_id, serves=fork.serves)
        page = Page(state, rules)
        run_in_context(ask_again, page)
        copies, state = [*copies, *page.envelopes], page.state
        due_at, blobs = next_due(fork, state), shared_blobs(copies, record.key)
        await self.log.create(fork, copies, state, due_at=due_at, runnable=False, blobs=blobs)
        handle = self.handle(fork)
        await handle.refresh()
        return handle

    async def _create(self, team: CompiledTeam, record: SessionRecord) -> Session | None:
        """Begin a session; return None if its tenant has one of this id."""
        page = Page(SessionState.initial(record), team.rules_of(record))
        self._context.copy().run(begin_log, page, record)
        due_at = next_due(record, page.state)
        if not await self.log.create(record, page.envelopes, page.state, due_at=due_at):
            return None
        session = self.handle(record)
        session.update(page.state)
        self._sweep.schedule(due_at)
        return session

    def on(self, session: Session, event_type: str, handler: Handler) -> Callable[[], None]:
        """Call a handler with each new envelope of a type; return the unsubscribe function."""
        self._handlers.add(session.key, event_type, handler, after=session.state.sequence)
        return partial(self._handlers.remove, session.key, event_type, handler)

    # The methods below serve the hub's sessions and their drivers.

    def check_open(self) -> None:
        """Raise if the hub is closed."""
        if self._is_closed:
            raise SessionError("the hub is closed: open another one", code="hub_closed")

    def handle(self, record: SessionRecord) -> Session:
        """Return the handle of a session; there is one handle per session."""
        session = self._sessions.get(record.key)
        if session is None or not session.is_of(record):
            session = self._sessions[record.key] = Session(self, record)
        return session

    def ownership(self, session_id: str, epoch: int) -> Ownership | None:
        """Return the ownership under which checkpoints are written; None if none is checked."""
        if not self._checks_epochs:
            return None
        return Ownership(session_id, to_ascii(session_id), epoch)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task for as long as the hub is open."""
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def team_of(self, record: SessionRecord) -> CompiledTeam:
        """Return the team whose code a session needs; `Quarantined` if it is not registered."""
        team = self._teams.get(record.team)
        if team is None:
            raise Quarantined(
                f"session {record.session_id!r} is one of the team {record.team!r}, which this hub "
                "does not know: give it to Hub.open(serve=[…])"
            )
        return team

    def load_output(self, record: SessionRecord, packet: Envelope) -> object | None:
        """Return the answer in a packet that was given in a form, None where none was.

        As JSON where the code that knows the form is not registered, or the form has changed.
        """
        stored_output = thaw(packet.event_data.get("output"))
        team = self._teams.get(record.team)
        if not isinstance(stored_output, Mapping) or team is None:
            return stored_output.get("value") if isinstance(stored_output, Mapping) else None
        return team.load_output(packet.sender_id, stored_output, packet.event_data.get("active"))

    def rules_of(self, record: SessionRecord) -> Rules:
        """Return a session's rules; `Quarantined` if they need code that this hub lacks."""
        return self.team_of(record).rules_of(record)

    def graph_of(self, record: SessionRecord) -> AnyCompiledGraph:
        """Return the graph that runs a session; each graph is compiled once."""
        graph = self._graphs.get(record.team)
        if graph is None:
            graph = self._graphs[record.team] = self.team_of(record).compile(
                self.checkpoints, self.store
            )
        return graph

    def on_appended(self, session: OwnedSession, envelopes: Sequence[Envelope]) -> None:
        """Pass new envelopes on to the session's driver, waiters, handlers and timers."""
        handle = self._sessions.get(session.id)
        if handle is not None:
            handle.update(session.state)
            self._notify_handlers(handle, envelopes)
        driver = self.drivers.get(session.id)
        if driver is not None:
            driver.notice(envelopes)
        self._sweep.schedule(session.due_at)
        self.live.on_appended(session, envelopes)
        self.subscribers.notify(session.id)

    def _on_changed(self, session_id: str | None) -> None:
        """React to a change of the store by a hub of this process or another one."""
        if self._is_closed:
            return
        self.live.relay.notice(session_id)
        if isinstance(session_id, LiveNotice | WatchNotice):
            return
        for name in self._handlers.session_ids:
            if session_id in (None, name) and self.drivers.owned_session(name) is None:
                self.spawn(self._catch_up(name))
        if session_id is None:
            self.spawn(self._sweep.wake_unfinished())
            self.spawn(self._wake_lost())
        elif not isinstance(session_id, AppendNotice):
            driver = self.drivers.get(session_id)
            if driver is not None:
                driver.wake()
        self.subscribers.notify(session_id)

    async def _wake_lost(self) -> None:
        """Wake the drivers whose sessions this hub owns no more: others may have forgotten them."""
        at_work = self.drivers.at_work()
        own = await self.log.owned_sessions(self.lease.owner) if at_work else ()
        for key in set(at_work).difference(own):
            self.drivers.wake(key)

    def _notify_handlers(self, session: Session, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if envelope.event_type == EV_HANDOFF:
                self._escalate(session, envelope)
        position = self._handlers.sequence_of(session.key)
        if position is not None and envelopes and envelopes[0].sequence > position + 1:
            self.spawn(self._catch_up(session.key))  # another hub owned the session until now
        else:
            self._handlers.notify(session.key, envelopes)

    async def _catch_up(self, session_id: str) -> None:
        """Call handlers with the envelopes that another hub has appended."""
        position = self._handlers.sequence_of(session_id)
        if position is None:
            return
        try:
            self._handlers.notify(session_id, await self.log.read(session_id, position))
        except SessionError as error:
            if not is_unknown(error):
                raise
            self._handlers.drop(session_id)  # it was forgotten

    def _escalate(self, session: Session, envelope: Envelope) -> None:
        channel = str(envelope.event_data.get("channel_escalation") or "same")
        team = self._teams.get(session.record.team)
        escalate = team.escalations.get(channel) if team is not None else None
        if escalate is not None:
            self._handlers.call(partial(escalate, session), envelope)

    def _team(self, name: str) -> CompiledTeam:
        team = self._teams.get(name)
        if team is None:
            names = ", ".join(self._teams) or "none"
            raise SessionError(f"there is no team {name!r}: there are {names}", code="unknown_team")
        return team
