"""Text of models, tools and people, made fit for a terminal and broken at the line's end."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from unicodedata import category

from pydantic_core import to_jsonable_python
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

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


_PIECE = re.compile(r"\n|[^\S\n]+|\S+")


class Flow:
    """Write a text as it comes; a word is held back until it is whole.

    Where no terminal reads, nothing is broken and nothing held back.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._held = ""
        self.is_open = False
        """Whether a line is begun and not ended."""

    def begin(self, label: str, style: str) -> None:
        """Begin a line with a label."""
        self._console.print(Text(label, style), end="", soft_wrap=True)
        self._column = cell_len(label)
        self.is_open = True

    def write(self, text: str) -> None:
        """Go on with the line."""
        if not self._console.is_terminal:
            self._out(text)
            return
        *whole, self._held = self._pieces(self._held + text)
        self._out("".join(map(self._placed, whole)))

    def end(self) -> None:
        """End the line, if one is begun."""
        if self.is_open:
            self._out(self._placed(self._held) + "\n")
            self._held, self._column, self.is_open = "", 0, False

    def _pieces(self, text: str) -> list[str]:
        """Return a space together with the word that follows: they are broken or kept as one."""
        pieces: list[str] = []
        for piece in _PIECE.findall(text):
            if pieces and pieces[-1].isspace() and pieces[-1] != "\n" and not piece.isspace():
                pieces[-1] += piece
            else:
                pieces.append(piece)
        return [*pieces, ""] if pieces[-1:] == ["\n"] else pieces or [""]

    def _placed(self, piece: str) -> str:
        if piece == "\n":
            self._column = 0
            return piece
        piece = piece.expandtabs(4)
        room = self._console.width - self._column
        if self._column and cell_len(piece) > room and piece.strip():
            piece = piece.lstrip()
            self._column = cell_len(piece)
            return f"\n{piece}"
        self._column += cell_len(piece)
        return piece

    def _out(self, text: str) -> None:
        self._console.out(text, end="", highlight=False)
