"""Following a session: its envelopes as they are appended, and what happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypeAlias

from agentgraph.sessions.state.envelope import EV_SESSION_CLOSED, Envelope
from agentgraph.stream import Event

if TYPE_CHECKING:
    from agentgraph.sessions.hub.hub import Hub
    from agentgraph.sessions.hub.session import Session


_BATCH = 200

Item: TypeAlias = Envelope | Event


async def watch(hub: Hub, session_id: str, after: int) -> AsyncGenerator[Envelope, None]:
    """Yield envelopes in order, until the session is closed."""

    async def has_more() -> bool:
        return bool(await hub.log.read(session_id, after, 1))

    stored = await hub.log.load(session_id)
    state = stored.state if stored is not None else None
    is_over = state is not None and state.is_ended
    # Whoever waits for what is far ahead must see the end all the same, should it come before.
    wanted, after = after, after if state is None else min(after, state.sequence)
    while True:
        found = await hub.log.read(session_id, after, _BATCH)
        for envelope in found:
            after = envelope.sequence
            if after > wanted:
                yield envelope
            if envelope.event_type == EV_SESSION_CLOSED:
                return
        if not found:
            if is_over:
                return
            await hub.audience.until(session_id, has_more)


async def stream(hub: Hub, session_id: str, after: int) -> AsyncGenerator[Item, None]:
    """Yield envelopes, and live events between them."""
    live = hub.audience.listen(session_id)
    merged: asyncio.Queue[Item | BaseException | None] = asyncio.Queue(1)

    async def envelopes() -> None:
        try:
            async for envelope in watch(hub, session_id, after):
                await merged.put(envelope)
        except Exception as error:
            await merged.put(error)
        else:
            await merged.put(None)

    tasks = [asyncio.ensure_future(envelopes()), asyncio.ensure_future(_poured(live, merged))]
    hub.conductor(session_id).wake()
    try:
        while (one := await merged.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        hub.audience.unlisten(session_id, live)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _poured(source: asyncio.Queue[Event | None], into: asyncio.Queue[Any]) -> None:
    while (event := await source.get()) is not None:
        await into.put(event)


async def stream_until_settled(
    session: Session, sender: str, text: str
) -> AsyncGenerator[Item, None]:
    """Say something and yield what happens until nothing moves any more by itself."""
    last = 0
    following = session.stream(after=session.state.sequence)
    coming = asyncio.ensure_future(anext(following, None))
    await session.send(sender, text)
    settling = asyncio.ensure_future(session.settled())
    try:
        while True:
            await asyncio.wait({coming, settling}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() and last >= session.state.sequence:
                return
            one = await coming
            if one is None:
                return
            last = one.sequence if isinstance(one, Envelope) else last
            yield one
            coming = asyncio.ensure_future(anext(following, None))
    finally:
        for task in (coming, settling):
            task.cancel()
        await asyncio.gather(coming, settling, return_exceptions=True)
        await following.aclose()
