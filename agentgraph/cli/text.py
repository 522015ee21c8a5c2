"""Text of models, tools and people, made fit for a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from unicodedata import category

from pydantic_core import to_jsonable_python

__all__ = ["clean", "clip", "instant", "pretty"]

_CLIP_LINES, _CLIP_CHARACTERS = 8, 600


def clean(text: object) -> str:
    """Leave out what a terminal would obey and what it cannot be sent: it is to show, not to act.

    Those are the control characters but newline and tab, the marks that turn the direction of a
    text round, and halves of surrogate pairs.
    """
    return "".join(c for c in str(text) if c in "\n\t" or not _acts(c))


def clip(text: object) -> str:
    """Return the beginning of a text that may be long, and say how long it is."""
    whole = str(text).strip("\n")
    lines = whole[:_CLIP_CHARACTERS].split("\n")[:_CLIP_LINES]
    shown = "\n".join(lines)
    return shown if shown == whole else f"{shown}… ({len(whole):,} characters)"


def pretty(value: object) -> str:
    """Return a value as indented JSON."""
    plain = to_jsonable_python(value, fallback=str)
    return json.dumps(plain, indent=2, ensure_ascii=False)


def instant(wall: float) -> str:
    """Return an instant as one reads it."""
    try:
        return f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "?"


def _acts(character: str) -> bool:
    return (
        category(character) in ("Cc", "Cs")
        or "\u202a" <= character <= "\u202e"
        or "\u2066" <= character <= "\u2069"
    )
