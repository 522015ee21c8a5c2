"""Commands that are run, and conversations that are held."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AbstractContextManager
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from typer.testing import CliRunner, Result

from agentgraph import Agent
from agentgraph.cli import app
from agentgraph.cli.terminal.conversation import Conversation
from agentgraph.cli.terminal.screen import Screen
from agentgraph.testing import ScriptedModel
from tests.cli.pseudo_terminal import Terminal, terminal

DESK = "agentgraph_server.support_desk:support"


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=input)


def chat(folder: Path, *arguments: str, **options: Any) -> AbstractContextManager[Terminal]:
    command = ["-m", "agentgraph", "chat", "agents:clerk", *arguments]
    return terminal(command, cwd=folder, **options)


def piped(folder: Path, lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentgraph", "chat", "agents:clerk", *arguments],
        cwd=folder,
        input=lines,
        capture_output=True,
        text=True,
        timeout=50,
    )


def talk(agent: Agent, *lines: str | type[BaseException], interactive: bool = True) -> str:
    """Hold a conversation in this process and return what the screen shows."""
    said = iter(lines)
    console = Console(file=StringIO(), width=80)

    def read(prompt: str) -> str:
        line = next(said, EOFError)
        if not isinstance(line, str):
            raise line
        console.out(prompt + line)
        return line

    conversation = Conversation(
        agent, "t", screen=Screen(console), read=read, interactive=interactive
    )
    with asyncio.Runner() as runner:
        conversation.run(runner)
    return shown(console)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def solo(*turns: Any, **fields: Any) -> Agent:
    return Agent("solo", model=ScriptedModel(list(turns)), checkpointer="memory", **fields)


def lookup(order: str) -> str:
    """Look an order up."""
    return f"{order} is lost"
