"""The picture of a flow: its stages, the gates between them, its workers, and the ways back.

A stage that fails may lead to a new plan, to a human or to the end. The picture has these ways at
the gates only, where a reader looks for them; the compiled graph has them at each node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from langchain_core.runnables.graph import Edge, Graph, Node
from langgraph.graph import END, START

_AHEAD = (START, "plan", "plan_gate", "fan_out")
_BEHIND = ("fan_in", "validate", "validate_gate", "finalize", END)
_GATES = ("plan_gate", "validate_gate")
"""The nodes at which the picture has the ways of a failure."""
_AGAIN = {"debate": "next round", "handoff": "hand over"}
"""Why the work stage goes on, by topology; else the guards let only so many work at once."""


def picture_graph(workers: Sequence[str], topology: str, *, asks_humans: bool) -> Graph:
    """Return the graph to draw of a flow with these workers, which are a group of their own.

    With `asks_humans` a failure may lead to a human, and what was done is undone after a rejection.
    Edges that are taken only sometimes are conditional: they are drawn dashed.
    """
    ids = [f"work:{name}" for name in workers]
    graph = Graph()
    humans = ("escalate", "compensate") if asks_humans else ()
    names = (*_AHEAD, *ids, *_BEHIND[:-1], *humans, END)
    graph.nodes = {name: Node(name, name, None, None) for name in names}
    ways = (*pairwise(_AHEAD), *_ways_of_work(ids, topology), *pairwise(_BEHIND))
    graph.edges = [Edge(source, target) for source, target in ways]
    graph.edges += _ways_back(topology, asks_humans=asks_humans)
    return graph


def _ways_of_work(ids: Sequence[str], topology: str) -> Iterator[tuple[str, str]]:
    """Yield the ways through the work stage."""
    if topology == "sop":
        yield from pairwise(("fan_out", *ids, "fan_in"))
        return
    for worker in ids:
        yield "fan_out", worker
        yield worker, "fan_in"


def _ways_back(topology: str, *, asks_humans: bool) -> Iterator[Edge]:
    """Yield the ways that are taken only sometimes."""
    if topology != "sop":
        yield Edge("fan_in", "fan_out", _AGAIN.get(topology, "next wave"), conditional=True)
    for gate in _GATES:
        yield Edge(gate, "plan", "new plan", conditional=True)
        yield Edge(gate, "escalate" if asks_humans else END, None, conditional=True)
    if asks_humans:
        yield Edge("escalate", "finalize", "approve", conditional=True)
        yield Edge("escalate", "compensate", "reject", conditional=True)
        yield Edge("compensate", END, None, conditional=True)
