"""What a node writes down beside the checkpoint that it began from, before it does what costs.

LangGraph stores what a node did once it is over. Of a node whose process is killed only these notes
are left: whoever begins it again reads them. With the next checkpoint they are out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgraph.clock import SystemClock
from agentgraph.patching import begun_from, stores_each_step

__all__ = ["SideNotes", "side_notes"]

_CHANNEL = "agentgraph_spends"


@dataclass(frozen=True, slots=True)
class SideNotes:
    """The notes of one node."""

    saver: Any
    """The store, as LangGraph has it."""
    at: RunnableConfig
    """The checkpoint that the node began from."""

    @property
    def level(self) -> str:
        """Name the level of the graph: one within another has checkpoints of its own."""
        return str(self.at["configurable"]["checkpoint_ns"])

    async def write(self, note: Mapping[str, Any]) -> None:
        """Write a note; it is stored when this returns."""
        # No task has that id, so LangGraph takes it for no result.
        await self.saver.aput_writes(self.at, [(_CHANNEL, note)], SystemClock().new_id())

    async def read(self) -> list[Mapping[str, Any]]:
        """Return the notes of all who began from there."""
        found = await self.saver.aget_tuple(self.at)
        writes = found.pending_writes if found is not None else None
        return [value for _, channel, value in writes or () if channel == _CHANNEL]


def side_notes(config: RunnableConfig) -> SideNotes | None:
    """Return the notes of the node around this code, None where not each step is stored."""
    if not stores_each_step(config):
        return None
    found = begun_from(config)
    return None if found is None else SideNotes(*found)
