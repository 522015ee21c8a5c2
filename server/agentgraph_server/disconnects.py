"""Early ends of a request: a client that disconnects, or a server that stops.

A client that disconnects cancels its run: no client would read the answer, and models cost money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from agentgraph import AgentGraphError

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client has disconnected: the answer has no reader."""


class ServerStopping(AgentGraphError):
    """The server is shutting down: the turn was cut off, what it did is kept."""

    code = "shutdown"


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is cancelled when the client disconnects.

    Raises `ClientDisconnected` in that case, and `ServerStopping` if the server cancels the request
    at the end of its grace period.
    """
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    except asyncio.CancelledError as error:  # uvicorn cancels when its grace period is over
        if task.done():
            raise
        raise ServerStopping from error
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.wait({task, disconnect})


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
