"""One session, for whoever takes part in it or looks on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from agentgraph.clock import clock, new_id
from agentgraph.display import code, escaped, panel, row
from agentgraph.errors import (
    ConfigurationError,
    InsideRound,
    Quarantined,
    SessionClosed,
    SessionError,
)
from agentgraph.routing.protocols import HUMAN
from agentgraph.sessions.hub.live import load_state
from agentgraph.sessions.hub.round import current_round
from agentgraph.sessions.hub.watching import stream, watch
from agentgraph.sessions.log import InboxEntry
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.drafts import draft_faults, drafted
from agentgraph.sessions.state.envelope import Draft, Envelope, Priority
from agentgraph.sessions.state.explanation import SessionExplanation, explained
from agentgraph.sessions.state.fold import folded
from agentgraph.sessions.state.record import Parent, SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.stream import Event

if TYPE_CHECKING:
    from agentgraph.sessions.hub.hub import Hub


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was accepted, durably; its id will be its envelope's."""

    id: str


class Session:
    """A handle on a session; any hub of its store gives one."""

    def __init__(self, hub: Hub, record: SessionRecord) -> None:
        self._hub = hub
        self.record = record
        self._state = SessionState.initial(record)

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self.state.status})"

    def _repr_html_(self) -> str:
        state = self.state
        shown = [row("status", code(state.status)), *state._waiting()]
        shown.append(row("with", escaped(", ".join(state.participant_order))))
        if state.context_vars:
            shown.append(row("context", code(state.context_vars)))
        if state.is_ended:
            shown.append(row("closed", code(state.pending_close_reason)))
        return panel(f"{self.record.team} {self.id}", *shown)

    @property
    def id(self) -> str:
        """The id under which any hub of the store finds it."""
        return self.record.session_id

    @property
    def state(self) -> SessionState:
        """The state; where another hub drives the session, as it was when last looked at."""
        return self._now.handed_out()

    @property
    def _now(self) -> SessionState:
        live = self._hub.live(self.id)
        return live.state if live is not None else self._state

    @property
    def quarantine(self) -> Quarantined | None:
        """Why it cannot run here, if it cannot."""
        try:
            if not self.record.serves:  # what runs within another session's round has its code
                self._hub.team_of(self.record).rules_of(self.record)
        except Quarantined as fault:
            return fault
        conductor = self._hub.driven(self.id)
        return conductor.quarantine if conductor is not None else None

    @overload
    async def send(
        self,
        sender: str,
        text_or_draft: str | Draft,
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
        text_or_draft: str | Draft,
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
        text_or_draft: str | Draft,
        *,
        audience: Sequence[str] | None = None,
        causation_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: Priority = Priority.NORMAL,
        admitted: bool = False,
    ) -> Receipt | Envelope:
        """Say something; it is durable when this returns.

        `admitted=True` waits until it has its place in the log and returns its envelope; a round
        cannot wait for its own session.
        """
        draft = drafted(
            text_or_draft,
            audience=audience,
            causation_id=causation_id,
            idempotency_key=idempotency_key,
            metadata=metadata,
            priority=None if priority == Priority.NORMAL else priority,  # a draft has its own
        )
        self._check(sender, draft)
        if admitted and self._is_inside():
            raise InsideRound()
        envelope_id = await self._put(sender, draft)
        return await self._admitted(envelope_id) if admitted else Receipt(envelope_id)

    async def interject(self, sender: str, draft: Draft) -> None:
        """Let the supervisor speak."""
        await self._put(sender, draft)

    async def settled(self) -> SessionState:
        """Wait until nothing moves any more by itself: it is closed, or waits for somebody."""
        if self._is_inside():
            raise InsideRound("a round cannot wait until its own session has settled")
        self._hub.check_open()
        self._hub.conductor(self.id).wake()
        await self._hub.audience.until(self.id, self._has_settled)
        return self.state

    async def history(self, after: int = 0) -> list[Envelope]:
        """Return the envelopes after a sequence."""
        self._hub.check_open()
        return await self._hub.log.read(self.id, _sequence(after))

    def watch(self, after: int = 0) -> AsyncGenerator[Envelope, None]:
        """Yield the envelopes after a sequence, those to come too; it ends with the session."""
        return watch(self._hub, self.id, _sequence(after))

    def stream(self, after: int = 0) -> AsyncGenerator[Envelope | Event, None]:
        """Yield envelopes, and what happens live in the rounds that this hub runs.

        Live events have their round and attempt: those of an attempt that was given up are void.
        """
        return stream(self._hub, self.id, _sequence(after))

    async def set_context(self, key: str, value: Any) -> None:
        """Set a context variable at once, also while a round is under way."""
        if not isinstance(key, str):
            raise ConfigurationError(f"key={key!r}: give a string", code="draft")
        await self._context({"set": {key: value}, "delete": []})

    async def delete_context(self, key: str) -> None:
        """Delete a context variable at once."""
        await self._context({"set": {}, "delete": [key]})

    async def decide(self, interrupt_id: str, decision: Any, *, sender: str | None = None) -> None:
        """Decide what an interrupt asks; its round goes on."""
        await self.refresh()
        asked = self._now.interrupts.get(interrupt_id)
        if asked is None or "decision" in asked:
            waiting = [key for key, one in self._now.interrupts.items() if "decision" not in one]
            known = ", ".join(waiting) or "nothing"
            raise SessionError(
                f"nothing waits for a decision on {interrupt_id!r}: what waits is {known}",
                code="unknown_interrupt",
            )
        draft = Draft(ev.EV_DECISION, {"interrupt_id": interrupt_id, "decision": decision})
        by = self.record.creator if sender is None else sender
        self._check_sender(by)
        seen = self._now.sequence
        try:
            await self._ask(by, draft, or_else="somebody else has decided it otherwise meanwhile")
        except SessionError as late:
            # The same decision may have waited already: of this caller, before its process died.
            told = await self._hub.log.read(self.id, seen)
            made = [one.event_data for one in told if one.event_type == ev.EV_DECISION]
            if late.code != "too_late" or draft.event_data not in made:
                raise

    async def release(self, agent: str | None = None) -> None:
        """Give the conversation back to an agent, or to whoever had it before the human."""
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
        await self._ask(self.record.creator, draft, or_else="it waits for no human any more")

    def can_send(self, name: str) -> bool:
        """Tell whether what somebody says now would be their turn."""
        state = self._now
        if state.is_ended or state.status in ("pending", "closing"):
            return False
        return name in state.due or (state.round == 0 and name == state.creator_id)

    async def fork(self, at: int) -> Session:
        """Begin a session that is the same up to an envelope; it goes on when it is used."""
        await self.refresh()
        self._check_sequence(at)
        return await self._hub.fork(self, at)

    async def explain(self, sequence: int) -> SessionExplanation:
        """Say what was decided on an envelope, and why no other rule did it."""
        await self.refresh()
        self._check_sequence(sequence)
        envelopes = await self._hub.log.read(self.id, 0, sequence)
        rules = self._hub.team_of(self.record).rules_of(self.record)
        return explained(self.record, rules, envelopes)

    async def join(self, name: str) -> None:
        """Accept an invitation."""
        await self._answer(name, ev.EV_SESSION_INVITE_ACK)

    async def reject(self, name: str) -> None:
        """Decline an invitation, which ends the session."""
        await self._answer(name, ev.EV_SESSION_INVITE_REJECT)

    async def leave(self, name: str) -> None:
        """Let a participant go; a turn of theirs has failed."""
        if name not in self._now.participant_order:
            raise SessionError(f"{name!r} takes no part here", code="stranger")
        await self._ask(name, Draft(ev.EV_SESSION_LEFT, {"participant": name}))

    def on(self, event_type: str, handler: Callable[[Envelope], Any]) -> Callable[[], None]:
        """Call a function with each new envelope of a type ("*" is any); the result ends it."""
        if not callable(handler):
            raise ConfigurationError(f"handler={handler!r}: give a function of an envelope")
        return self._hub.on(self, event_type, handler)

    async def close(self, reason: str = "explicit_close") -> None:
        """End the session; a round under way is broken off."""
        if not isinstance(reason, str):
            raise ConfigurationError(f"reason={reason!r}: give a string", code="draft")
        self._hub.check_open()
        await self.refresh()
        if self._now.is_ended:
            return
        draft = Draft(ev.EV_SESSION_CLOSED, {"reason": reason}, priority=Priority.URGENT)
        try:
            await self._ask(self.record.creator, draft)
        except SessionClosed:
            return  # somebody else was faster

    async def refresh(self) -> SessionState:
        """Look at the session again, if another hub drives it."""
        self._hub.check_open()
        live = self._hub.live(self.id)
        if live is not None:
            async with live.lock:  # what the store has already is not to be missed
                pass
        if self._hub.live(self.id) is None:
            stored = await self._hub.log.load(self.id)
            if stored is not None:
                self._state = await load_state(self._hub.log, stored)
        return self.state

    def see(self, state: SessionState) -> None:
        """Take note of a state."""
        self._state = state

    def forked(self, session_id: str, at: int) -> SessionRecord:
        """Return the record of a fork."""
        parent = Parent(self.id, at=at)
        return replace(self.record, session_id=session_id, parent=parent, created_at=clock().wall())

    def state_at(self, envelopes: Sequence[Envelope], record: SessionRecord) -> SessionState:
        """Return the state after envelopes."""
        return folded(SessionState.initial(record), envelopes)

    async def _put(self, sender: str, draft: Draft) -> str:
        self._hub.check_open()
        fault = self.quarantine
        if fault is not None:
            raise fault
        waiting = InboxEntry(new_id(), sender, draft)
        envelope_id = await self._hub.log.enqueue(self.id, waiting)
        self._hub.conductor(self.id).wake()
        return envelope_id

    async def _ask(self, sender: str, draft: Draft, or_else: str = "") -> None:
        """Ask for something, and wait until it is done unless a round asks it of itself."""
        asked = await self._put(sender, draft)
        if self._is_inside():
            return
        await self._hub.audience.until(self.id, lambda: self._is_taken(asked))
        if or_else and await self._hub.log.find(self.id, asked) is None:
            raise SessionError(or_else, code="too_late")

    async def _context(self, updates: Mapping[str, Any]) -> None:
        draft = Draft(ev.EV_CONTEXT_SET, updates)
        self._check(self.record.creator, draft)
        await self._ask(self.record.creator, draft)

    async def _answer(self, name: str, event_type: str) -> None:
        if name not in self.record.invited:
            raise SessionError(f"{name!r} was not invited", code="stranger")
        needed = len(self.record.invited)
        if self.record.required_acks is not None:
            needed = min(needed, self.record.required_acks)
        await self._ask(name, Draft(event_type, {}, metadata={"needed": needed}))

    async def _admitted(self, envelope_id: str) -> Envelope:
        found: list[Envelope] = []

        async def is_there() -> bool:
            envelope = await self._hub.log.find(self.id, envelope_id)
            if envelope is not None:
                found.append(envelope)
            elif self._now.is_ended:
                raise SessionClosed(f"session {self.id!r} ended before this was admitted")
            elif (fault := self.quarantine) is not None:
                raise fault
            return envelope is not None

        await self._hub.audience.until(self.id, is_there)
        return found[0]

    async def _is_taken(self, envelope_id: str) -> bool:
        waiting = await self._hub.log.inbox(self.id)
        if any(one.envelope_id == envelope_id for one in waiting):
            if (fault := self.quarantine) is not None:
                raise fault  # it is accepted, and carried out once the session runs again
            return False
        await self.refresh()
        return True

    async def _has_settled(self) -> bool:
        if (fault := self.quarantine) is not None:
            raise fault
        conductor = self._hub.driven(self.id)
        if conductor is not None and not conductor.is_resting:
            return False
        # Before the state: what another hub takes in meanwhile is in the one or the other.
        waiting = await self._hub.log.inbox(self.id)
        state = await self.refresh()
        if state.is_ended:
            return True
        if state.is_runnable:
            return False
        may_enter = state.status in ("active", "waiting_human")
        return not any(may_enter or one.draft.event_type not in ev.SUBSTANTIVE for one in waiting)

    def _check(self, sender: str, draft: Draft) -> None:
        faults = [*draft_faults(draft), *self._sender_faults(sender)]
        here = self._here
        strangers = [name for name in draft.audience or () if name not in (*here, HUMAN)]
        faults += [f"audience: {name!r} takes no part in the session" for name in strangers]
        if faults:
            raise ConfigurationError(faults, code="draft")
        if self._now.is_ended:
            raise SessionClosed(f"session {self.id!r} is {self._now.status}")

    def _check_sender(self, sender: str) -> None:
        if faults := self._sender_faults(sender):
            raise ConfigurationError(faults, code="draft")

    def _sender_faults(self, sender: str) -> list[str]:
        here = self._here
        if sender in here or (sender is not None and sender == self.record.supervisor):
            return []
        return [f"{sender!r} takes no part in the session: there are {', '.join(here)}"]

    @property
    def _here(self) -> tuple[str, ...]:
        state, record = self._now, self.record
        own = () if state.creator_id in (*record.agents, *record.humans) else (state.creator_id,)
        return (*state.participant_order, *own)

    def _check_sequence(self, sequence: object) -> None:
        is_number = isinstance(sequence, int) and not isinstance(sequence, bool)
        if not is_number or not 1 <= int(sequence) <= self._now.sequence:  # type: ignore[call-overload]
            raise SessionError(
                f"there is no envelope {sequence!r}: there are 1 to {self._now.sequence}",
                code="unknown_sequence",
            )

    def _is_inside(self) -> bool:
        """Tell whether a round of this session, or of one inside of it, waits for this code."""
        round = current_round()
        if round is None:
            return False
        return self.id in (round.live.id, getattr(round.live.handle, "id", None))


def _sequence(after: object) -> int:
    if isinstance(after, int) and not isinstance(after, bool):
        return after
    raise ConfigurationError(f"after={after!r}: give the sequence of an envelope, a whole number")
