"""`agentgraph graph`: prints the graph of an agent with all its sub-agents, or of a flow."""

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
    """Print the graph of an agent or a flow as Mermaid text."""
    from agentgraph.cli.target import SERVED, load_all

    with errors_reported():
        [agent] = load_all([target], SERVED)
        if svg is None:
            typer.echo(agent.mermaid())
            return
        try:
            svg.write_text(agent.svg(), "utf-8")
        except OSError as error:
            fail(f"cannot write {svg}: {error.strerror}")
