"""The branches of a session's log: the live one, without what rewinds have left; a state in any.

Reading the live one costs what it costs in a log that was never rewound, as far as the ranges are
long: each range is read by itself, from the last one back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.protocol import DamagedSession, FoldingLog
from agentgraph.sessions.state.fold import fold, fold_all
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rewind import WHOLE, ranges_before
from agentgraph.sessions.state.state import Range, SessionState

_PAGE = 500
"""How many envelopes are read and folded at a time."""
_SHORT = 64
"""Ranges of up to so many envelopes are read whole: what is not live may be damaged."""


@dataclass(slots=True)
class Branch:
    """The branch of a log in which a state is."""

    log: Log
    state: SessionState
    _earlier: list[Range] = field(default_factory=list)
    """The ranges before those of the state that have been looked up, the last one first."""

    async def tail(self, count: int, before: int, since: int = 1) -> list[Envelope]:
        """Return the last envelopes from `since` up to `before` that views show, in order."""
        newest_first: list[Envelope] = []
        async for start, end in self.ranges():
            start, end = max(start, since), before if end is None else min(end, before)
            room = count - len(newest_first)
            if start <= end and room > 0:
                newest_first += reversed(await self._tail_of_range(room, start, end))
            if start <= since or len(newest_first) >= count:
                break
        return newest_first[::-1]

    async def read(self, after: int = 0, upto: int | None = None) -> list[Envelope]:
        """Return the envelopes after a sequence, up to another one, in order."""
        upto = self.state.sequence if upto is None else upto
        parts: list[list[Envelope]] = []
        async for start, end in self.ranges():
            first, last = max(start - 1, after), upto if end is None else min(end, upto)
            if first < last:
                parts.append(await self.log.read(self.state.key, first, last - first))
            if start <= after + 1:
                break
        return [envelope for part in reversed(parts) for envelope in part]

    async def ranges(self) -> AsyncIterator[Range]:
        """Yield the live ranges, the last one first."""
        live = self.state.live or WHOLE
        for live_range in reversed(live):
            yield live_range
        place, (first, _) = 0, live[0]
        while first > 1:
            if place == len(self._earlier):
                (rewind,) = await self.log.read(self.state.key, first - 1, 1)
                self._earlier += reversed(ranges_before(rewind))
            yield self._earlier[place]
            first, _ = self._earlier[place]
            place += 1

    async def _tail_of_range(self, count: int, start: int, end: int) -> list[Envelope]:
        log, key = self.log, self.state.key
        is_whole = start == 1
        if is_whole or end - start >= _SHORT:
            try:
                batch = await log.tail(key, count, end)
                return [envelope for envelope in batch if envelope.sequence >= start]
            except DamagedSession:
                if is_whole:
                    raise
        newest_first: list[Envelope] = []
        while end >= start and len(newest_first) < count:
            first = max(start, end - _SHORT + 1)
            batch = await log.read(key, first - 1, end - first + 1)
            newest_first += [envelope for envelope in reversed(batch) if envelope.is_in_views]
            end = first - 1
        return newest_first[:count][::-1]


async def state_at(
    log: Log, record: SessionRecord, sequence: int, *, rewound: int = 0
) -> SessionState:
    """Return the state after the envelope `sequence`, of any branch.

    It is folded from the last milestone before it: what a log has before that is not read. With
    `rewound`, the sequence of the log's last rewind, it is folded from the last rewind before it,
    if that is later: a rewind has a whole state, and what it has left behind may be damaged.
    """
    state = await log.milestone(record.key, sequence) or SessionState.initial(record)
    while rewound > state.sequence:
        (rewind,) = await log.read(record.key, rewound - 1, 1)
        if rewound <= sequence:
            state = fold(state, rewind)
            break
        rewound = int(rewind.event_data["previous"])
    while state.sequence < sequence:
        limit = min(_PAGE, sequence - state.sequence)
        before = state
        if isinstance(log, FoldingLog):
            state = await log.fold(before, limit)
        else:
            state = fold_all(before, await log.read(record.key, before.sequence, limit))
        if state.sequence == before.sequence:
            break  # the session was forgotten meanwhile, and there is a new one of its id
    return state
