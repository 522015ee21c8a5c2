"""What went wrong, as RFC 9457 tells it: no stack trace, and no text of a stranger's error."""

from __future__ import annotations

import json
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
    GuardStopped,
    ModelError,
    RoutingError,
    StorageError,
)
from agentgraph_server.catalogue import ThreadBusy, UnknownAgent, UnknownThread
from agentgraph_server.gone import ClientGone, ServerEnding

__all__ = ["MEDIA_TYPE", "Fault", "Problem", "answer_problems", "problem_response", "problems"]

MEDIA_TYPE = "application/problem+json"

_STATUS: Mapping[type[AgentGraphError], int] = {
    UnknownAgent: 404,
    UnknownThread: 404,
    ThreadBusy: 409,
    RoutingError: 409,
    GuardStopped: 422,
    ModelError: 502,
    StorageError: 503,
    ServerEnding: 503,
}


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
    """Document what a route may answer instead."""
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
    """Answer with a problem."""
    title = HTTPStatus(status).phrase
    told = Problem(title=title, status=status, detail=detail, code=code, errors=errors or [])
    # In ASCII: a fault may name a key that is half a character, which no UTF-8 can hold.
    body = json.dumps(told.model_dump(exclude=None if told.errors else {"errors"}))
    return Response(body, status, headers, media_type=MEDIA_TYPE)


def answer_problems(app: FastAPI) -> None:
    """Let an application answer all its errors so."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(AgentGraphError, _failed)
    app.add_exception_handler(ClientGone, _unheard)
    app.add_exception_handler(Exception, _broken)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [_fault(one) for one in error.errors()]
    told = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults)
    return problem_response(422, told, "invalid_request", errors=faults)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, advice = _REFUSALS.get(error.status_code, ("refused", ""))
    told = advice or str(error.detail)
    return problem_response(error.status_code, told, code, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, AgentGraphError)
    known = (status for kind, status in _STATUS.items() if isinstance(error, kind))
    headers = {"Retry-After": "1"} if isinstance(error, ThreadBusy) else None
    return problem_response(next(known, 500), str(error), error.code, headers=headers)


async def _unheard(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # for the log: nobody reads it


async def _broken(request: Request, error: Exception) -> Response:
    return problem_response(500, f"the run failed: {type(error).__name__}", "error")


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
    where, *rest = error["loc"]
    if error["type"] == "json_invalid":
        told = f"this is no JSON: {error['ctx']['error']}, at character {rest[0]}"
        return Fault(pointer="#", detail=told)
    pointer = ("#" if where == "body" else where) + "".join(f"/{_escaped(part)}" for part in rest)
    kind = error["type"]
    if kind == "missing" and not rest:  # it is the body that is missing
        kind = "model_attributes_type"
    return Fault(
        pointer=pointer, detail=_WORDS.get(kind, error["msg"].removeprefix("Value error, "))
    )


def _escaped(part: object) -> str:
    """Write a part of a JSON pointer as it stands in the fragment of a URI."""
    text = str(part).replace("~", "~0").replace("/", "~1")
    return quote(text, safe="~!$&'()*+,;=:@", errors="surrogatepass")
