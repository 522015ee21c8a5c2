"""The window of a view: the last messages that a speaker may see, read from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgraph.sessions.log import Log
from agentgraph.sessions.state.envelope import Envelope, visible_to
from agentgraph.sessions.state.hearing import spans_of
from agentgraph.sessions.state.state import SessionState


async def read_window(
    log: Log, state: SessionState, reader: str, count: int, *, sees_all: bool = False
) -> list[Envelope]:
    """Return the last `count` messages that a reader may see, up to where the round began.

    Messages between them that the reader may not see are not read: there may be any number.
    """
    if sees_all:
        return await log.tail(state.session_id, count, state.round_began)
    window: list[Envelope] = []
    for start, end in reversed(spans_of(state, reader)):
        before = min(end, state.round_began)
        while before >= start and len(window) < count:
            limit = min(count - len(window), before - start + 1)
            batch = await log.tail(state.session_id, limit, before)
            heard = [item for item in batch if item.sequence >= start and visible_to(item, reader)]
            window = [*heard, *window]
            before = batch[0].sequence - 1 if batch else 0
    return window


async def as_round_began(log: Log, state: SessionState) -> SessionState:
    """Return the state without the counts of messages that came after its round began."""
    if state.spoke <= state.round_began:
        return state
    said = dict(state.said)
    hidden = {name: dict(own["hidden"]) for name, own in state.hearing.items()}
    for envelope in await log.read(state.session_id, state.round_began):
        if not envelope.is_substantive or envelope.sequence > state.sequence:
            continue
        said[envelope.sender_id] -= 1
        for name, counts in hidden.items():
            if not visible_to(envelope, name):
                counts[envelope.sender_id] -= 1
    hearing = {name: {**own, "hidden": hidden[name]} for name, own in state.hearing.items()}
    return replace(state, said=said, hearing=hearing)


def since_summary(
    envelopes: Sequence[Envelope], state: SessionState, reach: int
) -> Sequence[Envelope]:
    """Return the last `reach` messages, and those before them that no summary covers yet."""
    upto = int(state.summary["upto"]) if state.summary is not None else 0
    window = envelopes[-reach:]
    return [*(item for item in envelopes[:-reach] if item.sequence > upto), *window]
