"""How a server knows who asks: by plain keys, by a file of keys, by tokens, or by your own code."""

from __future__ import annotations

import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request

from agentgraph import AgentGraphError
from agentgraph.errors import ConfigurationError
from agentgraph.remote import Principal
from agentgraph_server.settings import Settings

Auth: TypeAlias = Callable[[Request], Awaitable[Principal | None] | Principal | None]
"""Returns who sends a request, None if it does not say."""


class Unauthorized(AgentGraphError):
    """A request says who sends it, and that does not hold: its text tells the client why."""

    code = "unauthorized"


class IssuerUnavailable(AgentGraphError):
    """The keys of the issuer cannot be had: nobody can tell who sends a token."""

    code = "issuer_unavailable"


def auth_of(settings: Settings) -> Auth | None:
    """Return the function that knows principals by what the settings have, None if by nothing.

    Raises `ConfigurationError` if a file of keys or an issuer cannot be used.
    """
    auths: list[Auth] = []
    if settings.api_keys:
        auths.append(key_auth(settings.api_keys))
    if settings.keys_file is not None:
        from agentgraph_server.principals.key_file import key_file_auth

        auths.append(key_file_auth(settings.keys_file))
    if settings.jwt_issuer is not None:
        from agentgraph_server.principals.tokens import ClaimNames, jwt_auth

        claims = ClaimNames(
            settings.jwt_name_claim,
            settings.jwt_tenant_claim,
            settings.jwt_scopes_claim,
            settings.jwt_participant_claim,
        )
        issuer, audience = settings.jwt_issuer, settings.jwt_audience
        keys, names = settings.jwt_keys, settings.jwt_algorithms
        auths.append(jwt_auth(issuer, audience, keys=keys, algorithms=names, claims=claims))
    elif settings.jwt_audience or settings.jwt_keys:
        raise ConfigurationError("jwt_issuer: give the issuer whose tokens are good", code="issuer")
    return first_of(*auths) if auths else None


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
