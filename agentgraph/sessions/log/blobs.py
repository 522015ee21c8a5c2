"""Envelopes as they were before their large parts were stored beside them."""

from __future__ import annotations

from collections.abc import Sequence

from agentgraph.sessions.log.protocol import DamagedSession, Log
from agentgraph.sessions.state.blobs import digests_in, put_back
from agentgraph.sessions.state.envelope import Envelope


async def with_blobs(log: Log, session_id: str, envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Return envelopes with all of their parts; `DamagedSession` if one is missing or altered."""
    digests = {envelope.sequence: [*digests_in(envelope)] for envelope in envelopes}
    wanted = {digest for own in digests.values() for digest in own}
    if not wanted:
        return [*envelopes]
    blobs = await log.blobs(session_id, wanted)
    result: list[Envelope] = []
    for envelope in envelopes:
        try:
            result.append(put_back(envelope, blobs) if digests[envelope.sequence] else envelope)
        except (KeyError, ValueError) as error:
            raise DamagedSession(
                f"session {session_id!r} lacks a part of sequence {envelope.sequence} "
                f"({type(error).__name__}: {error}): restore its blobs from a backup",
                session_id,
                envelope.sequence,
            ) from error
    return result


async def copy_blobs(log: Log, source: str, target: str, envelopes: Sequence[Envelope]) -> None:
    """Store what envelopes refer to in another session, which has copies of them."""
    for envelope in envelopes:
        if digests := {*digests_in(envelope)}:
            await log.store_blobs(target, await log.blobs(source, digests))
