"""The answer to an input of a session: what was said, what is asked, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_jsonable_python

from agentgraph.display import code, escaped, panel, prose, row
from agentgraph.errors import ModelError, SessionError
from agentgraph.outcomes import Interrupt
from agentgraph.participant import sentence_of_stop
from agentgraph.sessions.drivers.subscribers import MaySee
from agentgraph.sessions.envelopes.blobs import is_reference
from agentgraph.sessions.envelopes.envelope import (
    EV_CANCELLED,
    EV_INTERRUPT,
    EV_PACKET,
    EV_REWOUND,
    EV_ROUND_FAILED,
    EV_WITHDRAWN,
    Envelope,
)
from agentgraph.sessions.envelopes.packet import answer_text
from agentgraph.sessions.envelopes.payload import may_be_clipped
from agentgraph.sessions.hub.questions import questions_in
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.blobs import with_blobs
from agentgraph.sessions.rounds.input_span import InputSpan
from agentgraph.sessions.single.messages import decode_message
from agentgraph.sessions.state.state import SessionState, Status
from agentgraph.sessions.team.inner_session import TURN_ENDS, outcome_of, usage_records
from agentgraph.usage import Usage

_UNSEEN = "The run has failed."


@dataclass(frozen=True, slots=True)
class Answer:
    """What a session has answered to one input, once it has settled.

    answer = await session.ask("I was charged twice")
    answer.text, answer.speaker      # the answer, and who gave it
    for question in answer.interrupts:
        await session.decide(question.id, decision)
    """

    text: str
    """What the last speaker said for this input; if nobody said anything, why a guard ended it. If
    a failure closed the session: what failed. It is empty while a first answer is awaited."""
    speaker: str | None
    """The participant that said it, None if nobody did."""
    agent: str | None
    """The path of the agent that has the conversation below the speaker: `support/billing`."""
    envelopes: tuple[Envelope, ...]
    """The envelopes of this input that its reader may see; the first is the input's own."""
    interrupts: tuple[Interrupt, ...]
    """The open questions of this input that its reader may see."""
    status: Status
    """The status of the session when this input had settled."""
    close_reason: str | None
    """Why the session closed, or which guard ended the run; `cancelled` or `rewound` if that ended
    it; None if nothing of this happened."""
    usage: Usage
    output: object | None
    """The answer as an object, where the speaker has a `response_format`."""
    run_id: str
    """The id of the input's envelope."""
    sequence: int
    """The sequence of the last envelope of this input: `watch(after=…)` continues there."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a JSON object; `envelopes` are read by `history`."""
        return {
            "text": self.text,
            "speaker": self.speaker,
            "agent": self.agent,
            "status": self.status,
            "close_reason": self.close_reason,
            "interrupts": [question.to_dict() for question in self.interrupts],
            "usage": self.usage.to_dict(),
            "output": to_jsonable_python(self.output, fallback=str),
            "run_id": self.run_id,
            "sequence": self.sequence,
        }

    def _repr_html_(self) -> str:
        parts = [prose(self.text)] if self.text else []
        parts += [question._repr_html_() for question in self.interrupts]
        if self.output is not None:
            parts.append(row("output", code(repr(self.output))))
        if self.close_reason is not None:
            parts.append(row("closed", code(self.close_reason)))
        if self.usage.total_tokens:
            parts.append(row("used", escaped(self.usage.summary())))
        return panel(self.speaker or "nobody", *parts)


def answer_to(
    span: InputSpan,
    present: SessionState,
    may_see: MaySee,
    load_output: Callable[[Envelope], object],
) -> Answer:
    """Return the answer to an input that has settled, as its reader may see it.

    `load_output` reads the answer in a packet that was given in a form.

    `present` is the state of the session, for an input that nobody was due to answer. Raises
    `ModelError` or `SessionError` if a round has failed for good and the session goes on.
    """
    state = span.state if span.is_known else present
    reason = state.pending_close_reason if state.is_ended else None
    failure = final_failure(span.envelopes)
    if failure is not None and not state.is_ended:
        reason = guard_of(failure)
        if reason is None:
            raise _error_of(failure, is_visible=may_see(failure))
    question, *later = span.envelopes
    last = outcome_of([*filter(may_see, later)], span.record).last
    if reason == "round_failed":
        last = None  # what others had said before is not the answer
    if reason is None and last is not None:
        reason = last.event_data.get("stopped_by")
    envelopes = tuple(filter(may_see, span.envelopes))
    reason = reason or _interruption_of(span.envelopes)
    return Answer(
        text=last.text if last is not None else words_of_end(reason, span.envelopes, may_see),
        speaker=last.sender_id if last is not None else None,
        agent=_path_of(span.envelopes, may_see),
        envelopes=envelopes,
        interrupts=questions_in(envelopes, state),
        status=state.status,
        close_reason=reason,
        usage=Usage.of_records(usage_records(envelopes)),
        output=load_output(last) if last is not None else None,
        run_id=question.envelope_id,
        sequence=span.envelopes[-1].sequence,
    )


