"""Every program of the README runs."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from agentgraph.guards import DecisionTable

README = Path(__file__).parent.parent / "README.md"


def blocks() -> list[CodeType]:
    found = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    return [
        compile(block, f"README block {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for number, block in enumerate(found)
    ]


async def test_every_program_runs_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = blocks()
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}

    for program in programs:
        result = FunctionType(program, names)()
        if inspect.isawaitable(result):
            await result

    assert len(programs) >= 5
    assert {"support", "reply", "event", "judge", "result", "session"} <= names.keys()


def test_decision_table_is_the_one_that_decides() -> None:
    assert DecisionTable().markdown() in README.read_text("utf-8")
