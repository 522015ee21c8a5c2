"""A thread of an agent or a flow: the session of its id, or what an earlier version has stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from langchain_core.messages import AnyMessage

from agentgraph import Agent, AgentGraphError, Flow
from agentgraph.clock import new_id
from agentgraph.errors import RoutingError, SessionError
from agentgraph.outcomes import Interrupt
from agentgraph.remote import Principal
from agentgraph.sessions import Hub
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.hub.questions import OpenQuestion
from agentgraph.sessions.single.team import SingleTeam
from agentgraph.sessions.state.record import DEFAULT_TENANT, session_key
from agentgraph_server.agents.earlier_threads import EarlierThreads, ServedAgent, ThreadBusy
from agentgraph_server.api.own_sessions import OwnSession, find_session
from agentgraph_server.api.served import Teams
from agentgraph_server.principals.principal import Forbidden


class UnknownAgent(AgentGraphError):
    """No agent of this name is served."""

    code = "unknown_agent"


class UnknownThread(AgentGraphError):
    """Nothing was said on this thread."""

    code = "unknown_thread"


Agents: TypeAlias = Mapping[str, SingleTeam]
"""The agents and flows that are served, by name."""


def agents_of(teams: Teams) -> Agents:
    """Return those of what is served that have threads: agents and flows."""
    return {
        name: team
        for name, team in teams.items()
        if isinstance(team, SingleTeam) and isinstance(team.participant, Agent | Flow)
    }


def agent_of(team: SingleTeam) -> ServedAgent:
    """Return the agent, or the flow, of sessions of one."""
    assert isinstance(team.participant, Agent | Flow)  # `agents_of` has no others
    return team.participant


@dataclass(frozen=True, slots=True)
class ThreadContent:
    """What a thread has to show."""

    messages: Sequence[AnyMessage]
    questions: Sequence[OpenQuestion | Interrupt]
    is_busy: bool


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads of one agent."""

    team: SingleTeam
    hub: Hub
    earlier: EarlierThreads
    turns: set[object]
    """The turns that are under way on this server, which ends them when it stops."""

    def of(self, principal: Principal, id: str | None) -> Thread:
        """Return a thread as a principal sees it; a new one without an id."""
        return Thread(self, principal, new_id() if id is None else id)


class Thread:
    """A thread as a principal sees it, which may not have begun yet."""

    def __init__(self, threads: Threads, principal: Principal, id: str) -> None:
        self.id, self.team, self.hub, self.turns = id, threads.team, threads.hub, threads.turns
        self._principal, self._earlier = principal, threads.earlier
        # What earlier versions have stored knows no tenants.
        self._may_be_earlier = principal.tenant == DEFAULT_TENANT

    async def session(self) -> OwnSession | None:
        """Return the session, None if the principal has none of this id.

        Raises `RoutingError` (`other_agent`) for one of another agent: a session belongs to what it
        was opened for.
        """
        try:
            own = await find_session(self.hub, self.id, self._principal)
        except SessionError as error:
            if error.code != "unknown_session":
                raise
            return None
        if (owner := own.session.record.team) != self.team.name:
            raise RoutingError(
                f"thread {self.id!r} is one of {owner!r}: ask that, or use another thread",
                code="other_agent",
            )
        return own

    async def earlier(self, own: OwnSession | None) -> EarlierThreads | None:
        """Return where the thread is, if no session has taken it over yet, else None."""
        if not self._may_be_earlier or (own is not None and own.session.state.said):
            return None
        if own is None and await self.hub.log.load(session_key(DEFAULT_TENANT, self.id)):
            return None  # it is another principal's by now
        return self._earlier if await self._earlier.has(self.id) else None

    async def opened(self) -> tuple[OwnSession, Draft | None]:
        """Return the session, opened if need be, and what it is to go on with at first."""
        own = await self.session() or await self._open()
        if await self.earlier(own) is None:
            return own, None
        return own, await self._earlier.left_by(self.id, self.team)

    async def _open(self) -> OwnSession:
        speaker, agent, tenant = self._principal.speaker, self.team.name, self._principal.tenant
        if speaker == agent:
            raise Forbidden(f"{speaker!r} is an agent of {agent!r}: use another name")
        try:
            session = await self.hub.session(agent, id=self.id, creator=speaker, tenant=tenant)
        except SessionError as error:
            if error.code != "session_exists":
                raise
            raise self.unknown() from None  # it is another principal's
        return OwnSession(session, self._principal)

    async def read(self) -> ThreadContent:
        """Return what the thread has to show; `UnknownThread` if it has not begun."""
        try:
            own = await self.session()
        except RoutingError as error:
            raise UnknownThread(str(error)) from None
        if await self.earlier(own) is not None:
            agent = self._earlier.agent
            questions = await agent.ainterrupts(self.id)
            is_busy = self._earlier.is_busy(self.id)
            return ThreadContent(await agent.ahistory(self.id), questions, is_busy)
        if own is None or not (own.session.state.said or await self.is_busy(own)):
            raise self.unknown()
        session, reader = own.session, own.reader
        is_busy = await self.is_busy(own)
        messages = await session.messages(reader=reader)
        return ThreadContent(messages, await session.questions(reader=reader), is_busy)

    async def is_busy(self, own: OwnSession) -> bool:
        """Tell whether a turn is under way, or waits to begin, on any server of the store."""
        is_waiting = bool(await self.hub.log.inbox(own.session.key))
        return is_waiting or own.session.state.is_runnable

    async def forget(self) -> None:
        """Erase all that there is of the thread; `ThreadBusy` if a turn is under way on it."""
        own = await self.session()
        if own is not None:
            own.check_owner()
            if await self.is_busy(own):
                raise ThreadBusy.on(self.id)
            await self.hub.forget(self.id, tenant=self._principal.tenant)
        if await self.earlier(None) is not None:
            async with self._earlier.hold(self.id):
                await self._earlier.agent.aforget(self.id)

    def unknown(self) -> UnknownThread:
        """Return the error that there is no such thread."""
        return UnknownThread(f"there is no thread {self.id!r}: a prompt on it begins it")
