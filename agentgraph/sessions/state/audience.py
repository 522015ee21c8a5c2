"""The audience of a round: who may see what is said, done and asked in it.

A round has the audience of the envelope whose decision gave the floor, and its sender. So what
answers a private message is private too, from packet to packet, until somebody says something to
all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from agentgraph.sessions.state.envelope import SYSTEM, Envelope
from agentgraph.sessions.state.state import SessionState

Audience: TypeAlias = tuple[str, ...] | None
"""The names of those who may see something; None means everybody."""


def with_names(audience: Audience, names: Iterable[str]) -> Audience:
    """Return an audience with some more names in it."""
    return None if audience is None else tuple(dict.fromkeys((*audience, *names)))


def round_audience(state: SessionState, speaker: object) -> Audience:
    """Return the audience of what the session notes about a speaker's turn in the present round.

    The speaker itself is in it: the notes have the session as their sender.
    """
    return with_names(state.audience, (speaker,) if isinstance(speaker, str) else ())


def next_audience(state: SessionState, envelope: Envelope) -> Audience:
    """Return the audience of the round that the decision on an envelope begins.

    `state` has the envelope's event, and not its decision yet. Where the decision joins several
    speakers, all of them are senders, also one that has failed: who of them was the last is a
    matter of time.
    """
    sender = envelope.sender_id
    is_join = sender == SYSTEM or sender in state.spoken
    return with_names(envelope.audience, state.spoken if is_join else (sender,))
