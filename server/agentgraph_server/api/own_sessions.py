"""Which sessions are a principal's, and what it may do in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, Path, Request

from agentgraph.errors import ConfigurationError, SessionError
from agentgraph.remote import Principal
from agentgraph.sessions import Hub, Session
from agentgraph.sessions.hub.run import Run
from agentgraph.sessions.state.record import id_of, tenant_of
from agentgraph_server.principals.principal import Decider, Forbidden, Reader, Runner
from agentgraph_server.wire import Name


async def hub_of(request: Request) -> Hub:
    """Return the hub of the application, which is opened if nobody has started the application."""
    state = request.app.state
    if state.hub is None:  # another application has mounted this one
        await state.open_stores()
    hub: Hub = state.hub
    return hub


HubOfApp = Annotated[Hub, Depends(hub_of)]
SessionId = Annotated[Name, Path(description="The id of a session.")]


class OwnSession:
    """A session as its principal may see and change it."""

    def __init__(self, session: Session, principal: Principal) -> None:
        self.session = session
        self.principal = principal

    @property
    def takes_part(self) -> bool:
        """Whether the principal is the creator, or one of the people of the session."""
        record = self.session.record
        return self.principal.speaker in (record.creator, *record.people, *record.invited)

    @property
    def reader(self) -> str | None:
        """Whose view of the session is shown: None is all, for one who only operates it."""
        return self.principal.speaker if self.takes_part else None

    @property
    def sender(self) -> str:
        """The participant as which the principal speaks; `Forbidden` if it is none."""
        record, name = self.session.record, self.principal.speaker
        if is_agent(name, (*record.agents, record.supervisor)):
            raise Forbidden(f"{name!r} is an agent of this session: nobody else speaks as it")
        if not self.takes_part:
            raise Forbidden(f"{name!r} takes no part in this session: it can be read and closed")
        return name

    @asynccontextmanager
    async def presence(self) -> AsyncIterator[None]:
        """Make `Forbidden` of what is refused inside because the principal is not present.

        Not before: what it has sent once it may send again, and is answered with the receipt.
        """
        record, name = self.session.record, self.principal.speaker
        try:
            yield
        except ConfigurationError:
            state = await self.session.refresh()
            if name in record.invited and name not in state.participant_order:
                raise Forbidden(f"{name!r} has left this session: it can be read") from None
            if name in record.invited and name not in state.acks:
                text = f"{name!r} is invited: accept that first, by POST …/join"
                raise Forbidden(text) from None
            raise

    def check_takes_part(self) -> None:
        """Raise `Forbidden` unless the principal takes part in the session, or operates it."""
        if not self.principal.operates:
            self.sender  # noqa: B018

    def check_owner(self) -> None:
        """Raise `Forbidden` unless the principal has opened the session, or operates it."""
        if not self.principal.operates and self.principal.speaker != self.session.record.creator:
            raise Forbidden("only who has opened this session may do this")


def is_agent(name: str, agents: Iterable[str | None]) -> bool:
    """Tell whether a name is an agent's, in any case of letters: nobody may look like one."""
    return name.lower() in [agent.lower() for agent in agents if agent is not None]


async def find_session(hub: Hub, session_id: str, principal: Principal) -> OwnSession:
    """Return a session of a principal; one of somebody else is as unknown as one that is not."""
    session = await hub.get(session_id, tenant=principal.tenant)
    own = OwnSession(session, principal)
    if session.record.serves or not (own.takes_part or principal.operates):
        raise SessionError(f"there is no session {session_id!r}", code="unknown_session")
    return own


async def _to_read(id: SessionId, hub: HubOfApp, principal: Reader) -> OwnSession:
    return await find_session(hub, id, principal)


async def find_run(hub: Hub, run_id: str, principal: Principal) -> tuple[OwnSession, Run]:
    """Return a run of a session of a principal, with the session."""
    for key in await hub.log.sessions_with(run_id):
        if tenant_of(key) != principal.tenant:
            continue
        try:
            own = await find_session(hub, id_of(key), principal)
            return own, await own.session.run(run_id, reader=own.reader)
        except SessionError as error:
            if error.code not in ("unknown_session", "unknown_run"):
                raise
    raise SessionError(f"there is no run {run_id!r}", code="unknown_run")


async def _to_run(id: SessionId, hub: HubOfApp, principal: Runner) -> OwnSession:
    return await find_session(hub, id, principal)


async def _to_decide(id: SessionId, hub: HubOfApp, principal: Decider) -> OwnSession:
    return await find_session(hub, id, principal)


ReadableSession = Annotated[OwnSession, Depends(_to_read)]
RunnableSession = Annotated[OwnSession, Depends(_to_run)]
DecidableSession = Annotated[OwnSession, Depends(_to_decide)]
