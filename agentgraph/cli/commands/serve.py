"""`agentgraph serve`: serves agents over HTTP, with `agentgraph_server`.

Only the function imports the server, so that other commands work without its packages.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from agentgraph.cli.exits import errors_reported


def serve(
    targets: Annotated[list[str], typer.Argument(metavar="MODULE:NAME", show_default=False)],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="memory, sqlite:///file.db or postgresql://…"),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="Who drives sessions: local.")
    ] = None,
) -> None:
    """Serve agents, teams, flows and graphs over HTTP.

    Beyond this machine only with keys (AGENTGRAPH_KEYS_FILE, AGENTGRAPH_API_KEYS) or tokens.
    """
    from agentgraph.cli.target import SERVED, load_all

    with errors_reported(), suppress(KeyboardInterrupt):
        values = load_all(targets, SERVED)
        import agentgraph_server

        agentgraph_server.serve(*values, host=host, port=port, store=store, engine=engine)
