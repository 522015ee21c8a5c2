"""Checkpoints of rounds: the store needs them only if a round is interrupted for a human."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
)
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph.storage.delegating import DelegatingSaver

T = TypeVar("T")
_Saver: TypeAlias = BaseCheckpointSaver[Any]


@dataclass(slots=True)
class _Buffer:
    """The writes of a run so far, as checkpoints in memory and as functions that repeat them."""

    memory: InMemorySaver = field(default_factory=InMemorySaver)
    writes: list[Callable[[_Saver], Awaitable[object]]] = field(default_factory=list)


class BufferedSaver(DelegatingSaver):
    """Buffers a run's writes in memory, until it is known whether the store needs them.

    A run that completes leaves no checkpoint: writes that would be deleted at once never reach the
    store. Nor does a run that begins a round read the store.
    """

    def __init__(self, saver: _Saver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
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

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a saver of the same threads and buffers that may load these types too."""
        clone = super().with_allowlist(extra_allowlist)
        clone._saver = self._saver.with_allowlist(extra_allowlist)
        return clone

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    async def _read(
        self, config: RunnableConfig | None, operation: Callable[[_Saver], Awaitable[T]]
    ) -> T:
        return await operation(self._saver if config is None else self._of(config))

    async def _write(
        self, config: RunnableConfig, operation: Callable[[_Saver], Awaitable[T]]
    ) -> T:
        # The write goes to the memory too: the run itself reads its checkpoints back.
        buffer = self._buffers.get(_thread(config))
        if buffer is not None:
            buffer.writes.append(operation)
        return await operation(self._of(config))

    def _of(self, config: RunnableConfig) -> _Saver:
        """Return the saver to read a thread from: its buffer, if it has one."""
        buffer = self._buffers.get(_thread(config))
        if buffer is None:
            return self._saver
        return buffer.memory.with_allowlist(self._allowlist) if self._allowlist else buffer.memory


def _thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])
