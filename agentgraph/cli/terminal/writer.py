"""A writer for text that arrives token by token; it wraps lines at the terminal's width."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_PIECE = re.compile(r"\n|[^\S\n]+|\S+")


class WrappingWriter:
    """Writes text as it arrives; the last word is buffered until it is complete.

    Only a complete word shows whether it fits into the line. If the output is no terminal, nothing
    is wrapped or buffered.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._partial_word = ""
        self.is_open = False
        """Whether a line has begun and not ended."""

    def begin(self, label: str, style: str) -> None:
        """Begin a line with a label."""
        self._console.print(Text(label, style), end="", soft_wrap=True)
        self._column = cell_len(label)
        self.is_open = True

    def write(self, text: str) -> None:
        """Continue the text."""
        if not self._console.is_terminal:
            self._out(text)
            return
        *whole, self._partial_word = self._pieces(self._partial_word + text)
        self._out("".join(map(self._wrap, whole)))

    def end(self) -> None:
        """End the line, if one has begun."""
        if self.is_open:
            self._out(self._wrap(self._partial_word) + "\n")
            self._partial_word, self._column, self.is_open = "", 0, False

    def _pieces(self, text: str) -> list[str]:
        """Return words and line breaks; a space is one piece with the word that follows it."""
        pieces: list[str] = []
        for piece in _PIECE.findall(text):
            if pieces and pieces[-1].isspace() and pieces[-1] != "\n" and not piece.isspace():
                pieces[-1] += piece
            else:
                pieces.append(piece)
        return [*pieces, ""] if pieces[-1:] == ["\n"] else pieces or [""]

    def _wrap(self, piece: str) -> str:
        """Return a piece, with a line break before it if it does not fit into the line."""
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
