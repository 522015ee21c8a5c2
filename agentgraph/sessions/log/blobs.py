"""Envelopes and their large parts, which are stored beside them.

A part is stored by its digest, with what refers to it or before: storing it twice changes nothing,
and a part that was altered since is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgraph.sessions.envelopes.blobs import MAX_INLINE_BYTES, digests_in, put_back, take_out
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log.protocol import DamagedSession, Log, SharedBlobs
from agentgraph.sessions.state.record import id_of


@dataclass(slots=True)
class NewBlobs:
    """The blobs that the log may not have yet: each is stored by the append that refers to it.

    An owner whose append is refused, as another hub has taken the session over, leaves none.
    """

    texts: dict[str, str] = field(default_factory=dict)
    """By digest."""

    def take_out(
        self, parts: Sequence[Any], name: str, max_bytes: int = MAX_INLINE_BYTES
    ) -> list[Any]:
        """Return parts of an envelope's data, the largest as references to blobs.

        `ConfigurationError`, which names the parts by `name`, if one is too large even for a blob.
        """
        parts, blobs = take_out(parts, name, max_bytes)
        self.add(blobs)
        return parts

    def add(self, blobs: Mapping[str, str]) -> None:
        """Add blobs to which an envelope will refer."""
        self.texts.update(blobs)

    def of(self, envelopes: Iterable[Envelope]) -> dict[str, str]:
        """Return the blobs to which envelopes refer, for their append."""
        digests = {digest for envelope in envelopes for digest in digests_in(envelope)}
        return {digest: text for digest, text in self.texts.items() if digest in digests}

    def drop(self, digests: Iterable[str]) -> None:
        """Forget blobs that are stored."""
        for digest in digests:
            self.texts.pop(digest, None)


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
                f"session {id_of(session_id)!r} lacks a part of sequence {envelope.sequence} "
                f"({type(error).__name__}: {error}): restore its blobs from a backup",
                session_id,
                envelope.sequence,
            ) from error
    return result


def shared_blobs(envelopes: Iterable[Envelope], source: str) -> SharedBlobs | None:
    """Return what copies of envelopes of a session refer to, None if that is nothing."""
    digests = {digest for envelope in envelopes for digest in digests_in(envelope)}
    return SharedBlobs(source, digests) if digests else None
