"""Bearer tokens: JSON Web Tokens that an issuer has signed, as OpenID Connect providers do."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.requests import Request

from agentgraph.errors import ConfigurationError
from agentgraph.remote import Principal
from agentgraph_server.principals.auth import Auth, Unauthorized, token_of
from agentgraph_server.principals.principal import SCOPES

ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "Ed25519")
_SIGNATURES = frozenset(
    {*ALGORITHMS, "RS384", "RS512", "PS384", "PS512", "ES512", "ES256K", "EdDSA", "Ed448"}
)
"""The algorithms with a private and a public key. With `none` anybody could sign; with HMAC whoever
knows the public key could."""
DEFAULT_LEEWAY_S = 30


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claims of a token give the principal.

    A name with dots also means a claim within a claim: `realm_access.roles`. Without a claim for
    the tenant all are in `default`, without one for the scopes all have `run`, `read` and `decide`.
    """

    name: str = "sub"
    tenant: str | None = None
    scopes: str | None = None
    participant: str | None = None

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        """Return the principal of a token; `Unauthorized` if a claim is missing."""
        name = _text(claims, self.name)
        tenant = "default" if self.tenant is None else _text(claims, self.tenant)
        participant = None if self.participant is None else _text(claims, self.participant)
        if self.scopes is None:
            return Principal(name, tenant, participant=participant)
        value = _claim(claims, self.scopes)
        words = value.split() if isinstance(value, str) else value
        own = [word for word in words or () if word in SCOPES] if isinstance(words, list) else ()
        return Principal(name, tenant, frozenset(own), participant)


def jwt_auth(
    issuer: str,
    audience: str | Sequence[str],
    *,
    keys: str | None = None,
    algorithms: Sequence[str] = ALGORITHMS,
    claims: ClaimNames | None = None,
    leeway_s: int = DEFAULT_LEEWAY_S,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Auth:
    """Return the function that knows principals by the tokens of an issuer.

        auth = jwt_auth("https://login.example.com", "agents", claims=ClaimNames(tenant="org"))
        app = create_app(support, auth=auth)

    `keys` is the file or the address of its public keys; by default they are found by the issuer's
    OpenID Connect discovery. They are fetched with the first token, and again when a token names a
    key that is not known. Needs the extra `auth`. Raises `ConfigurationError` with every fault.
    """
    try:
        from agentgraph_server.principals.issuer_keys import IssuerKeys, TokenRules
    except ModuleNotFoundError as error:
        text = "tokens need a package: pip install 'langgraph-agentgraph[auth]'"
        raise ConfigurationError(text, code="missing_extra") from error
    audiences = [audience] if isinstance(audience, str) else [*audience]
    faults = [
        f"algorithm {name!r}: tokens are checked by public keys, with {', '.join(ALGORITHMS)}"
        for name in algorithms
        if name not in _SIGNATURES
    ]
    if not issuer:
        faults.append("give the issuer, as its tokens have it in `iss`")
    if not audiences or not all(audiences):
        faults.append("give the audience: without one, tokens for other services are good here")
    if not algorithms:
        faults.append("give at least one algorithm")
    if faults:
        raise ConfigurationError(faults, code="issuer")
    names, source = claims or ClaimNames(), IssuerKeys(issuer, keys, transport=transport)
    rules = TokenRules(issuer, audiences, tuple(algorithms), leeway_s)

    async def authenticate(request: Request) -> Principal | None:
        token = token_of(request.headers)
        header = _header_of(token)
        if header is None:
            return None  # some other kind of key
        if header.get("alg") not in algorithms:
            raise Unauthorized("the token is signed by an algorithm that is not accepted here")
        key_id = header.get("kid")
        key = await source.find(key_id if isinstance(key_id, str) else None)
        if key is None:
            raise Unauthorized("the token is signed by a key that its issuer does not have")
        return names.principal(rules.claims_of(token, key))

    return authenticate


def _header_of(token: str) -> Mapping[str, Any] | None:
    """Return the header of a token that looks like a JSON Web Token, None for any other."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        header = json.loads(urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4)))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and "alg" in header else None


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    if name in claims:  # a name may be a URL, which has dots
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = _claim(claims, name)
    if not isinstance(value, str) or not value:
        raise Unauthorized(f"the token has no text in its claim {name!r}")
    return value
