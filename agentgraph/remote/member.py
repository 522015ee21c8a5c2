"""A `RemoteGraph` as a participant: a thread of its own on its server, messages, typed errors."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import weakref
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Self
from uuid import NAMESPACE_URL, uuid5
from weakref import WeakKeyDictionary

import httpx
from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.errors import GraphBubbleUp
from typing_extensions import TypeIs

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError, ModelError, kind_of
from agentgraph.remote.thread import RemoteThread, with_ids
from agentgraph.remote.visit import Visit
from agentgraph.running import current_delegation
from agentgraph.telling import AGENT_TAG

if TYPE_CHECKING:
    from langgraph.pregel.remote import RemoteGraph
    from langgraph_sdk.client import LangGraphClient

_CLIENT_FIELDS = ("auth", "base_url", "cookies", "event_hooks", "headers", "params", "timeout")
_LOCAL_THREAD = "agentgraph_thread"
"""The key in a remote thread's metadata of the local thread, by which it is found again."""
_FORGET_S = 30.0
_MOST_THREADS = 1_000
"""How many threads of delegates are deleted with a local thread."""
_RETRIES = 2
"""How often a connection is tried again; a run is not."""
_loops: WeakKeyDictionary[httpx.AsyncClient, weakref.ref[asyncio.AbstractEventLoop]] = (
    WeakKeyDictionary()
)


def is_remote(graph: object) -> TypeIs[RemoteGraph]:
    """Tell whether a graph is a `RemoteGraph`, without importing that class."""
    module = sys.modules.get("langgraph.pregel.remote")
    return module is not None and isinstance(graph, module.RemoteGraph)


@dataclass(frozen=True, slots=True)
class RemoteMember:
    """A remote graph that takes part in a conversation.

    With `remembers`, all visits on a local thread are on one thread of the server, which is sent
    only what is new since the last visit; a delegate's visit has a thread for itself, as every
    visit has without `remembers`. The ids of the threads follow from the local thread, so nothing
    is stored here.

    It is no Pregel: LangGraph would take it for a nested graph, and ask its server for the states
    of local threads.
    """

    graph: RemoteGraph
    remembers: bool = False
    config: RunnableConfig = field(default_factory=lambda: RunnableConfig())

    @property
    def name(self) -> str:
        """Return the name of the remote graph."""
        return self.graph.name or ""

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> Self:
        """Return a copy with more configuration, as any graph does."""
        own: Any = kwargs
        return replace(self, config=merge_configs(self.config, config, own))

    async def ainvoke(
        self, input: Mapping[str, Any], config: RunnableConfig | None = None
    ) -> dict[str, Any]:
        """Answer a conversation: return the new messages; interrupt where the server asks.

        Raises `ModelError` where the server cannot be reached, refuses the run, or the run fails.
        """
        run_config = merge_configs(ensure_config(config), self.config)
        messages = with_ids(input["messages"])
        try:
            async with _client_on_loop(self.graph) as client:
                thread = await self._thread(client, messages, run_config)
                graph = self.graph.copy({"client": client})
                visit = Visit(graph, client, thread, messages, run_config)
                return {"messages": await visit.answer()}
        except (GraphBubbleUp, ConfigurationError):
            raise
        except Exception as error:
            raise _failure(self.name, error) from error

    async def forget(self, thread_id: str, path: str, known_ids: Collection[str | None]) -> None:
        """Delete what the server has of a local thread: the threads with a message of it.

        `path` is this member's in its tree, `known_ids` are the ids of the thread's messages: the
        same local id may be another conversation's too, for instance in another program. Raises
        `ModelError` where the server cannot be reached in time, or refuses.
        """
        try:
            with clock().timeout(_FORGET_S):
                async with _client_on_loop(self.graph) as client:
                    async for thread in _threads_of(client, thread_id, path):
                        if any(message.id in known_ids for message in thread.messages):
                            await client.threads.delete(str(thread.id))
        except ConfigurationError:
            raise
        except Exception as error:
            raise _failure(self.name, error) from error

    async def _thread(
        self, client: LangGraphClient, messages: Sequence[AnyMessage], config: RunnableConfig
    ) -> RemoteThread:
        """Return the thread of a visit; where the server has none, make it."""
        place = self._place(config)
        if place is None:
            return RemoteThread(None)
        ids = {message.id for message in messages}
        for attempt in count(1):
            thread_id = _id_of(*place, attempt)
            thread = await _read(client, thread_id)
            if thread is None:
                metadata = {_LOCAL_THREAD: _id_of(place[0])}
                await client.threads.create(
                    thread_id=thread_id, metadata=metadata, if_exists="do_nothing"
                )
                return RemoteThread(thread_id)
            # Another conversation's, where the local one has begun anew under the same id.
            if not thread.messages or any(message.id in ids for message in thread.messages):
                return thread
        raise AssertionError("the attempts have no end")

    def _place(self, config: RunnableConfig) -> tuple[str, str] | None:
        """Return the local thread and the place in it, None where there is no thread."""
        at = config.get("configurable", {})
        if not at.get("thread_id"):
            return None
        path = str(config.get("metadata", {}).get(AGENT_TAG))
        # A task has the same namespace when it is resumed, and no other task has it.
        is_kept = self.remembers and not current_delegation()
        return str(at["thread_id"]), path if is_kept else str(at.get("checkpoint_ns"))


