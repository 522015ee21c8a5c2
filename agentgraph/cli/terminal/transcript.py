"""The transcript of a session, with an entry per envelope; and the list of a store's sessions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from agentgraph.cli.terminal.envelopes import entry_of
from agentgraph.cli.terminal.text import clean, instant
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import SessionSummary

_SPEAKER, _FAINT = "bold cyan", "dim"
_NUMBER = 3


class Transcript:
    """Writes envelopes, and lists of sessions, in order.

    Texts are indented below their number, so that no text can look like another envelope.
    """

    def __init__(self, console: Console) -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        self._console = console

    def show(self, envelope: Envelope) -> None:
        """Show an envelope: its entry, and the notes below it."""
        entry = entry_of(envelope)
        number = f"{envelope.sequence:{_NUMBER}} "
        line = _one_line(entry.line) if entry.speaker is None else clean(entry.line)
        text = Text(line, entry.style)
        if entry.speaker is not None:
            mark = "> " if entry.line else " says nothing"
            text = Text(_one_line(entry.speaker) + mark, _SPEAKER) + text
        self._print(Text(number, _FAINT), text)
        for line, style in entry.notes:
            self._print(Text(" " * (len(number) + 2)), Text(clean(line), style))

    def list(self, summaries: Sequence[SessionSummary]) -> None:
        """Show the sessions of a store, one per line, in aligned columns."""
        rows = [_columns(summary) for summary in summaries]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            name, *columns = map(_pad, row, widths)
            line = Text(name, _SPEAKER) + f"  {'  '.join(columns)}".rstrip()
            self._print(Text(""), line, indent=2)

    def _print(self, label: Text, text: Text, indent: int | None = None) -> None:
        """Print a label and a text; further lines of the text begin in the same column."""
        indent = label.cell_len if indent is None else indent
        text.expand_tabs(4)
        if self._console.is_terminal:
            lines = text.wrap(self._console, max(self._console.width - indent, 1))
        else:
            lines = text.split("\n", allow_blank=True)
        for number, line in enumerate(lines or [Text("")]):
            line.rstrip()
            line = (Text(" " * indent) if number else label) + line
            line.rstrip()
            self._console.print(line, soft_wrap=True)


def _columns(summary: SessionSummary) -> list[str]:
    """Return the columns of a session for the list."""
    parts = [
        summary.key,
        summary.status,
        summary.team,
        f"{summary.sequence} envelopes",
        instant(summary.created_at),
        f"by {summary.creator}",
        f"from {summary.parent}" if summary.parent is not None else "",
    ]
    return [_one_line(part) for part in parts]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _one_line(text: str) -> str:
    return " ".join(clean(text).split("\n"))
