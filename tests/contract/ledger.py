"""What really happened, written by those to whom it happened: a file that no kill can shorten.

Each entry is one line of JSON, appended by one write and synced before the next thing happens. The
checks believe nothing else: not what a store says, and not what an agent answers.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened in one process."""

    pid: int
    what: str
    """One of `asked`, `paid`, `undone`, `acted`, `stored`, `killed`, `refused`, `end`, `alive`."""
    item: str = ""
    key: str = ""
    data: Any = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The entries of all processes of a cell, in their order."""

    path: str

    def write(self, what: str, item: str = "", key: str = "", data: Any = None) -> None:
        """Append an entry; it is on the disk when this returns."""
        line = json.dumps([os.getpid(), what, item, key, data])
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{line}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)

    def entries(self, *kinds: str) -> list[Entry]:
        """Return what happened, of all kinds or of some."""
        path = Path(self.path)
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [Entry(*json.loads(line)) for line in lines]
        return [entry for entry in entries if not kinds or entry.what in kinds]

    def receipt(self, key: str) -> str | None:
        """Return what a payment has led to, None if it was never made: an outside `lookup`."""
        paid = [entry.item for entry in self.entries("paid") if entry.key == key]
        return f"paid {paid[0]}" if paid else None
