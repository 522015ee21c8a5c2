"""How a command ends: its exit statuses, and what it writes to stderr before it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from agentgraph.cli.terminal.text import clean
from agentgraph.errors import AgentGraphError, ConfigurationError

USAGE_ERROR = 2
"""The status of a command that cannot do what it was asked for."""
INTERRUPTED = 130
"""The status after Ctrl-C, as shells have it: 128 and the number of SIGINT."""


@contextmanager
def errors_reported() -> Iterator[None]:
    """Report an error of agentgraph's on stderr, fault by fault, and end with status 2.

    Errors of other kinds are bugs, and pass with their traceback.
    """
    try:
        yield
    except ConfigurationError as error:
        fail(*error.faults)
    except AgentGraphError as error:
        fail(str(error))


def fail(*faults: str) -> None:
    """Write each fault to stderr, and end with status 2."""
    for fault in faults:
        first, *more = clean(fault).split("\n")
        typer.echo("\n".join([f"agentgraph: {first}", *(f"  {line}" for line in more)]), err=True)
    raise typer.Exit(USAGE_ERROR)
