"""Blobs: parts of an envelope's data that are too large for it, stored beside it by digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from agentgraph.errors import ConfigurationError
from agentgraph.sessions.state.payload import decode_json, encode_json

MAX_INLINE_BYTES = 64_000
"""How much of an envelope's messages, channels or content blocks stands in the envelope itself."""
MAX_BLOB_BYTES = 32_000_000
_KEY = "blob"


def take_out(parts: Sequence[Any], name: str) -> tuple[list[Any], dict[str, str]]:
    """Return parts of which the largest are replaced by references, and the blobs by digest.

    `ConfigurationError`, which names the parts by `name`, for one that is too large for a blob.
    """
    texts = [encode_json(part) for part in parts]
    result, blobs = list(parts), {}
    total = sum(map(len, texts))
    for place in sorted(range(len(texts)), key=lambda place: -len(texts[place])):
        if total <= MAX_INLINE_BYTES:
            break
        text = texts[place]
        if len(text) > MAX_BLOB_BYTES:
            raise ConfigurationError(
                f"{name}: one part takes {len(text)} bytes, of which {MAX_BLOB_BYTES} are allowed: "
                "store it elsewhere, and send where it is",
                code="payload",
            )
        digest = sha256(text.encode("ascii")).hexdigest()
        blobs[digest] = text
        result[place] = {_KEY: digest}
        total -= len(text)
    return result, blobs


def put_back(parts: Iterable[Any], blobs: Mapping[str, str]) -> list[Any]:
    """Return parts with the blobs in the places of their references.

    Raises `KeyError` where a blob is missing, `ValueError` where one was altered.
    """
    return [_blob(blobs, part[_KEY]) if _is_reference(part) else part for part in parts]


def digests_in(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the digests of the blobs to which the data of an envelope refer."""
    for value in data.values():
        parts: Iterable[Any] = value.values() if isinstance(value, Mapping) else ()
        if isinstance(value, list | tuple):
            parts = value
        yield from (part[_KEY] for part in parts if _is_reference(part))


def _blob(blobs: Mapping[str, str], digest: str) -> Any:
    text = blobs[digest]
    if sha256(text.encode("ascii", "replace")).hexdigest() != digest:
        raise ValueError(f"the blob {digest} was altered")
    return decode_json(text)


def _is_reference(part: object) -> bool:
    return isinstance(part, Mapping) and len(part) == 1 and isinstance(part.get(_KEY), str)
