"""The log of a server: what each record says beside its message, and how it is written.

A record has the fields `request`, `run`, `session` and `principal`, where they are known. No record
has a prompt, and secrets are taken out of the texts of errors.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from starlette.types import Scope
from uvicorn.config import LOGGING_CONFIG

from agentgraph.errors import redacted
from agentgraph.sessions.rounds.round import current_round

FIELDS = ("request", "run", "session", "principal")

request_scope: ContextVar[Scope | None] = ContextVar("agentgraph_server_scope", default=None)
"""The scope of the request that is being answered."""

_LOGGERS = ("agentgraph", "agentgraph_server")
_PATH_PARAMETERS = {"run": ("run_id",), "session": ("id", "thread_id")}


def prepare_loggers(level: str, format: Literal["text", "json"]) -> None:
    """Let the loggers tell what a server needs to know; a level that was set already stays.

    They get a handler only where the process has none at all: else the causes would be lost.
    """
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.addFilter(_describe)  # adds it once
        if logger.level == logging.NOTSET:
            logger.setLevel(level.upper())
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(formatter_of(format))
            logger.addHandler(handler)


def uvicorn_config(format: Literal["text", "json"]) -> dict[str, Any]:
    """Return uvicorn's logging configuration, in this format."""
    if format == "text":
        return LOGGING_CONFIG
    formatters = {name: {"()": JsonFormatter} for name in LOGGING_CONFIG["formatters"]}
    return {**LOGGING_CONFIG, "formatters": formatters}


@cache
def formatter_of(format: Literal["text", "json"]) -> logging.Formatter:
    """Return what writes records of the log as text, or each as a line of JSON."""
    return JsonFormatter() if format == "json" else TextFormatter()


class TextFormatter(logging.Formatter):
    """Writes a record as a line, with its fields at the end, and its error below."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _own_fields(record).items())
        line = f"{record.levelname + ':':<9} {record.message}"
        return f"{line} [{fields}]" if fields else line


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_own_fields(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            values["error"] = record.exc_text or _traceback(record.exc_info)
        return json.dumps(values, default=str)


def _own_fields(record: logging.LogRecord) -> Mapping[str, str]:
    values = {name: getattr(record, name, None) for name in FIELDS}
    return {name: str(value) for name, value in values.items() if value}


def _describe(record: logging.LogRecord) -> bool:
    """Give a record its fields, and take the secrets out of the text of its error."""
    fields = {**_fields_of_request(), **_fields_of_round()}
    for name in FIELDS:
        if getattr(record, name, None) is None:
            setattr(record, name, fields.get(name))
    if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
        # Handlers write this text, where there is one, and do not make their own.
        record.exc_text = _traceback(record.exc_info)
    return True


def _traceback(error: Any) -> str:
    """Return a traceback without secrets; the paths of files are none, long as they are."""
    lines = logging.Formatter().formatException(error).split("\n")
    return "\n".join(line if line.startswith('  File "') else redacted(line) for line in lines)


def _fields_of_request() -> Mapping[str, str]:
    """Return what the present request says of itself; its route is known once it has begun."""
    scope = request_scope.get()
    if scope is None:
        return {}
    state, parameters = scope.get("state", {}), scope.get("path_params", {})
    fields = {"request": state.get("request_id")}
    for name, keys in _PATH_PARAMETERS.items():
        fields[name] = next((parameters[key] for key in keys if key in parameters), None)
    if (principal := state.get("principal")) is not None:
        fields["principal"] = f"{principal.tenant}/{principal.name}"
    return {name: value for name, value in fields.items() if value}


def _fields_of_round() -> Mapping[str, str]:
    """Return which run of which session is under way here, and who has asked for it."""
    round = current_round()
    if round is None:
        return {}
    record, state = round.session.record, round.state
    recent = round.session.recent.last(state.input)
    run_ids = [envelope.envelope_id for envelope in recent if envelope.sequence == state.input]
    sender = f"{record.tenant}/{state.asked_by or record.creator}"
    fields = {"session": record.session_id, "principal": sender}
    return fields | ({"run": run_ids[0]} if run_ids else {})
