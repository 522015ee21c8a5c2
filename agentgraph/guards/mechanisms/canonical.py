"""One text for values that mean the same, so that a repetition is seen whatever its spelling."""

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

_NOTHING = "null"
_EXACT_INTEGER = 2**63
_SHALLOW = 8
_SCALARS = frozenset({str, int, float, bool})
_LONGEST_PARSED = 20_000
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_Writer = Generator[object, str, str]


def canonical(value: object) -> str:
    """Return the text that all values of one meaning share; never raise."""
    return _written(value, loose=True)


def digest(value: object) -> str:
    """Hash what the value means."""
    return sha256(canonical(value).encode()).hexdigest()


def exact_digest(value: object) -> str:
    """Hash the value as it is: empty parts, white space and texts of JSON count."""
    return sha256(_written(value, loose=False).encode()).hexdigest()


def parsed(value: object) -> object:
    """Return what a text of JSON holds if that is an object or an array, else the value."""
    # Some providers send arguments as text; a long document is data, and costly to walk.
    if not isinstance(value, str) or len(value) > _LONGEST_PARSED:
        return value
    if not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _written(value: object, *, loose: bool) -> str:
    text = _plain(value, loose, _SHALLOW)
    return _walked(value, loose) if text is None else text


def _plain(value: Any, loose: bool, levels: int) -> str | None:
    """Write what is plain and shallow, as most arguments are, at once; None is: it is not."""
    kind = type(value)
    if kind is str:
        if loose and ("{" in value or "[" in value) and (held := parsed(value)) is not value:
            return _plain(held, loose, levels)
        return _text(value, loose)
    if value is None or kind in _SCALARS:
        return _scalar(value, loose)
    if levels == 0:
        return None
    if kind is dict:
        return _plain_mapping(value, loose, levels - 1)
    return _plain_array(value, loose, levels - 1) if kind is list or kind is tuple else None


def _plain_mapping(held: dict[Any, object], loose: bool, levels: int) -> str | None:
    pairs: list[tuple[str, str]] = []
    for key, value in held.items():
        text = _plain(value, loose, levels) if type(key) is str else None
        if text is None:
            return None
        pairs.append((_text(key, loose), text))
    return _mapping_of(pairs, loose)


def _plain_array(held: Any, loose: bool, levels: int) -> str | None:
    texts: list[str] = []
    for item in held:
        text = _plain(item, loose, levels)
        if text is None:
            return None
        texts.append(text)
    return _array_of(texts, loose)


def _walked(value: object, loose: bool) -> str:
    """Write without recursion: arguments may be nested deeper than the stack allows."""
    frames: list[tuple[int, _Writer]] = []
    inside: set[int] = set()
    text = _begin(value, loose, frames, inside)
    while frames:
        identity, writer = frames[-1]
        try:
            part = writer.send(text) if text is not None else next(writer)
        except StopIteration as end:
            frames.pop()
            inside.discard(identity)
            text = end.value
        else:
            text = _begin(part, loose, frames, inside)
    return text if text is not None else _NOTHING


def _begin(
    value: object, loose: bool, frames: list[tuple[int, _Writer]], inside: set[int]
) -> str | None:
    """Write a value that has no parts; of any other put the writer on top of the frames."""
    if loose:
        value = parsed(value)
    if value is None or isinstance(value, str | int | float):
        return _scalar(value, loose)
    if id(value) in inside:
        return "<cycle>"
    try:
        writer = _writer(value, loose)
    except Exception:
        writer = None
    if writer is None:
        return _foreign(value)
    inside.add(id(value))
    frames.append((id(value), writer))
    return None


def _scalar(value: str | float | None, loose: bool) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        return _text(value, loose)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            return float.__repr__(value)
        value = int(value)
    # Python refuses to write a huge integer in decimal.
    return int.__repr__(value) if abs(value) < _EXACT_INTEGER else hex(value)


def _text(text: str, loose: bool) -> str:
    normal = text if text.isascii() else unicodedata.normalize("NFC", text)
    if loose:
        normal = " ".join(normal.split())
        if not normal:
            return _NOTHING
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
        return _array(list(value), loose, ordered=True, owner=value)
    if isinstance(value, AbstractSet):
        return _array(list(value), loose, ordered=False, owner=value)
    return None


def _mapping(pairs: Sequence[tuple[object, object]], loose: bool, owner: object) -> _Writer:
    """Write the pairs in order of their keys; the owner is held so that its id stays its own."""
    written: list[tuple[str, str]] = []
    for key, value in pairs:
        name = _text(key, loose) if isinstance(key, str) else (yield key)
        text = yield value
        written.append((name, text))
    return _mapping_of(written, loose)


def _array(items: list[object], loose: bool, *, ordered: bool, owner: object) -> _Writer:
    """Write the items; the owner is held so that its id stays its own."""
    written: list[str] = []
    for item in items:
        text = yield item
        written.append(text)
    return _array_of(written if ordered else sorted(written), loose)


def _mapping_of(pairs: list[tuple[str, str]], loose: bool) -> str:
    told = [pair for pair in pairs if pair[1] != _NOTHING] if loose else pairs
    if loose and not told:
        return _NOTHING
    return "{" + ",".join([f"{name}:{text}" for name, text in sorted(told)]) + "}"


def _array_of(texts: list[str], loose: bool) -> str:
    told = [text for text in texts if text != _NOTHING] if loose else texts
    if loose and not told:
        return _NOTHING
    return "[" + ",".join(told) + "]"


def _foreign(value: object) -> str:
    """Write what JSON does not know, without its address: that is another in the next process."""
    try:
        shown = _ADDRESS.sub("", repr(value))
    except Exception:
        shown = ""
    return f"<{type(value).__name__} {json.dumps(shown)}>"
