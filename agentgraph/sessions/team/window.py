"""The window of a view: the last messages that a speaker may see, read from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgraph.sessions.log import Log
from agentgraph.sessions.state.envelope import Envelope, visible_to
from agentgraph.sessions.state.parallel import in_list_order, speakers_of
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import spans_of


async def read_window(
    log: Log, state: SessionState, reader: str, count: int, *, sees_all: bool = False
) -> list[Envelope]:
    """Return the last `count` messages that a reader may see, up to where the round began.

    Messages between them that the reader may not see are not read: there may be any number. Where
    the window begins within a parallel round, that is cut in the order of its list.
    """
    if sees_all:
        window = await log.tail(state.session_id, count, state.round_began)
    else:
        window = await _last_visible(log, state, reader, count)
    if not window or (speakers := speakers_of(window[0])) < 2:
        return window
    first = window[0]
    before = await log.tail(state.session_id, speakers - 1, first.sequence - 1)
    number = first.event_data.get("round")
    same_round = [
        item
        for item in before
        if item.event_data.get("round") == number and (sees_all or visible_to(item, reader))
    ]
    return in_list_order([*same_round, *window])[-count:]


async def _last_visible(log: Log, state: SessionState, reader: str, count: int) -> list[Envelope]:
    window: list[Envelope] = []
    for start, end in reversed(spans_of(state, reader)):
        before = min(end, state.round_began)
        while before >= start and len(window) < count:
            limit = min(count - len(window), before - start + 1)
            batch = await log.tail(state.session_id, limit, before)
            in_span = [item for item in batch if item.sequence >= start]
            window = [*(item for item in in_span if visible_to(item, reader)), *window]
            before = batch[0].sequence - 1 if batch else 0
    return window


async def as_round_began(log: Log, state: SessionState) -> SessionState:
    """Return the state without the counts of messages that came after its round began."""
    if state.spoke <= state.round_began:
        return state
    counts = dict(state.said)
    shares = state.visibility.items()
    hidden_counts = {name: dict(share["hidden"]) for name, share in shares}
    for envelope in await log.read(state.session_id, state.round_began):
        if not envelope.is_substantive or envelope.sequence > state.sequence:
            continue
        counts[envelope.sender_id] -= 1
        for name, hidden in hidden_counts.items():
            if not visible_to(envelope, name):
                hidden[envelope.sender_id] -= 1
    visibility = {name: {**share, "hidden": hidden_counts[name]} for name, share in shares}
    return replace(state, said=counts, visibility=visibility)


def since_summary(
    envelopes: Sequence[Envelope], state: SessionState, reach: int
) -> Sequence[Envelope]:
    """Return the last `reach` messages, and those before them that no summary covers yet.

    So nothing falls between the summary and the window.
    """
    upto = int(state.summary["upto"]) if state.summary is not None else 0
    window = envelopes[-reach:]
    return [*(item for item in envelopes[:-reach] if item.sequence > upto), *window]
