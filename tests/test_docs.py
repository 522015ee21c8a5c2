"""The documents tell what is: their programs run, their names exist, their figures are measured.

A name is looked up wherever it is written as code: a file or folder, a dotted name, and any other
word, which has to stand somewhere in the sources. A figure of a sequence names the walk that it
shows, see `tests/walks.py`, and its participants are modules that the walk visits, in that order.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tests.walks import WALKS, measured

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
HOW_TOS = sorted((DOCS / "how_to").glob("*.md"))
GLOSSARY = DOCS / "glossary.md"
LOG_HOW_TO = DOCS / "how_to" / "add_a_log_store.md"

MOST_WORDS = 30
LONGEST_PAGE = 130
"""Lines of a page of the architecture."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(
    r"(?:agentgraph|agentgraph_server|benchmarks|docs|examples|notebooks|server|tests)/[\w./-]*"
    r"|[\w-]+\.(?:py|md|toml|ipynb)"
)
_DOTTED = re.compile(r"agentgraph(?:_server)?(?:\.\w+)+")
_WORD = re.compile(r"[^\W\d]\w{2,}")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PARTICIPANT = re.compile(r"^ *participant (\w+)(?: as (\S+))?$", re.MULTILINE)
_ACTOR = re.compile(r"^ *actor (\w+)", re.MULTILINE)
_MESSAGE = re.compile(r"^ *(\w+)-{1,2}>>(\w+): (.+)$", re.MULTILINE)
_KEYWORDS = frozenset(
    {"actor", "alt", "and", "as", "box", "break", "create", "critical", "destroy", "else", "end"}
    | {"link", "links", "loop", "note", "opt", "option", "over", "par", "participant", "rect"}
)
_WALK = re.compile(r"<!-- walk: ([\w ]+) -->\n+```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def id_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def fences(text: str, language: str) -> list[str]:
    """Return the blocks of a language."""
    return [block for kind, block in _FENCE.findall(text) if kind == language]


def prose(text: str) -> str:
    """Return a page without its blocks, with the lines where they were."""
    return _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)


@dataclass(frozen=True)
class Mention:
    """Something written as code, or in a figure."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def mentions(page: Path) -> Iterator[Mention]:
    """Yield what a page writes in backticks."""
    for number, line in enumerate(prose(page.read_text("utf-8")).splitlines(), 1):
        for span in _SPAN.findall(line):
            yield Mention(id_of(page), number, span)


def stale(mention: Mention, text: str, known: list[str]) -> str:
    """Say of a mention that what it names is not there, and what it may be called now."""
    close = get_close_matches(text, known, n=3, cutoff=0.5)
    return f"{mention}: there is no {text}" + (f"; is it {' or '.join(close)}?" if close else "")


# Files and folders.


@cache
def files() -> list[str]:
    folders = ("agentgraph", "benchmarks", "docs", "examples", "notebooks", "server", "tests")
    return [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in ROOT.joinpath(folder).rglob("*.*")
        if path.suffix in {".py", ".md", ".ipynb", ".svg"}
    ]


def exists(path: str, page: Path) -> bool:
    bases = (ROOT, ROOT / "server", page.parent)
    return any((base / path).exists() for base in bases)


def paths_in(page: Path) -> Iterator[tuple[Mention, str]]:
    """Yield the paths that a page names, in backticks and in its figures."""
    for mention in mentions(page):
        if match := _PATH.fullmatch(mention.text):
            yield mention, match[0]
    for figure in fences(page.read_text("utf-8"), "mermaid"):
        for path in re.findall(r"agentgraph(?:_server)?/[\w./-]+", figure):
            yield Mention(id_of(page), 0, "a figure"), path


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_each_path_is_there(page: Path) -> None:
    faults = [stale(at, path, files()) for at, path in paths_in(page) if not exists(path, page)]
    assert not faults, "\n".join(faults)


# Names.


def resolves(dotted: str) -> bool:
    """Tell whether a dotted name leads to a module, or to what one has."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            owner: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        *owners, last = parts[length:] or [""]
        for name in owners:
            owner = getattr(owner, name, None)
        return not last or _has(owner, last)
    return False


def _has(owner: object, name: str) -> bool:
    return hasattr(owner, name) or (inspect.isclass(owner) and name in owner.__annotations__)


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_each_dotted_name_resolves(page: Path) -> None:
    faults = [
        str(mention)
        for mention in mentions(page)
        if (match := _DOTTED.match(mention.text)) and not resolves(match[0])
    ]
    assert not faults, "\n".join(faults)


