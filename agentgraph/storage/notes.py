"""Notes of a thread: values that its store has beside the checkpoints, each replaced as a whole.

A checkpoint is stored when the durability of the run says so: with "async" while the next step
runs, with "exit" at the end. A note is stored when `write` returns. It is deleted with its thread,
and copied with it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointMetadata, empty_checkpoint

from agentgraph.storage.store import DECODING_ERRORS, raise_unreadable

_VALUE = "agentgraph_note"
"""The metadata with the value, as the saver's serialiser has written it."""


@dataclass(frozen=True, slots=True)
class Note:
    """The note of one name on a thread.

    It is the metadata of an empty checkpoint, which has a namespace of its own and always the same
    id. Every saver stores metadata whole, and replaces the checkpoint that has the same id; nothing
    that lists the checkpoints of a graph finds it, as no graph has that namespace.
    """

    saver: BaseCheckpointSaver[Any]
    thread_id: str
    name: str
    part: int = 0
    """The number of the part: a value that grows is stored part by part, each by itself."""

    async def read(self) -> Any:
        """Return the value, None where there is none."""
        checkpoint = await self.saver.aget_tuple(self._config)
        metadata: Any = checkpoint.metadata if checkpoint is not None else {}
        try:
            return self._load(*metadata[_VALUE]) if _VALUE in metadata else None
        except DECODING_ERRORS as error:
            raise_unreadable(self._config, error)
            raise

    async def write(self, value: object) -> None:
        """Store a value in place of the one before; any that a checkpoint can have.

        Whoever calls this has the thread. For a run that has ended or has lost its thread our
        savers refuse it, as they refuse late checkpoints.
        """
        metadata: Any = {_VALUE: self._dump(value)}
        metadata |= CheckpointMetadata(source="update", step=-1, parents={})
        checkpoint = empty_checkpoint()
        checkpoint["id"] = self.name
        await self.saver.aput(self._config, checkpoint, metadata, {})

    def _dump(self, value: object) -> list[str]:
        """Return a value as JSON: all savers store metadata as that."""
        kind, content = self.saver.serde.dumps_typed(value)
        return [kind, b64encode(content).decode()]

    def _load(self, kind: str, text: str) -> Any:
        """Return the value that `_dump` was given."""
        return self.saver.serde.loads_typed((kind, b64decode(text, validate=True)))

    @property
    def _config(self) -> RunnableConfig:
        namespace = f"agentgraph_{self.name}" + (f"_{self.part}" if self.part else "")
        return {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": namespace}}
