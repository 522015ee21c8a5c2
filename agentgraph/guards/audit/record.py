"""A record of the audit trail, and what keeps such records."""

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
"""The kinds of what an agent does, rather than of what is said of it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened in a run; `parent` is the `seq` of what it followed from."""

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
        """Return what there is to tell, without what is empty."""
        told: dict[str, object] = {
            "run": self.run,
            "seq": self.seq,
            "at": self.at,
            "kind": self.kind,
        }
        for name in ("agent", "thread", "step", "decision", "data"):
            if value := getattr(self, name):
                told[name] = value
        if self.parent is not None:
            told["parent"] = self.parent
        return told

    @classmethod
    def from_dict(cls, told: Mapping[str, object]) -> Record:
        """Read what `to_dict` has told; what a later version adds is left out."""
        return cls(**{one.name: told[one.name] for one in fields(cls) if one.name in told})  # type: ignore[arg-type]


class Sink(Protocol):
    """Takes records; it may have a `flush()` and a `close()` too."""

    def write(self, record: Record) -> None:
        """Keep a record, soon: the run waits for it."""
        ...

    def read(self, run: str) -> list[Record]:
        """Return the records of a run by `seq`."""
        ...
