"""A program in a terminal of its own: what it writes, and the keys it is sent."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

CTRL_C, CTRL_D = "\x03", "\x04"

_PATIENCE_S, _AGAIN_S = 20.0, 0.5
_LOGIN = "import os, sys; os.login_tty(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A running program, seen through its terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self._read = b""
        self._seen = 0

    @property
    def raw(self) -> str:
        """All that was written so far, escape sequences included."""
        return self._read.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """All that was written so far, as one reads it."""
        return _ESCAPE.sub("", self.raw).replace("\r", "")

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def say(self, line: str) -> None:
        self.send(f"{line}\n")

    def expect(self, text: str) -> str:
        """Wait for a text, after the last one that was waited for, and return what came before."""
        while (found := self.text.find(text, self._seen)) < 0:
            if not self._pump():
                raise AssertionError(f"{text!r} did not come:\n{self.text}")
        before, self._seen = self.text[self._seen : found], found + len(text)
        return before

    def interrupt(self, text: str) -> None:
        """Press Ctrl-C at a prompt until a text comes.

        Readline looks for signals only while it waits: one that comes just before that is lost.
        """
        for _ in range(int(_PATIENCE_S / _AGAIN_S)):
            self.send(CTRL_C)
            while text not in self.text[self._seen :] and self._pump(_AGAIN_S):
                pass
            if text in self.text[self._seen :]:
                break
        self.expect(text)

    def status(self) -> int:
        """Wait for the end of the program, and return its status."""
        while self._pump():
            pass
        return self._process.wait(_PATIENCE_S)

    def _pump(self, patience_s: float = _PATIENCE_S) -> bool:
        ready, _, _ = select.select([self._master], [], [], patience_s)
        chunk = b""
        with suppress(OSError):  # so Linux tells that nobody has the terminal any more
            chunk = os.read(self._master, 65536) if ready else b""
        self._read += chunk
        return bool(chunk)


@contextmanager
def terminal(
    arguments: Sequence[str], *, cwd: Path, width: int = 100, env: dict[str, str] | None = None
) -> Iterator[Terminal]:
    """Run Python with these arguments in a terminal, until the block ends."""
    master, slave = os.openpty()
    termios.tcsetwinsize(master, (40, width))
    command = [sys.executable, "-c", _LOGIN, str(slave), sys.executable, *arguments]
    plain = {"TERM": "xterm", "INPUTRC": os.devnull, **(env or {})}
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"} | plain,
        pass_fds=[slave],
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
