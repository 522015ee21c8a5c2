"""`agentgraph graph`: prints the graph of an agent and of all its sub-agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgraph.cli.exits import errors_reported, fail


def graph(
    target: Annotated[str, typer.Argument(metavar="MODULE:AGENT", show_default=False)],
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an SVG picture to this file instead.")
    ] = None,
) -> None:
    """Print an agent's graph as Mermaid text."""
    from agentgraph.cli.target import load

    with errors_reported():
        [agent] = load([target])
        if svg is None:
            typer.echo(agent.mermaid())
            return
        try:
            svg.write_text(agent.svg(), "utf-8")
        except OSError as error:
            fail(f"cannot write {svg}: {error.strerror}")
