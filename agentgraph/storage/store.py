"""An open store, as a lazy saver sees it: lanes, threads to take, and what its failures mean."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias, TypeVar
from zlib import crc32

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgraph.errors import StorageError

T = TypeVar("T")

Saver: TypeAlias = BaseCheckpointSaver[str]
Allowlist: TypeAlias = frozenset[tuple[str, ...]]


class Store:
    """Savers side by side, each of which does one thing after the other."""

    def __init__(self, lanes: Sequence[Saver]) -> None:
        self._lanes: dict[Allowlist, tuple[Saver, ...]] = {frozenset(): tuple(lanes)}
        self._claims: Counter[str] = Counter()
        self._claiming = asyncio.Lock()

    def lane(self, thread_id: object, allowlist: Allowlist) -> Saver:
        """Return the saver of a thread, which may load these types too."""
        lanes = self._lanes.get(allowlist)
        if lanes is None:
            # Kept, as every operation asks; a clone shares its lane's lock and connections.
            own = self._lanes[frozenset()]
            lanes = tuple(saver.with_allowlist(allowlist) for saver in own)
            self._lanes[allowlist] = lanes
        return lanes[crc32(str(thread_id).encode(errors="replace")) % len(lanes)]

    async def take(self, thread_id: str) -> bool:
        """Try to take a thread from all other stores; what is taken can be taken once more."""
        async with self._claiming:
            if not self._claims[thread_id] and not await self.lock(_key(thread_id)):
                del self._claims[thread_id]
                return False
            self._claims[thread_id] += 1
            return True

    async def release(self, thread_id: str) -> None:
        """Give back what was taken once."""
        async with self._claiming:
            self._claims[thread_id] -= 1
            if not self._claims[thread_id]:
                del self._claims[thread_id]
                with self.operation():
                    await self.unlock(_key(thread_id))

    async def lock(self, key: int) -> bool:
        """Try to take a lock, whose key has 64 bits; never wait for it."""
        return True

    async def unlock(self, key: int) -> None:
        """Give a lock back; never fail, as a turn has ended well by then."""

    async def run(self, work: Awaitable[T]) -> T:
        """Wait for an operation, which a cancel may cut off where the store can bear it."""
        return await work

    def operation(self) -> AbstractContextManager[None]:
        """Return what each operation runs inside of."""
        return nullcontext()

    def failure(self, error: Exception) -> StorageError | None:
        """Say what an error of the store means, None if it is not the store's."""
        return None


@dataclass(slots=True)
class Claim:
    """A thread that no other process runs."""

    _store: Store
    _thread_id: str
    _released: bool = False

    async def release(self) -> None:
        """Give the thread back, also when cancelled; a second time does nothing."""
        if not self._released:
            self._released = True
            releasing = asyncio.ensure_future(self._store.release(self._thread_id))
            await asyncio.shield(releasing)


def _key(thread_id: str) -> int:
    text = thread_id.encode(errors="replace")
    return int.from_bytes(blake2b(text, digest_size=8, person=b"agentgraph").digest(), "big")
