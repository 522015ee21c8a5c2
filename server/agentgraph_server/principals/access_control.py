"""The middleware that finds out who asks, before a request's body is read."""

from __future__ import annotations

import inspect
import ipaddress
import logging
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgraph.remote.principal import Principal, inside_principal
from agentgraph_server.middleware.origins import is_allowed_host
from agentgraph_server.principals.auth import Auth, IssuerUnavailable, Unauthorized
from agentgraph_server.principals.limits import LimitReached, Limits
from agentgraph_server.principals.principal import (
    LOCAL_PATHS,
    OPEN_PATHS,
    THIS_MACHINE,
    principal_faults,
)
from agentgraph_server.problems import problem_response
from agentgraph_server.settings import ENV_KEYS
from agentgraph_server.wire import path_of

_log = logging.getLogger("agentgraph_server")

_NO_KEY = "give an API key: Authorization: Bearer <key>, or X-API-Key: <key>"
_AUTH_FAILED = "the server cannot tell who asks: its log has the reason"
_OPEN = f"this server has no API keys and answers its own machine only: set {ENV_KEYS}"


class AccessControl:
    """Middleware that finds out who asks, and refuses others, before the body is read.

    The size of bodies is limited too.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Auth | None,
        limits: Limits,
        max_body: int,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self._app = app
        self._auth = auth
        self._limits = limits
        self._max_body = max_body
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = await self._identify(scope)
        answer = self._app if refusal is None else refusal
        with inside_principal(scope.get("state", {}).get("principal")):
            await answer(scope, _with_size_limit(receive, self._max_body), send)

    async def _identify(self, scope: Scope) -> Response | None:
        """Store the principal of a request with it; return a refusal if there is none."""
        path = path_of(scope)
        principal: Principal | None = THIS_MACHINE
        is_open = path in OPEN_PATHS or (path in LOCAL_PATHS and is_local(scope))
        if self._auth is None:
            refusal = refusal_of_origin(scope, self._allowed_hosts)
        else:
            principal, refusal = await identify(self._auth, Request(scope))
            refusal = None if is_open else refusal
        if refusal is not None:
            return refusal
        scope.setdefault("state", {})["principal"] = principal
        if principal is not None and not is_open:
            try:
                self._limits.count_request(principal)
            except LimitReached as error:
                return limit_response(error)
        return None


async def identify(auth: Auth, request: Request) -> tuple[Principal | None, Response | None]:
    """Return who sends a request, or a refusal: 401 if it does not say, or what it says is wrong.

    A principal that cannot own a session gets 403, and what fails in `auth` is logged and a 500:
    its text may have a secret.
    """
    try:
        answer = auth(request)
        principal = await answer if inspect.isawaitable(answer) else answer
    except Unauthorized as error:
        return None, _challenge(str(error), 'Bearer error="invalid_token"')
    except IssuerUnavailable as error:
        headers = {"Retry-After": "30"}
        return None, problem_response(503, str(error), error.code, headers=headers)
    except Exception as error:
        _log.error("auth has failed on %s", request.url.path, exc_info=error)
        return None, problem_response(500, _AUTH_FAILED, "auth_failed")
    if principal is None:
        return None, _challenge(_NO_KEY, "Bearer")
    if not isinstance(principal, Principal):
        _log.error("auth has returned %s and no Principal", type(principal).__name__)
        return None, problem_response(500, _AUTH_FAILED, "auth_failed")
    if faults := principal_faults(principal):
        return None, problem_response(403, "; ".join(faults), "principal")
    return principal, None


def limit_response(error: LimitReached) -> Response:
    """Return the response to a request that is one too many."""
    headers = {"Retry-After": str(error.retry_after_s)}
    return problem_response(429, str(error), error.code, headers=headers)


def _challenge(detail: str, challenge: str) -> Response:
    headers = {"WWW-Authenticate": challenge}
    return problem_response(401, detail, "unauthorized", headers=headers)


def is_loopback(host: str) -> bool:
    """Tell whether an address is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal_of_origin(scope: Scope, allowed_hosts: Collection[str] = ()) -> Response | None:
    """Refuse requests from other machines, and those that a browser sends for another site.

    Of the names with dots those of `allowed_hosts` are this machine's too.
    """
    if not is_local(scope):
        return problem_response(403, _OPEN, "forbidden")
    # DNS rebinding: another site's page can point its own name, which has dots, at this machine.
    host = Headers(scope=scope).get("host", "")
    if not _is_local_name(host) and not is_allowed_host(host, allowed_hosts):
        return problem_response(403, _OPEN, "forbidden")
    return None


def is_local(scope: Scope) -> bool:
    """Tell whether a request comes from this machine."""
    client = scope.get("client")
    return client is None or not _is_foreign(client[0])


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


def _with_size_limit(receive: Receive, most: int) -> Receive:
    """Return a `receive` that raises 413 once a body is larger than allowed."""
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise HTTPException(413, f"a request may have {most:,} bytes")
        return message

    return receive_some
