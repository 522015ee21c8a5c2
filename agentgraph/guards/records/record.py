"""A record of the audit trail, and the protocol of the sinks that keep records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Protocol

from agentgraph.usage import Usage

StepKind = Literal[
    "model",
    "tool",
    "handoff",
    "dispatch",
    "decision",
    "effect",
    "correction",
    "grant",
    "suspension",
    "stage",
]
"""The kinds of records that guards fold: what an input has used and done."""
RecordKind = (
    StepKind | Literal["input", "settled", "gate", "compensated", "human", "end", "judgement"]
)
"""The kinds of records in an audit trail."""
ACTS = frozenset({"model", "tool", "handoff", "dispatch", "effect"})
"""The kinds of records of what an agent does; the other kinds are about decisions."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened in a run.

    A guard's `fold` gets a record when the thing has happened: of a model call with its `usage`, of
    a tool call with the digests of arguments and result. An audit trail has one before a call too,
    and has the numbers of a model call in a record of its own kind, "settled".
    """

    kind: RecordKind
    agent: str = ""
    """The path of the agent, from the root of the outermost tree."""
    attempt: int = 1
    """Which attempt at its round a session makes; 1 outside of a session."""
    seq: int = 0
    """Its number among the records of the input."""
    at: float = 0.0
    """The instant, in seconds since 1970."""
    tool: str = ""
    """The tool; the target of a handoff, or the worker that begins."""
    call_id: str = ""
    args_digest: str = ""
    result_digest: str = ""
    failed: bool = False
    usage: Usage | None = None
    """What a model call has used, None where its provider does not say."""
    decision: Mapping[str, object] | None = None
    run: str = ""
    """The id of the outside input."""
    thread: str = ""
    step: int = 0
    """How many model calls the input had made."""
    data: Mapping[str, object] = field(default_factory=dict)
    """What else is known of it: of a handoff, whether it is a `hop`, a model's own choice."""
    parent: int | None = None
    """The `seq` of the record that caused it: of a model call's usage, that of the call."""

    def to_dict(self) -> dict[str, object]:
        """Return the record as JSON-able values, without what is empty."""
        values: dict[str, object] = {
            "run": self.run,
            "seq": self.seq,
            "at": self.at,
            "kind": self.kind,
        }
        for name in ("agent", "thread", "step", "decision", "data", *_OF_CALLS):
            if value := getattr(self, name):
                values[name] = value
        if self.parent is not None:
            values["parent"] = self.parent
        if self.attempt != 1:
            values["attempt"] = self.attempt
        if self.usage is not None:
            values["usage"] = self.usage.to_dict()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Record:
        """Read what `to_dict` returned; skip fields that a later version has added."""
        names = [f.name for f in fields(cls) if f.name in values]
        record = cls(**{name: values[name] for name in names})  # type: ignore[arg-type]
        if not isinstance(record.usage, Mapping):
            return record
        return replace(record, usage=Usage.from_dict(record.usage))


_OF_CALLS = ("tool", "call_id", "args_digest", "result_digest", "failed")


class Sink(Protocol):
    """Stores records; it may have a `flush()` and a `close()` too."""

    def write(self, record: Record) -> None:
        """Store a record; the run waits until this returns, so it must be fast."""
        ...

    def read(self, run: str) -> list[Record]:
        """Return the records of a run by `seq`."""
        ...
