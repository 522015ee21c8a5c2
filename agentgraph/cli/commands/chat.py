"""`agentgraph chat`: a conversation in the terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from agentgraph.cli.faults import faults_told
from agentgraph.clock import new_id

if TYPE_CHECKING:
    import asyncio

    from agentgraph.cli.stores import Kept
    from agentgraph.cli.terminal.conversation import Conversation


_INTERRUPTED = 130


def chat(
    target: Annotated[str, typer.Argument(metavar="MODULE:AGENT", show_default=False)],
    thread: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with this conversation.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep it in memory, sqlite:///file.db or postgresql://…; "
            "else where the agent does, in POSTGRES_URL, or in agentgraph.db here.",
        ),
    ] = None,
) -> None:
    """Talk to an agent in the terminal, or with what is piped in, line by line."""
    from agentgraph.cli.stores import keep
    from agentgraph.cli.target import load

    with faults_told():
        [agent] = load([target])
        kept = keep(agent, store)
        thread_id = thread or new_id()
        again = _command(target, thread_id, kept.place if store else None) if kept.lasts else None
        raise typer.Exit(_talk(kept, thread_id, again))


def _talk(kept: Kept, thread_id: str, again: str | None) -> int:
    import asyncio

    from rich.console import Console

    from agentgraph.cli.terminal.conversation import Conversation
    from agentgraph.cli.terminal.keyboard import at_terminal, line_reader
    from agentgraph.cli.terminal.screen import Screen

    console, interactive = Console(), at_terminal()
    screen, read = Screen(console), line_reader(console)
    screen.greet(kept.agent.name, kept.place, thread_id=thread_id, keys=interactive)
    conversation = Conversation(
        kept.agent, thread_id, screen=screen, read=read, interactive=interactive
    )
    try:
        with asyncio.Runner() as runner:
            left = _left(conversation, runner)
            # Before the runner waits for what may still run.
            screen.farewell(again)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return left or int(conversation.failed and not interactive)


def _left(conversation: Conversation, runner: asyncio.Runner) -> int:
    try:
        conversation.hold(runner)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _command(target: str, thread_id: str, place: str | None) -> str:
    words = ["agentgraph", "chat", target, "--thread", thread_id]
    return shlex.join([*words, "--store", place] if place else words)
