"""The span of an input in a session's log: from its own envelope up to the next input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.fold import decision_of, fold
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

ReadLog = Callable[[int, int], Awaitable[list[Envelope]]]
"""Returns the envelopes after a sequence, no more than a number."""

_BATCH = 200


@dataclass(slots=True)
class InputSpan:
    """The envelopes of one input, and the state of its session, folded from the input on.

    The log before the input is not read, however long it is: a decision sets all fields of the
    state that tell who is due. Until the first decision or question they are unknown: an input
    without the floor may come while a round is under way.
    """

    record: SessionRecord
    position: int
    """The sequence up to which the log was read; at first that before the input."""
    state: SessionState = field(init=False)
    envelopes: list[Envelope] = field(default_factory=list)
    is_known: bool = False
    """Whether the state tells who is due."""
    is_over: bool = False
    """Whether the next input has begun, or the session has ended."""

    def __post_init__(self) -> None:
        self.state = SessionState.initial(self.record)

    @property
    def has_settled(self) -> bool:
        """Whether nobody is at work on the input any more, as far as the log was read."""
        return self.is_over or (self.is_known and self._rests)

    @property
    def _rests(self) -> bool:
        return not self.state.is_runnable

    async def read(self, read_log: ReadLog) -> None:
        """Read on, up to the end of the input or of the log."""
        while not self.is_over:
            batch = await read_log(self.position, _BATCH)
            for envelope in batch:
                self._add(envelope)
            if len(batch) < _BATCH:
                return

    def _add(self, envelope: Envelope) -> None:
        self.position = envelope.sequence
        if self.is_over or (self.envelopes and self._begins_input(envelope)):
            self.is_over = True
            return
        self.envelopes.append(envelope)
        self.state = fold(self.state, envelope)
        self.is_known |= (
            decision_of(envelope) is not None or envelope.event_type in _TYPES_THAT_TELL
        )
        is_withdrawn = envelope.event_type == ev.EV_WITHDRAWN and len(self.envelopes) == 1
        self.is_over = is_withdrawn or envelope.event_type == ev.EV_SESSION_CLOSED

    def _begins_input(self, envelope: Envelope) -> bool:
        """Tell whether an envelope is the next input, and not a part of the work on this one."""
        if envelope.event_type == ev.EV_SESSION_RELEASED:
            return True
        if not envelope.is_substantive or envelope.sender_id == self.record.supervisor:
            return False
        if self.is_known:
            return self._rests
        return decision_of(envelope) is not None and envelope.sender_id not in self.record.agents


_TYPES_THAT_TELL = frozenset({ev.EV_INTERRUPT, ev.EV_REWOUND, ev.EV_SESSION_CLOSED})
"""The types of notes after which the state tells who is due, without a decision."""
