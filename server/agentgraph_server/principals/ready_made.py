"""Ready-made ways to know who asks: what the settings have, and plain keys."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.requests import Request

from agentgraph.errors import ConfigurationError
from agentgraph.remote import Principal
from agentgraph_server.principals.auth import Auth, first_of, token_of
from agentgraph_server.principals.key_file import key_file_auth
from agentgraph_server.principals.tokens import ClaimNames, jwt_auth
from agentgraph_server.settings import Settings


def auth_of(settings: Settings) -> Auth | None:
    """Return the function that knows principals by what the settings have, None if by nothing.

    Raises `ConfigurationError` if a file of keys or an issuer cannot be used.
    """
    auths: list[Auth] = []
    if settings.api_keys:
        auths.append(key_auth(settings.api_keys))
    if settings.keys_file is not None:
        auths.append(key_file_auth(settings.keys_file))
    if settings.jwt_issuer is not None:
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


def key_auth(keys: Iterable[str]) -> Auth:
    """Return the function that knows principals by plain keys, each a principal of its own.

        app = create_app(support, auth=key_auth(["s3cret"]))

    All are in the tenant `default`; the name of each follows from its key.
    """
    principals = [(key.encode(), Principal(f"key-{_digest(key)}")) for key in keys]

    def authenticate(request: Request) -> Principal | None:
        token = token_of(request.headers).encode("latin-1")
        # All keys are compared, in constant time, so that the time does not help in guessing.
        matches = [principal for key, principal in principals if hmac.compare_digest(token, key)]
        return matches[0] if matches else None

    return authenticate


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:12]
