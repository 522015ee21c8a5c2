"""An open store behind a lazy saver: its savers, its claims on threads, and its errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable
from zlib import crc32

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgraph.blocking import on_loop_of_stores
from agentgraph.errors import StaleOwner, StorageError, kind_of
from agentgraph.running import Ownership

T = TypeVar("T")

Saver: TypeAlias = BaseCheckpointSaver[str]
Allowlist: TypeAlias = frozenset[tuple[str, ...]]
"""The types, by module and name, that a saver may load in addition to the usual ones."""


@runtime_checkable
class OwnedSaver(Protocol):
    """A saver that can check the ownership of a session in the transaction of each write."""

    def owned_by(self, ownership: Ownership) -> Saver:
        """Return a saver of the same threads whose writes raise `StaleOwner` after a takeover."""
        ...


class Store:
    """Several savers in parallel: each runs one operation at a time, for its share of the threads.

    A kind of store overrides those methods from `lock` on that it needs.
    """

    def __init__(self, savers: Sequence[Saver]) -> None:
        self._savers: dict[Allowlist, tuple[Saver, ...]] = {frozenset(): tuple(savers)}
        self._claims: Counter[str] = Counter()
        self._claims_lock = asyncio.Lock()

    def saver_for(self, thread_id: object, allowlist: Allowlist) -> Saver:
        """Return the saver of a thread, which may load the types of the allowlist too."""
        savers = self._savers.get(allowlist)
        if savers is None:
            # Cached for every operation; a clone shares lock and connections with its original.
            originals = self._savers[frozenset()]
            savers = tuple(saver.with_allowlist(allowlist) for saver in originals)
            self._savers[allowlist] = savers
        return savers[crc32(str(thread_id).encode(errors="replace")) % len(savers)]

    def saver_of(self, ownership: Ownership | None, saver: Saver) -> Saver:
        """Return a saver that writes as an owner of a session, if this kind of saver can."""
        if ownership is None or not isinstance(saver, OwnedSaver):
            return saver
        return saver.owned_by(ownership)

    async def take(self, thread_id: str) -> bool:
        """Try to lock a thread against all other stores; the same store can take it once more.

        A thread that was taken n times is free after n releases.
        """
        async with self._claims_lock:
            if not self._claims[thread_id] and not await self.lock(_lock_key(thread_id)):
                del self._claims[thread_id]
                return False
            self._claims[thread_id] += 1
            return True

    async def release(self, thread_id: str) -> None:
        """Release a thread once."""
        async with self._claims_lock:
            self._claims[thread_id] -= 1
            if not self._claims[thread_id]:
                del self._claims[thread_id]
                with self.operation():
                    await self.unlock(_lock_key(thread_id))

    async def lock(self, key: int) -> bool:
        """Try to take a lock, whose key has 64 bits; never wait for it."""
        return True

    async def unlock(self, key: int) -> None:
        """Release a lock; never fail, as a turn has ended successfully by then."""

    async def run(self, work: Awaitable[T]) -> T:
        """Run an operation; a kind of store that must not be cut off in it overrides this."""
        return await work

    def operation(self) -> AbstractContextManager[None]:
        """Return the context for each operation."""
        return nullcontext()

    def failure(self, error: Exception) -> StorageError | None:
        """Return the `StorageError` for an error of the store, None for any other error."""
        return None


@dataclass(slots=True)
class Claim:
    """The claim on a thread, which no other process runs until `release`."""

    _store: Store
    _thread_id: str
    _is_released: bool = False

    async def release(self) -> None:
        """Release the thread, even if cancelled; a second call does nothing."""
        if not self._is_released:
            self._is_released = True
            task = asyncio.ensure_future(on_loop_of_stores(self._store.release(self._thread_id)))
            await asyncio.shield(task)


DAMAGED_THREAD = "damaged_thread"
"""The code of the `StorageError` for a thread whose stored data cannot be decoded."""


def raise_unreadable(config: Mapping[str, Any] | None, error: Exception) -> None:
    """Raise a `StorageError` that names the thread whose stored data could not be decoded."""
    thread_id = (config or {}).get("configurable", {}).get("thread_id")
    if thread_id is None or str(error) in CLOSED_TEXTS:
        return
    raise StorageError(
        f"the thread {thread_id!r} cannot be read ({kind_of(error)}): its stored data are "
        "damaged, or were written with another key or by a newer version. Restore them from a "
        f"backup, or delete the thread: `agent.aforget({thread_id!r})`",
        code=DAMAGED_THREAD,
    ) from error


CLOSED_TEXTS = ("no active connection", "Connection closed")
"""The texts of the errors of type ValueError by which aiosqlite says that its file was closed."""

DECODING_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""What decoders raise, and what uses a value that is not of the type that was stored."""


def _lock_key(thread_id: str) -> int:
    text = thread_id.encode(errors="replace")
    return int.from_bytes(blake2b(text, digest_size=8, person=b"agentgraph").digest(), "big")


def stale_owner(ownership: Ownership) -> StaleOwner:
    """Return the error of a write to a session that has another owner by now."""
    return StaleOwner(f"the session of thread {ownership.thread_id!r} has another owner by now")
