"""A run: one input of a session, from its envelope until the session has settled for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.hub.answer import final_failure, guard_of
from agentgraph.sessions.log import Log
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.state.fold import decision_of, fold
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

RunStatus = Literal["pending", "running", "interrupted", "success", "error", "cancelled"]

BEGINNINGS = frozenset(
    {
        ev.EV_TEXT,
        ev.EV_PACKET,
        ev.EV_WITHDRAWN,
        ev.EV_DECISION,
        ev.EV_REWOUND,
        ev.EV_SESSION_RELEASED,
    }
)
_BATCH = 200
_FIRST = 16
"""How many envelopes are read first: most runs have fewer."""
_INTERRUPTIONS = frozenset({ev.EV_CANCELLED, ev.EV_REWOUND})


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run has failed, in words for whoever sees the session."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Run:
    """An input of a session and what has become of it.

        run = await session.run(receipt.id)
        run.status, run.ended_at

    A run that ends at a question is `interrupted`: the decision begins a run of its own.
    """

    id: str
    """The id of the input's envelope."""
    session_id: str
    status: RunStatus
    """`pending` is not begun; a run that a guard has ended is a `success`: it has an answer."""
    created_at: str | None = None
    """None while it is pending."""
    ended_at: str | None = None
    error: RunFailure | None = None
    sequence: int | None = None
    """The sequence of its last envelope so far, None while it is pending."""

    @property
    def has_ended(self) -> bool:
        """Whether nobody is at work on it any more."""
        return self.status not in ("pending", "running")

    def to_dict(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        return asdict(self)


@dataclass(slots=True)
class RunSpan:
    """The envelopes of one run, folded from the state before it up to where it has settled."""

    state: SessionState
    """The state before the run, and then after what was read of it."""
    envelopes: list[Envelope] = field(default_factory=list)

    @property
    def has_settled(self) -> bool:
        """Whether the session has come to rest after the input."""
        if not self.envelopes:
            return False
        return self._is_withdrawn or not self.state.is_runnable

    @property
    def _is_withdrawn(self) -> bool:
        """Whether the input was taken back before anybody was at work on it."""
        return self.envelopes[0].event_type == ev.EV_WITHDRAWN

    def add(self, envelope: Envelope) -> bool:
        """Add the next envelope of the log; tell whether the session has settled with it."""
        self.state = fold(self.state, envelope)
        self.envelopes.append(envelope)
        return self.has_settled

    async def read(self, read_log: Callable[[int, int], Awaitable[list[Envelope]]]) -> None:
        """Read on, up to the end of the run or of the log."""
        count = _FIRST
        while not self.has_settled:
            batch = await read_log(self.state.sequence, count)
            for envelope in batch:
                if self.add(envelope):
                    break
            if len(batch) < count:
                return
            count = min(2 * count, _BATCH)

    def run(self, may_see: Callable[[Envelope], bool]) -> Run:
        """Return the run; its failure in words only if the reader may see that."""
        first, last = self.envelopes[0], self.envelopes[-1]
        status = self._status()
        return Run(
            first.envelope_id,
            first.session_id,
            status,
            created_at=first.created_at,
            ended_at=last.created_at if status != "running" else None,
            error=self._error(may_see) if status == "error" else None,
            sequence=last.sequence,
        )

    def _status(self) -> RunStatus:
        if self._is_withdrawn:
            return "cancelled"
        if not self.has_settled:
            return "running"
        if self.state.status == "waiting_decision":
            return "interrupted"
        if _is_interrupted(self.envelopes[1:]):
            return "cancelled"
        if self.state.is_ended and self._has_no_answer:
            return "cancelled"  # the session was closed first
        failure = final_failure(self.envelopes)
        return "success" if failure is None or guard_of(failure) is not None else "error"

    @property
    def _has_no_answer(self) -> bool:
        """Whether the input came in as the session ended, and was only noted."""
        first = self.envelopes[0]
        is_noted = first.is_substantive and decision_of(first) is None
        return is_noted and not any(e.event_type == ev.EV_PACKET for e in self.envelopes[1:])

    def _error(self, may_see: Callable[[Envelope], bool]) -> RunFailure | None:
        failure = final_failure(self.envelopes)
        if failure is None:
            return None
        code = str(failure.event_data["code"])
        if not may_see(failure):
            return RunFailure(code, "the run has failed")
        return RunFailure(code, str(failure.event_data["message"]))


async def latest_runs(
    log: Log, record: SessionRecord, limit: int, may_see: Callable[[Envelope], bool]
) -> list[Run]:
    """Return the last runs of a session that a reader may see, the newest first."""
    beginnings: list[Envelope] = []
    stored_session = await log.load(record.key)
    end = 0 if stored_session is None else stored_session.head
    while end > 0 and len(beginnings) < limit:
        start = max(end - _BATCH, 0)
        page = await log.read(record.key, start, end - start)
        own = [envelope for envelope in page if begins_run(envelope, record)]
        beginnings += [envelope for envelope in reversed(own) if may_see(envelope)]
        end = start
    spans = await _spans_of(log, record, [envelope.sequence for envelope in beginnings[:limit]])
    return [span.run(may_see) for span in spans]


async def _spans_of(log: Log, record: SessionRecord, sequences: Sequence[int]) -> list[RunSpan]:
    """Return the spans of runs that begin at these sequences, the last one first.

    The log is folded once, from the first of them on.
    """
    if not sequences:
        return []
    state = await state_at(log, record, sequences[-1] - 1)
    due, spans, open_spans = set(sequences), list[RunSpan](), list[RunSpan]()
    while page := await log.read(record.key, state.sequence, _BATCH):
        for envelope in page:
            if envelope.sequence in due:
                spans.append(RunSpan(state))
                open_spans.append(spans[-1])
            state = fold(state, envelope)
            for span in open_spans:
                span.envelopes.append(envelope)
                span.state = state
            open_spans = [span for span in open_spans if not span.has_settled]
        if len(spans) == len(due) and not open_spans:
            break
    return spans[::-1]


def begins_run(envelope: Envelope, record: SessionRecord) -> bool:
    """Tell whether an envelope begins a run: a turn of an agent is a part of one."""
    return envelope.event_type in BEGINNINGS and envelope.sender_id not in record.agents


def _is_interrupted(envelopes: Sequence[Envelope]) -> bool:
    """Tell whether a run was cancelled, or taken back by a rewind, and nobody has spoken since."""
    for envelope in reversed(envelopes):
        if envelope.event_type in _INTERRUPTIONS:
            return True
        if envelope.event_type == ev.EV_PACKET:
            return False
    return False
