"""A record of the audit trail, and the protocol of the sinks that keep records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

RecordKind = Literal[
    "input",
    "model",
    "settled",
    "tool",
    "handoff",
    "dispatch",
    "gate",
    "decision",
    "effect",
    "compensated",
    "human",
    "end",
]
ACTS = frozenset({"model", "tool", "handoff", "dispatch", "effect"})
"""The kinds of records of what an agent does; the other kinds are about decisions."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened in a run.

    `seq` numbers the records of a run; `parent` is the `seq` of the record that caused it: the
    parent of a model call's usage is the call.
    """

    run: str
    seq: int
    at: float
    kind: RecordKind
    agent: str = ""
    thread: str = ""
    step: int = 0
    decision: Mapping[str, object] | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    parent: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the record as JSON-able values, without what is empty."""
        values: dict[str, object] = {
            "run": self.run,
            "seq": self.seq,
            "at": self.at,
            "kind": self.kind,
        }
        for name in ("agent", "thread", "step", "decision", "data"):
            if value := getattr(self, name):
                values[name] = value
        if self.parent is not None:
            values["parent"] = self.parent
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Record:
        """Read what `to_dict` returned; skip fields that a later version has added."""
        names = [f.name for f in fields(cls) if f.name in values]
        return cls(**{name: values[name] for name in names})  # type: ignore[arg-type]


class Sink(Protocol):
    """Stores records; it may have a `flush()` and a `close()` too."""

    def write(self, record: Record) -> None:
        """Store a record; the run waits until this returns, so it must be fast."""
        ...

    def read(self, run: str) -> list[Record]:
        """Return the records of a run by `seq`."""
        ...
