"""Errors as RFC 9457 problems: without stack traces, and without texts of unknown errors.

The text of an error that is not agentgraph's may hold secrets; only its class is shown.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from agentgraph.errors import (
    AgentGraphError,
    ConfigurationError,
    GuardStopped,
    ModelError,
    RoutingError,
    SessionError,
    StorageError,
)
from agentgraph_server.disconnects import ClientDisconnected, ServerStopping
from agentgraph_server.masking import exposes_errors
from agentgraph_server.middleware.methods import allow_header
from agentgraph_server.principals.limits import LimitReached

_log = logging.getLogger("agentgraph_server")

MEDIA_TYPE = "application/problem+json"

_STATUS: Mapping[type[AgentGraphError], int] = {
    SessionError: 409,
    RoutingError: 409,
    GuardStopped: 422,
    ModelError: 502,
    StorageError: 503,
    ServerStopping: 503,
}


_STATUS_OF_CODES: Mapping[str, int] = {
    "context": 422,
    "draft": 422,
    "forbidden": 403,
    "hub_closed": 503,
    "invite_rejected": 409,
    "limit_reached": 429,
    "not_ready": 503,
    "payload": 422,
    "quarantined": 503,
    "reserved_type": 422,
    "session": 422,
    "sessions": 422,
    "shutdown": 503,
    "stale_owner": 503,
    "unknown_agent": 404,
    "unknown_interrupt": 404,
    "unknown_run": 404,
    "unknown_sequence": 404,
    "unknown_served": 404,
    "unknown_session": 404,
    "thread_busy": 409,
    "unknown_team": 404,
    "unknown_thread": 404,
    "value": 422,
    "webhook": 422,
}


_NOT_LOGGED = frozenset({"not_ready", "shutdown"})
"""The codes of what is no failure, or is logged where it is noticed."""


class Fault(BaseModel):
    """One thing that is wrong with a request, and where."""

    pointer: str
    detail: str


class Problem(BaseModel):
    """A problem, as in RFC 9457; `code` is the stable name of it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[Fault] = []


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route for the statuses, beyond those that all have."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"model": Problem, "content": content, "description": HTTPStatus(status).phrase}
        for status in statuses
    }


def problem_response(
    status: int,
    detail: str,
    code: str,
    *,
    errors: list[Fault] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response with a problem."""
    title = HTTPStatus(status).phrase
    problem = Problem(title=title, status=status, detail=detail, code=code, errors=errors or [])
    # JSON in ASCII: a fault may quote a key with a lone surrogate, which UTF-8 cannot encode.
    body = json.dumps(problem.model_dump(exclude=None if problem.errors else {"errors"}))
    return Response(body, status, headers, media_type=MEDIA_TYPE)


def answer_problems(app: FastAPI) -> None:
    """Register handlers that turn all errors of an application into problems."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refusal)
    app.add_exception_handler(AgentGraphError, _failure)
    app.add_exception_handler(ClientDisconnected, _no_reader)


async def _invalid(request: Request, error: Exception) -> Response:
    """Respond to a request that FastAPI has refused, with all of its faults."""
    assert isinstance(error, RequestValidationError)
    faults = [_fault(entry) for entry in error.errors()]
    detail = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults)
    return problem_response(422, detail, "invalid_request", errors=faults)


async def _refusal(request: Request, error: Exception) -> Response:
    """Respond to an HTTP error of Starlette, with advice if its own text has none."""
    assert isinstance(error, HTTPException)
    code, advice = _REFUSALS.get(error.status_code, ("refused", ""))
    detail = advice or str(error.detail)
    # The route that refuses a method knows its own methods only.
    headers = {"Allow": allow_header(request)} if error.status_code == 405 else error.headers
    return problem_response(error.status_code, detail, code, headers=headers)


async def _failure(request: Request, error: Exception) -> Response:
    """Respond to an error of agentgraph with the status of its class."""
    assert isinstance(error, AgentGraphError)
    headers = {"Retry-After": "1"} if error.code == "thread_busy" else None
    if isinstance(error, LimitReached):
        headers = {"Retry-After": str(error.retry_after_s)}
    detail = str(error) if exposes_errors.get() else error.public
    shows_all = detail == str(error)
    faults = error.faults if isinstance(error, ConfigurationError) and shows_all else ()
    errors = [Fault(pointer="#", detail=fault) for fault in faults]
    status = _status_of(error)
    if status >= 500 and error.code not in _NOT_LOGGED:
        _log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return problem_response(status, detail, error.code, errors=errors, headers=headers)


def _status_of(error: AgentGraphError) -> int:
    if error.code in _STATUS_OF_CODES and not isinstance(error, RoutingError):
        return _STATUS_OF_CODES[error.code]
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)


async def _no_reader(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # for the access log: the client has gone


_REFUSALS = {
    400: ("bad_request", "the body cannot be read: send JSON"),
    404: ("not_found", "there is nothing at this address: /openapi.json lists the routes"),
    405: ("method_not_allowed", "this address does not take this method: see /openapi.json"),
    413: ("too_large", ""),
}
_WORDS = {
    "extra_forbidden": "there is no such field",
    "missing": "this field is required",
    "model_attributes_type": "send a JSON object, as Content-Type: application/json",
}


def _fault(error: Mapping[str, Any]) -> Fault:
    """Return a fault of pydantic, with a JSON pointer to its place in the request."""
    source, *rest = error["loc"]
    if error["type"] == "json_invalid":
        detail = f"this is no JSON: {error['ctx']['error']}, at character {rest[0]}"
        return Fault(pointer="#", detail=detail)
    pointer = ("#" if source == "body" else source) + "".join(f"/{_escape(part)}" for part in rest)
    kind = error["type"]
    if kind == "missing" and not rest:  # the body itself is missing
        kind = "model_attributes_type"
    return Fault(
        pointer=pointer, detail=_WORDS.get(kind, error["msg"].removeprefix("Value error, "))
    )


def _escape(part: object) -> str:
    """Return a part of a JSON pointer, escaped for the fragment of a URI."""
    text = str(part).replace("~", "~0").replace("/", "~1")
    return quote(text, safe="~!$&'()*+,;=:@", errors="surrogatepass")
