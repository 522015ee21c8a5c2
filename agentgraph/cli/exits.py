"""How a command ends: its exit status, and the errors that it writes to stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from agentgraph.cli.terminal.text import clean
from agentgraph.errors import AgentGraphError, ConfigurationError

FAILED = 1
"""The status of a run that has failed, or that was aborted."""
USAGE_ERROR = 2
"""The status of a command that was called wrongly or cannot do its work."""
OPEN_QUESTION = 3
"""The status of a run that waits for a human's decision."""
INTERRUPTED = 130
"""The status after Ctrl-C, as in shells: 128 plus the number of SIGINT."""


@contextmanager
def errors_reported() -> Iterator[None]:
    """Report errors of agentgraph on stderr, fault by fault, and exit with status 2.

    Other errors are bugs, and pass through with their traceback.
    """
    try:
        yield
    except ConfigurationError as error:
        fail(*error.faults)
    except AgentGraphError as error:
        fail(str(error))


def fail(*faults: str) -> NoReturn:
    """Write each fault to stderr, and end with status 2."""
    for fault in faults:
        first, *more = clean(fault).split("\n")
        typer.echo("\n".join([f"agentgraph: {first}", *(f"  {line}" for line in more)]), err=True)
    raise typer.Exit(USAGE_ERROR)
