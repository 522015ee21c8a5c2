"""`agentgraph log`: prints the envelopes of a session, or the sessions of a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from agentgraph.cli.exits import INTERRUPTED, errors_reported, fail

if TYPE_CHECKING:
    from agentgraph.sessions.envelopes.envelope import Envelope
    from agentgraph.sessions.log import Log, SessionSummary


def log(
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", show_default=False)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an envelope in each line.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the session ends, or Ctrl-C.")
    ] = False,
) -> None:
    """Print a session of a store, or the list of its sessions.

    The store is sqlite:///file.db or postgresql://…; the agents' code is not needed.
    """
    import asyncio

    with errors_reported():
        if session is None and follow:
            fail("--follow: name the session to be followed")
        try:
            asyncio.run(
                _list(url, as_json)
                if session is None
                else _print(url, session, as_json=as_json, follow=follow)
            )
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


async def _list(url: str, as_json: bool) -> None:
    """Print the sessions of a store."""
    from agentgraph.cli.stores import log_reader

    async with log_reader(url) as log:
        summaries = await log.sessions()
    if as_json:
        for summary in summaries:
            typer.echo(_json_of(summary))
    elif summaries:
        from rich.console import Console

        from agentgraph.cli.terminal.transcript import Transcript

        Transcript(Console()).list(summaries)
    else:
        typer.echo("There are no sessions.")


async def _print(url: str, session_id: str, *, as_json: bool, follow: bool) -> None:
    """Print the envelopes of a session."""
    from rich.console import Console

    from agentgraph.cli.stores import log_reader
    from agentgraph.cli.terminal.transcript import Transcript

    transcript = Transcript(Console())

    def show(envelope: Envelope) -> None:
        if as_json:
            typer.echo(json.dumps(envelope.to_dict()))
        else:
            transcript.show(envelope)

    async with log_reader(url) as log:
        await _show_envelopes(log, session_id, show, follow=follow)


async def _show_envelopes(
    log: Log, session_id: str, show: Callable[[Envelope], None], *, follow: bool
) -> None:
    """Show all envelopes of a session; with `follow` also new ones, until the session closes."""
    import asyncio

    from agentgraph.cli.stores import envelopes_of
    from agentgraph.sessions.envelopes.envelope import EV_SESSION_CLOSED

    news = asyncio.Event()
    unsubscribe = log.subscribe(lambda _: news.set())
    after = 0
    try:
        while True:
            news.clear()  # before the read: an append during the read sets it again
            async for envelope in envelopes_of(log, session_id, after):
                after = envelope.sequence
                show(envelope)
                if envelope.event_type == EV_SESSION_CLOSED:
                    return
            if not follow:
                return
            await news.wait()
    finally:
        unsubscribe()


def _json_of(summary: SessionSummary) -> str:
    from dataclasses import asdict

    return json.dumps(asdict(summary))
