"""Copy a thread, prune it, and delete the checkpoints of runs: what LangGraph's savers leave out.

A checkpoint stores some channels as changes since an earlier one. So an earlier checkpoint is
deleted only if no remaining one needs it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

_COUNTERS = "counters_since_delta_snapshot"
"""The metadata that names the channels which a checkpoint stores as changes."""


class CheckpointRow(NamedTuple):
    """Where a checkpoint is, where it came from, and which run has made it."""

    namespace: str
    id: str
    parent_id: str | None
    run_id: str | None


class ThreadUpkeep(BaseCheckpointSaver[str]):
    """The three methods, over four operations that the saver of a store defines."""

    @abstractmethod
    async def _rows(self, thread_id: str) -> list[CheckpointRow]:
        """Return the checkpoints of a thread."""

    @abstractmethod
    async def _threads_of(self, run_ids: Collection[str]) -> list[str]:
        """Return the threads that have checkpoints of these runs."""

    @abstractmethod
    async def _remove(self, thread_id: str, rows: Collection[CheckpointRow]) -> None:
        """Delete checkpoints with their writes, all or none."""

    @abstractmethod
    async def _copy(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all rows of a thread, all or none."""

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a thread that has none.

        Raises `ValueError` where the target has checkpoints: two histories would mix.
        """
        source, target = str(source_thread_id), str(target_thread_id)
        if await self._rows(target):
            raise ValueError(f"thread {target!r} has checkpoints: copy to a new thread")
        await self._copy(source, target)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, except those that a remaining checkpoint needs."""
        runs = {str(run_id) for run_id in _several(run_ids, "run_ids")}
        for thread_id in await self._threads_of(runs) if runs else ():
            rows = await self._rows(thread_id)
            doomed_ids = {row.id for row in rows if row.run_id in runs}
            heads = [row for row in rows if row.id not in doomed_ids]
            heads = [row for row in heads if row.parent_id in doomed_ids]
            needed = await self._needed(thread_id, heads)
            doomed = {row for row in rows if row.id in doomed_ids} - {*_of(rows, needed)}
            await self._remove(thread_id, doomed)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads, or all but the last one of each namespace.

        `strategy` is "delete" or "keep_latest", which also keeps what the last checkpoint needs.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"the strategy {strategy!r} is not known: keep_latest or delete")
        for thread_id in [str(thread_id) for thread_id in _several(thread_ids, "thread_ids")]:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
                continue
            rows = await self._rows(thread_id)
            heads = {row.namespace: row for row in sorted(rows, key=lambda row: row.id)}
            kept = {*heads.values(), *_of(rows, await self._needed(thread_id, heads.values()))}
            await self._remove(thread_id, set(rows) - kept)

    async def _needed(self, thread_id: str, heads: Iterable[CheckpointRow]) -> set[tuple[str, str]]:
        """Return the namespaces and ids of the earlier checkpoints that these ones need."""
        needed: set[tuple[str, str]] = set()
        for head in heads:
            latest = await self.aget_tuple(_config(thread_id, head.namespace, head.id))
            counters: Any = None if latest is None else latest.metadata.get(_COUNTERS)
            channels = set(counters or ())
            while latest is not None:
                channels -= latest.checkpoint["channel_values"].keys()
                if not channels or latest.parent_config is None:
                    break
                latest = await self.aget_tuple(latest.parent_config)
                if latest is not None:
                    needed.add((head.namespace, _id_of(latest)))
        return needed


def _several(ids: Sequence[str], name: str) -> Sequence[str]:
    if isinstance(ids, str):
        raise TypeError(f"{name} is a list of ids, and not {ids!r}")
    return ids


def _of(rows: Iterable[CheckpointRow], places: Collection[tuple[str, str]]) -> set[CheckpointRow]:
    return {row for row in rows if (row.namespace, row.id) in places}


def _id_of(checkpoint_tuple: CheckpointTuple) -> str:
    return str(checkpoint_tuple.config["configurable"]["checkpoint_id"])


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    at = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread_id, **at}}
