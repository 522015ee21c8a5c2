"""What is done about each class of failure in each tier: the decision table, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import (
    FAILURE_CLASSES,
    TIERS,
    Action,
    Decision,
    FailureClass,
    Tier,
)

_GOES_ON = ("correct", "deny", "fallback", "replan")
_ENDS = ("escalate", "abort")
_JUDGED = ("correct", "replan", "fallback")
_CARRIED_OUT: Mapping[FailureClass, tuple[str, ...]] = {
    "infinite_loop": ("correct",),
    "deadlock": (),
    "cost_overrun": (),
    "provider_error": ("fallback",),
    "schema_failure": _JUDGED,
    "spec_malformed": ("correct", "deny", "replan"),
    "no_progress": _JUDGED,
    "unsafe_output": _JUDGED,
}
"""What guards can do about each class, beside ending a run or asking a human."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An action, how often it may be taken in a stage, and what comes after."""

    action: Action
    bound: int = 0
    then: Action = "escalate"
    alert: bool = False
    told: str = ""

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise ConfigurationError(f"{self!r}: {fault}" for fault in faults)

    def _faults(self) -> Iterator[str]:
        if self.action not in get_args(Action) or self.action == "allow":
            yield f"give {_one_of((*_GOES_ON, *_ENDS))} as the action"
        if self.then not in _ENDS:
            yield f"give {_one_of(_ENDS)} as then: every chain has an end"
        if isinstance(self.bound, bool) or not isinstance(self.bound, int) or self.bound < 0:
            yield "give a whole number of 0 or more as the bound"
        elif self.action in _GOES_ON and self.bound == 0:
            yield f"give a bound of 1 or more: after {self.action!r} the run goes on"
        if not isinstance(self.alert, bool):
            yield "give True or False as the alert"
        if not isinstance(self.told, str):
            yield "give a text as told"

    def after(self, made: int) -> Action:
        """Return what is done when the action was taken so often already."""
        return self.action if self.bound == 0 or made < self.bound else self.then

    def markdown(self) -> str:
        """Return the cell in words, then as what is done."""
        chain = f"`{self.action}`"
        if self.bound:
            chain += f" ≤ {self.bound}, then `{self.then}`"
        if self.alert:
            chain += ", alert"
        return f"{self.told}: {chain}".removeprefix(": ").replace("|", "\\|").replace("\n", " ")


_Row = tuple[Cell, Cell, Cell]
_ROWS: Mapping[FailureClass, _Row] = {
    "infinite_loop": (
        Cell("correct", 1, "abort", told="step limit and loop detector"),
        Cell("abort", told="recursion limit; the journal keeps what was done"),
        Cell("correct", 1, "escalate", told="loop detector, then a human"),
    ),
    "deadlock": (
        Cell("abort", told="stage deadline"),
        Cell("abort", alert=True, told="monitor, compensation of what was done"),
        Cell("escalate", told="monitor, and a human must decide"),
    ),
    "cost_overrun": (
        Cell("abort", told="cap per session, fail at once"),
        Cell("abort", alert=True, told="gate before each call"),
        Cell("escalate", told="hard gate, finance approves"),
    ),
    "provider_error": (
        Cell("fallback", 1, "abort", told="backoff with jitter, fallback model"),
        Cell("abort", alert=True, told="breaker and retry budget"),
        Cell("escalate", told="breaker, no silent swap of models"),
    ),
    "schema_failure": (
        Cell("correct", 1, "abort", told="one more try, then the user is told"),
        Cell("replan", 2, "abort", told="new plans, few"),
        Cell("escalate", told="the gate blocks, a human mends it"),
    ),
    "spec_malformed": (
        Cell("abort", told="return the error"),
        Cell("replan", 2, "escalate", told="new plan with a critic"),
        Cell("abort", alert=True, told="ticket, no new plan by itself"),
    ),
    "no_progress": (
        Cell("abort", told="loop detector ends it"),
        Cell("replan", 1, "escalate", told="one new plan"),
        Cell("escalate", told="at once"),
    ),
    "unsafe_output": (
        Cell("fallback", 1, "abort", told="blocked, safe answer instead"),
        Cell("abort", alert=True, told="blocked, the workflow halts"),
        Cell("escalate", alert=True, told="blocked, on record, a human decides"),
    ),
}
DEFAULT_CELLS: Mapping[tuple[FailureClass, Tier], Cell] = {
    (failure, tier): cell
    for failure, row in _ROWS.items()
    for tier, cell in zip(TIERS, row, strict=True)
}


