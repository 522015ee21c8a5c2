"""The command itself: its name, its version, and what it imports."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import agentgraph
from tests.cli.conversations import run

ROOT = Path(__file__).parents[2]


def test_version_is_told() -> None:
    result = run("--version")

    assert (result.exit_code, result.stdout) == (0, f"agentgraph {agentgraph.__version__}\n")


def test_help_names_the_commands() -> None:
    told = run("--help").stdout

    assert all(command in told for command in ("serve", "chat", "graph", "log", "replay"))


def test_command_is_installed_under_the_name_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert project["scripts"] == {"agentgraph": "agentgraph.cli:main"}


def test_module_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentgraph", "--version"], capture_output=True, text=True
    )

    assert done.stdout == f"agentgraph {agentgraph.__version__}\n"


def test_server_is_imported_only_by_those_who_serve() -> None:
    program = """
import sys
import agentgraph.cli
print(sorted({"agentgraph_server", "fastapi", "uvicorn"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "[]\n"
