"""Principals: who asks. Each request has one, and sees and does only what is that one's.

With keys or an `auth=` function a request must say who it is; without, only this machine may ask,
as one principal that owns everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from agentgraph import AgentGraphError
from agentgraph.remote import Principal
from agentgraph.routing.protocols import HUMAN
from agentgraph.routing.values import short
from agentgraph.sessions.state.record import TENANT_NAME

SCOPES = ("run", "read", "decide", "operate")
OPEN_PATHS = frozenset({"/health", "/ok"})
"""The paths that need no principal."""
LOCAL_PATHS = frozenset({"/ready", "/metrics"})
"""The paths that need no principal from this machine."""


THIS_MACHINE = Principal("user", scopes=frozenset(SCOPES))
"""Whoever asks a server without keys, from its own machine."""


class Forbidden(AgentGraphError):
    """The principal may not do this."""

    code = "forbidden"


def principal_faults(principal: Principal) -> list[str]:
    """Return why a principal can own no session and take part in none."""
    names = {"name": principal.name, "tenant": principal.tenant, "participant": principal.speaker}
    faults = [
        f"{field}={short(value)}: give a text"
        for field, value in names.items()
        if not isinstance(value, str) or not value
    ]
    if not isinstance(principal.scopes, Set) or not all(
        isinstance(s, str) for s in principal.scopes
    ):
        faults.append(f"scopes={short(principal.scopes)}: give a set of texts")
    if faults:
        return faults
    if not TENANT_NAME.fullmatch(principal.tenant):
        faults.append(f"nothing can belong to the tenant {short(principal.tenant)}: {_LEGAL}")
    speaker = principal.speaker
    if speaker.lower() == HUMAN:
        faults.append(f"nobody can be called {speaker!r}, which means whoever is no agent")
    elif not TENANT_NAME.fullmatch(speaker):
        advice = f"{_LEGAL}, or give the principal a `participant` that does"
        faults.append(f"nobody can take part in a session as {short(speaker)}: {advice}")
    return faults


_LEGAL = "names have 1 to 52 of a-z, A-Z, 0-9, _ and -"


def principal_of(connection: HTTPConnection) -> Principal:
    """Return who sends a request."""
    principal: Principal = connection.state.principal
    return principal


def _needs(scope: str) -> Callable[[Request], Awaitable[Principal]]:
    """Return a dependency: the principal, which must have a scope."""

    async def check(request: Request) -> Principal:  # no thread is needed for it
        principal = principal_of(request)
        if scope not in principal.scopes:
            raise Forbidden(f"{principal.name!r} lacks the scope {scope!r}, which this needs")
        return principal

    return check


Reader = Annotated[Principal, Depends(_needs("read"))]
Runner = Annotated[Principal, Depends(_needs("run"))]
Decider = Annotated[Principal, Depends(_needs("decide"))]
Operator = Annotated[Principal, Depends(_needs("operate"))]
