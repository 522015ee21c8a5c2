"""The public keys of an issuer of tokens: from a file, from an address, or found by discovery."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import (
    ExpiredTokenError,
    InvalidClaimError,
    JoseError,
    MissingClaimError,
)
from joserfc.jwk import ECKey, Key, KeySet, OKPKey, RSAKey
from joserfc.jwt import JWTClaimsRegistry

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph_server.principals.access_control import is_loopback
from agentgraph_server.principals.auth import IssuerUnavailable, Unauthorized

_log = logging.getLogger("agentgraph_server")

FRESH_S = 3_600.0
"""How long keys are used before they are fetched again, so that one which was withdrawn goes."""
REFETCH_S = 30.0
"""How long no keys are fetched after the last time, whatever tokens come: anybody can send one with
the id of a key that is not there."""
_TIMEOUT_S = 10.0
_MAX_BYTES = 1_000_000


_FETCH_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, RecursionError),
    *(httpx.HTTPError, httpx.InvalidURL, JoseError, ConfigurationError),
)


class IssuerKeys:
    """The keys of an issuer by their ids, fetched when they are first needed.

    `source` is a file, an address, or None: then the issuer's discovery document has the address.
    Raises `ConfigurationError` for an address that others could answer in its place.
    """

    def __init__(
        self,
        issuer: str,
        source: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._issuer = issuer
        self._source = source
        self._transport = transport
        if source is None or "://" in source:
            _check_address(issuer if source is None else source)
        self._keys: Sequence[Key] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetch: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> Key | None:
        """Return the key of an id, None if the issuer has none; without an id, its only key.

        Raises `IssuerUnavailable` if no keys could be fetched yet.
        """
        if self._fetched_at is None or clock().monotonic() - self._fetched_at > FRESH_S:
            await self._refresh()
        key = self._known_key(key_id)
        if key is None:  # the issuer may have changed its keys since
            await self._refresh()
            key = self._known_key(key_id)
        if key is None and self._fetched_at is None:
            raise IssuerUnavailable(
                f"the keys of the issuer {self._issuer!r} cannot be had now: try again later"
            )
        return key

    def _known_key(self, key_id: str | None) -> Key | None:
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.kid == key_id), None)

    async def _refresh(self) -> None:
        """Fetch the keys, unless that was tried just now; requests at once share one fetch."""
        if self._fetch is None or self._fetch.done():
            now = clock().monotonic()
            if self._tried_at is not None and now - self._tried_at < REFETCH_S:
                return
            self._tried_at = now
            self._fetch = asyncio.ensure_future(self._load())
        # Shielded: a client that goes away must not end the fetch that others wait for.
        await asyncio.shield(self._fetch)

    async def _load(self) -> None:
        try:
            self._keys = _keys_in(await self._read())
            self._fetched_at = clock().monotonic()
        except _FETCH_ERRORS as error:
            # What is known stays good: an issuer that is away for a while shuts nobody out.
            _log.error("the keys of the issuer %r cannot be read", self._issuer, exc_info=error)

    async def _read(self) -> Any:
        source = self._source
        if source is not None and "://" not in source:
            return json.loads(await asyncio.to_thread(Path(source).read_bytes))
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, transport=self._transport) as client:
            if source is None:
                document = await _get(client, discovery_address(self._issuer))
                if document["issuer"] != self._issuer:
                    raise ValueError(f"the document is of another issuer: {document['issuer']!r}")
                source = document["jwks_uri"]
                _check_address(source)
            return await _get(client, source)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What must hold of a token, beside its signature."""

    issuer: str
    audiences: Sequence[str]
    algorithms: Sequence[str]
    leeway_s: int
    """How far the issuer's clock may be from ours."""

    def claims_of(self, token: str, key: Key) -> Mapping[str, Any]:
        """Return the claims of a token that a key has signed; `Unauthorized` says what is wrong."""
        registry = JWTClaimsRegistry(
            now=int(clock().wall()),
            leeway=self.leeway_s,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "values": [*self.audiences]},
            exp={"essential": True},
        )
        try:
            claims = jwt.decode(token, key, algorithms=self.algorithms).claims
            registry.validate(claims)
        except ExpiredTokenError as error:
            raise Unauthorized("the token has expired: ask its issuer for another") from error
        except (MissingClaimError, InvalidClaimError) as error:
            text = f"the token is not for this server: its claim {error.claim!r} does not hold"
            raise Unauthorized(text) from error
        except (JoseError, ValueError) as error:
            raise Unauthorized("the token is malformed, or its signature is wrong") from error
        return claims


def discovery_address(issuer: str) -> str:
    """Return where an issuer tells about itself, by OpenID Connect Discovery."""
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


async def _get(client: httpx.AsyncClient, address: str) -> Any:
    """Return the JSON at an address; redirects are not followed."""
    async with client.stream("GET", address) as answer:
        if answer.status_code != 200:
            raise ValueError(f"{address} answers {answer.status_code}")
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > _MAX_BYTES:
                raise ValueError(f"{address} answers with more than {_MAX_BYTES:,} bytes")
    return json.loads(body)


def _keys_in(data: Mapping[str, Any]) -> Sequence[Key]:
    """Return the public keys for signatures in a key set; those of other kinds are left out.

    Symmetric keys too: whoever knows one of those could sign tokens as well as check them.
    """
    keys: list[Key] = []
    for entry in data["keys"]:
        if entry.get("kty") not in ("RSA", "EC", "OKP") or entry.get("use", "sig") != "sig":
            continue
        try:
            (key,) = KeySet.import_key_set({"keys": [entry]}).keys
        except (JoseError, ValueError, KeyError, TypeError) as error:
            _log.warning("a key of the issuer cannot be read", exc_info=error)
            continue
        if isinstance(key, RSAKey | ECKey | OKPKey):
            keys.append(key)
    return keys


def _check_address(address: str) -> None:
    """Raise `ConfigurationError` unless an address is one that nobody else can answer."""
    parts = urlsplit(address)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return
    raise ConfigurationError(
        f"{address!r}: keys are fetched over https, as anybody on the way could replace them",
        code="issuer",
    )