def _id_of(*parts: str | int) -> str:
    return str(uuid5(NAMESPACE_URL, json.dumps(["agentgraph", *parts])))


async def _read(client: LangGraphClient, thread_id: str) -> RemoteThread | None:
    """Return a thread of the server, None where there is none."""
    try:
        state: Any = await client.threads.get_state(thread_id)
    except Exception as error:
        if getattr(error, "status_code", None) != 404:
            raise
        return None
    return RemoteThread.read(thread_id, state)


async def _threads_of(
    client: LangGraphClient, thread_id: str, path: str
) -> AsyncIterator[RemoteThread]:
    """Yield the threads that may be of a local one: those of visits, and those of delegates.

    The ids of visits follow from the place; threads of earlier versions have no metadata.
    """
    ids: list[str] = []
    while (thread := await _read(client, _id_of(thread_id, path, len(ids) + 1))) is not None:
        ids.append(str(thread.id))
        yield thread
    metadata = {_LOCAL_THREAD: _id_of(thread_id)}
    tagged_threads = await client.threads.search(
        metadata=metadata, limit=_MOST_THREADS, select=["thread_id"]
    )
    for tagged_id in [str(tagged["thread_id"]) for tagged in tagged_threads]:
        if tagged_id not in ids and (thread := await _read(client, tagged_id)) is not None:
            yield thread


@asynccontextmanager
async def _client_on_loop(graph: RemoteGraph) -> AsyncIterator[LangGraphClient]:
    """Provide a client of the graph's server for the running event loop.

    A client that a user gave belongs to the loop that used it first. On any other loop, and for a
    graph that was given a URL, there is a copy for each visit, because connections belong to loops.
    """
    if graph.client is None:
        raise ConfigurationError(
            f"the remote graph {graph.name!r} has no client for asynchronous calls: give it `url=` "
            "or `client=`"
        )
    own, loop = graph.client.http.client, asyncio.get_running_loop()
    is_given = graph.sync_client is None  # a URL makes two clients
    if is_given and _loops.setdefault(own, weakref.ref(loop))() is loop:
        yield graph.client
        return
    fields: Any = {name: getattr(own, name) for name in _CLIENT_FIELDS}
    transport = httpx.AsyncHTTPTransport(verify=_certificates(), retries=_RETRIES)
    async with httpx.AsyncClient(**fields, transport=transport) as http:
        yield type(graph.client)(http)


@cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reading them takes longer than a local visit


def _failure(name: str, error: Exception) -> ModelError:
    """Return the typed error of a visit, without the server's texts, which may hold secrets."""
    if getattr(error, "status_code", None):
        advice = "see that it serves a graph of that name, and takes your key"
        return ModelError(f"the server of {name!r} refused the run ({kind_of(error)}): {advice}")
    if type(error).__module__.startswith(("httpx", "httpcore")):
        advice = "see that it runs, and try again"
        return ModelError(f"the server of {name!r} cannot be reached ({kind_of(error)}): {advice}")
    detail = error.args[0] if error.args else None
    kind = detail.get("error") if isinstance(detail, Mapping) else None
    return ModelError(f"the remote graph {name!r} failed: {kind or kind_of(error)}")
