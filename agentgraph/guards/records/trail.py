"""The fold of a run's records: its path, its spend, its decisions, and how it ended.

The fold reads these values from the `data` of records; all of them are optional:

- any kind: `key` identifies the step. A step that a resume repeats has the same key, and counts
  once.
- "model": `reserved_tokens` and `reserved_usd`, what the call may cost at most.
- "settled": `input_tokens`, `output_tokens`, `total_tokens`, `usd` and `estimated`, the usage of
  the "model" record that is its parent.
- "handoff": `hop`, False where a rule has decided and not a model.
- "effect" and "compensated": `tool`, `key` and `state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation

from agentgraph.display import code, escaped, panel, row
from agentgraph.guards.records.record import ACTS, Record


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage of model calls; `usd` is None where a price is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    usd: Decimal | None = None
    estimated_tokens: int = 0
    """The part of `total_tokens` that is only an estimate."""


@dataclass(frozen=True, slots=True)
class Trail:
    """The fold of a run's records."""

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
    """Why the run ended; empty where it goes on, waits, or was killed."""

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON-able values."""
        usd = self.spend.usd
        return {
            "path": list(self.path),
            "spend": {**asdict(self.spend), "usd": None if usd is None else str(usd)},
            "decisions": [dict(decision) for decision in self.decisions],
            "steps": self.steps,
            "hops": self.hops,
            "effects": [list(effect) for effect in self.effects],
            "began_at": self.began_at,
            "ended_at": self.ended_at,
            "end": self.end,
        }

    def _repr_html_(self) -> str:
        cost = "" if self.spend.usd is None else f", ${self.spend.usd}"
        summary = f"{self.steps} steps, {self.hops} hops, {self.spend.total_tokens} tokens{cost}"
        decisions = [_decision_row(decision) for decision in self.decisions]
        effects = [row(state, code(tool)) for tool, state in self.effects]
        return panel(summary, row("path", escaped(" → ".join(self.path))), *decisions, *effects)


def folded(records: Iterable[Record]) -> Trail:
    """Fold the records of a run, which may come in any order and more than once.

    A step that a resume repeats is one step, but its usage counts each time.
    """
    fold = _Fold()
    newest_first = sorted(records, key=_order, reverse=True)
    by_number = {(record.run, record.seq): record for record in newest_first}
    for number in sorted(by_number, key=lambda number: (number[1], number[0])):
        fold.take(by_number[number])
    return fold.trail()


@dataclass(slots=True)
class _Fold:
    """The state of the fold after the records so far."""

    path: list[str] = field(default_factory=list)
    decisions: list[Mapping[str, object]] = field(default_factory=list)
    steps: int = 0
    hops: int = 0
    effects: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: dict[tuple[str, int], tuple[Record, Record | None]] = field(default_factory=dict)
    """Each model call with its usage, by run and number; None until the usage is known."""
    marks: set[tuple[object, ...]] = field(default_factory=set)
    """The identities of the steps that have a key: a resume records such a step again."""
    began_at: float | None = None
    last: Record | None = None

    def take(self, record: Record) -> None:
        """Add the record that comes next in the order of numbers."""
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
        """Return the result of the fold."""
        parts = [_spend_of(*call) for call in self.calls.values()]
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
        if record.kind != "judgement":  # it comes after the end, and does not go on with the run
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
        """Return the number of the settled call; without a parent, of the likeliest one."""
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
        earlier = self.effects.get(name, ("", ""))
        self.effects[name] = tool or earlier[0], str(state or earlier[1] or "started")

    def _is_repeated(self, record: Record) -> bool:
        if record.data.get("key") is None:
            return False
        decision = record.decision or {}
        about = decision.get("guard"), decision.get("action")
        mark = record.run, record.kind, str(record.data["key"]), *map(str, about)
        if mark in self.marks:
            return True
        self.marks.add(mark)
        return False


def _decision_row(decision: Mapping[str, object]) -> str:
    cause = f"{code(decision.get('action'))} {escaped(decision.get('cause'))}"
    return row(str(decision.get("guard", "")), cause)


def _is_hop(record: Record) -> bool:
    is_refused = record.decision is not None and record.decision.get("action") != "allow"
    return not is_refused and record.data.get("hop") is not False


def _spend_of(call: Record, settled: Record | None) -> Spent:
    if settled is None:
        tokens = _count(call.data.get("reserved_tokens"))
        return Spent(0, 0, tokens, _price(call.data.get("reserved_usd")), tokens)
    data = settled.data
    read, output = _count(data.get("input_tokens")), _count(data.get("output_tokens"))
    total = _count(data.get("total_tokens")) or read + output
    estimated_tokens = total if data.get("estimated") else 0
    return Spent(read, output, total, _price(data.get("usd")), estimated_tokens)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _price(value: object) -> Decimal | None:
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        return None
    return price if price.is_finite() and price >= 0 else None


def _order(record: Record) -> tuple[object, ...]:
    # By all fields: where two records have one number, every fold must take the same one.
    return record.seq, record.run, record.at, record.kind, repr(record)
