"""The end of a server: it takes no new work, and hands over what it has.

After a signal the server still listens while its runs come to rest, for at most `GRACE_S`. Each
session is handed back as it rests, so that another server of the same store can take it up at once;
what is not at rest by then is cut off and handed back too. Streams end when the signal comes: the
id of their last event is where they go on, on any server.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentgraph.sessions import Hub
from agentgraph_server.problems import problem_response
from agentgraph_server.wire import path_of

GRACE_S = 10.0
"""How long runs may take to come to rest after a signal, and then requests to be answered."""
RETRY_AFTER_S = 1
"""When a client may ask again: by then another server answers at the same address."""

_ENDS_WORK = ("/cancel", "/close")
"""How the addresses end that may be posted to while the server stops: they begin nothing."""

_log = logging.getLogger("agentgraph_server")


class Drain:
    """Whether the server takes new work."""

    def __init__(self) -> None:
        self.has_begun = False

    async def run(self, app: FastAPI, grace_s: float = GRACE_S) -> None:
        """Take no new work, and wait until what is under way rests, or the grace is over."""
        self.has_begun = True
        hub: Hub | None = app.state.hub
        _log.info("Shutting down: new work is refused, and runs have %g s to come to rest", grace_s)
        if hub is None:
            return
        rest_count = await hub.drain(grace_s)
        if rest_count:
            _log.info("%d sessions are handed over to another server as they are", rest_count)


class Refusal:
    """Middleware: refuses what begins work, or follows it, once the server has begun to stop."""

    def __init__(self, app: ASGIApp, *, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if self._drain.has_begun and scope["type"] == "http" and _is_work(scope):
            detail = "the server is shutting down: ask again, and another one answers"
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            answer = problem_response(503, detail, "shutdown", headers=headers)
        await answer(scope, receive, send)


def _is_work(scope: Scope) -> bool:
    if scope["method"] in ("POST", "PUT", "PATCH"):
        return not path_of(scope).endswith(_ENDS_WORK)
    accepts_stream = "text/event-stream" in Headers(scope=scope).get("accept", "")
    return scope["method"] == "GET" and (accepts_stream or path_of(scope).endswith("/events"))
