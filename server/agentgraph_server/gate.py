"""Who may ask: whoever has a key; where there are no keys, this machine alone."""

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

__all__ = ["ENV_KEYS", "Gate", "is_loopback", "keys_from"]

ENV_KEYS = "AGENTGRAPH_API_KEYS"
MAX_BODY = 1_048_576

_OPEN = f"this server has no API keys and answers its own machine only: set {ENV_KEYS}"


def keys_from(given: Iterable[str] | None) -> frozenset[str]:
    """Return the keys that are given, else those of the environment; one text has commas."""
    if given is None:
        given = os.environ.get(ENV_KEYS)
    if given is None:
        return frozenset()
    # Letter by letter, a text would be keys that anybody guesses.
    texts = given.split(",") if isinstance(given, str) else list(given)
    keys = frozenset(key.strip() for key in texts if key.strip())
    if texts and not keys:
        raise ConfigurationError(f"{ENV_KEYS} holds no key: write one, or unset it")
    return keys


def is_loopback(host: str) -> bool:
    """Tell whether an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """Turn away who may not ask, before anything is read or looked up."""

    def __init__(self, app: ASGIApp, *, keys: Collection[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._check_key(headers) if self._keys else _check_origin(scope, headers)
        answer = self._app if refused is None else refused
        await answer(scope, _limited(receive), send)

    def _check_key(self, headers: Headers) -> Response | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All are compared: how long it takes must not say how near a guess was.
        found = [hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys]
        if any(found):
            return None
        detail = "give an API key: Authorization: Bearer <key>, or X-API-Key: <key>"
        return problem_response(401, detail, "unauthorized", headers={"WWW-Authenticate": "Bearer"})


def _check_origin(scope: Scope, headers: Headers) -> Response | None:
    client = scope.get("client")
    if client is not None and _is_foreign(client[0]):
        return problem_response(403, _OPEN, "forbidden")
    # A page of a stranger's can point a name of its own at this machine; its name has a dot.
    if not _is_near(headers.get("host", "")):
        return problem_response(403, _OPEN, "forbidden")
    return None


def _is_near(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a bracket without its other half
        return False
    return "." not in name or is_loopback(name)


def _is_foreign(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:  # whatever a proxy has written there
        return host not in ("", "testclient")  # a Unix socket, Starlette's test client


def _limited(receive: Receive) -> Receive:
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY:
            raise HTTPException(413, f"a request may have {MAX_BODY:,} bytes")
        return message

    return limited
