"""Blobs: parts of an envelope's data that are too large for it, stored beside it by digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from agentgraph.errors import ConfigurationError
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.envelopes.payload import decode_json, encode_json

MAX_INLINE_BYTES = 64_000
"""How much of an envelope's messages, channels or content blocks stands in the envelope itself."""
MAX_BLOB_BYTES = 32_000_000
_TYPE = "blob"
_OF_RUN = ("messages", "channels")
_PARTS: Mapping[str, Sequence[str]] = {
    ev.EV_TEXT: ("content",),
    ev.EV_PACKET: _OF_RUN,
    ev.EV_INTERRUPT: _OF_RUN,
    ev.EV_DECISION: _OF_RUN,
    ev.EV_ROUND_FAILED: _OF_RUN,
    ev.EV_CANCELLED: _OF_RUN,
}
"""The keys of event data whose parts may be taken out, by event type. Of other types, which
participants may send, nothing is: what looks like a reference there is their own."""
_VALUES: Mapping[str, str] = {ev.EV_TEXT: "content", ev.EV_PACKET: "output"}
"""The key of event data whose whole value may be taken out, by event type."""


def take_out(
    parts: Sequence[Any], name: str, max_bytes: int = MAX_INLINE_BYTES
) -> tuple[list[Any], dict[str, str]]:
    """Return parts of which the largest are replaced by references, and the blobs by digest.

    No part is replaced while all of them take at most `max_bytes`. Raises `ConfigurationError`,
    which names the parts by `name`, for one that is too large for a blob.
    """
    texts = [encode_json(part) for part in parts]
    result, blobs = list(parts), {}
    total = sum(map(len, texts))
    for place in sorted(range(len(texts)), key=lambda place: -len(texts[place])):
        if total <= max_bytes:
            break
        text = texts[place]
        if len(text) > MAX_BLOB_BYTES:
            raise ConfigurationError(
                f"{name}: one part takes {len(text)} bytes, of which {MAX_BLOB_BYTES} are allowed: "
                "store it elsewhere, and send where it is",
                code="payload",
            )
        digest = _digest(text)
        blobs[digest] = text
        result[place] = {"type": _TYPE, _TYPE: digest}
        total -= len(text)
    return result, blobs


def digests_in(envelope: Envelope) -> Iterator[str]:
    """Yield the digests of the blobs to which an envelope refers."""
    value: Any = envelope.event_data.get(_VALUES.get(envelope.event_type, ""))
    if is_reference(value):
        yield value[_TYPE]
    for key in _PARTS.get(envelope.event_type, ()):
        value = envelope.event_data.get(key)
        parts = value.values() if isinstance(value, Mapping) else value
        for part in parts if isinstance(parts, Iterable) else ():
            if is_reference(part):
                yield part[_TYPE]


def put_back(envelope: Envelope, blobs: Mapping[str, str]) -> Envelope:
    """Return an envelope with the blobs in the places of their references.

    Raises `KeyError` where a blob is missing, `ValueError` where one was altered.
    """
    data = dict(envelope.event_data)
    if (key := _VALUES.get(envelope.event_type)) in data:
        data[key] = _whole(data[key], blobs)
    for key in _PARTS.get(envelope.event_type, ()):
        value = data.get(key)
        if isinstance(value, Mapping):
            data[key] = {name: _whole(part, blobs) for name, part in value.items()}
        elif isinstance(value, list):
            data[key] = [_whole(part, blobs) for part in value]
    return replace(envelope, event_data=data)


def _whole(part: Any, blobs: Mapping[str, str]) -> Any:
    return _blob(blobs, part[_TYPE]) if is_reference(part) else part


def _blob(blobs: Mapping[str, str], digest: str) -> Any:
    text = blobs[digest]
    if _digest(text) != digest:
        raise ValueError(f"the blob {digest} was altered")
    return decode_json(text)


def are_whole(blobs: Mapping[str, str]) -> bool:
    """Tell whether each blob has the digest under which it is to be stored."""
    return all(_digest(text) == digest for digest, text in blobs.items())


def _digest(text: str) -> str:
    return sha256(text.encode("ascii", "replace")).hexdigest()


def is_reference(part: object) -> bool:
    """Tell whether a part stands for a blob."""
    if not isinstance(part, Mapping) or part.get("type") != _TYPE:
        return False
    return isinstance(part.get(_TYPE), str)
