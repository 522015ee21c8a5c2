"""Access control: with API keys, a request needs one; without, only this machine may ask."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgraph.errors import ConfigurationError
from agentgraph_server.problems import problem_response

ENV_KEYS = "AGENTGRAPH_API_KEYS"
MAX_BODY = 1_048_576
"""The limit of a request's body in bytes, which protects the server's memory."""

_OPEN = f"this server has no API keys and answers its own machine only: set {ENV_KEYS}"


def keys_from(api_keys: Iterable[str] | None) -> frozenset[str]:
    """Return `api_keys`, by default those of the environment; a text is split at commas.

    Raises `ConfigurationError` if the configured value has no key: the server would be open.
    """
    if api_keys is None:
        api_keys = os.environ.get(ENV_KEYS)
    if api_keys is None:
        return frozenset()
    # A text is an iterable of letters, and a key of one letter is easy to guess.
    texts = api_keys.split(",") if isinstance(api_keys, str) else list(api_keys)
    keys = frozenset(key.strip() for key in texts if key.strip())
    if texts and not keys:
        raise ConfigurationError(f"{ENV_KEYS} holds no key: write one, or unset it")
    return keys


def is_loopback(host: str) -> bool:
    """Tell whether an address is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AccessControl:
    """Middleware that refuses unauthorised requests, before the body is read.

    With keys, a request needs one: `Authorization: Bearer <key>` or `X-API-Key: <key>`. Without
    keys, it has to come from this machine. The size of bodies is limited too.
    """

    def __init__(self, app: ASGIApp, *, keys: Collection[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._check_key(headers) if self._keys else _check_origin(scope, headers)
        answer = self._app if refusal is None else refusal
        await answer(scope, _with_size_limit(receive), send)

    def _check_key(self, headers: Headers) -> Response | None:
        """Return a refusal, None if the request has one of the keys."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All keys are compared, in constant time, so that the time does not help in guessing.
        matches = [hmac.compare_digest(key.encode("latin-1"), api_key) for api_key in self._keys]
        if any(matches):
            return None
        detail = "give an API key: Authorization: Bearer <key>, or X-API-Key: <key>"
        return problem_response(401, detail, "unauthorized", headers={"WWW-Authenticate": "Bearer"})


def _check_origin(scope: Scope, headers: Headers) -> Response | None:
    """Refuse requests from other machines, and those that a browser sends for another site."""
    client = scope.get("client")
    if client is not None and _is_foreign(client[0]):
        return problem_response(403, _OPEN, "forbidden")
    # DNS rebinding: another site's page can point its own name, which has dots, at this machine.
    if not _is_local_name(headers.get("host", "")):
        return problem_response(403, _OPEN, "forbidden")
    return None


def _is_local_name(host: str) -> bool:
    """Tell whether a Host header names this machine: a name without dots, or a loopback address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a bracket without its counterpart
        return False
    return "." not in name or is_loopback(name)


def _is_foreign(host: str) -> bool:
    """Tell whether a client's address is that of another machine."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:  # no address: a name, or a value set by a proxy
        return host not in ("", "testclient")  # a Unix socket, Starlette's test client


def _with_size_limit(receive: Receive) -> Receive:
    """Return a `receive` that raises 413 once a body is larger than allowed."""
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MAX_BODY:
            raise HTTPException(413, f"a request may have {MAX_BODY:,} bytes")
        return message

    return receive_some
