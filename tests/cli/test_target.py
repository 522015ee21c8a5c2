"""The agents that a command names: how they are found, and what is told where they are not."""

from __future__ import annotations

import importlib
from itertools import count
from pathlib import Path

import pytest

from agentgraph.cli.target import load
from agentgraph.errors import ConfigurationError

_names = count()


def module(folder: Path, source: str) -> str:
    """Write a module and return its name, which no other test has."""
    name = f"cli_example_{next(_names)}"
    (folder / f"{name}.py").write_text(f"from agentgraph import Agent\n{source}")
    importlib.invalidate_caches()
    return name


def faults(*targets: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(targets)
    return list(caught.value.faults)


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [
        ("one = Agent('one')", "{}:one", "one"),
        ("one = Agent('one')", "{}", "one"),
        ("one = same = Agent('one')", "{}", "one"),
        ("class desk:\n    front = Agent('front')", "{}:desk.front", "front"),
        ("def make(name='made'):\n    return Agent(name)", "{}:make", "made"),
        ("one = Agent('one')", "{}.py:one", "one"),
        ("one = Agent('one')", "{}.py", "one"),
    ],
)
def test_agent_is_found(folder: Path, source: str, target: str, name: str) -> None:
    [agent] = load([target.format(module(folder, source))])

    assert agent.name == name


@pytest.mark.parametrize(
    ("source", "target", "fault"),
    [
        ("a = Agent('a')\nb = Agent('b')", "{}", "say which agent; its agents are: a, b"),
        ("", "{}", "say which agent; it has no agents"),
        ("", "{}:a", "there is no 'a' in it; it has no agents"),
        ("a = 5", "{}:a", "this is no Agent but an int"),
        ("def a():\n    return 5", "{}:a", "calling it returned no Agent but an int"),
        ("def a(n):\n    return 5", "{}:a", "without arguments: missing a required argument: 'n'"),
        ("async def a():\n    return 5", "{}:a", "this is an async function"),
        ("def a():\n    return 1 / 0", "{}:a", "calling it failed at "),
        ("def a():\n    return 1 / 0", "{}:a", ".py:3\nZeroDivisionError: division by zero"),
        ("import not_there", "{}:a", "ModuleNotFoundError: No module named 'not_there'"),
        ("import not_there", "{}:a", ".py:2\nModuleNotFoundError"),
        ("raise SystemExit(3)", "{}:a", "SystemExit: 3"),
        ("a = (", "{}:a", "SyntaxError"),
        ("a = Agent('a', tools=5)", "{}:a", "tools=5"),
        ("", "{}.nothing:a", "there is no module cli_example_"),
        ("", "nowhere.py:a", "there is no such file"),
        ("", "./nowhere:a", "write package.module, or FILE.py for a file"),
        ("", ":", "give MODULE:AGENT or FILE.py:AGENT"),
    ],
)
def test_what_is_no_agent_is_told(folder: Path, source: str, target: str, fault: str) -> None:
    [told] = faults(target.format(module(folder, source)))

    assert fault in told


def test_file_is_found_in_its_package(folder: Path) -> None:
    package = folder / "shop" / "cli_desks"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "name.py").write_text("NAME = 'front'")
    (package / "front.py").write_text(
        "from agentgraph import Agent\nfrom .name import NAME\nfront = Agent(NAME)"
    )

    [agent] = load(["shop/cli_desks/front.py:front"])

    assert agent.name == "front"


def test_file_that_another_module_hides_is_told(folder: Path) -> None:
    (folder / "json.py").write_text("")

    [told] = faults("json.py:a")

    assert "another module has the name json" in told
