"""The session handle: how code outside a session takes part in it or reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, overload

from agentgraph.errors import (
    ConfigurationError,
    InsideRound,
    Quarantined,
    SessionClosed,
    SessionError,
)
from agentgraph.routing.protocols import HUMAN
from agentgraph.sessions.drivers.session_stream import Item
from agentgraph.sessions.drivers.subscribers import Handler, MaySee
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import (
    Content,
    Draft,
    draft_faults,
    is_reserved,
    make_draft,
)
from agentgraph.sessions.envelopes.envelope import Envelope, Priority, for_participant
from agentgraph.sessions.envelopes.payload import check_context
from agentgraph.sessions.hub.answer import Answer, answer_to, with_whole_answer
from agentgraph.sessions.hub.inbox import SessionInbox
from agentgraph.sessions.hub.questions import decisions_in, late_decision
from agentgraph.sessions.hub.reader import ReaderHub
from agentgraph.sessions.hub.run import Run, RunSpan
from agentgraph.sessions.log.live import Cursor
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.rounds.run_requests import RUN
from agentgraph.sessions.state.fold import decision_of, net_context
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import Audience, round_audience

_DECISION_NOTES = frozenset({ev.EV_HANDOFF, ev.EV_HANDOFF_REJECTED, ev.EV_PHASE})
"""The types of the notes that follow the envelope of a decision, in the same append."""
_MOST_NOTES = 20
_PAGE = 500


class SessionHub(ReaderHub, Protocol):
    """What a session needs of its hub."""

    async def fork(self, session: Session, at: int) -> Session:
        """Begin a session with a copy of the envelopes up to `at`."""
        ...

    def load_output(self, record: SessionRecord, packet: Envelope) -> object | None:
        """Return the answer in a packet that was given in a form, None where none was."""
        ...

    def on(self, session: Session, event_type: str, handler: Handler) -> Callable[[], None]:
        """Call a handler with each new envelope of a type; return the unsubscribe function."""
        ...


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that an entry was accepted, durably; `id` becomes its envelope's id."""

    id: str


