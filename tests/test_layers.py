"""Imports point one way: who may import whom, held for every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]

LEAVES = frozenset(
    {
        "clock",
        "display",
        "drawing",
        "driving",
        "errors",
        "history",
        "timeouts",
        "outcomes",
        "participant",
        "patching",
        "remote",
        "running",
        "blocking",
        "contexts",
        "interception",
        "storage",
        "stream",
        "graphs",
        "telling",
        "usage",
        "sendable",
    }
)
MAY_IMPORT = {
    **dict.fromkeys(LEAVES, LEAVES),
    "routing": LEAVES,
    "phases": LEAVES | {"routing"},
    "guards": LEAVES,
    "agents": LEAVES | {"guards", "models"},
    "flow": LEAVES | {"guards", "agents"},
    "sessions": LEAVES | {"routing", "phases", "guards"},
    "engines": LEAVES | {"sessions"},
    "models": LEAVES,
    "testing": LEAVES,
}
FRONT = frozenset(
    {"agentgraph", "__main__", "cli", "server"}
)  # the root package, and what stands before it
EVERYTHING = frozenset(MAY_IMPORT) | {"agentgraph", "cli"}

# What the table leaves open and is yet closed: modules and all below them, or with "*" every name
# that begins so.
BANNED = {
    "routing": ("langgraph*", "langchain*", "asyncio", "time", "random", "agentgraph.clock"),
    "guards": ("langgraph", "langgraph_*"),
}
ACTS_ON_GRAPHS = (
    "agentgraph/guards/nodes/agent_graph.py",
    "agentgraph/guards/nodes/foreign/graph.py",
    "agentgraph/guards/nodes/foreign/wrappers.py",
)
MAY_IMPORT_PRIVATE_NAMES = "agentgraph/graphs/private.py"

# Inside a package, from the bottom to the top: a module imports those of its own row and of the
# rows above it in this list. A module in a folder may have a row of its own.
ROWS = {
    "guards": (
        "decision built_in table",
        "mechanisms guard records.record records.sinks records.trail records.audit_trail",
        "place process overrides policy checks",
        "records",
        "nodes",
        "patcher",
    ),
    "agents": ("spec", "nodes", "build", "picture", "run", "agent"),
    "sessions": (
        "envelopes",
        "state",
        "log",
        "rounds",
        "team",
        "single",
        "drivers",
        "hub",
        "audit tools",
    ),
}


@dataclass(frozen=True)
class Import:
    line: int
    name: str
    lazy: bool

    @property
    def unit(self) -> str | None:
        """The part of the project that is imported, None for what is not of the project."""
        root, _, rest = self.name.partition(".")
        if root == "agentgraph_server":
            return "server"
        if root != "agentgraph":
            return None
        part = rest.partition(".")[0]
        return part if part in EVERYTHING else "agentgraph"

    @property
    def private(self) -> bool:
        """Whether it is a name that LangGraph or LangChain keeps to itself."""
        return self.name.startswith(("langgraph", "langchain")) and any(
            part.startswith("_") and not part.endswith("__") for part in self.name.split(".")
        )

    def is_of(self, prefix: str) -> bool:
        if prefix.endswith("*"):
            return self.name.startswith(prefix[:-1])
        return f"{self.name}.".startswith(f"{prefix}.")


def unit_of(path: str) -> str:
    parts = PurePosixPath(path).parts
    if parts[0] == "server":
        return "server"
    return "agentgraph" if parts[1] == "__init__.py" else parts[1].removesuffix(".py")


def imports_of(path: str, source: str) -> Iterator[Import]:
    package = PurePosixPath(path.removeprefix("server/")).parent.parts

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(node.lineno, alias.name, lazy)
            case ast.ImportFrom():
                above = package[: len(package) + 1 - node.level] if node.level else ()
                module = ".".join((*above, *([node.module] if node.module else [])))
                for alias in node.names:
                    yield Import(node.lineno, f"{module}.{alias.name}", lazy)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                lazy = True
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy)

    return walk(ast.parse(source, path), lazy=False)


def fault_of(path: str, found: Import) -> str | None:
    """Say what is wrong with one import, if anything."""
    unit = unit_of(path)
    if found.private and path != MAY_IMPORT_PRIVATE_NAMES:
        return f"only {MAY_IMPORT_PRIVATE_NAMES} may import the private {found.name}"
    if path not in ACTS_ON_GRAPHS and any(found.is_of(ban) for ban in BANNED.get(unit, ())):
        return f"{unit} may not import {found.name}"
    if found.unit in (None, unit):
        return None
    if found.unit == "server":
        if unit != "cli":
            return f"{unit} may not import the server"
        return None if found.lazy else "cli may import the server only inside a function"
    if unit in FRONT or found.unit in MAY_IMPORT[unit]:
        return None
    what = f"the root package ({found.name})" if found.unit == "agentgraph" else found.unit
    return f"{unit} may not import {what}"


def row_of(module: str) -> int | None:
    """Return the row of a module inside its package: its own, else that of its folder."""
    _, package, *parts = module.split(".")
    names = [".".join(parts[:2]), *parts[:1]]
    rows = [row.split() for row in ROWS.get(package, ())]
    return next((rows.index(row) for name in names for row in rows if name in row), None)


def inner_fault_of(path: str, found: Import) -> str | None:
    """Say whether an import inside a package points to a row above its own."""
    module = path.removesuffix(".py").replace("/", ".")
    if found.unit != unit_of(path) or found.unit not in ROWS:
        return None
    if module.endswith(".__init__") or found.name.count(".") < 2:
        return None
    here, there = row_of(module), row_of(found.name)
    if here is None:
        return f"{module} has no row in tests/test_layers.py: add it"
    if there is None or there <= here:
        return None
    return f"{module} may not import {found.name}, which is above it"


def faults_of(sources: Mapping[str, str]) -> list[str]:
    """Check modules, given by path, against the table."""
    faults = []
    leaves: dict[str, set[str]] = {}
    for path, source in sorted(sources.items()):
        unit = unit_of(path)
        if unit not in EVERYTHING | FRONT:
            faults.append(f"{path}: {unit} is not in the table of tests/test_layers.py: add it")
            continue
        for found in imports_of(path, source):
            if fault := fault_of(path, found) or inner_fault_of(path, found):
                faults.append(f"{path}:{found.line}: {fault}")
            elif unit in LEAVES and found.unit in LEAVES - {unit}:
                leaves.setdefault(unit, set()).add(found.unit)
    try:
        TopologicalSorter(leaves).prepare()
    except CycleError as error:
        faults.append(f"a cycle of leaves: {' <- '.join(error.args[1])}")
    return faults


def test_imports_of_the_project_follow_the_table() -> None:
    paths = [*ROOT.glob("agentgraph/**/*.py"), *ROOT.glob("server/**/*.py")]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    assert "agentgraph/__init__.py" in sources
    assert faults_of(sources) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "agentgraph/__init__.py",
            "from .sessions import Hub\nfrom agentgraph.agents import Agent",
        ),
        ("agentgraph/agents/build.py", "from ..guards import Guards\nfrom . import state"),
        ("agentgraph/agents/build.py", "from langgraph.graph import StateGraph"),
        ("agentgraph/sessions/log/memory.py", "from ...errors import StaleOwner"),
        ("agentgraph/sessions/hub.py", "from agentgraph import clock"),
        ("agentgraph/routing/graph.py", "from agentgraph.outcomes import Handoff\nimport timeit"),
        ("agentgraph/guards/nodes/agent_graph.py", "from langgraph.graph import StateGraph"),
        ("agentgraph/graphs/private.py", "from langgraph._internal._config import merge_configs"),
        (
            "agentgraph/storage.py",
            "from importlib import metadata\nfrom .errors import StorageError",
        ),
        ("agentgraph/models/offline.py", "from langchain_core import __version__"),
        ("agentgraph/cli.py", "def serve():\n    import agentgraph_server.app"),
        ("server/agentgraph_server/app.py", "from agentgraph import Hub\nfrom .sse import frames"),
    ],
)
def test_an_import_within_the_table_passes(path: str, source: str) -> None:
    assert faults_of({path: source}) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("agentgraph/clock.py", "from .routing import Always", "clock may not import routing"),
        ("agentgraph/agents/a.py", "from ..sessions import Hub", "agents may not import sessions"),
        ("agentgraph/agents/a.py", "from .. import sessions", "agents may not import sessions"),
        ("agentgraph/agents/__init__.py", "from ..phases import x", "agents may not import phases"),
        (
            "agentgraph/guards/mechanisms/loop.py",
            "import agentgraph.agents.a",
            "guards may not import agents",
        ),
        ("agentgraph/sessions/log/sqlite.py", "from ...agents import Agent", "not import agents"),
        ("agentgraph/testing/scripted.py", "from agentgraph import Agent", "the root package"),
        ("agentgraph/models/resolve.py", "import agentgraph", "the root package"),
        (
            "agentgraph/phases/a.py",
            "def f():\n    from agentgraph import guards",
            "not import guards",
        ),
        (
            "agentgraph/routing/graph.py",
            "if TYPE_CHECKING:\n    from agentgraph.sessions.state.fold import State",
            "agentgraph/routing/graph.py:2: routing may not import sessions",
        ),
        ("agentgraph/routing/graph.py", "import random", "routing may not import random"),
        ("agentgraph/routing/graph.py", "from asyncio import sleep", "not import asyncio.sleep"),
        ("agentgraph/routing/graph.py", "from ..clock import clock", "not import agentgraph.clock"),
        ("agentgraph/routing/graph.py", "import langchain_core.messages", "not import langchain_c"),
        (
            "agentgraph/guards/mechanisms/loop.py",
            "from langgraph.types import Command",
            "not import langgraph",
        ),
        ("agentgraph/agents/a.py", "import langgraph._internal", "the private langgraph._internal"),
        (
            "agentgraph/agents/a.py",
            "from langgraph.types import _X",
            "the private langgraph.types._X",
        ),
        (
            "server/agentgraph_server/a.py",
            "from langchain_core.load import _x",
            "private langchain",
        ),
        ("agentgraph/agents/a.py", "import agentgraph_server", "agents may not import the server"),
        ("agentgraph/__init__.py", "import agentgraph_server", "may not import the server"),
        ("agentgraph/cli.py", "from agentgraph_server import app", "only inside a function"),
        ("agentgraph/errors.py", "from . import cli", "errors may not import cli"),
        (
            "agentgraph/guards/mechanisms/loop.py",
            "def f():\n    from agentgraph.guards.policy import Guards",
            "agentgraph.guards.mechanisms.loop may not import agentgraph.guards.policy.Guards",
        ),
        (
            "agentgraph/sessions/log/memory.py",
            "from ..hub.hub import Hub",
            "agentgraph.sessions.log.memory may not import agentgraph.sessions.hub",
        ),
        ("agentgraph/agents/novel.py", "from .spec import a", "agents.novel has no row"),
        ("agentgraph/novel/a.py", "", "novel is not in the table of tests/test_layers.py: add it"),
        ("agentgraph/novel.py", "", "novel is not in the table of tests/test_layers.py: add it"),
    ],
)
def test_an_import_outside_the_table_is_a_fault(path: str, source: str, fault: str) -> None:
    (found,) = faults_of({path: source})
    assert fault in found


def test_a_cycle_of_leaves_is_a_fault() -> None:
    (found,) = faults_of(
        {
            "agentgraph/clock.py": "from .running import session",
            "agentgraph/running.py": "from .storage import saver",
            "agentgraph/storage.py": "if TYPE_CHECKING:\n    from . import clock",
        }
    )
    assert found.startswith("a cycle of leaves")
