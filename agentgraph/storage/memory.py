"""Checkpoints in the memory of this process: LangGraph's saver, with all that a saver promises."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from agentgraph.blocking import run_sync
from agentgraph.storage.upkeep import CheckpointRow, ThreadUpkeep


class MemorySaver(ThreadUpkeep, InMemorySaver):
    """The checkpoints of one saver object; they end with it."""

    async def _rows(self, thread_id: str) -> list[CheckpointRow]:
        return [
            CheckpointRow(namespace, checkpoint_id, parent_id, self._run_id(metadata))
            for namespace, stored in self.storage.get(thread_id, {}).items()
            for checkpoint_id, (_, metadata, parent_id) in stored.items()
        ]

    def _run_id(self, metadata: tuple[str, bytes]) -> str | None:
        run_id = self.serde.loads_typed(metadata).get("run_id")
        return None if run_id is None else str(run_id)

    async def _threads_of(self, run_ids: Collection[str]) -> list[str]:
        threads = list(self.storage)
        return [t for t in threads if any(row.run_id in run_ids for row in await self._rows(t))]

    async def _remove(self, thread_id: str, rows: Collection[CheckpointRow]) -> None:
        for row in rows:
            del self.storage[thread_id][row.namespace][row.id]
            self.writes.pop((thread_id, row.namespace, row.id), None)
        versions = {
            (thread_id, namespace, channel, version)
            for namespace, stored in self.storage.get(thread_id, {}).items()
            for checkpoint, _, _ in stored.values()
            for channel, version in self.serde.loads_typed(checkpoint)["channel_versions"].items()
        }
        for key in [key for key in self.blobs if key[0] == thread_id and key not in versions]:
            del self.blobs[key]

    async def _copy(self, source_thread_id: str, target_thread_id: str) -> None:
        for namespace, stored in self.storage.get(source_thread_id, {}).items():
            self.storage[target_thread_id][namespace] = dict(stored)
        tables: Sequence[Any] = (self.writes, self.blobs)
        for table in tables:
            for key in [key for key in table if key[0] == source_thread_id]:
                value = table[key]
                copy = dict(value) if isinstance(value, dict) else value
                table[(target_thread_id, *key[1:])] = copy

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        run_sync(self.acopy_thread(source_thread_id, target_thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        run_sync(self.adelete_for_runs(run_ids))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        run_sync(self.aprune(thread_ids, strategy=strategy))
