"""Checkpoints of rounds: the store needs them only if a round is interrupted for a human."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.memory import InMemorySaver

_Saver: TypeAlias = BaseCheckpointSaver[Any]


@dataclass(slots=True)
class _Buffer:
    """The writes of a run so far, as checkpoints in memory and as functions that repeat them."""

    memory: InMemorySaver = field(default_factory=InMemorySaver)
    writes: list[Callable[[_Saver], Awaitable[object]]] = field(default_factory=list)


class BufferedSaver(BaseCheckpointSaver[Any]):
    """Buffers a run's writes in memory, until it is known whether the store needs them.

    A run that completes leaves no checkpoint: writes that would be deleted at once never reach the
    store. Nor does a run that begins a round read the store.
    """

    def __init__(self, saver: _Saver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._allowlist: frozenset[tuple[str, ...]] = frozenset()
        self._buffers: dict[str, _Buffer] = {}

    def buffer(self, thread_id: str) -> None:
        """Begin to buffer a thread, which appears empty from now on."""
        self._buffers[thread_id] = _Buffer()

    def discard(self, thread_id: str) -> None:
        """Drop a thread's buffer, if it has one."""
        self._buffers.pop(thread_id, None)

    async def flush(self, thread_id: str) -> None:
        """Write a thread's buffer to the store, if it has one."""
        buffer = self._buffers.pop(thread_id, None)
        for write in buffer.writes if buffer is not None else ():
            await write(self._saver)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BufferedSaver:
        """Return a saver of the same threads that may also load the types in `extra_allowlist`."""
        clone = copy(self)
        clone._allowlist = self._allowlist | frozenset(extra_allowlist)
        clone._saver = self._saver.with_allowlist(extra_allowlist)
        return clone

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._of(config).aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        saver = self._saver if config is None else self._of(config)
        async for checkpoint in saver.alist(config, filter=filter, before=before, limit=limit):
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        def write(saver: _Saver) -> Awaitable[RunnableConfig]:
            return saver.aput(config, checkpoint, metadata, new_versions)

        config_of_checkpoint: RunnableConfig = await self._write(config, write)
        return config_of_checkpoint

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
        saver = self._of(config)
        return await saver.aget_delta_channel_history(config=config, channels=channels)

    async def _write(
        self, config: RunnableConfig, write: Callable[[_Saver], Awaitable[Any]]
    ) -> Any:
        # The write also goes to memory: the run reads its own checkpoints.
        buffer = self._buffers.get(_thread(config))
        if buffer is not None:
            buffer.writes.append(write)
        return await write(self._of(config))

    def _of(self, config: RunnableConfig) -> _Saver:
        """Return the saver to read a thread from: its buffer, if it has one."""
        buffer = self._buffers.get(_thread(config))
        if buffer is None:
            return self._saver
        return buffer.memory.with_allowlist(self._allowlist) if self._allowlist else buffer.memory


def _thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])
