"""HTTP clients of models on several event loops: one client, with a connection pool for each loop.

A connection belongs to the event loop that has opened it. LangChain shares the asynchronous client
of a provider between all models of a process, so that a second loop would get connections of the
first. Here each loop gets a pool of its own, with the settings of the client's pool.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from functools import cached_property
from inspect import getattr_static
from typing import Any

from langchain_core.language_models import BaseChatModel

_DEPTH = 4
"""How deep a client may be in a model: the model, its SDK's resource, the SDK's client, httpx's."""


def usable_on_every_loop(model: BaseChatModel) -> BaseChatModel:
    """Return the model, whose HTTP clients have a connection pool for each event loop from now on.

    These are the clients of httpx and of its fork httpx2, which nearly all providers use: OpenAI,
    Anthropic, Google, Groq, Mistral, Ollama. Others are left as they are: the sessions of aiohttp
    in Google's client are one for each loop already, and those of boto3 are bound to no loop.
    """
    for client in _http_clients(model, _DEPTH, set()):
        client._transport = _per_loop(client._transport)
        for pattern, transport in client._mounts.items():
            client._mounts[pattern] = transport and _per_loop(transport)
    return model


class TransportPerLoop:
    """A transport of httpx that has a copy of another one, with its own pool, for each loop."""

    def __init__(self, transport: Any) -> None:
        self._original = transport
        self._by_loop: dict[asyncio.AbstractEventLoop, Any] = {}
        self._closers: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request by a connection of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = _copy(self._original)
            self._closers[loop] = closer = self._close_with(loop)
            await anext(closer)
        return await self._by_loop[loop].handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        closer = self._closers.get(asyncio.get_running_loop())
        if closer is not None:
            await closer.aclose()

    async def __aenter__(self) -> TransportPerLoop:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    async def _close_with(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Close the loop's connections at its end: it closes the generators that it has begun."""
        try:
            yield
        finally:
            del self._closers[loop]
            await self._by_loop.pop(loop).aclose()


def _per_loop(transport: Any) -> Any:
    """Return a transport for every loop; one whose pool cannot be copied stays as it is."""
    pool = getattr(transport, "_pool", None)
    if isinstance(transport, TransportPerLoop) or not isinstance(
        getattr(pool, "_connections", None), list
    ):
        return transport
    return TransportPerLoop(transport)


def _copy(transport: Any) -> Any:
    """Return a transport with the same settings, and a pool without connections."""
    twin, pool = copy.copy(transport), copy.copy(transport._pool)
    pool._connections, pool._requests = [], []
    pool._optional_thread_lock = type(pool._optional_thread_lock)()
    twin._pool = pool
    return twin


def _http_clients(value: object, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield the asynchronous HTTP clients that an object has, by whatever name."""
    if id(value) in seen or not hasattr(value, "__dict__") or isinstance(value, type):
        return
    seen.add(id(value))
    transport = getattr_static(value, "_transport", None)
    if hasattr(transport, "handle_async_request") and isinstance(
        getattr_static(value, "_mounts", None), dict
    ):
        yield value
    elif depth:
        for part in _parts(value):
            yield from _http_clients(part, depth - 1, seen)


def _parts(value: object) -> list[object]:
    """Return what an object has, the clients included that it makes only when they are used."""
    parts = [*vars(value).values(), *(getattr(value, "__pydantic_private__", None) or {}).values()]
    for name in dir(type(value)):
        if "client" in name and isinstance(getattr_static(value, name), cached_property):
            with suppress(Exception):  # of the provider, which raises it again where it is used
                parts.append(getattr(value, name))
    return parts
