"""A saver that has read the last checkpoint of a thread already, for the run that begins there.

An agent reads the last checkpoint before a run, to take over what an unfinished run has left.
LangGraph reads the same one again when the run begins. Loading it costs a twentieth of a turn, and
one question more to the store.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from agentgraph.storage.store import Saver


def with_first_read(saver: Saver, checkpoint: CheckpointTuple) -> Saver:
    """Return a saver that answers the first request for the last checkpoint with `checkpoint`.

    It is the last checkpoint of its thread, and nobody else may write to the thread until the
    request. All else is done as by `saver`. The run changes `checkpoint`: do not use it any more.
    """
    kind: Any = type(saver)
    reading_class = _reading_class(kind)
    if reading_class is None:
        return saver  # then LangGraph reads the checkpoint once more
    result: Saver = object.__new__(reading_class)
    vars(result).update(vars(saver), _first_read=[checkpoint])
    return result


if TYPE_CHECKING:
    _Base = BaseCheckpointSaver[Any]
else:
    _Base = object


class _FirstRead(_Base):
    """Stands before the class of a saver in the order in which Python looks for methods."""

    _first_read: list[CheckpointTuple]
    """The checkpoint until it was asked for, in a list that LangGraph's copies of it share."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        if self._first_read and _is_last_of(config, self._first_read[0]):
            return self._first_read.pop()
        return await super().aget_tuple(config)


def _is_last_of(config: RunnableConfig, checkpoint: CheckpointTuple) -> bool:
    """Tell whether a config asks for the last checkpoint of the thread of `checkpoint`."""
    asked, own = config["configurable"], checkpoint.config["configurable"]
    return (
        not asked.get("checkpoint_id")
        and not asked.get("checkpoint_ns")
        and asked["thread_id"] == own["thread_id"]
    )


@cache
def _reading_class(kind: Any) -> type[Saver] | None:
    """Return the class for savers of a kind, None where a copy would lose or end something."""
    has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    if has_slots or hasattr(kind, "__del__"):  # which may close what the saver still uses
        return None
    return type(f"FirstRead{kind.__name__}", (_FirstRead, kind), {})
