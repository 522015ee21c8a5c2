"""The working directory of a command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

AGENTS = '''
import asyncio
import sys
from functools import partial

from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call


async def hang() -> str:
    """Wait for ever."""
    try:
        print("hanging", flush=True)
        await asyncio.Event().wait()
    finally:
        print("ended", flush=True)


async def cling() -> str:
    """Ignore that it is cancelled, once."""
    try:
        print("clinging", flush=True)
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        # Once it waits again: a Ctrl-C in the tool itself would end the tool.
        say = partial(print, "still clinging", flush=True)
        asyncio.get_running_loop().call_soon(say)
        await asyncio.Event().wait()


def pay(amount: int) -> str:
    """Pay an amount, if a human agrees."""
    return f"decided {interrupt({'pay': amount})!r}"


def wild() -> str:
    """Say what a terminal would obey."""
    return "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m tame"


def answer(messages):
    last = messages[-1]
    said = sum(message.type == "human" for message in messages)
    if last.type == "tool":
        return f"it said {last.text}"
    if last.text == "pay twice":
        return [call("pay", amount=1), call("pay", amount=2)]
    if last.text in ("hang", "cling", "wild"):
        return call(last.text)
    if last.text == "pay":
        return call("pay", amount=7)
    if last.text == "fail":
        raise ValueError("the line is dead")
    return f"answer {said} to {last.text}"


clerk = Agent("clerk", model=ScriptedModel(answer), tools=[hang, cling, pay, wild])
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


@pytest.fixture
def url(folder: Path) -> str:
    """A store in the working directory."""
    return "sqlite:///desk.db"
