"""A client that goes away ends what it has asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from agentgraph import AgentGraphError

__all__ = ["ClientGone", "ServerEnding", "unless_gone"]

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class ServerEnding(AgentGraphError):
    """The server is shutting down: the turn was cut off, what it did is kept."""

    code = "shutdown"


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for work, but end it when the client goes away."""
    running = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientGone
        return running.result()
    except asyncio.CancelledError as error:  # by the server, which has waited long enough
        if running.done():
            raise
        raise ServerEnding from error
    finally:
        running.cancel()
        watching.cancel()
        await asyncio.wait({running, watching})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
