"""The page of what guards are on by default, made of the code.

`python -m tests.defaults` writes the page, `docs/guards.md`; a test compares it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgraph.guards import DecisionTable, Gate
from agentgraph.guards.decision import TIERS
from agentgraph.guards.overrides import Overrides, call_text, kind_of_guard
from agentgraph.guards.short_forms import SHORT_FORMS
from agentgraph.guards.tiers import guards_of

PAGE = Path(__file__).parents[1] / "docs" / "guards.md"
MUST_BE_GIVEN = {("budget", "regulated"), ("velocity", "regulated")}
_ELSEWHERE = ("stages", "decisions", "extra")
"""The settings that are no guards of ours with a default."""
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
    names = [name for name in Overrides.__annotations__ if name not in _ELSEWHERE]
    return "\n".join(map(_row, [head, ["---"] * len(head), *map(_cells, names)]))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(name: str) -> list[str]:
    first, *others = [_default(name, tier) for tier in TIERS]
    defaults = [first, *("the same" if other == first else other for other in others)]
    short_form = SHORT_FORMS.get(name)
    words = short_form.words if short_form is not None else ""
    if name == "gates":
        words = "a schema for the text as JSON, or by tool"
    return [f"`{name}`", _purpose(name), *defaults, words.replace("|", "or")]


def _default(name: str, tier: Any) -> str:
    if (name, tier) in MUST_BE_GIVEN:
        return "must be given"
    text = call_text(guards_of(tier)[name]())
    return "off" if text == "off" else f"`{text}`"


def _purpose(name: str) -> str:
    """Return the first sentence about a guard."""
    kind = Gate if name == "gates" else kind_of_guard(name)
    first = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    return first.rstrip(".").partition(". ")[0]


def main() -> None:
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
