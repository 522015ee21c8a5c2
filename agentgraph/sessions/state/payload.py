"""What an envelope may carry: JSON, of limited size and depth.

It is canonical before it is appended: what is live then equals what is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from agentgraph.errors import ConfigurationError
from agentgraph.routing.values import as_json, short

MAX_BYTES = 256_000


def canonical(data: object, what: str) -> dict[str, Any]:
    """Return an object as it comes back from the log, or refuse it."""
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"{what}={short(data)}: give an object", code="payload")
    try:
        value: dict[str, Any] = as_json(data, what)
    except RecursionError as error:
        raise ConfigurationError(f"{what} holds itself", code="payload") from error
    size = len(encoded(value))
    if size > MAX_BYTES:
        raise ConfigurationError(
            f"{what} takes {size} bytes, of which {MAX_BYTES} are allowed: store it elsewhere, "
            "and send where it is",
            code="payload",
        )
    return value


def clipped(text: str, limit: int) -> str:
    """Return the beginning of a text that is too long, and how much more there was."""
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more]"


def encoded(value: object) -> str:
    """Write JSON that any store can hold: ASCII, also for what no encoding has."""
    return _encoder.encode(value)


def decoded(text: str | bytes) -> Any:
    """Read JSON."""
    try:
        return from_json(text)  # twice as fast as the standard library's
    except ValueError:
        return json.loads(text)  # it takes half a character, too, and any depth


_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)
