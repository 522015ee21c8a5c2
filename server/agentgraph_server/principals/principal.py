"""Principals: who asks. Each request has one, and sees and does only what is that one's.

With keys or an `auth=` function a request must say who it is; without, only this machine may ask,
as one principal that owns everything.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import Annotated, TypeAlias

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from agentgraph import AgentGraphError
from agentgraph.remote import Principal

SCOPES = ("run", "read", "decide", "operate")
OPEN_PATHS = frozenset({"/health", "/ok"})
"""The paths that need no principal."""
LOCAL_PATHS = frozenset({"/ready", "/metrics"})
"""The paths that need no principal from this machine."""


THIS_MACHINE = Principal("user", scopes=frozenset(SCOPES))
"""Whoever asks a server without keys, from its own machine."""

Auth: TypeAlias = Callable[[Request], Awaitable[Principal | None] | Principal | None]
"""Returns who sends a request, None if it does not say."""


class Forbidden(AgentGraphError):
    """The principal may not do this."""

    code = "forbidden"


def key_auth(keys: Iterable[str]) -> Auth:
    """Return the function that knows principals by plain keys, each a principal of its own."""
    principals = [(key.encode(), Principal(f"key-{_digest(key)}")) for key in keys]

    def authenticate(request: Request) -> Principal | None:
        token = token_of(request.headers).encode("latin-1")
        # All keys are compared, in constant time, so that the time does not help in guessing.
        matches = [principal for key, principal in principals if hmac.compare_digest(token, key)]
        return matches[0] if matches else None

    return authenticate


def token_of(headers: Headers) -> str:
    """Return the token of `Authorization: Bearer <token>` or `X-API-Key: <token>`, else ""."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:12]


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
