"""Guards, and what they decide, as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from agentgraph.display import code, escaped, panel, prose, row, table
from agentgraph.guards.decision import FAILURE_CLASSES, TIERS

if TYPE_CHECKING:
    from agentgraph.guards.decision import Decision
    from agentgraph.guards.table import Cell, DecisionTable


def decision_html(decision: Decision) -> str:
    """Show what was decided, by whom, why, and on what evidence."""
    shown = [prose(decision.cause)] if decision.cause else []
    if decision.failure_class:
        shown.append(row("failure", code(decision.failure_class)))
    shown += [row(name, code(value)) for name, value in decision.evidence.items()]
    return panel(f"{decision.action}, says {decision.guard}", *shown)


def cells_html(decisions: DecisionTable) -> str:
    """Show the decision table; cells of one's own stand out."""
    return table(
        ["failure", *TIERS],
        (
            [
                code(failure),
                *(
                    _cell_html(decisions.cell(failure, tier), (failure, tier) in own)
                    for tier in TIERS
                ),
            ]
            for own in [decisions.overrides]
            for failure in FAILURE_CLASSES
        ),
    )


def _cell_html(cell: Cell, is_own: bool) -> str:
    chain = code(cell.action)
    if cell.bound:
        chain += f" ≤ {cell.bound}, then {code(cell.then)}"
    if cell.alert:
        chain += ", alert"
    told = f"<div>{escaped(cell.told)}</div>" if cell.told else ""
    return f"<b>{told}{chain}</b>" if is_own else f"{told}{chain}"


def policy_html(tier: str, held: Mapping[str, object], given: Collection[str]) -> str:
    """Show which guards hold and with which limits; those that were given stand out."""
    rows = [
        [f"<b>{escaped(name)}</b>" if name in given else escaped(name), code(text)]
        for name, text in _held(held)
    ]
    return panel(f"Guards, {tier}", table(["guard", "holds"], rows))


def _held(held: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in held.items():
        if name != "stages":
            yield name, shown(value)
        elif isinstance(value, Mapping):
            yield from ((f"stage {stage}", repr(policy)) for stage, policy in value.items())


def shown(value: object) -> str:
    """Write a guard as it would be made, without what it does not have."""
    if value is None or value == ():
        return "off"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {shown(part)}' for name, part in value.items())}}}"
    if isinstance(value, tuple):
        return ", ".join(map(shown, value))
    if not is_dataclass(value) or isinstance(value, type):
        return getattr(value, "__name__", None) or repr(value)
    if (names := getattr(value, "names", None)) is not None:
        return f"Gate({', '.join(names)})"
    told = [
        f"{one.name}={shown(part)}"
        for one in fields(value)
        if one.init and (part := getattr(value, one.name)) not in (None, (), {})
    ]
    return f"{type(value).__name__}({', '.join(told)})"
