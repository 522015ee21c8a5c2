"""What a session looks like in a terminal: numbered lines, with what belongs to them below."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from agentgraph.cli.terminal.envelopes import told_of
from agentgraph.cli.terminal.text import clean, instant
from agentgraph.sessions.log import SessionSummary
from agentgraph.sessions.state.envelope import Envelope

_SPEAKER, _FAINT = "bold cyan", "dim"
_NUMBER = 3


class Transcript:
    """Write envelopes, and lists of sessions, from the top to the bottom.

    What is said is indented below its number, so that no text can pass for another envelope.
    """

    def __init__(self, console: Console) -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        self._console = console

    def show(self, envelope: Envelope) -> None:
        """Show an envelope."""
        told = told_of(envelope)
        number = f"{envelope.sequence:{_NUMBER}} "
        text = Text(_one_line(told.line) if told.speaker is None else clean(told.line), told.style)
        if told.speaker is not None:
            mark = "> " if told.line else " says nothing"
            text = Text(_one_line(told.speaker) + mark, _SPEAKER) + text
        self._put(Text(number, _FAINT), text)
        for line, style in told.notes:
            self._put(Text(" " * (len(number) + 2)), Text(clean(line), style))

    def list(self, summaries: Sequence[SessionSummary]) -> None:
        """Show the sessions of a store, one in a line."""
        rows = [_columns(summary) for summary in summaries]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            name, *others = map(_padded, row, widths)
            line = Text(name, _SPEAKER) + f"  {'  '.join(others)}".rstrip()
            self._put(Text(""), line, hanging=2)

    def _put(self, before: Text, text: Text, hanging: int | None = None) -> None:
        """Write a text after something, and all of its lines as far in."""
        indent = before.cell_len if hanging is None else hanging
        text.expand_tabs(4)
        if self._console.is_terminal:
            lines = text.wrap(self._console, max(self._console.width - indent, 1))
        else:
            lines = text.split("\n", allow_blank=True)
        for number, line in enumerate(lines or [Text("")]):
            line.rstrip()
            line = (Text(" " * indent) if number else before) + line
            line.rstrip()
            self._console.print(line, soft_wrap=True)


def _columns(summary: SessionSummary) -> list[str]:
    parts = [
        summary.session_id,
        summary.status,
        summary.team,
        f"{summary.sequence} envelopes",
        instant(summary.created_at),
        f"by {summary.creator}",
        f"from {summary.parent}" if summary.parent is not None else "",
    ]
    return [_one_line(part) for part in parts]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _one_line(text: str) -> str:
    return " ".join(clean(text).split("\n"))
