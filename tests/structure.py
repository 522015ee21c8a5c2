"""Measure how the product is built: folders, import cycles, module sizes, names and comments.

`python -m tests.structure` prints the figures; `python -m tests.structure names [PATH]` lists the
names that count as bare participles or pronouns, with the places where they are bound.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
SHORT = 60
"""A module with fewer lines is short: often a part that was cut off from its noun."""
COMMENTED = ("agentgraph/guards/", "agentgraph/sessions/")
"""Where the share of docstrings and comments is held up."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

PRONOUNS = _words(
    """
    all any anybody anything both each either everybody everyone everything it neither nobody
    none nothing one ones other others some somebody someone something that them these this
    those what which who whom whose
    """
)
IRREGULAR = _words(
    """
    begun bent bound broken brought built caught chosen come dealt done drawn driven fallen
    felt forgotten found given gone grown heard held hidden kept known laid led left lent lost
    made meant met overheard paid put said seen sent shown sold spent spoken stood taken
    taught thought thrown told undone understood unheard unknown unrun unsaid withdrawn worn
    written
    """
)
NOUNS_IN_ED = _words("bed breed embed exceed feed hundred need proceed red seed shed speed")
NOUNS_IN_ING = _words(
    """
    beginning binding building drawing embedding encoding ending heading listing logging
    mapping meaning padding pending ring routing setting sibling spacing spending spring
    streaming string thing timing warning wording
    """
)
PUBLIC = _words("accepted admitted asked failed judged passed patched required served settled")
"""Names of the public surface, which this measure leaves alone."""


@dataclass(frozen=True)
class Binding:
    """A place where a name gets its value: a definition, a parameter, an assignment."""

    path: str
    line: int
    name: str

    @property
    def is_bare(self) -> bool:
        """Tell whether the name is a participle or pronoun that no noun stands beside."""
        word = self.name.strip("_").lower()
        if word in PUBLIC or self.name.startswith("__"):
            return False
        is_past = word.endswith("ed") and word not in NOUNS_IN_ED
        is_present = word.endswith("ing") and word not in NOUNS_IN_ING
        return "_" not in word and (word in PRONOUNS | IRREGULAR or is_past or is_present)


@dataclass(frozen=True)
class Module:
    """One source file of the product."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @property
    def name(self) -> str:
        dotted = self.path.removeprefix("server/").removesuffix(".py").replace("/", ".")
        return dotted.removesuffix(".__init__")

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @property
    def lines(self) -> int:
        return self.source.count("\n")

    @property
    def lines_before_first_definition(self) -> int:
        """Return how many lines a reader passes before the first class or function."""
        for node in self.tree.body:
            if isinstance(node, Definition):
                first = min((one.lineno for one in node.decorator_list), default=node.lineno)
                return min(first, node.lineno) - 1
        return self.lines

    @property
    def explanation_lines(self) -> int:
        """Return how many lines are docstrings or comments of their own."""
        numbers: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.source).readline):
            if token.type == tokenize.COMMENT:
                numbers.add(token.start[0])
        for node in ast.walk(self.tree):
            if _is_text(node):
                numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return len(numbers)

    def bindings(self) -> Iterator[Binding]:
        """Yield each definition, parameter, variable and attribute that is bound here."""
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    yield Binding(self.path, node.lineno, node.name)
                case ast.arg():
                    yield Binding(self.path, node.lineno, node.arg)
                case ast.Name(ctx=ast.Store()):
                    yield Binding(self.path, node.lineno, node.id)
                case ast.Attribute(ctx=ast.Store()):
                    yield Binding(self.path, node.lineno, node.attr)

    def imports(self, names: frozenset[str]) -> set[str]:
        """Return which of the modules named it imports, in functions and for types too."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                found.update(members & names or {node.module})
        return found & names - {self.name}


def product(root: Path = ROOT) -> list[Module]:
    """Read the modules of the product."""
    paths = [*root.glob("agentgraph/**/*.py"), *root.glob("server/**/*.py")]
    return [
        Module(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in sorted(paths)
    ]


def import_graph(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Return which module imports which; packages that only re-export are left out."""
    inner = [module for module in modules if not module.is_package]
    names = frozenset(module.name for module in inner)
    return {module.name: module.imports(names) for module in inner}


def cycles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Return the sets of modules that reach each other by imports, the largest first."""
    reach = {name: _reached_from(name, graph) for name in graph}
    rings = {
        frozenset({name, *(far for far in reach[name] if name in reach[far])})
        for name in graph
        if name in reach[name]
    }
    return sorted(rings, key=lambda ring: (-len(ring), sorted(ring)))


def _reached_from(name: str, graph: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = [name]
    while ahead:
        fresh = graph[ahead.pop()] - reached
        reached |= fresh
        ahead += fresh
    return reached


@dataclass(frozen=True)
class Figures:
    """The figures that only fall, but for `explained`, which only rises."""

    cycle: int
    """Modules in the largest import cycle."""
    folder: int
    """Modules in the fullest folder, beside its `__init__`."""
    short: int
    """Modules under 60 lines, beside `__init__` and `__main__`."""
    head: float
    """Percent of all lines that stand before the first definition of their module."""
    bare: float
    """Percent of all bound names that are bare participles or pronouns."""
    explained: float
    """Percent of the lines in guards and sessions that are docstrings or comments."""


def measured(modules: list[Module]) -> Figures:
    """Measure the modules of a product."""
    lines = sum(module.lines for module in modules)
    folders = Counter(module.folder for module in modules if not module.is_package)
    named = [binding for module in modules for binding in module.bindings()]
    commented = [module for module in modules if module.path.startswith(COMMENTED)]
    return Figures(
        cycle=max((len(ring) for ring in cycles(import_graph(modules))), default=1),
        folder=max(folders.values()),
        short=len(short_modules(modules)),
        head=_percent(sum(module.lines_before_first_definition for module in modules), lines),
        bare=_percent(sum(binding.is_bare for binding in named), len(named)),
        explained=_percent(
            sum(module.explanation_lines for module in commented),
            sum(module.lines for module in commented),
        ),
    )


def short_modules(modules: Iterable[Module]) -> list[Module]:
    """Return the modules under 60 lines."""
    ordinary = (module for module in modules if not re.search(r"/__\w+__\.py$", module.path))
    return [module for module in ordinary if module.lines < SHORT]


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Tell whether a node is a docstring, of a definition or of the line before it."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2)


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def main(arguments: list[str]) -> None:
    """Print the figures, or with `names` what there is to rename."""
    modules = product()
    if arguments[:1] == ["names"]:
        prefix = "".join(arguments[1:])
        bindings = (one for module in modules for one in module.bindings() if one.is_bare)
        _print(*(f"{b.path}:{b.line} {b.name}" for b in bindings if b.path.startswith(prefix)))
        return
    _print(str(measured(modules)))
    _print(*(f"cycle: {' '.join(sorted(ring))}" for ring in cycles(import_graph(modules))))
    _print(*(f"short: {module.path} {module.lines}" for module in short_modules(modules)))


if __name__ == "__main__":
    main(sys.argv[1:])
