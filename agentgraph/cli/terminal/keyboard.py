"""The reader of a conversation's lines: from a person at a terminal, or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import TextIO, TypeAlias

from rich.console import Console

from agentgraph.cli.terminal.text import clean

ReadLine: TypeAlias = Callable[[str], str]
"""Show a prompt and return a line.

It raises `EOFError` at the end of the input, and `KeyboardInterrupt` for Ctrl-C.
"""


def at_terminal() -> bool:
    """Tell whether stdin is a terminal."""
    return sys.stdin.isatty()


def line_reader(console: Console) -> ReadLine:
    """Return the reader of stdin; at a terminal, lines can be edited.

    Invalid bytes are replaced: the terminal may have another encoding than this process.
    """
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if not at_terminal():
        return PipeReader(sys.stdin, console)
    with suppress(ImportError):
        import readline  # noqa: F401 - it makes `input` edit lines
    return input


@dataclass(frozen=True, slots=True)
class PipeReader:
    """Reads line by line, and prints each line, so that the output has the whole conversation.

    A terminal echoes what is typed; a pipe does not.
    """

    lines: TextIO
    console: Console

    def __call__(self, prompt: str) -> str:
        line = self.lines.readline()
        if not line:
            raise EOFError
        line = line.rstrip("\n")
        if line.strip():
            self.console.out(clean(prompt + line), highlight=False)
        return line