@dataclass(frozen=True, slots=True)
class DecisionTable:
    """The default cells, but for those given."""

    overrides: Mapping[tuple[FailureClass, Tier], Cell] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.overrides, Mapping):
            raise ConfigurationError(
                f"DecisionTable({self.overrides!r}): give {{(failure class, tier): Cell(…)}}"
            )
        faults = []
        for key, cell in self.overrides.items():
            if key not in DEFAULT_CELLS:
                faults.append(
                    f"DecisionTable has no cell {key!r}: give one of "
                    f"{_one_of(FAILURE_CLASSES)}, with {_one_of(TIERS)}"
                )
            if not isinstance(cell, Cell):
                faults.append(f"DecisionTable({key!r}: {cell!r}): give a Cell")
        if faults:
            raise ConfigurationError(faults)
        # A change of the caller's dict must not change the table.
        object.__setattr__(self, "overrides", dict(self.overrides))

    def cell(self, failure: FailureClass, tier: Tier) -> Cell:
        """Return what the table says."""
        found = self.overrides.get((failure, tier)) or DEFAULT_CELLS.get((failure, tier))
        if found is None:
            raise ValueError(
                f"({failure!r}, {tier!r}) is no cell: give one of {_one_of(FAILURE_CLASSES)}, "
                f"with {_one_of(TIERS)}"
            )
        return found

    def decide(
        self,
        failure: FailureClass,
        tier: Tier,
        *,
        made: int = 0,
        possible: bool = True,
        guard: str = "decision_table",
        cause: str = "",
        evidence: Mapping[str, object] | None = None,
    ) -> Decision:
        """Decide on a failure, after its action was taken `made` times.

        Where that would change nothing it is not `possible`, and what comes after is done at once.
        """
        cell = self.cell(failure, tier)
        taken = cell.after(made)
        action = taken if possible or taken in _ENDS else cell.then
        grounds = {
            "tier": tier,
            "made": made,
            "bound": cell.bound,
            "alert": cell.alert,
            "overridden": (failure, tier) in self.overrides,
        }
        why = cause or f"{failure} in the {tier} tier" + (f": {cell.told}" if cell.told else "")
        if taken != cell.action:
            why += f" ({cell.action} was taken {made} times; {cell.bound} allowed)"
        elif action != cell.action:
            why += f" ({cell.action} is not possible here)"
        return Decision(action, guard, why, failure, {**(evidence or {}), **grounds})

    def markdown(self) -> str:
        """Return the table for the documentation."""
        lines = [
            f"| failure | {' | '.join(TIERS)} |",
            f"|---{'|---' * len(TIERS)}|",
            *(
                f"| `{failure}` | "
                + " | ".join(self.cell(failure, tier).markdown() for tier in TIERS)
                + " |"
                for failure in FAILURE_CLASSES
            ),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from agentgraph.guards.html import cells_html

        return cells_html(self)


def table_faults(table: object) -> Iterator[str]:
    """Yield which cells of a table say what guards could not carry out."""
    given = table.overrides if isinstance(table, DecisionTable) else {}
    for (failure, tier), cell in given.items():
        possible = (*_CARRIED_OUT[failure], *_ENDS)
        if cell.action not in possible:
            yield (
                f"decisions: {cell.action!r} cannot be carried out for {(failure, tier)!r}: "
                f"give {_one_of(possible)}"
            )


def _one_of(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)
