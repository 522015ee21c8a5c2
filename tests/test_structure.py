"""The structure of the product gets no worse: its figures are ceilings, which may only fall."""

from __future__ import annotations

import pytest

from tests.structure import (
    Binding,
    Figures,
    Module,
    cycles,
    import_graph,
    measured,
    product,
    short_modules,
)

# One of the short ones holds the private imports, and nothing else may stand there.
CEILINGS = Figures(cycle=1, folder=15, short=8, head=18.2, bare=0.5, explained=14.4)


def test_figures_of_the_product_stay_within_their_ceilings() -> None:
    now = measured(product())
    assert now.cycle <= CEILINGS.cycle, cycles(import_graph(product()))[:1]
    assert now.folder <= CEILINGS.folder
    assert now.short <= CEILINGS.short, [module.path for module in short_modules(product())]
    assert now.head <= CEILINGS.head
    assert now.bare <= CEILINGS.bare, "see `python -m tests.structure names`"
    assert now.explained >= CEILINGS.explained


def test_imports_in_functions_and_for_types_close_a_cycle() -> None:
    first = Module("agentgraph/a.py", "from agentgraph.b import x\n")
    second = Module("agentgraph/b.py", "def f():\n    from agentgraph import c\n")
    third = Module("agentgraph/c.py", "if TYPE_CHECKING:\n    import agentgraph.a\n")
    aside = Module("agentgraph/d.py", "from agentgraph.a import x\n")
    graph = import_graph([first, second, third, aside])
    assert cycles(graph) == [frozenset({"agentgraph.a", "agentgraph.b", "agentgraph.c"})]


def test_figures_are_those_of_the_sources() -> None:
    source = (
        '"""What it is."""\n\nLIMIT = 3\n\n\ndef told(one, name):\n    # why\n    return name\n'
    )
    modules = [
        Module("agentgraph/guards/a.py", source),
        Module("agentgraph/guards/b.py", source),
        Module("agentgraph/guards/__init__.py", ""),
    ]
    assert measured(modules) == Figures(
        cycle=1, folder=2, short=2, head=62.5, bare=50.0, explained=25.0
    )


@pytest.mark.parametrize("name", ["told", "_told", "one", "TOLD", "saved", "waiting", "what"])
def test_a_participle_or_pronoun_alone_is_bare(name: str) -> None:
    assert Binding("a.py", 1, name).is_bare


@pytest.mark.parametrize(
    "name", ["told_text", "need", "routing", "failed", "__all__", "message", "string", "_speed"]
)
def test_a_noun_is_not_bare(name: str) -> None:
    assert not Binding("a.py", 1, name).is_bare
