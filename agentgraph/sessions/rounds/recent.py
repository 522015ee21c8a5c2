"""The last envelopes of a session in the memory of its owner, who need not read them again."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from agentgraph.sessions.envelopes.envelope import Envelope

_MOST_ENVELOPES = 48
_MOST_SESSIONS = 128
"""Of how many sessions a process remembers envelopes: those that were appended to last."""


class RecentEnvelopes:
    """The last envelopes that the owner of a session has appended, without gaps.

    Envelopes are immutable, so they are handed out as they are. Whoever asks for more than what is
    remembered gets None, and reads the log:

        envelopes = recent.between(after, upto)
        if envelopes is None:
            envelopes = await log.read(session_id, after, upto - after)
    """

    __slots__ = ("_envelopes",)

    def __init__(self) -> None:
        self._envelopes: deque[Envelope] = deque(maxlen=_MOST_ENVELOPES)

    def add(self, envelopes: Sequence[Envelope]) -> None:
        """Remember what was appended; the session that was idle longest is forgotten for it."""
        self._envelopes.extend(envelopes)
        # Sessions of other threads are among them: each step is atomic, and what another thread
        # may be reading is replaced and not emptied.
        _in_use.pop(id(self), None)
        _in_use[id(self)] = self
        while len(_in_use) > _MOST_SESSIONS:
            _, idle = _in_use.popitem(last=False)
            idle._envelopes = deque(maxlen=_MOST_ENVELOPES)

    def find(self, envelope_id: str) -> Envelope | None:
        """Return the envelope with this id, None if it is not remembered."""
        matches = (item for item in self._envelopes if item.envelope_id == envelope_id)
        return next(matches, None)

    def last(self, upto: int) -> list[Envelope]:
        """Return what is remembered of the envelopes up to a sequence."""
        return [item for item in self._envelopes if item.sequence <= upto]

    def tail(self, count: int, before: int) -> list[Envelope] | None:
        """Return the last envelopes up to the sequence `before` that views show."""
        envelopes = self._envelopes
        if not envelopes or envelopes[-1].sequence < before:
            return None
        in_views = [item for item in envelopes if item.sequence <= before and item.is_in_views]
        is_enough = len(in_views) >= count or envelopes[0].sequence == 1
        return in_views[-count:] if is_enough else None

    def between(self, after: int, upto: int | None = None) -> list[Envelope] | None:
        """Return the envelopes after a sequence, up to another one or to the last."""
        envelopes = self._envelopes
        if not envelopes or envelopes[0].sequence > after + 1:
            return None
        return [
            item
            for item in envelopes
            if item.sequence > after and (upto is None or item.sequence <= upto)
        ]


_in_use: OrderedDict[int, RecentEnvelopes] = OrderedDict()