@cache
def source_words() -> frozenset[str]:
    """Return all words of the product and of its tests, but for those of this module."""
    patterns = ("agentgraph/**/*.py", "server/**/*.py", "tests/**/*.py", "Makefile", "*.toml")
    paths = (path for pattern in patterns for path in ROOT.glob(pattern))
    texts = (path.read_text("utf-8") for path in paths if path != Path(__file__))
    return frozenset(word for text in texts for word in _WORD.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_each_word_that_is_written_as_code_stands_in_the_sources(page: Path) -> None:
    own = set(_WORD.findall("\n".join(fences(page.read_text("utf-8"), "python"))))
    faults = [
        stale(mention, word, sorted(source_words()))
        for mention in mentions(page)
        if not _PATH.fullmatch(mention.text)
        for word in _WORD.findall(mention.text)
        if word not in source_words() | own
    ]
    assert not faults, "\n".join(faults)


# Links.


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_each_link_leads_somewhere(page: Path) -> None:
    faults = []
    for link in _LINK.findall(prose(page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith("https://"):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            faults.append(link)
    assert not faults


def test_each_page_is_linked_from_the_index() -> None:
    index = DOCS / "architecture.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text("utf-8"))}
    assert {page.resolve() for page in PAGES} - linked == {index.resolve()}


# The glossary.


def entries() -> list[tuple[str, str]]:
    """Return the words of the glossary, each with the rest of its row."""
    rows = re.findall(r"^\| (\w[\w ]*) \| (.+) \|$", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return [(word, text) for word, text in rows if word != "word"]


def test_the_glossary_is_short_and_sorted() -> None:
    words = [word for word, _ in entries()]
    assert 0 < len(words) <= MOST_WORDS
    assert words == sorted(set(words))


def test_each_word_of_the_glossary_says_where_it_lives() -> None:
    assert [word for word, text in entries() if not _SPAN.search(text)] == []


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the product, those of fields included."""
    for path in (*ROOT.glob("agentgraph/**/*.py"), *ROOT.glob("server/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield str(node.value.value)


def test_each_word_of_the_glossary_is_used() -> None:
    pages = (prose(page.read_text("utf-8")) for page in PAGES if page != GLOSSARY)
    used = "\n".join([*docstrings(), *pages]).lower()
    assert [word for word, _ in entries() if not re.search(rf"\b{word}", used)] == []


# The figures.


def figures() -> list[tuple[Path, str, str]]:
    """Return the figures of walks: page, walk, text."""
    return [
        (page, name, figure)
        for page in PAGES
        for name, figure in _WALK.findall(page.read_text("utf-8"))
    ]


@cache
def visits(walk: str) -> list[str]:
    return measured(walk).modules


def figure_faults(name: str, figure: str) -> Iterator[str]:
    """Say where a figure differs from the walk that it shows."""
    visited = visits(name)
    shown = [path or alias for alias, path in _PARTICIPANT.findall(figure)]
    for path in shown:
        if path not in visited:
            close = get_close_matches(path, visited, n=3, cutoff=0.5)
            yield f"the walk does not visit {path}; it visits {', '.join(close) or visited}"
    places = [visited.index(path) for path in shown if path in visited]
    for one, following in pairwise(places):
        if one > following:
            yield f"the walk visits {visited[following]} before {visited[one]}"
    known = {alias for alias, _ in _PARTICIPANT.findall(figure)} | {*_ACTOR.findall(figure)}
    yield from (f"{alias} is a keyword of mermaid" for alias in known & _KEYWORDS)
    for source, target, text in _MESSAGE.findall(figure):
        yield from (f"{end} is no participant" for end in (source, target) if end not in known)
        if {";", "#"} & {*text}:
            yield f"mermaid ends a line at ; and #: {text}"


def test_the_walks_of_the_main_ways_are_shown() -> None:
    assert {name for _, name, _ in figures()} >= {
        "supervisor",
        "guarded supervisor",
        "session",
        "server",
    }


def test_each_figure_of_a_sequence_names_its_walk() -> None:
    sequences = sum(page.read_text("utf-8").count("sequenceDiagram") for page in PAGES)
    assert sequences == sum("sequenceDiagram" in figure for _, _, figure in figures())


@pytest.mark.parametrize(
    ("page", "name", "figure"),
    figures(),
    ids=[f"{page.stem}-{name}-{n}" for n, (page, name, _) in enumerate(figures())],
)
def test_a_figure_shows_modules_in_the_order_of_their_first_visits(
    page: Path, name: str, figure: str
) -> None:
    assert name in WALKS
    assert len(_MESSAGE.findall(figure)) >= 3
    assert [f"{id_of(page)}: {fault}" for fault in figure_faults(name, figure)] == []


@pytest.mark.parametrize("page", sorted((DOCS / "architecture").glob("*.md")), ids=id_of)
def test_a_page_of_the_architecture_is_short_and_says_where_to_start(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.count("\n") <= LONGEST_PAGE
    assert "```mermaid" in text
    assert "## Start reading here" in text


# The programs.


def programs(page: Path) -> list[str]:
    return fences(page.read_text("utf-8"), "python")


@pytest.mark.parametrize("page", HOW_TOS, ids=id_of)
async def test_each_program_of_a_how_to_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"how_to_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    blocks = programs(page)
    assert blocks and "assert" in "\n".join(blocks)
    for number, block in enumerate(blocks, 1):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(block, f"{id_of(page)} block {number}", "exec", flags)
        result = FunctionType(code, module.__dict__)()
        if inspect.isawaitable(result):
            await result


@pytest.mark.timeout(240)
def test_the_log_of_the_how_to_passes_the_conformance_tests(tmp_path: Path) -> None:
    blocks = programs(LOG_HOW_TO)
    kept = [block for block in blocks if "await" not in _top_level(block)]
    (tmp_path / "test_own_log.py").write_text("\n\n".join(kept), "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        f"{ROOT}",
    ]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "server")))
    done = subprocess.run(
        [*command, "-c", f"{ROOT / 'pyproject.toml'}", f"{tmp_path / 'test_own_log.py'}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout
    assert passed and int(passed[1]) > 30, done.stdout


def _top_level(block: str) -> str:
    """Return the lines of a block that stand in no function and no class."""
    return "\n".join(line for line in block.splitlines() if line and not line[0].isspace())
