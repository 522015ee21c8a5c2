"""The page of what guards are on by default, made of the code.

`python -m tests.defaults` writes the page, `docs/guards.md`; a test compares it.
"""

from __future__ import annotations

from pathlib import Path

from agentgraph.guards import DecisionTable
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import TIERS, Tier
from agentgraph.guards.overrides import call_text, guard_classes

PAGE = Path(__file__).parents[1] / "docs" / "guards.md"
_TEXT = """\
# What is on by default

This page is generated from the code: `make tables` writes it again.

`Guards.interactive()` holds for each `Agent` and each `Team`, and for all below them, unless
`guards=` says otherwise; `guards=None` is none. A guard may be given by its main setting alone, as
the last column has it: `Guards(hops=3, budget=1000)`. None removes it. A regulated run stops where
its audit trail cannot be written; the others go on. Guards of your own are given as `extra=`, see
[add a guard](how_to/add_a_guard.md).

{guards}

## What is done about a failure

The decision table says, for each tier, what is done and how often, and what comes after that.

{decisions}
"""


def page() -> str:
    """Return the page."""
    return _TEXT.format(guards=_guards(), decisions=DecisionTable().markdown())


def _guards() -> str:
    head = ["guard", "what it does", *TIERS, "given alone"]
    guards = [guard for guard in guard_classes().values() if guard is not DecisionTable]
    return "\n".join(map(_row, [head, ["---"] * len(head), *map(_cells, guards)]))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(guard: type[BuiltInGuard]) -> list[str]:
    first, *others = [_default(guard, tier) for tier in TIERS]
    defaults = [first, *("the same" if other == first else other for other in others)]
    return [f"`{guard.setting}`", _purpose(guard), *defaults, guard.short_form]


def _default(guard: type[BuiltInGuard], tier: Tier) -> str:
    if any(guard.absence_faults(tier, is_removed=False)):
        return "must be given"
    text = call_text(guard.of_tier(tier))
    return "off" if text == "off" else f"`{text}`"


def _purpose(guard: type[BuiltInGuard]) -> str:
    """Return the first sentence about a guard."""
    first = " ".join((guard.__doc__ or "").partition("\n\n")[0].split())
    return first.rstrip(".").partition(". ")[0]


def main() -> None:
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
