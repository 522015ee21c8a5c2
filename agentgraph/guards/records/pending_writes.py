"""What a node writes beside its checkpoint before it does what costs, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgraph.clock import SystemClock
from agentgraph.patching import answers_to, begun_from, stores_each_step


class Underway:
    """The actions that are about to run, that run, and that have failed here, by their keys."""

    def __init__(self) -> None:
        self.registered: set[str] = set()
        """Those that are stored, and are to run now."""
        self.promises: dict[str, SideNotes] = {}
        """Where it is to be noted that one begins, which was registered before a pause."""
        self.running: set[str] = set()
        """Those that this process has begun, and that have not come to an end."""
        self.tried: set[str] = set()
        """Those that have failed here: whoever tries them again knows of it."""

    def promise(self, key: str, notes: SideNotes) -> None:
        """Have an action run that has not begun, and have it noted first that it begins."""
        self.registered.add(key)
        self.promises[key] = notes

    async def unbegun(self) -> set[str]:
        """Return the registered ones that no other process has begun meanwhile."""
        return {
            key
            for key in self.registered
            if (notes := self.promises.get(key)) is None or not await notes.has_begun(key)
        }

    def forget(self) -> None:
        """Leave to be found out what came of those that were about to run, or have failed."""
        self.registered.clear()
        self.tried.clear()


PAUSED = "agentgraph_paused"
"""What was known where a node waited for a human, or ended the run of those beside it."""
_SPENDS = "agentgraph_spends"
_BEGUN = "agentgraph_begun"
_REGISTERED = "agentgraph_registered"


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

    async def write(self, note: Any, channel: str = _SPENDS) -> None:
        """Write a note; it is stored when this returns."""
        # No task has that id, so LangGraph takes it for no result.
        await self.saver.aput_writes(self.at, [(channel, note)], SystemClock().new_id())

    async def read(self, channel: str = _SPENDS) -> list[Any]:
        """Return the notes of all who began from there."""
        found = await self.saver.aget_tuple(self.at)
        writes = found.pending_writes if found is not None else None
        return [value for _, known, value in writes or () if known == channel]

    async def register(self, keys: Iterable[str]) -> None:
        """Note which actions are to run once a human has answered: they have not begun."""
        await self.write(sorted(keys), _REGISTERED)

    async def registered(self) -> set[str]:
        """Return those of which nobody has noted since that they begin."""
        begun = {key for key, _ in await self.read(_BEGUN)}
        return {key for keys in await self.read(_REGISTERED) for key in keys} - begun

    async def begins(self, key: str, answers: int = 0) -> bool:
        """Note that an action begins with these answers of humans; False where it has before.

        A process that was killed has left no more of it: what came of the action, nobody knows.
        """
        if await self.has_begun(key, answers):
            return False
        await self.write([key, answers], _BEGUN)
        return True

    async def has_begun(self, key: str, answers: int = 0) -> bool:
        """Tell whether an action has begun with these answers."""
        return [key, answers] in await self.read(_BEGUN)


@dataclass(frozen=True, slots=True)
class Resumption:
    """A task that goes on with what a human has decided."""

    notes: SideNotes
    answers: int

    async def begins(self, key: str) -> bool:
        """Note that an action begins with these answers; False where it has begun with them."""
        return await self.notes.begins(key, self.answers)


def side_notes(config: RunnableConfig) -> SideNotes | None:
    """Return the notes of the node around this code, None where not each step is stored."""
    return notes_beside(config) if stores_each_step(config) else None


def notes_beside(config: RunnableConfig) -> SideNotes | None:
    """Return the notes of the node around this code, None where nothing is stored."""
    found = begun_from(config)
    return None if found is None else SideNotes(*found)


def resumption(config: RunnableConfig) -> Resumption | None:
    """Return the task around this code where a human has decided on a question of its own."""
    answers = answers_to(config)
    found = begun_from(config) if answers else None
    return None if found is None else Resumption(SideNotes(*found), answers)
