"""What a command says when it cannot do what was asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from agentgraph.cli.terminal.text import clean
from agentgraph.errors import AgentGraphError, ConfigurationError


@contextmanager
def faults_told() -> Iterator[None]:
    """Tell on stderr what is wrong with the agents or their settings, and end with status 2."""
    try:
        yield
    except ConfigurationError as error:
        fail(*error.faults)
    except AgentGraphError as error:
        fail(str(error))


def fail(*faults: str) -> None:
    """End with status 2, for these reasons."""
    for fault in faults:
        first, *more = clean(fault).split("\n")
        typer.echo("\n".join([f"agentgraph: {first}", *(f"  {line}" for line in more)]), err=True)
    raise typer.Exit(2)
