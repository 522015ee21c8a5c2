"""The erasure of a session: nothing of it is left in the store, and nothing of it is written after.

The epoch is raised first, so whoever drives the session can write neither envelopes nor checkpoints
any more. The session's own rows go last: if the process dies before, the session is still there,
and can be forgotten again.
"""

from __future__ import annotations

from typing import Any, Protocol

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgraph.clock import clock
from agentgraph.errors import InsideRound, SessionError, StaleOwner
from agentgraph.guards.records.registry import drop_accounts
from agentgraph.running import Ownership, inside_ownership
from agentgraph.sessions.drivers.drivers import Drivers
from agentgraph.sessions.drivers.lease import Lease
from agentgraph.sessions.drivers.quarantine import load_readable
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.protocol import is_unknown
from agentgraph.sessions.rounds.round import current_round
from agentgraph.sessions.state.record import SessionRecord, id_of
from agentgraph.sessions.team.inner_id import is_reserved


class ErasureHub(Protocol):
    """What an erasure needs of its hub."""

    log: Log
    saver: BaseCheckpointSaver[Any]
    lease: Lease
    drivers: Drivers

    def ownership(self, session_id: str, epoch: int) -> Ownership | None:
        """Return the ownership under which checkpoints are deleted; None if none is checked."""
        ...


def check_erasable(record: SessionRecord) -> None:
    """Raise if a session cannot be erased here.

    It may serve a round of another session, or be the one in whose round this code runs.
    """
    if record.serves or is_reserved(record.session_id):
        raise SessionError(
            f"session {record.session_id!r} serves a round of another session: forget that one",
            code="inner_session",
        )
    if record.key in _sessions_around():
        raise InsideRound("a round cannot forget its own session")


async def erase(hub: ErasureHub, key: str) -> None:
    """Erase a session, with the sessions that serve its rounds."""
    await hub.drivers.halt(key)
    try:
        while True:
            try:
                await _delete(hub, key)
            except StaleOwner:  # a round of the outer session took it back at the last moment
                continue
            break
    finally:
        hub.drivers.resume(key)
    drop_accounts(hub.log, f"{key}@")


async def _delete(hub: ErasureHub, key: str) -> None:
    """Delete a session's rows, under an epoch that no other owner has."""
    owner, now = hub.lease.owner, clock().wall()
    await hub.log.release(key, owner)  # a claim of the owner itself would not raise the epoch
    epoch = await hub.log.claim(key, owner, now, force=True)
    assert epoch is not None  # `force` overrides any lease
    # Listed under the new epoch: the former owner can begin no more of them.
    for child in await hub.log.children(key):
        if await _serves(hub.log, child):
            try:
                await erase(hub, child)
            except SessionError as error:
                if not is_unknown(error):  # else another hub forgets the same session
                    raise
    with inside_ownership(hub.ownership(key, epoch)):
        await hub.saver.adelete_thread(key)
    await hub.log.forget(key, epoch)


async def _serves(log: Log, key: str) -> bool:
    """Tell whether a session serves a round of its parent; else it is a fork, which stays."""
    if is_reserved(id_of(key)):
        return True
    stored_session = await load_readable(log, key)
    return stored_session is not None and stored_session.record.serves


def _sessions_around() -> list[str]:
    """Return the keys of the sessions whose rounds this code runs in."""
    round = current_round()
    session, keys = None if round is None else round.session, []
    while session is not None:
        keys.append(session.id)
        session = session.outer
    return keys
