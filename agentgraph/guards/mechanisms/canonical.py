"""The canonical text of a value, and digests of it, to tell whether two calls are the same.

The loose form is one text for all values that mean the same: the order of keys, white space, empty
parts and JSON within strings do not count. The exact form differs where the values do.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from hashlib import sha256
from json.encoder import encode_basestring_ascii
from typing import Any

from pydantic import BaseModel

_NULL = "null"
_EXACT_INTEGER = 2**63
_SHALLOW = 8
_SCALARS = frozenset({str, int, float, bool})
_LONGEST_PARSED = 20_000
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_Writer = Generator[object, str, str]


def canonical(value: object) -> str:
    """Return the loose form: the text that all values of one meaning share; never raises."""
    return _write(value, loose=True)


def digest(value: object) -> str:
    """Return the SHA-256 of the loose form, in hexadecimal digits."""
    return sha256(canonical(value).encode()).hexdigest()


def exact_digest(value: object) -> str:
    """Return the SHA-256 of the exact form: empty parts, white space and JSON as text count."""
    return sha256(exact(value).encode()).hexdigest()


def exact(value: object) -> str:
    """Return the exact form: a text that only equal values share; never raises."""
    return _write(value, loose=False)


def parse_json(value: object) -> object:
    """Return the object or array that a text holds as JSON; any other value as it is."""
    # Some providers send arguments as text; a long text is a document, and costly to parse.
    if not isinstance(value, str) or len(value) > _LONGEST_PARSED:
        return value
    if not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _write(value: object, *, loose: bool) -> str:
    text = _write_shallow(value, loose, _SHALLOW)
    return _write_deep(value, loose) if text is None else text


def _write_shallow(value: Any, loose: bool, levels: int) -> str | None:
    """Write a value by recursion; return None where it is not plain, shallow JSON.

    Most arguments are plain and shallow, and every tool call is hashed: this path is fast because
    it makes no generator for each part.
    """
    kind = type(value)
    if kind is str:
        if loose and ("{" in value or "[" in value) and (inner := parse_json(value)) is not value:
            return _write_shallow(inner, loose, levels)
        return _text(value, loose)
    if value is None or kind in _SCALARS:
        return _scalar(value, loose)
    if levels == 0:
        return None
    if kind is dict:
        return _write_shallow_mapping(value, loose, levels - 1)
    return _write_shallow_array(value, loose, levels - 1) if kind is list or kind is tuple else None


def _write_shallow_mapping(mapping: dict[Any, object], loose: bool, levels: int) -> str | None:
    pairs: list[tuple[str, str]] = []
    for key, value in mapping.items():
        text = _write_shallow(value, loose, levels) if type(key) is str else None
        if text is None:
            return None
        pairs.append((_text(key, loose), text))
    return _mapping_of(pairs, loose)


def _write_shallow_array(items: Any, loose: bool, levels: int) -> str | None:
    texts: list[str] = []
    for item in items:
        text = _write_shallow(item, loose, levels)
        if text is None:
            return None
        texts.append(text)
    return _array_of(texts, loose)


def _write_deep(value: object, loose: bool) -> str:
    """Write any value without recursion: arguments may be nested deeper than the stack allows."""
    frames: list[tuple[int, _Writer]] = []
    open_ids: set[int] = set()
    text = _begin(value, loose, frames, open_ids)
    while frames:
        identity, writer = frames[-1]
        try:
            part = writer.send(text) if text is not None else next(writer)
        except StopIteration as end:
            frames.pop()
            open_ids.discard(identity)
            text = end.value
        else:
            text = _begin(part, loose, frames, open_ids)
    return text if text is not None else _NULL


def _begin(
    value: object, loose: bool, frames: list[tuple[int, _Writer]], open_ids: set[int]
) -> str | None:
    """Return the text of a value without parts; push the writer of any other and return None."""
    if loose:
        value = parse_json(value)
    if value is None or isinstance(value, str | int | float):
        return _scalar(value, loose)
    if id(value) in open_ids:
        return "<cycle>"
    try:
        writer = _writer(value, loose)
    except Exception:
        writer = None
    if writer is None:
        return _foreign(value)
    open_ids.add(id(value))
    frames.append((id(value), writer))
    return None


def _scalar(value: str | float | None, loose: bool) -> str:
    if value is None:
        return _NULL
    if isinstance(value, str):
        return _text(value, loose)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            return float.__repr__(value)
        value = int(value)
    # In hexadecimal, as Python refuses to write a huge integer in decimal.
    return int.__repr__(value) if abs(value) < _EXACT_INTEGER else hex(value)


def _text(text: str, loose: bool) -> str:
    normal = text if text.isascii() else unicodedata.normalize("NFC", text)
    if loose:
        normal = " ".join(normal.split())
        if not normal:
            return _NULL
    return encode_basestring_ascii(normal)


def _writer(value: object, loose: bool) -> _Writer | None:
    if isinstance(value, BaseModel):
        return _mapping(list(value), loose, value)
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(field.name, getattr(value, field.name)) for field in fields(value)]
        return _mapping(pairs, loose, value)
    if isinstance(value, Mapping):
        return _mapping(list(value.items()), loose, value)
    if isinstance(value, list | tuple):
        return _array(list(value), loose, is_ordered=True, owner=value)
    if isinstance(value, AbstractSet):
        return _array(list(value), loose, is_ordered=False, owner=value)
    return None


def _mapping(pairs: Sequence[tuple[object, object]], loose: bool, owner: object) -> _Writer:
    """Write the pairs in the order of their keys.

    `owner` is a parameter so that it lives as long as its writer: Python may give the id of a
    collected object to a new one, which would look like a cycle.
    """
    texts: list[tuple[str, str]] = []
    for key, value in pairs:
        name = _text(key, loose) if isinstance(key, str) else (yield key)
        text = yield value
        texts.append((name, text))
    return _mapping_of(texts, loose)


def _array(items: list[object], loose: bool, *, is_ordered: bool, owner: object) -> _Writer:
    """Write the items, sorted where they come from a set; for `owner` see `_mapping`."""
    texts: list[str] = []
    for item in items:
        text = yield item
        texts.append(text)
    return _array_of(texts if is_ordered else sorted(texts), loose)


def _mapping_of(pairs: list[tuple[str, str]], loose: bool) -> str:
    kept_pairs = [pair for pair in pairs if pair[1] != _NULL] if loose else pairs
    if loose and not kept_pairs:
        return _NULL
    return "{" + ",".join([f"{name}:{text}" for name, text in sorted(kept_pairs)]) + "}"


def _array_of(texts: list[str], loose: bool) -> str:
    kept_texts = [text for text in texts if text != _NULL] if loose else texts
    if loose and not kept_texts:
        return _NULL
    return "[" + ",".join(kept_texts) + "]"


def _foreign(value: object) -> str:
    """Write a value that JSON does not know, without its address: processes differ in that."""
    try:
        text = _ADDRESS.sub("", repr(value))
    except Exception:
        text = ""
    return f"<{type(value).__name__} {json.dumps(text)}>"
