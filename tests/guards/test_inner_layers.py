"""Inside the guards imports point one way: from what runs in a graph down to what decides."""

from __future__ import annotations

from tests.structure import import_graph, product

PACKAGE = "agentgraph.guards."
LAYERS = (
    ("decision", "table"),
    ("mechanisms", "audit"),
    ("place", "overrides", "stricter", "tiers", "policy", "checks"),
    ("records",),
    ("nodes",),
    ("patcher",),
)
"""Each may import itself and those above it in this list."""


def layer_of(module: str) -> int:
    part = module.removeprefix(PACKAGE).partition(".")[0]
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def test_no_layer_of_the_guards_imports_a_higher_one() -> None:
    graph = import_graph(product())
    guards = {name: found for name, found in graph.items() if name.startswith(PACKAGE)}
    assert guards
    upward = [
        (name, target)
        for name, targets in guards.items()
        for target in targets
        if target.startswith(PACKAGE) and layer_of(target) > layer_of(name)
    ]
    assert upward == []
