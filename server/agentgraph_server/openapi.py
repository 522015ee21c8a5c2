"""The OpenAPI document: made of the routes, and of the events that streams really have.

FastAPI makes the document of the routes and their models. Here it gets the schemas of the events of
streams, which no model of a route has, the problems that any route may answer, and summaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from agentgraph.stream import AnyEvent, Event
from agentgraph_server.principals.principal import OPEN_PATHS
from agentgraph_server.problems import MEDIA_TYPE

STREAM = "StreamEvent"
"""The component that describes one event of a stream."""
EVENTS_BY_NAME: Mapping[str, type[Event]] = {kind.type: kind for kind in get_args(AnyEvent)}
"""The live events that the framework has, by their names on the wire."""

_REF = "#/components/schemas/"
_OPTIONAL = ("round", "attempt", "blocks")
"""The fields that an event has only where they say something."""
_TAGS = {
    "served": "What can be talked to: teams, agents, flows and graphs.",
    "sessions": "Conversations, each with one of those that are served, and their logs.",
    "runs": "What is said in a session, what comes of it, and both as streams of events.",
    "decisions": "What waits for a human, and what the human decides.",
    "agents": "A turn of an agent that lives as long as its connection; threads are sessions.",
    "health": "What probes ask.",
}
_OF_BODIES = (400, 413)
"""The problems of every operation that has a body."""
_OF_PRINCIPALS = (401, 403, 429, 500, 503)
"""The problems of every operation that must know who asks: the middleware finds that out."""
_CODES = {
    401: "`unauthorized`: who asks is not known.",
    429: "`limit_reached`: the principal has asked for more than it may.",
    500: "`auth_failed`: the server cannot tell who asks. Others: it has failed; its log says why.",
    503: "`issuer_unavailable`: the keys of tokens cannot be had. `shutdown`: the server stops. "
    "Others: its store does not answer.",
}
"""What the problems of a status are, by their codes."""
_HEADERS = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}


def document_of(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application; the same one at each call."""
    if app.openapi_schema is None:
        tags = [{"name": name, "description": text} for name, text in _TAGS.items()]
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=f"{app.description}\n\n{_description_of_streams()}",
            routes=app.routes,
            tags=tags,
        )
        document["components"]["schemas"] |= _event_schemas()
        document["components"]["securitySchemes"] = _SECURITY
        for path, operations in document["paths"].items():
            for operation in operations.values():
                _complete(operation, path)
        _add_links(document)
        app.openapi_schema = document
    return app.openapi_schema


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function, which clients are made of."""
    return route.name


_SESSION_LINKS = ("read_session", "read_log", "read_state", "send_message", "close_session")
_RUN_LINKS = ("read_run", "cancel_run")
_LINKS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    **{id: ("open_session", "201", {"id": "$response.body#/id"}) for id in _SESSION_LINKS},
    **{id: ("send_message", "202", {"run_id": "$response.body#/run_id"}) for id in _RUN_LINKS},
}
"""By operation: which one's answer has its parameters, with which status, and where."""


def _add_links(document: Mapping[str, Any]) -> None:
    """Say what can be done with the ids in answers."""
    operations = {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    for id, (source, status, parameters) in _LINKS.items():
        links = operations[source]["responses"][status].setdefault("links", {})
        links[id] = {"operationId": id, "parameters": dict(parameters)}


_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def _complete(operation: dict[str, Any], path: str) -> None:
    """Add to an operation what all have: a summary, security, problems, the form of its events."""
    first_line = operation.get("description", "").partition("\n")[0]
    operation["summary"] = re.split(r"[.:;]( |$)", first_line)[0]
    is_open = path in OPEN_PATHS
    if not is_open:
        operation["security"] = [{"bearer": []}, {"key": []}, {}]
    responses = operation["responses"]
    bodies = _OF_BODIES if "requestBody" in operation else ()
    # Without keys the server answers its own machine only: that refuses others on open paths too.
    statuses = (403,) if is_open else (*_OF_PRINCIPALS, *bodies)
    responses |= {str(status): _problem(status) for status in statuses}
    for response in responses.values():
        content = response.get("content", {})
        if "text/event-stream" in content:
            content["text/event-stream"] = {"schema": {"$ref": f"{_REF}{STREAM}"}}
        if MEDIA_TYPE in content:
            content.pop("application/json", None)
    operation["responses"] = dict(sorted(responses.items()))


def _problem(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{_REF}Problem"}}}
    description = _CODES.get(status, HTTPStatus(status).phrase)
    problem: dict[str, Any] = {"description": description, "content": content}
    if status in _HEADERS:
        problem["headers"] = {_HEADERS[status]: {"schema": {"type": "string"}}}
    return problem


@cache
def _event_schemas() -> Mapping[str, Any]:
    """Return the components of the events: the data of each, and what an event of a stream is."""
    kinds: list[type[Event]] = [Event, *EVENTS_BY_NAME.values()]
    schemas = {kind.__name__: _schema_of(kind) for kind in kinds}
    return {**schemas, STREAM: {"description": _description_of_streams(), "oneOf": [*_forms()]}}


def _schema_of(kind: type[Event]) -> dict[str, Any]:
    """Return the JSON Schema of an event's data, as `Event.to_json` writes it."""
    schema = TypeAdapter(kind).json_schema(mode="serialization", ref_template=_REF + "{model}")
    properties: dict[str, Any] = schema["properties"]
    for name in ("public", "cursor"):  # the second is the event's `id`
        properties.pop(name, None)
    for field in properties.values():
        field.pop("default", None)
    schema["required"] = [name for name in properties if name not in _OPTIONAL]
    return schema


def _forms() -> Iterator[dict[str, Any]]:
    """Yield what an event of a stream may be, each told from the others by its name."""
    names = {**{name: kind.__name__ for name, kind in EVENTS_BY_NAME.items()}, "done": "Event"}
    for name, schema in names.items():
        yield _form(name, {"const": name}, schema)
    # The types of envelopes have dots; the names of live events of your own have none.
    yield _form("envelope", {"type": "string", "pattern": r"\."}, "EnvelopeView")
    own_name = {"type": "string", "pattern": r"^[^.]+$", "not": {"enum": [*names]}}
    yield _form("other", own_name, "Event")


def _form(title: str, event: Mapping[str, Any], schema: str) -> dict[str, Any]:
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"{_REF}{schema}"},
    }
    properties = {"event": event, "data": data, "id": {"type": "string"}}
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": ["event", "data"],
    }


@cache
def _description_of_streams() -> str:
    """Return in Markdown what streams consist of."""
    rows = [
        f"| `{name}` | `{kind.__name__}`: {(kind.__doc__ or '').strip().partition(chr(10))[0]} |"
        for name, kind in EVENTS_BY_NAME.items()
    ]
    return "\n".join(
        [
            "A stream has Server-Sent Events, whose data is JSON. Those of a session have ids: "
            "`Last-Event-ID` goes on after a break, on any server of the store.",
            "",
            "| event | data |",
            "|---|---|",
            "| the type of an envelope, as `ag.packet` | `EnvelopeView`: an entry of the log. |",
            *rows,
            "| `done` | `Event`: the end of a run; no other event follows. |",
            "| an event of your own | `Event`, and its own fields. |",
        ]
    )
