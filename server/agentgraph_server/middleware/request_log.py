"""The id of a request, and the end of one that fails unexpectedly: in the log, with its cause."""

from __future__ import annotations

import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgraph.clock import new_id
from agentgraph_server.logs import request_scope
from agentgraph_server.masking import exposes_errors
from agentgraph_server.problems import problem_response

HEADER = "x-request-id"

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_log = logging.getLogger("agentgraph_server")


class RequestLog:
    """Middleware: gives a request its id, and logs and answers what fails without an answer.

    The id is that of the header `X-Request-ID`, where it has a usable one; the response has it.
    A failure is answered with the class of the error alone: its text may be anything, a secret too,
    and is in the log. Errors of agentgraph have their own answers, in `problems`.
    """

    def __init__(self, app: ASGIApp, *, expose_errors: bool) -> None:
        self._app = app
        self._expose_errors = expose_errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get(HEADER, "")
        request_id = client_id if _SANE_ID.fullmatch(client_id) else new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        tokens = request_scope.set(scope), exposes_errors.set(self._expose_errors)
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if not has_begun:  # else the connection breaks off, which is all that can be said
                detail = f"the request failed: {type(error).__name__}"
                await problem_response(500, detail, "error")(scope, receive, send_with_id)
        finally:
            request_scope.reset(tokens[0])
            exposes_errors.reset(tokens[1])
