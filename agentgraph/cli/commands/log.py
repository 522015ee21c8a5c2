"""`agentgraph log`: a session as it was, and as it goes on; or the list of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from agentgraph.cli.faults import fail, faults_told

if TYPE_CHECKING:
    from agentgraph.sessions.log import Log, SessionSummary
    from agentgraph.sessions.state.envelope import Envelope


_INTERRUPTED = 130


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

    with faults_told():
        if session is None and follow:
            fail("--follow: name the session to be followed")
        try:
            asyncio.run(
                _list(url, as_json)
                if session is None
                else _print(url, session, as_json=as_json, follow=follow)
            )
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None


async def _list(url: str, as_json: bool) -> None:
    from agentgraph.cli.stores import reading

    async with reading(url) as log:
        found = await log.sessions()
    if as_json:
        for summary in found:
            typer.echo(_json_of(summary))
    elif found:
        from rich.console import Console

        from agentgraph.cli.terminal.transcript import Transcript

        Transcript(Console()).list(found)
    else:
        typer.echo("There are no sessions.")


async def _print(url: str, session_id: str, *, as_json: bool, follow: bool) -> None:
    from rich.console import Console

    from agentgraph.cli.stores import reading
    from agentgraph.cli.terminal.transcript import Transcript

    transcript = Transcript(Console())

    def show(envelope: Envelope) -> None:
        if as_json:
            typer.echo(json.dumps(envelope.to_dict()))
        else:
            transcript.show(envelope)

    async with reading(url) as log:
        await _told(log, session_id, show, follow=follow)


async def _told(
    log: Log, session_id: str, show: Callable[[Envelope], None], *, follow: bool
) -> None:
    import asyncio

    from agentgraph.cli.stores import envelopes_of
    from agentgraph.sessions.state.envelope import EV_SESSION_CLOSED

    changed = asyncio.Event()
    end = log.subscribe(lambda told: changed.set())
    after = 0
    try:
        while True:
            changed.clear()
            async for envelope in envelopes_of(log, session_id, after):
                after = envelope.sequence
                show(envelope)
                if envelope.event_type == EV_SESSION_CLOSED:
                    return
            if not follow:
                return
            await changed.wait()
    finally:
        end()


def _json_of(summary: SessionSummary) -> str:
    from dataclasses import asdict

    return json.dumps(asdict(summary))
