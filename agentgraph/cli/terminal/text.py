"""Text for a terminal: cleaned, clipped, and values formatted as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from unicodedata import category

from pydantic_core import to_jsonable_python

_CLIP_LINES, _CLIP_CHARACTERS = 8, 600


def clean(text: object) -> str:
    """Return text without characters that control a terminal, or that it cannot display.

    These are control characters other than newline and tab (a model or a tool could move the cursor
    or set the window's title), marks that reverse the direction of text, and lone surrogates.
    """
    return "".join(c for c in str(text) if c in "\n\t" or not _is_unsafe(c))


def clip(text: object) -> str:
    """Return a text; of a long one the beginning, with its full length."""
    whole = str(text).strip("\n")
    lines = whole[:_CLIP_CHARACTERS].split("\n")[:_CLIP_LINES]
    beginning = "\n".join(lines)
    return beginning if beginning == whole else f"{beginning}… ({len(whole):,} characters)"


def pretty(value: object) -> str:
    """Return a value as indented JSON."""
    plain = to_jsonable_python(value, fallback=str)
    return json.dumps(plain, indent=2, ensure_ascii=False)


def instant(wall: float) -> str:
    """Return an instant as date and time of day, "?" if it is invalid."""
    try:
        return f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "?"


def call_text(agent: str, tool: str, args: Mapping[str, object]) -> str:
    """Return a tool call as text."""
    arguments = ", ".join(f"{name}={_short_json(value)}" for name, value in args.items())
    return f"{agent} calls {tool}({arguments})"


def error_text(error: BaseException) -> str:
    """Return an error with its type, in Python's notation."""
    text = clip(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_unsafe(character: str) -> bool:
    """Tell whether a character is a control character, a surrogate or a mark of direction."""
    return (
        category(character) in ("Cc", "Cs")
        or "\u202a" <= character <= "\u202e"
        or "\u2066" <= character <= "\u2069"
    )


def _short_json(value: object) -> str:
    return clip(json.dumps(value, ensure_ascii=False, default=str))
