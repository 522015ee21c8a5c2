"""The command line: `agentgraph serve`, `chat`, `run`, `graph`, `log`, `replay`, `audit`, `keys`.

`commands` has a module for each command. Commands import what they need inside functions, so that
they start quickly, and work without the server's packages. `terminal` reads and writes on the
terminal, `target` finds agents by name, `stores` opens stores.
"""

from __future__ import annotations

from typing import Annotated

import typer

from agentgraph import __version__
from agentgraph.cli.commands import audit, chat, graph, keys, log, replay, run, serve

__all__ = ["app", "main"]

app = typer.Typer(
    name="agentgraph",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks of typer show local variables, which may hold keys
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("run")(run.run)
app.command("graph")(graph.graph)
app.command("log")(log.log)
app.command("replay")(replay.replay)
app.command("audit")(audit.audit)
app.add_typer(keys.keys, name="keys")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"agentgraph {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Serve agents, talk to one, run one, or draw it; read what was said in a session.

    An agent is named as MODULE:AGENT or FILE.py:AGENT. MODULE alone will do where it has only one.
    """


def main() -> None:
    """Run the command line."""
    app()
