"""Pending writes: what a node stores with its checkpoint before it does something irrevocable.

A node's result is stored when the node ends. A process that is killed before that, or a node that
waits for a human, leaves only the pending writes of the checkpoint that the node began from. So
these contain the amounts that may be spent, the actions that are registered or begun, and the
account at a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgraph.clock import SystemClock
from agentgraph.graphs.task import answers_to, begun_from, may_have_run

PAUSE_CHANNEL = "agentgraph_paused"
"""The account where a node waited for a human, or ended the run of parallel nodes."""
MEMORY_CHANNEL = "agentgraph_memory"
"""The memories of the guards that users have brought."""
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
    may_have_run: bool = True
    """Whether the node may have run from this checkpoint before, and have left writes there."""

    @property
    def namespace(self) -> str:
        """The checkpoint namespace: each level of nested graphs has its own."""
        return str(self.checkpoint["configurable"]["checkpoint_ns"])

    async def write(self, value: Any, channel: str = _SPENDS_CHANNEL) -> None:
        """Write a value; it is stored when this returns."""
        # No task has this new id, so LangGraph does not take the write for a task's result.
        await self.saver.aput_writes(self.checkpoint, [(channel, value)], SystemClock().new_id())

    async def read(self, channel: str = _SPENDS_CHANNEL) -> list[Any]:
        """Return the values that any process has written to a channel here."""
        checkpoint = await self.saver.aget_tuple(self.checkpoint)
        writes = checkpoint.pending_writes if checkpoint is not None else None
        return [value for _, name, value in writes or () if name == channel]

    async def register(self, keys: Iterable[str]) -> None:
        """Store which actions have not begun, and run only after a human's answer."""
        await self.write(sorted(keys), _REGISTERED_CHANNEL)

    async def registered_keys(self) -> set[str]:
        """Return the registered actions that no process has begun since."""
        begun_keys = {key for key, _ in await self.read(_BEGUN_CHANNEL)}
        return {key for keys in await self.read(_REGISTERED_CHANNEL) for key in keys} - begun_keys

    async def mark_begun(self, key: str, answers: int = 0) -> bool:
        """Store that an action begins after this number of human answers; False if it had before.

        If it had, a process was killed in the action, and the outcome of the action is unknown.
        """
        if await self.has_begun(key, answers):
            return False
        await self.write([key, answers], _BEGUN_CHANNEL)
        return True

    async def has_begun(self, key: str, answers: int = 0) -> bool:
        """Tell whether an action has begun after this number of human answers."""
        return [key, answers] in await self.read(_BEGUN_CHANNEL)


@dataclass(frozen=True, slots=True)
class Resumption:
    """The resumption of a task with a human's decision."""

    pending_writes: PendingWrites
    answers: int
    """How many questions of this task were answered so far."""

    async def mark_begun(self, key: str) -> bool:
        """Store that an action begins with these answers; False if it has begun with them."""
        return await self.pending_writes.mark_begun(key, self.answers)


class ActionsInFlight:
    """The keys of the actions that are about to run, run, or have failed in this process."""

    def __init__(self) -> None:
        self.registered_keys: set[str] = set()
        """The actions whose registration is stored, and that run next."""
        self.to_mark: dict[str, PendingWrites] = {}
        """For actions registered before a pause: the pending writes that store their begin."""
        self.running_keys: set[str] = set()
        """The actions that this process has begun and that have not ended."""
        self.failed_keys: set[str] = set()
        """The actions that have failed in this process: their outcome is not unknown."""

    def register(self, key: str, pending_writes: PendingWrites) -> None:
        """Register an action whose begin must be stored in pending writes first."""
        self.registered_keys.add(key)
        self.to_mark[key] = pending_writes

    async def unbegun_keys(self) -> set[str]:
        """Return the registered actions that no other process has begun since."""
        return {
            key
            for key in self.registered_keys
            if (writes := self.to_mark.get(key)) is None or not await writes.has_begun(key)
        }

    def forget(self) -> None:
        """Forget the registered and the failed actions: the next attempt looks them up."""
        self.registered_keys.clear()
        self.failed_keys.clear()


def pending_writes_of(config: RunnableConfig) -> PendingWrites | None:
    """Return the pending writes of the node around this code, None where nothing is stored."""
    origin = begun_from(config)
    return None if origin is None else PendingWrites(*origin, may_have_run(config))


def resumption_of(config: RunnableConfig) -> Resumption | None:
    """Return the resumption of the task around this code, None where no human has answered it."""
    answers = answers_to(config)
    origin = begun_from(config) if answers else None
    return None if origin is None else Resumption(PendingWrites(*origin), answers)
