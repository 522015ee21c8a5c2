"""A checkpoint saver that hands each operation to another saver, chosen when it is called."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from agentgraph.storage.store import DECODING_ERRORS, Allowlist, Saver, raise_unreadable

T = TypeVar("T")


class DelegatingSaver(BaseCheckpointSaver[str]):
    """The async methods of a saver, over two operations that a subclass defines.

    `_read` and `_write` take the thread's config and a function of a saver. They choose the saver
    and call the function with it; `_allowlist` has the types that the saver may load.
    """

    _allowlist: Allowlist = frozenset()

    @abstractmethod
    async def _read(
        self, config: RunnableConfig | None, operation: Callable[[Saver], Awaitable[T]]
    ) -> T: ...

    @abstractmethod
    async def _write(
        self, config: RunnableConfig, operation: Callable[[Saver], Awaitable[T]]
    ) -> T: ...

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a saver of the same threads that may load these types too."""
        clone = copy(self)
        clone._allowlist = self._allowlist | frozenset(extra_allowlist)
        return clone

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            checkpoint = await self._read(config, lambda saver: saver.aget_tuple(config))
            return None if checkpoint is None else whole(checkpoint)
        except DECODING_ERRORS as error:
            raise_unreadable(config, error)
            raise

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        async def collect(saver: Saver) -> list[CheckpointTuple]:
            listing = saver.alist(config, filter=filter, before=before, limit=limit)
            return [checkpoint async for checkpoint in listing]

        # Collected first: a saver is locked while it lists, and a consumer that reads another
        # checkpoint in between would wait for ever.
        try:
            checkpoints = [*map(whole, await self._read(config, collect))]
        except DECODING_ERRORS as error:
            raise_unreadable(config, error)
            raise
        for checkpoint in checkpoints:
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._write(
            config, lambda saver: saver.aput(config, checkpoint, metadata, new_versions)
        )

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await self._write(
            config, lambda saver: saver.aput_writes(config, writes, task_id, task_path)
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        try:
            return await self._read(
                config,
                lambda saver: saver.aget_delta_channel_history(config=config, channels=channels),
            )
        except DECODING_ERRORS as error:
            raise_unreadable(config, error)
            raise


def whole(checkpoint: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint that has what LangGraph takes from each one; raise where it has not."""
    for key in ("channel_values", "channel_versions", "versions_seen"):
        checkpoint.checkpoint[key]
    return checkpoint
