"""What says who asks: a function of the request, or several in turn."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request

from agentgraph import AgentGraphError
from agentgraph.remote import Principal

Auth: TypeAlias = Callable[[Request], Awaitable[Principal | None] | Principal | None]
"""Returns who sends a request, None if it does not say."""


class Unauthorized(AgentGraphError):
    """A request says who sends it, and that does not hold: its text tells the client why."""

    code = "unauthorized"


class IssuerUnavailable(AgentGraphError):
    """The keys of the issuer cannot be had: nobody can tell who sends a token."""

    code = "issuer_unavailable"


def first_of(*auths: Auth) -> Auth:
    """Return the function that asks several in turn; the first that knows the principal counts.

        app = create_app(support, auth=first_of(key_file_auth("keys.json"), jwt_auth(…)))

    One that refuses a request is not the last word: a key of one kind is a wrong key of another.
    """

    async def authenticate(request: Request) -> Principal | None:
        refusal: Unauthorized | None = None
        for auth in auths:
            try:
                principal = auth(request)
                if inspect.isawaitable(principal):
                    principal = await principal
            except Unauthorized as error:
                refusal = refusal or error
                continue
            if principal is not None:
                return principal
        if refusal is not None:
            raise refusal
        return None

    return authenticate


def token_of(headers: Headers) -> str:
    """Return the token of `Authorization: Bearer <token>` or `X-API-Key: <token>`, else ""."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
