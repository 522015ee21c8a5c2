"""The window of a view: the last messages that a speaker may see, read from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgraph.sessions.envelopes.envelope import Envelope, visible_to
from agentgraph.sessions.log import Log
from agentgraph.sessions.rounds.branch import Branch
from agentgraph.sessions.rounds.recent import RecentEnvelopes
from agentgraph.sessions.state.parallel import in_list_order, round_of, speakers_of
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import Span, spans_of


async def read_window(
    log: Log,
    state: SessionState,
    reader: str,
    count: int,
    *,
    recent: RecentEnvelopes | None = None,
    sees_all: bool = False,
) -> list[Envelope]:
    """Return the last `count` messages that a reader may see, up to where the round began.

    What the session's owner remembers of them, in `recent`, is not read from the log.
    Messages between them that the reader may not see are not read: there may be any number. A
    parallel round is cut in the order of its list.
    """
    reader_spans = [[1, state.sequence]] if sees_all else spans_of(state, reader)
    visible_messages = _VisibleMessages(
        log, recent, state, state.key, reader_spans, None if sees_all else reader
    )
    window = await visible_messages.last(count, state.round_began)
    speaker_count = speakers_of(window[0]) if window else 1
    if speaker_count > 1:
        earlier = await visible_messages.last(speaker_count - 1, window[0].sequence - 1)
        number = round_of(window[0])
        same = [item for item in earlier if round_of(item) == number]
        window = in_list_order([*same, *window])[-count:]
    return window


@dataclass(frozen=True, slots=True)
class _VisibleMessages:
    """The messages of a log that one reader may see."""

    log: Log
    recent: RecentEnvelopes | None
    state: SessionState
    key: str
    """The session's key in the log."""
    spans: Sequence[Span]
    reader: str | None
    """None for a supervisor, who sees all that is said."""

    async def last(self, count: int, before: int) -> list[Envelope]:
        """Return the last messages up to the sequence `before`."""
        result: list[Envelope] = []
        for start, end in reversed(self.spans):
            position = min(end, before)
            while position >= start and len(result) < count:
                limit = min(count - len(result), position - start + 1)
                batch = await self._tail(limit, position, start)
                result = [*(item for item in batch if self._may_see(item, start)), *result]
                position = batch[0].sequence - 1 if batch else 0
        return result

    async def _tail(self, count: int, before: int, since: int) -> list[Envelope]:
        """Return the last messages up to the sequence `before`, whoever may see them."""
        if self.state.live:  # a part of the log is not
            return await Branch(self.log, self.state).tail(count, before, since)
        envelopes = self.recent.tail(count, before) if self.recent is not None else None
        return await self.log.tail(self.key, count, before) if envelopes is None else envelopes

    def _may_see(self, envelope: Envelope, start: int) -> bool:
        is_visible = self.reader is None or visible_to(envelope, self.reader)
        return is_visible and envelope.sequence >= start


async def as_round_began(log: Log, state: SessionState) -> SessionState:
    """Return the state without the counts of messages that came after its round began."""
    if state.spoke <= state.round_began:
        return state
    counts = dict(state.said)
    shares = state.visibility.items()
    hidden_counts = {name: dict(share["hidden"]) for name, share in shares}
    for envelope in await Branch(log, state).read(state.round_began):
        if not envelope.is_substantive:
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
