"""`agentgraph replay`: folds a session's log again, and compares with the stored state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from agentgraph.cli.exits import errors_reported

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

    with errors_reported():
        snapshot, state = asyncio.run(_fold_again(url, session))
        many = f"the {snapshot.head} envelopes of {session!r}"
        if snapshot.state is None:
            typer.echo(clean(f"{many} can be folded, but no state is stored that can be read"))
            raise typer.Exit(1)
        differences = list(_differences(snapshot.state, state))
        if differences:
            typer.echo(clean(f"{many} do not come to the state that is stored:"))
            for line in differences:
                typer.echo(clean(f"  {line}"))
            raise typer.Exit(1)
        typer.echo(clean(f"{many} come to the state that is stored: {state.status}"))


async def _fold_again(url: str, session_id: str) -> tuple[StoredSession, SessionState]:
    """Return the stored session, and the state that its log folds to."""
    from agentgraph.cli.stores import envelopes_of, log_reader, stored_session
    from agentgraph.sessions.state.fold import fold
    from agentgraph.sessions.state.state import SessionState

    async with log_reader(url) as log:
        snapshot = await stored_session(log, session_id)
        state = SessionState.initial(snapshot.record)
        # Only up to the stored head: the session may go on while this reads.
        async for envelope in envelopes_of(log, session_id, upto=snapshot.head):
            state = fold(state, envelope)
    return snapshot, state


def _differences(stored_state: SessionState, folded_state: SessionState) -> Iterator[str]:
    """Yield a line for each field whose JSON differs."""
    from agentgraph.cli.terminal.text import clip
    from agentgraph.sessions.envelopes.payload import decode_json, encode_json

    after = folded_state.to_dict()
    for name, value in stored_state.to_dict().items():
        was, is_now = encode_json(value), encode_json(after[name])
        if decode_json(was) != decode_json(is_now):
            yield f"{name}: stored {clip(was)}, folded {clip(is_now)}"
