"""Inside of the agents' package imports point one way, held for every module."""

from __future__ import annotations

from tests.structure import Module, import_graph, product

LAYERS = ("spec", "nodes", "build", "picture", "run", "agent")
"""From the bottom to the top: each may import itself and what stands before it."""


def layer_of(module: str) -> int | None:
    package, _, rest = module.partition("agentgraph.agents.")
    part = rest.partition(".")[0]
    return LAYERS.index(part) if not package and part in LAYERS else None


def upward_imports(modules: list[Module]) -> list[str]:
    return [
        f"{module} imports {target}"
        for module, targets in import_graph(modules).items()
        for target in sorted(targets)
        if (source := layer_of(module)) is not None
        and (above := layer_of(target)) is not None
        and above > source
    ]


def test_no_layer_of_the_agents_imports_one_above_it() -> None:
    modules = [module for module in product() if module.path.startswith("agentgraph/agents/")]

    assert {layer_of(module.name) for module in modules} >= set(range(len(LAYERS)))
    assert upward_imports(modules) == []


def test_an_import_for_types_or_in_a_function_counts() -> None:
    node = Module("agentgraph/agents/nodes/a.py", "def f():\n    import agentgraph.agents.run.b\n")
    run = Module("agentgraph/agents/run/b.py", "")

    assert upward_imports([node, run]) == [
        "agentgraph.agents.nodes.a imports agentgraph.agents.run.b"
    ]
