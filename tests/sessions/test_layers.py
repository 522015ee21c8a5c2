"""The folders of `agentgraph.sessions` stand in layers: each imports from those below it alone."""

from __future__ import annotations

import pytest

from tests.structure import Module, import_graph, product

PREFIX = "agentgraph.sessions."
LAYERS = ("state", "log", "rounds", "team", "hub")
"""The lowest first; what stands beside the folders may import all of them."""


def upward_imports(modules: list[Module]) -> list[str]:
    """Return the imports from a layer into one above it, those for types and in functions too."""
    return [
        f"{name} imports {target}"
        for name, targets in sorted(import_graph(modules).items())
        for target in sorted(targets)
        if name.startswith(PREFIX) and target.startswith(PREFIX) and _layer(name) < _layer(target)
    ]


def _layer(module: str) -> int:
    folder = module.removeprefix(PREFIX).partition(".")[0]
    return LAYERS.index(folder) if folder in LAYERS else len(LAYERS)


def test_no_layer_of_sessions_imports_one_above_it() -> None:
    modules = product()
    assert any(module.path == "agentgraph/sessions/rounds/round.py" for module in modules)
    assert upward_imports(modules) == []


@pytest.mark.parametrize(
    "source",
    [
        "from agentgraph.sessions.hub.hub import Hub",
        "from agentgraph.sessions import audit",
        "if TYPE_CHECKING:\n    from agentgraph.sessions.hub.hub import Hub",
        "def f():\n    from agentgraph.sessions.hub.hub import Hub",
    ],
)
def test_an_import_of_a_higher_layer_is_found(source: str) -> None:
    modules = [
        Module("agentgraph/sessions/team/a.py", source),
        Module("agentgraph/sessions/hub/hub.py", ""),
        Module("agentgraph/sessions/audit.py", ""),
    ]
    assert len(upward_imports(modules)) == 1
