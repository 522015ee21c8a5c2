"""The decision table: the action for each class of failure in each tier.

The default cells are data; a policy may override single cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Self, get_args

from agentgraph.display import code, escaped, table
from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import (
    FAILURE_CLASSES,
    TIERS,
    Action,
    Decision,
    FailureClass,
    Tier,
)

_NON_FINAL = ("correct", "deny", "fallback", "replan")
_FINAL = ("escalate", "abort")


@dataclass(frozen=True, slots=True)
class Cell:
    """An action, how often it may be taken in a stage, and the action that follows then.

    `Cell("replan", 2, "abort")` plans anew twice and then ends the run.
    """

    action: Action
    bound: int = 0
    """How often the action may be taken; 0, no limit, is only for actions that end the run."""
    then: Action = "escalate"
    alert: bool = False
    """Whether the record of the decision is marked as an alert for the operators on call."""
    told: str = ""
    """The cell in words, for the documentation and for the cause of a decision."""

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise ConfigurationError(f"{self!r}: {fault}" for fault in faults)

    def _faults(self) -> Iterator[str]:
        if self.action not in get_args(Action) or self.action == "allow":
            yield f"give {_one_of((*_NON_FINAL, *_FINAL))} as the action"
        if self.then not in _FINAL:
            yield f"give {_one_of(_FINAL)} as then: every chain has an end"
        if isinstance(self.bound, bool) or not isinstance(self.bound, int) or self.bound < 0:
            yield "give a whole number of 0 or more as the bound"
        elif self.action in _NON_FINAL and self.bound == 0:
            yield f"give a bound of 1 or more: after {self.action!r} the run goes on"
        if not isinstance(self.alert, bool):
            yield "give True or False as the alert"
        if not isinstance(self.told, str):
            yield "give a text as told"

    def after(self, made: int) -> Action:
        """Return the action to take after this cell's was taken `made` times in the stage."""
        return self.action if self.bound == 0 or made < self.bound else self.then

    def tighter(self, outer: Cell) -> Cell:
        """Return the cell that ends a run sooner; of two equally strict ones, the outer one."""
        return self if self._attempts < outer._attempts else outer

    @property
    def _attempts(self) -> int:
        """How often it lets the run go on after the failure."""
        return 0 if self.action in _FINAL else self.bound

    def markdown(self) -> str:
        """Return the cell as Markdown: its words, then its actions."""
        chain = f"`{self.action}`"
        if self.bound:
            chain += f" ≤ {self.bound}, then `{self.then}`"
        if self.alert:
            chain += ", alert"
        return f"{self.told}: {chain}".removeprefix(": ").replace("|", "\\|").replace("\n", " ")

    def html(self, *, is_override: bool) -> str:
        """Return the cell as HTML; one that overrides the default is in bold."""
        chain = code(self.action)
        if self.bound:
            chain += f" ≤ {self.bound}, then {code(self.then)}"
        if self.alert:
            chain += ", alert"
        words = f"<div>{escaped(self.told)}</div>" if self.told else ""
        return f"<b>{words}{chain}</b>" if is_override else f"{words}{chain}"


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
class DecisionTable(BuiltInGuard):
    """The cells by class and tier: the default cells, some of them overridden.

    `DecisionTable({("no_progress", "batch"): Cell("abort")})`
    """

    setting = "decisions"
    summary = "DecisionTable(): what is done about each class of failure"
    short_form = "{(failure class, tier): Cell(…)}"
    is_removable = False

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

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the table with these cells in place of the default ones."""
        return cls(value) if isinstance(value, Mapping) else None

    def policy_faults(self) -> Iterator[str]:
        """Yield the overrides whose action the nodes cannot carry out."""
        for (failure, tier), cell in self.overrides.items():
            possible = (*_POSSIBLE[failure], *_FINAL)
            if cell.action not in possible:
                yield (
                    f"{cell.action!r} cannot be carried out for {(failure, tier)!r}: "
                    f"give {_one_of(possible)}"
                )

    def tighter(self, outer: Self) -> Self:
        """Return a table with the stricter one of each two cells."""
        if outer is self:
            return self
        cells = {key: cell.tighter(outer.cell(*key)) for key, cell in self.overrides.items()}
        return replace(self, overrides={**outer.overrides, **cells})

    def cell(self, failure: FailureClass, tier: Tier) -> Cell:
        """Return the cell of a failure class in a tier; raises ValueError where there is none."""
        cell = self.overrides.get((failure, tier)) or DEFAULT_CELLS.get((failure, tier))
        if cell is None:
            raise ValueError(
                f"({failure!r}, {tier!r}) is no cell: give one of {_one_of(FAILURE_CLASSES)}, "
                f"with {_one_of(TIERS)}"
            )
        return cell

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
        """Decide on a failure, after its action was taken `made` times in the stage.

        `possible=False` says that the action would change nothing here: then the action that
        follows it is taken at once. `cause` replaces the words of the cell, `evidence` is added to
        its figures.
        """
        cell = self.cell(failure, tier)
        due = cell.after(made)
        action = due if possible or due in _FINAL else cell.then
        grounds = {
            "tier": tier,
            "made": made,
            "bound": cell.bound,
            "alert": cell.alert,
            "overridden": (failure, tier) in self.overrides,
        }
        reason = cause or f"{failure} in the {tier} tier" + (f": {cell.told}" if cell.told else "")
        if due != cell.action:
            reason += f" ({cell.action} was taken {made} times; {cell.bound} allowed)"
        elif action != cell.action:
            reason += f" ({cell.action} is not possible here)"
        return Decision(action, guard, reason, failure, {**(evidence or {}), **grounds})

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
        return table(
            ["failure", *TIERS],
            (
                [code(failure), *map(self._cell_html, repeat(failure), TIERS)]
                for failure in FAILURE_CLASSES
            ),
        )

    def _cell_html(self, failure: FailureClass, tier: Tier) -> str:
        return self.cell(failure, tier).html(is_override=(failure, tier) in self.overrides)


def with_fallback(decisions: DecisionTable) -> DecisionTable:
    """Return the table of a policy whose breaker has a fallback: in batch it answers too.

    A cell that was overridden stays, and a regulated run swaps no model in silence.
    """
    key: tuple[FailureClass, Tier] = ("provider_error", "batch")
    cell = Cell("fallback", 1, "abort", alert=True, told="breaker and retry budget, fallback model")
    return DecisionTable({key: cell, **decisions.overrides})


_FOR_GATES = ("correct", "replan", "fallback")
_POSSIBLE: Mapping[FailureClass, tuple[str, ...]] = {
    "infinite_loop": ("correct",),
    "deadlock": (),
    "cost_overrun": (),
    "provider_error": ("fallback",),
    "schema_failure": _FOR_GATES,
    "spec_malformed": ("correct", "deny", "replan"),
    "no_progress": _FOR_GATES,
    "unsafe_output": _FOR_GATES,
}
"""The actions that the nodes can carry out for each class, in addition to the final ones."""


def _one_of(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)
