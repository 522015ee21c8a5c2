"""Savers that are synchronous only, or bound to a loop, for graphs that run on any loop."""

from __future__ import annotations

import sys
from asyncio import (
    AbstractEventLoop,
    Future,
    Lock,
    ensure_future,
    get_running_loop,
    sleep,  # noqa: TID251 - for a turn of the loop
    wait,
)
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from copy import copy
from typing import Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from agentgraph.blocking import in_thread, loop_of, on_loop, run_to_end
from agentgraph.storage.delegating import DelegatingSaver, whole
from agentgraph.storage.serializer import load_messages_faster
from agentgraph.storage.store import DECODING_ERRORS, Saver, raise_unreadable

T = TypeVar("T")


def with_async_methods(saver: Saver) -> Saver:
    """Return a saver that asynchronous runs can use: itself, or one that runs it in threads.

        agent = Agent("support", checkpointer=SqliteSaver(connection))  # is synchronous only

    A saver that is synchronous only does not have the asynchronous methods, or they raise. One that
    is bound to an event loop is used on that loop. The saver loads its messages faster afterwards.
    """
    load_messages_faster(saver)
    if _is_synchronous_only(saver):
        return ThreadedSaver(saver)
    return BoundSaver(saver) if isinstance(_loop_of(saver), AbstractEventLoop) else saver


def original_of(saver: object) -> object:
    """Return the saver behind one that `with_async_methods` has made."""
    return saver.saver if isinstance(saver, ThreadedSaver) else saver


def _loop_of(saver: object) -> object:
    """Return the loop to which a saver is bound, as those of LangGraph are."""
    return getattr(saver, "loop", None)


def _is_synchronous_only(saver: Saver) -> bool:
    if type(saver).aget_tuple is BaseCheckpointSaver.aget_tuple:
        return True
    # LangGraph's saver for SQLite has the asynchronous methods, and each of them raises.
    module = sys.modules.get("langgraph.checkpoint.sqlite")
    return module is not None and isinstance(saver, module.SqliteSaver)


def _uses_sqlite(saver: Saver) -> bool:
    module = sys.modules.get("langgraph.checkpoint.sqlite.aio")
    return module is not None and isinstance(saver, module.AsyncSqliteSaver)


class ThreadedSaver(BaseCheckpointSaver[str]):
    """Run each asynchronous operation of a synchronous saver in a thread."""

    def __init__(self, saver: Saver) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    @property
    def config_specs(self) -> list[Any]:
        return self.saver.config_specs

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        clone = copy(self)
        clone.saver = self.saver.with_allowlist(extra_allowlist)
        clone.serde = clone.saver.serde
        return clone

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self.saver.get_next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            checkpoint = self.saver.get_tuple(config)
            return None if checkpoint is None else whole(checkpoint)
        except DECODING_ERRORS as error:
            raise_unreadable(config, error)
            raise

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        try:
            yield from map(
                whole, self.saver.list(config, filter=filter, before=before, limit=limit)
            )
        except DECODING_ERRORS as error:
            raise_unreadable(config, error)
            raise

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.saver.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self.saver.put_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.saver.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.saver.prune(thread_ids, strategy=strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        try:
            return self.saver.get_delta_channel_history(config=config, channels=channels)
        except DECODING_ERRORS as error:
            raise_unreadable(config, error)
            raise

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        def collect() -> Sequence[CheckpointTuple]:
            return [*self.list(config, filter=filter, before=before, limit=limit)]

        for checkpoint in await in_thread(collect):
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await in_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await in_thread(self.get_delta_channel_history, config=config, channels=channels)


_away: WeakKeyDictionary[Saver, Saver] = WeakKeyDictionary()
"""The copies of savers that are used on another loop than their own."""


class BoundSaver(DelegatingSaver, ThreadedSaver):
    """Run each asynchronous operation of a saver on the loop to which it is bound.

    Where that loop stands still, because it has ended or waits for a synchronous call, all use the
    saver on one other loop.
    """

    def __init__(self, saver: Saver) -> None:
        super().__init__(saver)
        self._writes: set[Future[Any]] = set()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        return ThreadedSaver.with_allowlist(self, extra_allowlist)

    async def _read(
        self, config: RunnableConfig | None, operation: Callable[[Saver], Awaitable[T]]
    ) -> T:
        return await self._at_home(operation)

    async def _write(self, config: RunnableConfig, operation: Callable[[Saver], Awaitable[T]]) -> T:
        return await self._change(operation)

    async def _change(self, operation: Callable[[Saver], Awaitable[T]]) -> T:
        """Run a write, to its end where the saver could otherwise be left in a transaction.

        LangGraph's saver for SQLite commits after its statements. Cut off in between, it would keep
        the file locked for all others until its next write.
        """
        write = ensure_future(self._at_home(operation))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return await (run_to_end(write) if _uses_sqlite(self.saver) else write)

    async def finish_writes(self) -> None:
        """Wait until the writes that this loop has begun are over, whatever comes of them."""
        # A turn of the loop, no wait: a write that was handed over begins with its task.
        await sleep(0)
        loop = get_running_loop()
        if writes := {write for write in self._writes.copy() if write.get_loop() is loop}:
            await wait(writes)

    async def _at_home(self, operation: Callable[[Saver], Awaitable[T]]) -> T:
        home: AbstractEventLoop = self.saver.loop  # type: ignore[attr-defined]
        loop = loop_of(home)
        work = _await(operation(self.saver if loop is home else self._away_saver()))
        return await (work if loop is get_running_loop() else on_loop(loop, work))

    def _away_saver(self) -> Saver:
        """Return the saver with a lock of its own.

        The saver's lock belongs to its loop, and code that stands still there may hold it. The
        connection takes the operations of both.
        """
        saver = _away.get(self.saver)
        if saver is None:
            saver = copy(self.saver)
            if isinstance(getattr(saver, "lock", None), Lock):
                saver.lock = Lock()  # type: ignore[attr-defined]
            saver = _away.setdefault(self.saver, saver)
        return saver

    async def adelete_thread(self, thread_id: str) -> None:
        await self._change(lambda saver: saver.adelete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._change(lambda saver: saver.adelete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._change(lambda saver: saver.acopy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._change(lambda saver: saver.aprune(thread_ids, strategy=strategy))


async def until_written(parts: AsyncIterator[T], saver: BoundSaver) -> AsyncIterator[T]:
    """Yield what a run yields; where it is cut off, end after the writes that it leaves behind.

    LangGraph does not wait for them: a caller who then closes the saver would lose them, or leave
    its file locked.
    """
    try:
        async with aclosing(cast("AsyncGenerator[T, None]", parts)):
            async for part in parts:
                yield part
    except BaseException:  # of the run, or of its reader: a cancellation, or an early end
        await run_to_end(saver.finish_writes())
        raise


async def _await(work: Awaitable[T]) -> T:
    return await work
