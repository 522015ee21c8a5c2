"""What a node writes beside its checkpoint before it does something that must not be forgotten.

A node's result is stored when it ends. A process that is killed before that, or a node that waits
for a human, leaves nothing but the pending writes of the checkpoint it began from: so amounts that
may be spent, actions that are registered or begun, and the account at a pause are kept there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgraph.clock import SystemClock
from agentgraph.patching import answers_to, begun_from

PAUSE_CHANNEL = "agentgraph_paused"
"""The account where a node waited for a human, or ended the run of those beside it."""
_SPENDS_CHANNEL = "agentgraph_spends"
_BEGUN_CHANNEL = "agentgraph_begun"
_REGISTERED_CHANNEL = "agentgraph_registered"


@dataclass(frozen=True, slots=True)
class PendingWrites:
    """The pending writes of guards at one checkpoint, in channels of their own."""

    saver: Any
    """A checkpoint saver of LangGraph."""
    checkpoint: RunnableConfig
    """The checkpoint that the node began from."""

    @property
    def namespace(self) -> str:
        """The checkpoint namespace: each level of nested graphs has its own."""
        return str(self.checkpoint["configurable"]["checkpoint_ns"])

    async def write(self, value: Any, channel: str = _SPENDS_CHANNEL) -> None:
        """Write a value; it is stored when this returns."""
        # No task has that id, so LangGraph does not take the write for a task's result.
        await self.saver.aput_writes(self.checkpoint, [(channel, value)], SystemClock().new_id())

    async def read(self, channel: str = _SPENDS_CHANNEL) -> list[Any]:
        """Return the values that any process has written to a channel here."""
        checkpoint = await self.saver.aget_tuple(self.checkpoint)
        writes = checkpoint.pending_writes if checkpoint is not None else None
        return [value for _, name, value in writes or () if name == channel]

    async def register(self, keys: Iterable[str]) -> None:
        """Note which actions are to run once a human has answered: they have not begun."""
        await self.write(sorted(keys), _REGISTERED_CHANNEL)

    async def registered_keys(self) -> set[str]:
        """Return the registered actions that no process has begun since."""
        begun_keys = {key for key, _ in await self.read(_BEGUN_CHANNEL)}
        return {key for keys in await self.read(_REGISTERED_CHANNEL) for key in keys} - begun_keys

    async def mark_begun(self, key: str, answers: int = 0) -> bool:
        """Note that an action begins after so many answers of humans; False where it has before.

        Where it has before, a process was killed in it, and nobody knows what came of the action.
        """
        if await self.has_begun(key, answers):
            return False
        await self.write([key, answers], _BEGUN_CHANNEL)
        return True

    async def has_begun(self, key: str, answers: int = 0) -> bool:
        """Tell whether an action has begun after so many answers."""
        return [key, answers] in await self.read(_BEGUN_CHANNEL)


@dataclass(frozen=True, slots=True)
class Resumption:
    """A task that goes on with what a human has decided."""

    pending_writes: PendingWrites
    answers: int
    """How many questions of its own were answered so far."""

    async def mark_begun(self, key: str) -> bool:
        """Note that an action begins with these answers; False where it has begun with them."""
        return await self.pending_writes.mark_begun(key, self.answers)


class ActionsInFlight:
    """The actions that are about to run, that run, and that have failed here, by their keys."""

    def __init__(self) -> None:
        self.registered_keys: set[str] = set()
        """Those that are stored, and are to run now."""
        self.to_mark: dict[str, PendingWrites] = {}
        """Of those that were registered before a pause: where it is noted that they begin."""
        self.running_keys: set[str] = set()
        """Those that this process has begun, and that have not come to an end."""
        self.failed_keys: set[str] = set()
        """Those that have failed here: a new attempt is no unknown outcome."""

    def register(self, key: str, pending_writes: PendingWrites) -> None:
        """Register an action whose begin is to be noted in pending writes first."""
        self.registered_keys.add(key)
        self.to_mark[key] = pending_writes

    async def unbegun_keys(self) -> set[str]:
        """Return the registered actions that no other process has begun meanwhile."""
        return {
            key
            for key in self.registered_keys
            if (writes := self.to_mark.get(key)) is None or not await writes.has_begun(key)
        }

    def forget(self) -> None:
        """Forget which actions were to run or have failed: the next attempt looks them up."""
        self.registered_keys.clear()
        self.failed_keys.clear()


def pending_writes_of(config: RunnableConfig) -> PendingWrites | None:
    """Return the pending writes of the node around this code, None where nothing is stored."""
    origin = begun_from(config)
    return None if origin is None else PendingWrites(*origin)


def resumption_of(config: RunnableConfig) -> Resumption | None:
    """Return the resumption of the task around this code, None where no human has answered it."""
    answers = answers_to(config)
    origin = begun_from(config) if answers else None
    return None if origin is None else Resumption(PendingWrites(*origin), answers)
