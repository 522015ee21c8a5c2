"""Which pages of browsers may ask, and by which names of hosts: CORS and the header `Host`."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from agentgraph_server.middleware.methods import ALL_METHODS
from agentgraph_server.problems import problem_response
from agentgraph_server.wire import path_of

EXPOSED_HEADERS = (
    "content-location",
    "location",
    "link",
    "x-pagination-total",
    "x-pagination-next",
    "retry-after",
    "x-request-id",
)
"""The headers that a page may read; without them it finds neither its run nor the next page."""
MAX_AGE_S = 600
"""How long a browser remembers what a preflight has said."""


class Origins(CORSMiddleware):
    """Middleware: answers preflights, which have no key, and lets pages of `origins` read answers.

    The headers that a page asks for are allowed: which of them count is for the routes to say.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=ALL_METHODS,
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            max_age=MAX_AGE_S,
        )


class Hosts:
    """Middleware: refuses requests to host names that are not of `names`; `*.name` is any below.

    What is open to everybody, as health is, is so by any name: probes ask by the address.
    """

    def __init__(
        self, app: ASGIApp, *, names: Collection[str], open_paths: Collection[str]
    ) -> None:
        self._app = app
        self._names = [name.lower() for name in names]
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http" and path_of(scope) not in self._open_paths:
            host = Headers(scope=scope).get("host", "")
            if not is_allowed_host(host, self._names):
                detail = "this server does not answer to this host name: set allowed_hosts"
                answer = problem_response(403, detail, "forbidden_host")
        await answer(scope, receive, send)


def is_allowed_host(host: str, names: Collection[str]) -> bool:
    """Tell whether the header `Host` names one of the allowed hosts, on whichever port."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:  # a bracket without its counterpart
        return False
    return any(
        entry in ("*", name) or (entry.startswith("*.") and name.endswith(entry[1:]))
        for entry in names
    )
