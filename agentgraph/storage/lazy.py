"""A checkpoint saver that opens its store on first use, on the event loop that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph.blocking import on_loop_of_stores, run_sync
from agentgraph.running import outer_run, ownership_of
from agentgraph.storage.delegating import DelegatingSaver
from agentgraph.storage.store import Claim, Saver, Store

T = TypeVar("T")

_Connection = AbstractAsyncContextManager[Store]
_OpenStore = tuple[Store, _Connection]


class LazySaver(DelegatingSaver):
    """Open one store per event loop: a saver binds to its loop and would deadlock on another one.

    All synchronous calls share one store. `connect` returns the context in which a store is open;
    it is entered on first use. The sync methods run the async ones, whose names begin with `a`, by
    `run_sync`.
    """

    def __init__(self, connect: Callable[[], _Connection]) -> None:
        super().__init__()
        self._connect = connect
        self._versions = InMemorySaver()
        self._stores: dict[asyncio.AbstractEventLoop, asyncio.Future[_OpenStore]] = {}

    async def aopen(self) -> None:
        """Connect now, on the running loop, so that an unreachable store fails at the start."""
        await on_loop_of_stores(self._store())

    async def aclose(self) -> None:
        """Close what is open on the running loop; a later use opens it again."""
        await on_loop_of_stores(self._close_here())

    async def _close_here(self) -> None:
        future = self._stores.pop(asyncio.get_running_loop(), None)
        if future is not None:
            # Shielded: a half-closed store is in no list any more, so the rest would stay open.
            await asyncio.shield(asyncio.ensure_future(_close(future)))

    async def _store(self) -> Store:
        loop = asyncio.get_running_loop()
        future = self._stores.get(loop)
        if future is None or _has_failed(future):
            for past_loop in list(self._stores):
                if past_loop.is_closed():
                    self._stores.pop(past_loop, None)
            future = self._stores[loop] = asyncio.ensure_future(self._open())
        # Shielded: a caller that is cancelled must not cancel the opening for the others.
        store, _ = await asyncio.shield(future)
        return store

    async def _open(self) -> _OpenStore:
        connection = self._connect()
        return await connection.__aenter__(), connection

    async def _read(
        self, config: RunnableConfig | None, operation: Callable[[Saver], Awaitable[T]]
    ) -> T:
        thread_id = (config or {}).get("configurable", {}).get("thread_id")
        ownership = ownership_of(thread_id)  # read here: the store may be used on another loop
        return await self._ask(
            lambda store: operation(
                store.saver_of(ownership, store.saver_for(thread_id, self._allowlist))
            )
        )

    async def _ask(self, work: Callable[[Store], Awaitable[T]]) -> T:
        return await on_loop_of_stores(self._ask_here(work))

    async def _ask_here(self, work: Callable[[Store], Awaitable[T]]) -> T:
        store = await self._store()
        try:
            with store.operation():
                return await store.run(work(store))
        except Exception as error:
            failure = store.failure(error)
            if failure is None:
                raise
        # Raised outside of the handler: as its context, the driver's error could show the URL.
        raise failure

    async def atake(self, thread_id: str) -> Claim | None:
        """Claim a thread against all other processes; return None where one of them has it.

        Within this process, other code with this saver on the same loop can claim it once more.
        """

        async def take(store: Store) -> Claim | None:
            return Claim(store, thread_id) if await store.take(thread_id) else None

        task = asyncio.ensure_future(self._ask(take))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The claim may have succeeded all the same, and would never be released.
            await asyncio.shield(asyncio.ensure_future(_give_back(task)))
            raise

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version in the format of all three stores, without a connection."""
        return self._versions.get_next_version(current, channel)

    async def _write(self, config: RunnableConfig, operation: Callable[[Saver], Awaitable[T]]) -> T:
        await _refuse_late_writes()
        return await self._read(config, operation)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        stored_config = await super().aput(config, checkpoint, metadata, new_versions)
        if (run := outer_run()) is not None:
            run.note_stored(stored_config)
        return stored_config

    async def adelete_thread(self, thread_id: str) -> None:
        config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        await self._read(config, lambda saver: saver.adelete_thread(thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._read(None, lambda saver: saver.acopy_thread(source_thread_id, target_thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._read(None, lambda saver: saver.adelete_for_runs(run_ids))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._read(None, lambda saver: saver.aprune(thread_ids, strategy=strategy))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return run_sync(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def collect() -> Sequence[CheckpointTuple]:
            return [c async for c in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from run_sync(collect())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return run_sync(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        run_sync(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        run_sync(self.adelete_thread(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        run_sync(self.acopy_thread(source_thread_id, target_thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        run_sync(self.adelete_for_runs(run_ids))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        run_sync(self.aprune(thread_ids, strategy=strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return run_sync(self.aget_delta_channel_history(config=config, channels=channels))


async def _refuse_late_writes() -> None:
    """Raise where LangGraph still writes for a run that was cut off, or has lost its thread.

    Another process may run the thread by then, and such writes would mix with its own.
    """
    run = outer_run()
    if run is None:
        return
    if run.has_ended:
        raise asyncio.CancelledError
    if run.fence is not None:
        await run.fence()


def _has_failed(future: asyncio.Future[_OpenStore]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


async def _give_back(task: asyncio.Future[Claim | None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        claim = task.result()
        if claim is not None:
            await claim.release()


async def _close(future: asyncio.Future[_OpenStore]) -> None:
    await asyncio.wait([future])
    if not _has_failed(future):
        _, connection = future.result()
        await connection.__aexit__(None, None, None)
