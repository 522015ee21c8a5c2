"""The data of an envelope: JSON of limited size and depth, written so that any store can hold it.

Data become canonical before the append, so that live and replayed envelopes are equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from pydantic_core import from_json, to_json

from agentgraph.errors import ConfigurationError
from agentgraph.routing.frozen_json import FrozenDict
from agentgraph.routing.values import as_frozen_json, short

MAX_BYTES = 256_000

_MAX_VALUE = 100_000
_MAX_TEXT = 100_000
_MAX_TEXT_BYTES = 120_000
_MAX_EXCERPT = 2_000
_CHECKSUM_KEY = '{"checksum":'
"""The first key of a stored object whose checksum covers the rest of its text: a row that was
altered by hand, or by a fault of the disk, is noticed. Rows of earlier versions have none."""
_CHECKSUM_START = _CHECKSUM_KEY.encode()
_CHECKSUM_AT = len(_CHECKSUM_START)
_CLIPPED = re.compile(r"… \[\d+ more\]\Z")
"""The end of what `clip` returns."""
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def canonical(data: object, name: str) -> FrozenDict:
    """Return an object as reading it back from the log returns it, frozen.

    `ConfigurationError`, which names the object by `name`, for values that are not JSON, cyclic
    values, and values of more than `MAX_BYTES`.
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"{name}={short(data)}: give an object", code="payload")
    try:
        value: FrozenDict = as_frozen_json(data, name)
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


def check_context(variables: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` if context variables, all together, are too large.

    Each append stores them with the state: large ones would make every turn slower.
    """
    size = len(encode_json(variables))
    if size > MAX_BYTES:
        raise ConfigurationError(
            f"the context would take {size} bytes, of which {MAX_BYTES} are allowed in all: delete "
            "what is not needed, or store it elsewhere and set where it is",
            code="payload",
        )


def clip(text: str, limit: int) -> str:
    """Return the beginning of a text that is too long, with the number of omitted characters."""
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more]"


def clip_text(text: str) -> str:
    """Return the beginning of what a participant says, if an envelope cannot hold all of it."""
    limit = _MAX_TEXT
    while len(encode_json(text[:limit])) > _MAX_TEXT_BYTES:  # a character has up to twelve bytes
        limit //= 2
    return clip(text, limit)


def may_be_clipped(text: str) -> bool:
    """Tell whether a text may be only the beginning of what was said, by its end."""
    return _CLIPPED.search(text) is not None


def encode_json(value: object) -> str:
    """Write JSON in ASCII, which any store can hold, also for characters without an encoding."""
    return _encoder.encode(value)


def decode_json(text: str | bytes) -> Any:
    """Read JSON; `ValueError` if the text is not JSON."""
    try:
        return from_json(text)  # twice as fast as the standard library
    except ValueError:
        return json.loads(text)  # the standard library reads lone surrogates and any depth


def encode_object(value: Mapping[str, Any]) -> str:
    """Write a JSON object for a store, with a checksum as its first key."""
    text = encode_json(value)
    return f"{_CHECKSUM_KEY}{crc32(text.encode('ascii'))},{text[1:]}"


def decode_object(text: bytes) -> Any:
    """Read what `encode_object` has written; `ValueError` if it was altered since, or is torn."""
    if text.startswith(_CHECKSUM_START):
        comma = text.find(b",")
        digits, text = text[_CHECKSUM_AT:comma], b"{" + text[comma + 1 :]
        if digits != b"%d" % crc32(text):
            raise ValueError("it was altered: its checksum does not fit")
    return decode_json(text)


def as_payload(value: object) -> Any:
    """Return any value as JSON that an envelope can hold; if it cannot, the beginning of its text.

    The value of an interrupt is the user's: it must reach the log, whatever it is.
    """
    try:
        plain = from_json(to_json(value, fallback=str, inf_nan_mode="null", bytes_mode="base64"))
        text = encode_json(plain)
    except (ValueError, RecursionError):  # the value cannot be written as JSON
        return {"clipped": short(value)}
    try:
        canonical({"payload": plain}, "a question")
    except ConfigurationError:
        return {"clipped": text[:_MAX_EXCERPT]}
    return plain if len(text) <= _MAX_VALUE else {"clipped": text[:_MAX_EXCERPT]}
