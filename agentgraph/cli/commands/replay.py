"""`agentgraph replay`: whether a session's log still comes to the state that is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from agentgraph.cli.faults import faults_told

if TYPE_CHECKING:
    from agentgraph.sessions.log import StoredSession
    from agentgraph.sessions.state.state import SessionState


def replay(
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    session: Annotated[str, typer.Argument(metavar="SESSION", show_default=False)],
) -> None:
    """Fold a session's log again, and compare with the stored state.

    Status 0 where it is the same, 1 where it differs.
    """
    import asyncio

    from agentgraph.cli.terminal.text import clean

    with faults_told():
        stored, folded = asyncio.run(_folded(url, session))
        many = f"the {stored.head} envelopes of {session!r}"
        if stored.state is None:
            typer.echo(clean(f"{many} can be folded, but no state is stored that can be read"))
            raise typer.Exit(1)
        different = list(_differences(stored.state, folded))
        if different:
            typer.echo(clean(f"{many} do not come to the state that is stored:"))
            for line in different:
                typer.echo(clean(f"  {line}"))
            raise typer.Exit(1)
        typer.echo(clean(f"{many} come to the state that is stored: {folded.status}"))


async def _folded(url: str, session_id: str) -> tuple[StoredSession, SessionState]:
    from agentgraph.cli.stores import envelopes_of, reading
    from agentgraph.errors import SessionError
    from agentgraph.sessions.state.fold import fold
    from agentgraph.sessions.state.state import SessionState

    async with reading(url) as log:
        stored = await log.load(session_id)
        if stored is None:
            raise SessionError(f"there is no session {session_id!r}", code="unknown_session")
        state = SessionState.initial(stored.record)
        # No further: the session may be going on.
        async for envelope in envelopes_of(log, session_id, upto=stored.head):
            state = fold(state, envelope)
    return stored, state


def _differences(stored: SessionState, folded: SessionState) -> Iterator[str]:
    from agentgraph.cli.terminal.text import clip
    from agentgraph.sessions.state.payload import decoded, encoded

    after = folded.to_dict()
    for name, value in stored.to_dict().items():
        was, is_now = encoded(value), encoded(after[name])
        if decoded(was) != decoded(is_now):
            yield f"{name}: stored {clip(was)}, folded {clip(is_now)}"
