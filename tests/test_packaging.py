"""The distribution has a name of its own, ships its types, and has no extra that nothing uses."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def distribution_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()


def sources() -> Iterator[Path]:
    for folder in ("agentgraph", "server", "tests"):
        yield from ROOT.glob(f"{folder}/**/*.py")


def imported_packages() -> set[str]:
    """Return the top-level packages that the product or its tests import, lazily too."""
    names: set[str] = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    return names


def test_the_distribution_is_not_called_as_another_project_is() -> None:
    assert PROJECT["name"] == "langgraph-agentgraph"
    assert metadata.version("langgraph-agentgraph")


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_an_extra_brings_something_that_is_imported(extra: str) -> None:
    wanted = {distribution_of(each) for each in PROJECT["optional-dependencies"][extra]}
    used = imported_packages()
    by_package = metadata.packages_distributions()
    brought = {
        package for package, names in by_package.items() if wanted & {*map(str.lower, names)}
    }
    assert brought & used


def test_no_hint_installs_the_other_project() -> None:
    texts = [*ROOT.glob("*.md"), *sources(), *ROOT.glob("notebooks/*.ipynb")]
    hint = re.compile(r"pip install ['\"]?agentgraph\b")
    assert [path.name for path in texts if hint.search(path.read_text("utf-8"))] == []


def test_the_wheel_ships_both_packages_with_their_types(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("langgraph_agentgraph-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"agentgraph/py.typed", "agentgraph_server/py.typed"} <= names
    assert {name.partition("/")[0] for name in names if name.endswith(".py")} == {
        "agentgraph",
        "agentgraph_server",
    }
