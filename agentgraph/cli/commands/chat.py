"""`agentgraph chat`: a conversation in the terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from agentgraph.cli.exits import INTERRUPTED, errors_reported
from agentgraph.clock import new_id

if TYPE_CHECKING:
    import asyncio

    from agentgraph.agents import Agent
    from agentgraph.cli.stores import StoredAgent
    from agentgraph.cli.terminal.conversation import Conversation


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
    from agentgraph.cli.stores import with_store
    from agentgraph.cli.target import load

    with errors_reported():
        [agent] = load([target])
        stored_agent = with_store(agent, store)
        thread_id = thread or new_id()
        command = None
        if stored_agent.lasts:
            command = _resume_command(target, thread_id, stored_agent.store_name if store else None)
        raise typer.Exit(_talk(stored_agent, thread_id, command))


def _talk(stored_agent: StoredAgent[Agent], thread_id: str, command: str | None) -> int:
    """Run the conversation, and return the command's exit status."""
    import asyncio

    from rich.console import Console

    from agentgraph.cli.terminal.conversation import Conversation
    from agentgraph.cli.terminal.keyboard import at_terminal, line_reader
    from agentgraph.cli.terminal.screen import Screen

    console, interactive = Console(), at_terminal()
    screen, read = Screen(console), line_reader(console)
    screen.greet(
        stored_agent.agent.name,
        stored_agent.store_name,
        thread_id=thread_id,
        interactive=interactive,
    )
    conversation = Conversation(
        stored_agent.agent, thread_id, screen=screen, read=read, interactive=interactive
    )
    try:
        with asyncio.Runner() as runner:
            status = _run(conversation, runner)
            # Before the runner closes: closing waits for code that still runs, such as a tool.
            screen.farewell(command)
    except KeyboardInterrupt:
        return INTERRUPTED
    return status or int(conversation.has_failed and not interactive)


def _run(conversation: Conversation, runner: asyncio.Runner) -> int:
    """Run the conversation; return 130 if Ctrl-C ends it, so that the farewell is still shown."""
    try:
        conversation.run(runner)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _resume_command(target: str, thread_id: str, store: str | None) -> str:
    """Return the command that resumes the conversation, quoted for a shell."""
    words = ["agentgraph", "chat", target, "--thread", thread_id]
    return shlex.join([*words, "--store", store] if store else words)
