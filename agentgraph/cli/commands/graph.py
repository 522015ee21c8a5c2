"""`agentgraph graph`: prints the graph of an agent with its sub-agents, of a flow or of a team."""

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
    """Print the graph of an agent, a flow or a team as Mermaid text."""
    from agentgraph.cli.target import TARGETS, load_all

    with errors_reported():
        [agent] = load_all([target], TARGETS)
        if svg is None:
            typer.echo(agent.mermaid())
            return
        try:
            svg.write_text(agent.svg(), "utf-8")
        except OSError as error:
            fail(f"cannot write {svg}: {error.strerror}")
