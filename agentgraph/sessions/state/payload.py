"""What an envelope may carry: JSON, of limited size and depth, written so that any store holds it.

It is canonical before it is appended: so what is live equals what is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from agentgraph.errors import ConfigurationError
from agentgraph.routing.values import as_json, short

MAX_BYTES = 256_000

_MAX_VALUE = 100_000
_MAX_EXCERPT = 2_000
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def canonical(data: object, name: str) -> dict[str, Any]:
    """Return an object as it comes back from the log.

    `ConfigurationError`, which calls it by its name, for what JSON does not have, for what holds
    itself, and for what takes more than `MAX_BYTES`.
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"{name}={short(data)}: give an object", code="payload")
    try:
        value: dict[str, Any] = as_json(data, name)
    except RecursionError as error:
        raise ConfigurationError(f"{name} holds itself", code="payload") from error
    size = len(encode_json(value))
    if size > MAX_BYTES:
        raise ConfigurationError(
            f"{name} takes {size} bytes, of which {MAX_BYTES} are allowed: store it elsewhere, "
            "and send where it is",
            code="payload",
        )
    return value


def clip(text: str, limit: int) -> str:
    """Return the beginning of a text that is too long, and how much more there was."""
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more]"


def encode_json(value: object) -> str:
    """Write JSON in ASCII, which any store can hold: also of characters that no encoding has."""
    return _encoder.encode(value)


def decode_json(text: str | bytes) -> Any:
    """Read JSON; `ValueError` for what is none."""
    try:
        return from_json(text)  # twice as fast as the standard library's
    except ValueError:
        return json.loads(text)  # it reads half characters too, and any depth


def as_payload(value: object) -> Any:
    """Return any value as JSON that an envelope can hold; of one that none can, the beginning.

    What a run asks a human is not ours: it must reach the log, whatever it is.
    """
    try:
        plain = from_json(to_json(value, fallback=str, inf_nan_mode="null"))
        text = encode_json(plain)
    except (ValueError, RecursionError):  # what cannot even be written
        return {"clipped": short(value)}
    try:
        canonical({"payload": plain}, "a question")
    except ConfigurationError:
        return {"clipped": text[:_MAX_EXCERPT]}
    return plain if len(text) <= _MAX_VALUE else {"clipped": text[:_MAX_EXCERPT]}