async def with_whole_answer(
    answer: Answer, log: Log, session_id: str, load_output: Callable[[Envelope], object]
) -> Answer:
    """Return the answer of a session of one with all of its text and its object, however large."""
    packets = (e for e in reversed(answer.envelopes) if e.event_type == EV_PACKET)
    packet = next((packet for packet in packets if packet.text), None)
    if packet is None or packet.text != answer.text:
        return answer
    is_large = may_be_clipped(answer.text) or is_reference(packet.event_data.get("output"))
    if not is_large:
        return answer
    (packet,) = await with_blobs(log, session_id, [packet])
    messages = [decode_message(part) for part in packet.event_data.get("messages", ())]
    text = answer_text(messages, packet.event_data.get("output"))
    return replace(answer, text=text or answer.text, output=load_output(packet))


def _interruption_of(envelopes: Sequence[Envelope]) -> str | None:
    """Return why an input has no answer: its run was cancelled, or taken back by a rewind."""
    last = next((e for e in reversed(envelopes) if e.event_type in _INTERRUPTIONS), None)
    if last is None:
        return None
    is_after = any(e.event_type == EV_PACKET and e.sequence > last.sequence for e in envelopes)
    return None if is_after else _INTERRUPTIONS[last.event_type]


_INTERRUPTIONS = {EV_CANCELLED: "cancelled", EV_REWOUND: "rewound", EV_WITHDRAWN: "cancelled"}


def _path_of(envelopes: Sequence[Envelope], may_see: MaySee) -> str | None:
    """Return the path of the last agent that has spoken or asked, None if none has."""
    for envelope in reversed(envelopes):
        data = envelope.event_data
        if envelope.event_type not in (EV_PACKET, EV_INTERRUPT) or not may_see(envelope):
            continue
        speaker = envelope.sender_id if envelope.event_type == EV_PACKET else data["speaker"]
        return f"{speaker}/{data['active']}" if data.get("active") else str(speaker)
    return None


def words_of_end(
    reason: str | None, envelopes: Iterable[Envelope], may_see: MaySee = lambda envelope: True
) -> str:
    """Return in words why a guard or a failure has ended a session or a run, "" if none has.

    A reader who may not see why is told that it has ended.
    """
    failures = [e for e in envelopes if e.event_data.get("final") is True and _is_failure(e)]
    if reason == "round_failed":
        return _words_of(failures[-1], may_see(failures[-1])) if failures else _UNSEEN
    stops = [envelope for envelope in failures if guard_of(envelope) == reason]
    return _words_of(stops[-1], may_see(stops[-1])) if stops else ""


def _words_of(failure: Envelope, is_visible: bool) -> str:
    data, guard = failure.event_data, guard_of(failure)
    if guard is not None:
        return sentence_of_stop(guard, data.get("cause", "") if is_visible else "")
    if not is_visible:
        return _UNSEEN
    # A round that its deadline has ended fails, and closes the session, as other failures do.
    if data["code"] == "deadline":
        return sentence_of_stop("deadline", data["message"])
    return f"The turn of {data['speaker']} has failed: {data['message'].rstrip('.')}."


def final_failure(envelopes: Iterable[Envelope]) -> Envelope | None:
    """Return the final failure of the last round, None if that round did not fail."""
    turns = [envelope for envelope in envelopes if envelope.event_type in TURN_ENDS]
    last_round = max((int(turn.event_data.get("round") or 0) for turn in turns), default=0)
    failures = (e for e in reversed(turns) if e.event_data.get("final") is True and _is_failure(e))
    return next((e for e in failures if e.event_data["round"] == last_round), None)


def _error_of(failure: Envelope, *, is_visible: bool) -> ModelError | SessionError:
    code, text = failure.event_data["code"], _words_of(failure, is_visible)
    if code in ("model", "output"):
        return ModelError(text, code=code)
    return SessionError(text, code=code)


def _is_failure(envelope: Envelope) -> bool:
    return envelope.event_type == EV_ROUND_FAILED


def guard_of(failure: Envelope) -> str | None:
    """Return the guard that has ended a round, None if it failed otherwise."""
    data = failure.event_data
    return str(data["message"]) if data["code"] == "guard" else None