class Session(SessionInbox):
    """A handle on a session; any hub of its store gives one.

    Requests go to the session's inbox and are durable when the call returns, whichever hub of the
    store drives the session.
    """

    def __init__(self, hub: SessionHub, record: SessionRecord) -> None:
        super().__init__(hub, record)
        self._hub: SessionHub = hub

    @overload
    async def send(
        self,
        sender: str,
        text_or_draft: Content | Draft,
        *,
        audience: Sequence[str] | None = None,
        causation_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: Priority = Priority.NORMAL,
        admitted: Literal[False] = False,
    ) -> Receipt: ...

    @overload
    async def send(
        self,
        sender: str,
        text_or_draft: Content | Draft,
        *,
        audience: Sequence[str] | None = None,
        causation_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: Priority = Priority.NORMAL,
        admitted: Literal[True],
    ) -> Envelope: ...

    async def send(
        self,
        sender: str,
        text_or_draft: Content | Draft,
        *,
        audience: Sequence[str] | None = None,
        causation_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: Priority = Priority.NORMAL,
        admitted: bool = False,
    ) -> Receipt | Envelope:
        """Say something, in a text or in content blocks; it is durable when this returns.

        A text decides who speaks next if its sender has the floor, else it is an interjection. The
        same sender and `idempotency_key` are accepted once: the same again is answered with the
        first receipt, also after the end. `admitted=True` waits until it has its place in the log
        and returns its envelope; a round cannot wait for its own session.

        Without an `audience` all see it; in the turn of a private round, those who see that round.
        A text has at most 256,000 bytes in a Team, and 32 MB in the session of one agent.

        Raises `ConfigurationError` for what cannot be sent, `SessionClosed` after the end, and
        `Quarantined` where the session cannot run here.

        >>> await session.send("user", "I was charged twice", idempotency_key="mail-17")
        """
        draft = make_draft(
            text_or_draft,
            is_single=self.record.is_single,
            audience=audience,
            causation_id=causation_id,
            idempotency_key=idempotency_key,
            metadata=metadata,
            priority=None if priority == Priority.NORMAL else priority,  # None keeps a draft's own
        )
        if admitted and self._is_inside():
            raise InsideRound()
        if sender in self.record.invited and sender not in self._now.acks:
            await self.refresh()  # it may have accepted by another hub
        try:
            self._check(sender, draft)
            await self._check_cause(sender, draft)
            own_draft = replace(draft, audience=self._audience_of(draft))
            envelope_id = await self._put_in_inbox(sender, own_draft)
        except (ConfigurationError, Quarantined):
            # What was accepted once stays so, though its sender may have left since.
            earlier_id = await self._accepted_id(sender, draft)
            if earlier_id is None:
                raise
            envelope_id = earlier_id
        return await self._admitted(envelope_id) if admitted else Receipt(envelope_id)

    async def begin(
        self, sender: str, content: Content, *, earlier: Draft | None = None
    ) -> Receipt:
        """Say something that this hub answers at once, or not at all.

        `earlier` is what a thread has left with which the session goes on, as `left_by` makes it.

        Raises `SessionError` (`busy`) if anything is under way in the session, in any hub, or waits
        in its inbox; what `send` raises; and `SessionClosed` after the end.
        """
        draft = make_draft(content, is_single=self.record.is_single)
        self._check(sender, draft)
        return Receipt(await self._begin(sender, [draft] if earlier is None else [earlier, draft]))

    async def begin_decided(self, sender: str, decisions: Mapping[str, Any]) -> Receipt:
        """Decide questions, by their ids, and let this hub go on at once, or not at all.

        A decision that is known already changes nothing, beside one that is new. Raises
        `SessionError` (`busy`) if anything is under way, and what `decide` raises.
        """
        if faults := self._sender_faults(sender):
            raise ConfigurationError(faults, code="draft")
        drafts = {
            key: Draft(ev.EV_DECISION, {"interrupt_id": key, "decision": decision})
            for key, decision in decisions.items()
        }
        open_ids = self._open_ids(await self.refresh(), sender)
        earlier = {
            key: await self._decision_on(key, sender) for key in drafts if key not in open_ids
        }
        for key, decision in earlier.items():
            is_new = decision is None or decision.event_data != drafts[key].event_data
            if is_new or len(earlier) == len(drafts):
                raise late_decision(decision) if decision else _not_awaited(key, open_ids)
        new_drafts = [draft for key, draft in drafts.items() if key in open_ids]
        return Receipt(await self._begin(sender, new_drafts))

    async def ask(
        self,
        text: Content | Draft,
        *,
        sender: str | None = None,
        reader: str | None = None,
        audience: Sequence[str] | None = None,
        causation_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> Answer:
        """Send a text, by default as the creator; wait for the answer to it, and return that.

            answer = await session.ask("I was charged twice")
            answer.text, answer.interrupts

        It waits until the session has settled for this input: it is closed, or waits for a human or
        for decisions. A text that is sent while a question is open waits for its decision; in the
        session of one agent it takes the question back instead. What was sent before under the same
        `idempotency_key` is not sent again: its answer is returned. `reader` is as for `history`,
        the rest as for `send`.

        Raises what `send` raises, and `InsideRound` in a round of the same session. If a round has
        failed for good and the session goes on, raises `ModelError`, or `SessionError` with the
        `code` of the failure.
        """
        self._sight_of(reader)  # refused before anything is sent
        if self._is_inside():
            raise InsideRound("a round cannot wait for an answer of its own session: use send")
        receipt = await self.send(
            self.record.creator if sender is None else sender,
            text,
            audience=audience,
            causation_id=causation_id,
            idempotency_key=idempotency_key,
            metadata=metadata,
            priority=priority,
        )
        return await self._answer_to(receipt.id, reader)

    async def answer(self, run_id: str, *, reader: str | None = None) -> Answer:
        """Wait for the answer to an earlier input, and return it; for instance after a decision.

            answer = await session.ask("Refund order 7")
            await session.decide(answer.interrupts[0].id, True)
            answer = await session.answer(answer.run_id)

        `run_id` is the id of the input's receipt, which is that of its envelope. Raises what `ask`
        raises, and `SessionError` if the session has no such input.
        """
        may_see = self._sight_of(reader)
        if self._is_inside():
            raise InsideRound("a round cannot wait for an answer of its own session")
        if not isinstance(run_id, str) or not await self._has_input(run_id, may_see):
            raise SessionError(f"the session has no input {run_id!r}", code="unknown_run")
        return await self._answer_to(run_id, reader)

    async def _answer_to(self, run_id: str, reader: str | None) -> Answer:
        may_see = self._sight_of(reader)
        span = await self._settled_span(run_id)
        answer = answer_to(span, await self.refresh(), may_see, self._load_output)
        if self.record.is_single:
            log, load_output = self._hub.log, self._load_output
            answer = await with_whole_answer(answer, log, self.key, load_output)
        if reader is None:
            return answer
        return replace(answer, envelopes=tuple(map(for_participant, answer.envelopes)))

    def _load_output(self, packet: Envelope) -> object | None:
        return self._hub.load_output(self.record, packet)

    async def envelope(self, id: str, *, reader: str | None = None) -> Envelope:
        """Wait until what was accepted has its place in the log, and return its envelope.

        `id` is that of its receipt, `reader` is as for `history`. Raises `SessionError`
        (`unknown_run`) if the reader may see nothing of this id, and what `send` raises.
        """
        may_see = self._sight_of(reader)
        if not await self._has_input(id, may_see):
            raise SessionError(f"the session has no input {id!r}", code="unknown_run")
        return await self._admitted(id)

    async def run_batches(
        self, run_id: str, after: str | None = None, *, reader: str | None = None
    ) -> AsyncGenerator[Sequence[Item], None]:
        """Yield what `batches` does of one run: from its input, or from a place, to its end."""
        envelope = await self.envelope(run_id, reader=reader)
        span = RunSpan(await state_at(self._hub.log, self.record, envelope.sequence - 1))
        cursor = max(Cursor.parse(after or "0"), Cursor(envelope.sequence - 1))
        while span.state.sequence < cursor.sequence and not span.has_settled:
            count = min(_PAGE, cursor.sequence - span.state.sequence)
            page = await self._read(span.state.sequence, count)
            if not page or any(map(span.add, page)):
                break
        if not span.has_settled:
            batches = self.batches(str(cursor), reader=reader, is_last=span.add)
            async with aclosing(batches):
                async for items in batches:
                    yield items

    async def interject(self, sender: str, draft: Draft) -> None:
        """Put a draft into the inbox without checks; only the supervisor does this."""
        await self._put_in_inbox(sender, draft)

    async def settled(self) -> SessionState:
        """Wait until the session closes, or waits for a human or another outside event.

        Raises `InsideRound` in a round of the same session, which would wait for itself.
        """
        if self._is_inside():
            raise InsideRound("a round cannot wait until its own session has settled")
        self._hub.check_open()
        await self._present_quarantine()
        # Who waits wants to know whether it can go on at all: the driver looks at its records.
        self._hub.drivers.look(self.key)
        await self._hub.subscribers.wait_until(self.key, self._has_settled)
        return self.state

    async def set_context(
        self, key: str, value: Any, *, sender: str | None = None, public: bool = False
    ) -> None:
        """Set a context variable at once, also while a round is under way.

        `sender` is who sets it, by default the creator. All participants may see it: in the turn of
        a private round this needs `public=True`, else it raises `SessionError`.
        """
        if not isinstance(key, str):
            raise ConfigurationError(f"key={key!r}: give a string", code="draft")
        await self._request_context({"set": {key: value}, "delete": []}, sender, public)

    async def delete_context(
        self, key: str, *, sender: str | None = None, public: bool = False
    ) -> None:
        """Delete a context variable at once; `sender` and `public` are as for `set_context`."""
        await self._request_context({"set": {}, "delete": [key]}, sender, public)

    async def decide(
        self, interrupt_id: str, decision: Any, *, sender: str | None = None
    ) -> Receipt:
        """Send a human's decision on an interrupt; the interrupted round resumes, as a run.

        Raises `AlreadyDecided` if another decision came first, and `SessionError` if no such
        interrupt is open. What is asked in a private round is asked only of a `sender` who may see
        that round.
        """
        open_ids = self._open_ids(await self.refresh(), sender)
        decider = self.record.creator if sender is None else sender
        if interrupt_id not in open_ids:
            is_stranger = bool(self._sender_faults(decider))
            earlier = None if is_stranger else await self._decision_on(interrupt_id, sender)
            raise late_decision(earlier) if earlier else _not_awaited(interrupt_id, open_ids)
        draft = Draft(ev.EV_DECISION, {"interrupt_id": interrupt_id, "decision": decision})
        if faults := self._sender_faults(decider):
            raise ConfigurationError(faults, code="draft")
        position = self._now.sequence
        try:
            text = "somebody else has decided it otherwise, or the round was cancelled, meanwhile"
            return Receipt(await self._request(decider, draft, or_else=text))
        except SessionError as error:
            # The inbox may have had the same decision: this caller's, before its process died.
            fresh = decisions_in(await self._hub.log.read(self.key, position))
            # An accepted decision may have closed the session, too.
            if error.code not in ("too_late", SessionClosed.code) or interrupt_id not in fresh:
                raise
            if fresh[interrupt_id].event_data != draft.event_data:
                raise late_decision(fresh[interrupt_id]) from None
            return Receipt(fresh[interrupt_id].envelope_id)

    def _open_ids(self, state: SessionState, sender: str | None) -> list[str]:
        """Return the questions without a decision that the sender may decide."""
        return [
            key
            for key, question in state.interrupts.items()
            if "decision" not in question and _is_asked(sender, question, state)
        ]

    async def _decision_on(self, interrupt_id: str, sender: str | None) -> Envelope | None:
        """Return the decision on a question, None if it has none that the sender may see."""
        end = self._now.sequence if isinstance(interrupt_id, str) else 0
        while end > 0:
            start = max(end - _PAGE, 0)
            page = await self._hub.log.read(self.key, start, end - start)
            decision = decisions_in(page).get(interrupt_id)
            if decision is not None and (sender is None or ev.visible_to(decision, sender)):
                return decision
            end = start
        return None

    async def release(self, agent: str | None = None) -> Receipt:
        """Give the conversation to an agent, by default to the one that had it before the human.

        Raises `SessionError` if the session does not wait for a human.
        """
        state = await self.refresh()
        agents = [name for name in self.record.agents if name in state.participant_order]
        if agent is not None and agent not in agents:
            raise SessionError(
                f"{agent!r} is no agent here: there are {', '.join(agents)}", code="unknown_agent"
            )
        if state.status != "waiting_human":
            raise SessionError(
                f"the session waits for no human: it is {state.status}", code="not_waiting"
            )
        draft = Draft(ev.EV_SESSION_RELEASED, {"agent": agent})
        text = "it waits for no human any more"
        return Receipt(await self._request(self.record.creator, draft, or_else=text))

    async def cancel(self, reason: str = "cancelled") -> None:
        """End the round under way, keep what is known of it, and wait for a human.

            await session.cancel("not that file")

        The running models and tools are cancelled. An `EV_CANCELLED` has the tool calls of each
        speaker with their results, and the usage; effects are not undone. The creator has the
        floor: what it says next goes to those who were interrupted, unless a rule decides
        otherwise. Open questions are withdrawn: a decision on them is refused.

        Does nothing if no round is under way, or the session has ended: it may have come to its
        end meanwhile. A message that was sent before counts as begun. Inside of a round of the same
        session it returns before the round is cancelled.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(f"reason={reason!r}: give a string", code="draft")
        await self._stop(Draft(ev.EV_CANCELLED, {"reason": reason}, priority=Priority.URGENT))

    async def cancel_run(self, run_id: str, reason: str = "cancelled") -> Run:
        """End one run, and no other; return what has become of it.

            run = await session.cancel_run(receipt.id)
            run.status  # "cancelled", or how it had ended before

        What waits in the inbox is withdrawn, and never begins. A run under way is cancelled, as
        `cancel` does it. Raises `SessionError`: `unknown_run`, and `part_of_run` for what was said
        while another run is under way, which answers it too.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(f"reason={reason!r}: give a string", code="draft")
        run = await self.run(run_id)
        if run.has_ended:
            return run
        data = {"reason": reason, RUN: run_id}
        await self._stop(Draft(ev.EV_CANCELLED, data, priority=Priority.URGENT))
        run = await self.run(run_id)
        if not run.has_ended and not self._is_inside():
            raise SessionError(
                f"run {run_id!r} was said while another run is under way, which it is a part of: "
                "cancel that one",
                code="part_of_run",
            )
        return run

    async def rewind(self, to: int) -> Receipt:
        """Go back to the state after the envelope `to`, and go on from there.

            await session.rewind(packet.sequence - 1)  # the answer is given again
            await session.rewind(text.sequence - 1)  # to edit: the text is taken back
            await session.send("user", "what I meant")

        If a speaker had the floor then, it speaks again; what it asked a human is asked again. A
        round under way is cancelled. The log keeps everything: `history` and `watch` have both
        branches, while views, summaries and results have the live one only. Effects are not undone:
        the `EV_REWOUND` lists them. What was spent stays spent, keys are not used again, and time
        limits begin anew.

        Raises `SessionClosed` after the end, where a `fork` is the way to go on, and `SessionError`
        if there is no such envelope, or the session was not open then.
        """
        state = await self.refresh()
        if state.is_ended:
            text = f"session {self.id!r} is {state.status}: go on in a fork of it, by fork({to!r})"
            raise SessionClosed(text)
        self._check_sequence(to)
        to = await self._end_of_decision(to)
        then = await state_at(self._hub.log, self.record, to, rewound=state.rewound)
        if then.status == "pending":
            raise SessionError(
                f"the session was not open at {to}: rewind to a later envelope", code="not_open"
            )
        draft = Draft(ev.EV_REWOUND, {"to": to}, priority=Priority.URGENT)
        or_else = f"the session ended meanwhile: go on in a fork of it, by fork({to})"
        return Receipt(await self._request(self.record.creator, draft, or_else=or_else))

    async def fork(self, at: int) -> Session:
        """Begin a session with a copy of the envelopes up to `at`; it resumes when it is used."""
        await self.refresh()
        self._check_sequence(at)
        return await self._hub.fork(self, at)

    async def join(self, name: str) -> None:
        """Accept an invitation, also once the session is open."""
        await self._answer(name, ev.EV_SESSION_INVITE_ACK)

    async def reject(self, name: str) -> None:
        """Decline an invitation; it ends a session that too few others can accept."""
        await self._answer(name, ev.EV_SESSION_INVITE_REJECT)

    async def leave(self, name: str) -> None:
        """Remove a participant; if it has the floor, its turn fails."""
        if name not in self._now.participant_order:
            raise SessionError(f"{name!r} takes no part here", code="stranger")
        await self._request(name, Draft(ev.EV_SESSION_LEFT, {"participant": name}))

    def on(self, event_type: str, handler: Callable[[Envelope], Any]) -> Callable[[], None]:
        """Call a function with each new envelope of a type ("*" is any); the result unsubscribes.

        The function is called once per envelope, in order, whichever hub appends it; it may be a
        coroutine function. Its errors are logged.
        """
        if not callable(handler):
            raise ConfigurationError(f"handler={handler!r}: give a function of an envelope")
        if not isinstance(event_type, str):
            raise ConfigurationError(f"event_type={event_type!r}: give a string, or '*' for any")
        return self._hub.on(self, event_type, handler)

    async def close(self, reason: str = "explicit_close") -> None:
        """End the session; a round under way is cancelled.

        In a round of the session it ends after that round, whose packet is kept.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(f"reason={reason!r}: give a string", code="draft")
        await self.refresh()
        if self._now.is_ended:
            return
        data = {"reason": reason, **self._own_round()}
        draft = Draft(ev.EV_SESSION_CLOSED, data, priority=Priority.URGENT)
        try:
            await self._request(self.record.creator, draft)
        except SessionClosed:
            return  # another caller has closed it first

    async def _request_context(
        self, updates: Mapping[str, Any], sender: str | None, is_public: bool
    ) -> None:
        if not is_public and self._round_audience() is not None:
            raise SessionError(
                "this turn is private, and all participants may see context variables: nothing "
                "was changed. Leave it, or give public=True if all may know it",
                code="private_round",
            )
        draft = Draft(ev.EV_CONTEXT_SET, updates)
        sender = self.record.creator if sender is None else sender
        self._check(sender, draft)
        await self._request(sender, draft)

    async def _stop(self, draft: Draft) -> None:
        """Request that the round under way is ended; do nothing after the end of the session."""
        await self.refresh()
        if not self._now.is_ended:
            with suppress(SessionClosed):  # it ended first
                await self._request(self.record.creator, draft)

    async def _end_of_decision(self, sequence: int) -> int:
        """Return the sequence up to which the notes on the decision on an envelope reach."""
        log = self._hub.log
        (envelope,) = await log.read(self.key, sequence - 1, 1)
        if decision_of(envelope) is None:
            return sequence
        notes = await log.read(self.key, sequence, _MOST_NOTES)
        for note in notes:
            # Without a cause it is of the next turn.
            if note.event_type not in _DECISION_NOTES or note.causation_id is None:
                break
            sequence = note.sequence
        return sequence

    async def _answer(self, name: str, event_type: str) -> None:
        if name not in self.record.invited:
            raise SessionError(f"{name!r} was not invited", code="stranger")
        count = len(self.record.invited)
        if self.record.required_acks is not None:
            count = min(count, self.record.required_acks)
        await self._request(name, Draft(event_type, {}, metadata={"needed": count}))

    async def _check_cause(self, sender: str, draft: Draft) -> None:
        """Refuse a draft that answers to an envelope which the session does not have.

        One that the sender may not see is refused alike: nobody learns that it is there.
        """
        cause = draft.causation_id
        if cause is not None and not await self._has_input(cause, self._sight_of(sender)):
            text = f"causation_id={cause!r}: the session has no such envelope"
            raise ConfigurationError(text, code="draft")

    async def _has_input(self, envelope_id: str, may_see: MaySee) -> bool:
        """Tell whether a reader may see an envelope of this id, in the log or in the inbox."""
        log = self._hub.log
        envelope = await log.find(self.key, envelope_id)
        if envelope is None:
            for entry in await log.inbox(self.key):
                if entry.envelope_id == envelope_id:
                    return may_see(entry.as_envelope(self.id))
            envelope = await log.find(self.key, envelope_id)  # it may have left the inbox meanwhile
        return envelope is not None and may_see(envelope)

    def _check(self, sender: str, draft: Draft) -> None:
        faults = [
            *draft_faults(draft, is_single=self.record.is_single),
            *self._sender_faults(sender),
        ]
        names = (*self._senders, HUMAN)
        strangers = [name for name in draft.audience or () if name not in names]
        faults += [f"audience: {name!r} takes no part in the session" for name in strangers]
        if draft.audience is not None and any(_updates_of(draft).values()):
            faults.append(
                "audience: all participants may see context variables, so what is for some of "
                "them sets none: use session.set_context"
            )
        updates = _updates_of(draft)
        if not faults and updates.get("set"):
            check_context(net_context(self._now.context_vars, updates))
        if faults:
            code = "reserved_type" if is_reserved(draft.event_type) else "draft"
            raise ConfigurationError(faults, code=code)

    async def _accepted_id(self, sender: str, draft: Draft) -> str | None:
        """Return the id of what the same sender has sent with the same key, None if nothing."""
        if draft.idempotency_key is None or not isinstance(sender, str):
            return None
        self._check_open()
        return await self._hub.log.accepted_id(self.key, sender, draft.idempotency_key)

    def _sender_faults(self, sender: str) -> list[str]:
        senders = self._senders
        if sender in self.record.invited and sender in senders and sender not in self._now.acks:
            return [f"{sender!r} has not accepted the invitation: call join({sender!r}) first"]
        if sender in senders or (sender is not None and sender == self.record.supervisor):
            return []
        return [f"{sender!r} takes no part in the session: there are {', '.join(senders)}"]

    @property
    def _senders(self) -> tuple[str, ...]:
        """The present participants, and the creator, who may send without being a participant."""
        state, record = self._now, self.record
        own = () if state.creator_id in (*record.agents, *record.humans) else (state.creator_id,)
        return (*state.participant_order, *own)

    def _audience_of(self, draft: Draft) -> Audience:
        """Return the audience of a draft by the names of participants."""
        if draft.audience is None:
            return self._round_audience()
        creator = self.record.creator
        return tuple(creator if name == HUMAN else name for name in draft.audience)


def _is_asked(sender: str | None, question: Mapping[str, Any], state: SessionState) -> bool:
    """Tell whether a participant may see a question; None is whoever has the session's handle."""
    audience = round_audience(state, question.get("speaker"))
    return sender is None or audience is None or sender in audience


def _not_awaited(interrupt_id: str, open_ids: Sequence[str]) -> SessionError:
    awaited = ", ".join(open_ids) or "nothing"
    return SessionError(
        f"nothing waits for a decision on {interrupt_id!r}: what waits is {awaited}",
        code="unknown_interrupt",
    )


def _updates_of(draft: Draft) -> Mapping[str, Any]:
    """Return the changes of context variables that a sender's draft makes."""
    data = draft.event_data
    if draft.event_type == ev.EV_CONTEXT_SET:
        return data
    updates = data.get("context_updates") if draft.event_type == ev.EV_PACKET else None
    return updates if isinstance(updates, Mapping) else {}
