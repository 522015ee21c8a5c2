"""Envelopes and their large parts, which are stored beside them.

A part is stored by its digest, with what refers to it or before: storing it twice changes nothing,
and a part that was altered since is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgraph.sessions.envelopes.blobs import digests_in, put_back
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log.protocol import DamagedSession, Log


async def store_of_draft(log: Log, session_id: str, draft: Draft) -> None:
    """Store what a draft refers to, before the draft is."""
    if draft.blobs:
        await log.store_blobs(session_id, draft.blobs)


async def with_blobs(log: Log, session_id: str, envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Return envelopes with all of their parts; `DamagedSession` if one is missing or altered."""
    digests = {envelope.sequence: [*digests_in(envelope)] for envelope in envelopes}
    all_digests = {digest for own in digests.values() for digest in own}
    if not all_digests:
        return [*envelopes]
    blobs = await log.blobs(session_id, all_digests)
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
