"""What the records of a run add up to.

What the fold reads from `data`, all of it optional: `key` (of the step: what a resume repeats has
the same); of a "model" `reserved_tokens` and `reserved_usd`; of a "settled" `input_tokens`,
`output_tokens`, `total_tokens`, `usd` and `estimated`, its parent being the "model"; of a "handoff"
`hop`, False where a rule has decided; of an "effect" or "compensated" `tool`, `key` and `state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation

from agentgraph.display import code, escaped, panel, row
from agentgraph.guards.audit.record import ACTS, Record


@dataclass(frozen=True, slots=True)
class Spent:
    """What model calls have used; `usd` is None where a price is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    usd: Decimal | None = None
    estimated_tokens: int = 0
    """Those of the total that are no more than an estimate."""


@dataclass(frozen=True, slots=True)
class Trail:
    """A run from end to end, as its records tell it."""

    path: tuple[str, ...] = ()
    """The agents in the order in which they acted."""
    spend: Spent = Spent()
    decisions: tuple[Mapping[str, object], ...] = ()
    steps: int = 0
    hops: int = 0
    effects: tuple[tuple[str, str], ...] = ()
    """The tools that changed the world, each with its last state."""
    began_at: float | None = None
    ended_at: float | None = None
    end: str = ""
    """Why it ended; nothing where it goes on, waits, or was killed."""

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON-able values."""
        usd = self.spend.usd
        return {
            "path": list(self.path),
            "spend": {**asdict(self.spend), "usd": None if usd is None else str(usd)},
            "decisions": [dict(decision) for decision in self.decisions],
            "steps": self.steps,
            "hops": self.hops,
            "effects": [list(one) for one in self.effects],
            "began_at": self.began_at,
            "ended_at": self.ended_at,
            "end": self.end,
        }

    def _repr_html_(self) -> str:
        cost = "" if self.spend.usd is None else f", ${self.spend.usd}"
        told = f"{self.steps} steps, {self.hops} hops, {self.spend.total_tokens} tokens{cost}"
        decisions = [
            row(str(one.get("guard", "")), f"{code(one.get('action'))} {escaped(one.get('cause'))}")
            for one in self.decisions
        ]
        effects = [row(state, code(tool)) for tool, state in self.effects]
        return panel(told, row("path", escaped(" → ".join(self.path))), *decisions, *effects)


def folded(records: Iterable[Record]) -> Trail:
    """Add up the records of a run, in whatever order and however often they come.

    What a resume repeats is one step, and is paid for each time.
    """
    fold = _Fold()
    by_number = {(one.run, one.seq): one for one in sorted(records, key=_place, reverse=True)}
    for number in sorted(by_number, key=lambda number: (number[1], number[0])):
        fold.take(by_number[number])
    return fold.trail()


@dataclass(slots=True)
class _Fold:
    path: list[str] = field(default_factory=list)
    decisions: list[Mapping[str, object]] = field(default_factory=list)
    steps: int = 0
    hops: int = 0
    effects: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: dict[tuple[str, int], tuple[Record, Record | None]] = field(default_factory=dict)
    seen: set[tuple[object, ...]] = field(default_factory=set)
    began_at: float | None = None
    last: Record | None = None

    def take(self, record: Record) -> None:
        """Add one record, the next one."""
        self._span(record)
        self._pay(record)
        if record.kind in ("effect", "compensated"):
            self._change(record)
        elif self._is_repeated(record):
            return
        if record.agent and record.kind in ACTS and self.path[-1:] != [record.agent]:
            self.path.append(record.agent)
        if record.decision is not None:
            self.decisions.append(record.decision)
        self.steps += record.kind == "model"
        self.hops += record.kind == "handoff" and _is_hop(record)

    def trail(self) -> Trail:
        """Return what all of them come to."""
        parts = [_spent(*call) for call in self.calls.values()]
        costs = [part.usd for part in parts if part.usd is not None]
        spend = Spent(
            sum(part.input_tokens for part in parts),
            sum(part.output_tokens for part in parts),
            sum(part.total_tokens for part in parts),
            sum(costs, Decimal(0)) if costs and len(costs) == len(parts) else None,
            sum(part.estimated_tokens for part in parts),
        )
        effects = tuple(self.effects.values())
        decisions = tuple(self.decisions)
        last = self.last if self.last is not None and self.last.kind == "end" else None
        return Trail(
            tuple(self.path),
            spend,
            decisions,
            self.steps,
            self.hops,
            effects,
            self.began_at,
            None if last is None else last.at,
            "" if last is None else str(last.data.get("reason") or ""),
        )

    def _span(self, record: Record) -> None:
        self.last = record
        if record.kind == "input" and self.began_at is None:
            self.began_at = record.at

    def _pay(self, record: Record) -> None:
        if record.kind == "model":
            self.calls[record.run, record.seq] = record, None
        elif record.kind == "settled":
            number = record.run, self._call_of(record)
            self.calls[number] = self.calls.get(number, (record, None))[0], record

    def _call_of(self, settled: Record) -> int:
        if settled.parent is not None:
            return settled.parent
        about = settled.run, settled.agent, settled.step, settled.data.get("key")
        for call, answer in reversed(self.calls.values()):
            if answer is None and about == (call.run, call.agent, call.step, call.data.get("key")):
                return call.seq
        return settled.seq

    def _change(self, record: Record) -> None:
        state = record.data.get("state") or ("compensated" if record.kind == "compensated" else "")
        tool, key = str(record.data.get("tool") or ""), record.data.get("key")
        name = f"{record.run}/{record.seq}" if key is None else f"{record.run}:{key}"
        known = self.effects.get(name, ("", ""))
        self.effects[name] = tool or known[0], str(state or known[1] or "started")

    def _is_repeated(self, record: Record) -> bool:
        if record.data.get("key") is None:
            return False
        said = record.decision or {}
        about = said.get("guard"), said.get("action")
        mark = record.run, record.kind, str(record.data["key"]), *map(str, about)
        if mark in self.seen:
            return True
        self.seen.add(mark)
        return False


def _is_hop(record: Record) -> bool:
    refused = record.decision is not None and record.decision.get("action") != "allow"
    return not refused and record.data.get("hop") is not False


def _spent(call: Record, settled: Record | None) -> Spent:
    if settled is None:
        reserved = _count(call.data.get("reserved_tokens"))
        return Spent(0, 0, reserved, _price(call.data.get("reserved_usd")), reserved)
    data = settled.data
    given, made = _count(data.get("input_tokens")), _count(data.get("output_tokens"))
    total = _count(data.get("total_tokens")) or given + made
    return Spent(given, made, total, _price(data.get("usd")), total if data.get("estimated") else 0)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _price(value: object) -> Decimal | None:
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        return None
    return price if price.is_finite() and price >= 0 else None


def _place(record: Record) -> tuple[object, ...]:
    # To the last detail: of two records with one number always the same one is taken.
    return record.seq, record.run, record.at, record.kind, repr(record)
