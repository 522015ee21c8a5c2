"""A session as its owner has it: the one place that appends to its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from agentgraph.guards import SHARE, Effect, Guards
from agentgraph.sessions.hub.admission import REQUESTS, take_all, urgency
from agentgraph.sessions.hub.ledger import Around, RoundLedger
from agentgraph.sessions.hub.rollback import roll_back
from agentgraph.sessions.hub.round import Round
from agentgraph.sessions.hub.tasks import Tasks
from agentgraph.sessions.hub.walks import Walks
from agentgraph.sessions.log import InboxConflict, InboxEntry, Log, StoredSession
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Draft, Envelope
from agentgraph.sessions.state.expectations import next_due, overdue
from agentgraph.sessions.state.fold import folded
from agentgraph.sessions.state.page import Page, Rules
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

RETRIES = 1
"""How often a round that failed is run again."""
ATTEMPTS = 5
"""How often a round is begun at all, if its process dies each time."""

Appended = Callable[["LiveSession", Sequence[Envelope]], None]


@dataclass(slots=True)
class LiveSession:
    """The state, the lease, and every way in which the log grows."""

    log: Log
    record: SessionRecord
    rules: Rules
    state: SessionState
    epoch: int | None = None
    attempts: int = 0
    has_mail: bool = True
    """Whether the inbox may hold something."""
    appended: Appended = lambda live, envelopes: None
    busy: set[str] = field(default_factory=set)
    """The speakers whose rounds are under way."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    owner: str | None = None
    inside_graph: bool = False
    """Whether the run's graph is asked and answers, and not a hub."""
    handle: Any = None
    """The `Session` of the hub that drives this one."""
    listeners: Callable[[], Sequence[BaseCallbackHandler]] = lambda: ()
    """Return what hears the models of a turn that begins, if anybody wants to."""
    due_at: float | None = None
    """When the clock has something to do with it, as of the last append."""
    account: object = None
    """What guards have counted for the present input, of all its rounds."""
    heard_at: int = 0
    """Up to where its log was when its graph was run with what is to be answered."""
    inside: set[str] = field(default_factory=set)
    """The sessions that were held here for rounds of this one: with those they are over."""
    around: Around | None = None
    """What this session is held for, if it is held inside of something."""
    guards: Guards | None = None
    """What holds for all of its team."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """How the actions of the team's agents are undone."""
    walks: Walks = field(default_factory=Walks)
    """Who has acted in the rounds under way."""
    audited: str = ""
    """The input of which the audit trail knows that it has begun, or gone on, here."""
    tasks: Tasks = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = Tasks(self)

    @property
    def id(self) -> str:
        """The session's id."""
        return self.record.session_id

    @property
    def people(self) -> frozenset[str]:
        """Everybody in it whom no agent speaks for."""
        return frozenset({*self.record.people, *self.state.humans})

    @property
    def is_part(self) -> bool:
        """Whether what is done in it counts with all else of an outer input."""
        return self.around is not None and self.around.account is not None

    @property
    def due(self) -> tuple[str, ...]:
        """The agents who are to speak now."""
        if self.state.status != "active":
            return ()
        return tuple(name for name in self.state.due if name not in self.state.humans)

    @property
    def is_running(self) -> bool:
        """Whether a round is under way, or a decision is to be carried out."""
        return self.state.is_runnable and self.state.status != "closing"

    def begin(self, speaker: str) -> Round | None:
        """Begin a speaker's turn; None if it is not theirs, or they have had it."""
        if speaker not in self.state.due or self.state.is_ended:
            return None
        self.busy.add(speaker)
        return Round(self, speaker, self.state.round, max(self.attempts, 1), self.state)

    async def admit(self) -> None:
        """Take in all that waits, at a boundary between rounds: the urgent first."""
        if not self.has_mail or self.state.is_ended:
            return
        async with self.lock:
            self.has_mail = False  # before it is asked: what comes in meanwhile is not missed
            waiting = await self.log.inbox(self.id)
            ready = sorted(filter(self._may_enter, waiting), key=urgency)
            self.has_mail |= len(ready) < len(waiting)
            if ready:
                await self._write(lambda page: take_all(page, ready))

    async def land(self) -> None:
        """Take in what need not wait for a boundary, and what the clock has brought."""
        if self.has_mail and not self.state.is_ended:
            async with self.lock:
                self.has_mail = False
                waiting = await self.log.inbox(self.id)
                loose = [one for one in waiting if one.draft.event_type not in ev.SUBSTANTIVE]
                self.has_mail |= len(loose) < len(waiting)
                if loose:
                    ready = sorted(loose, key=urgency)
                    await self._write(lambda page: take_all(page, ready))
        if overdue(self.record, self.state):
            async with self.lock:
                # Asked again: who was waited for may have spoken as this waited for the lock.
                if found := overdue(self.record, self.state):
                    await self._write(lambda page: [fire(page) for fire in found])

    async def commit(self, round: Round, packet: Mapping[str, Any], notes: Sequence[Any]) -> None:
        """Append a round's packet and what follows from it; a second time does nothing."""
        await self.tasks.end(round, "completed")
        told = {**packet, **_balance(round)}
        draft = Draft(ev.EV_PACKET, told, causation_id=round.state.last_envelope_id)

        def fill(page: Page) -> None:
            for note in notes:
                told = {"from": round.speaker, **note["value"]}
                page.note(ev.EV_HANDOFF_REJECTED, told)
            page.say(round.speaker, draft)

        await self._end(round, fill)

    async def fail(self, round: Round, code: str, message: str, usage: Mapping[str, Any]) -> None:
        """Note that a round failed: it runs again, or that was the last time."""
        await self.tasks.end(round, "expired" if code == "deadline" else "failed")
        had = self.state.failures.get(round.speaker, 0)
        final = had >= RETRIES or code in _HOPELESS
        if final and self._ends_with(round):
            await roll_back(RoundLedger(round), "round_failed")
        data = {
            "speaker": round.speaker,
            "round": round.number,
            "attempt": round.attempt,
            "code": code,
            "message": message[:_MESSAGE],
            "usage": dict(usage),
            **_balance(round),
        }

        await self._end(round, lambda page: page.fail(data, final=final))

    def _ends_with(self, round: Round) -> bool:
        """Tell whether the session ends if a speaker's round fails for good."""
        page = Page(self.state, self.rules)
        page.fail({"speaker": round.speaker, "round": round.number}, final=True)
        return page.state.status == "closing"

    async def interrupted(
        self,
        asked: Sequence[Mapping[str, Any]],
        used: Callable[[str], Mapping[str, Any]] = lambda speaker: {},
    ) -> None:
        """Note what a human must decide, once it is in the checkpoint, and what was used so far."""
        async with self.lock:
            # A checkpoint may be behind the log: who has spoken since then asks nothing more.
            due = [one for one in asked if one["speaker"] in self.state.due]
            fresh = [one for one in due if one["id"] not in self.state.interrupts]
            if fresh and not self.state.is_ended:
                told = [*self._with_spent(fresh, used)]
                await self._write(lambda page: [page.note(ev.EV_INTERRUPT, one) for one in told])

    def _with_spent(
        self,
        asked: Sequence[Mapping[str, Any]],
        used: Callable[[str], Mapping[str, Any]],
    ) -> Iterator[Mapping[str, Any]]:
        """Yield questions, with the first of each speaker what was done until then."""
        speakers: set[str] = set()
        for one in asked:
            speaker = str(one["speaker"])
            is_first = speaker not in speakers
            speakers.add(speaker)
            usage = used(speaker) if is_first else {}
            path = self.walks.take(speaker) if is_first else []
            told = {"usage": dict(usage), "path": path}
            yield {**one, **{name: value for name, value in told.items() if value}}

    async def note(self, *drafts: Draft, sender: str = ev.SYSTEM) -> None:
        """Append what changes nothing."""
        async with self.lock:
            if not self.state.is_ended:
                await self._write(lambda page: [page.add(sender, one) for one in drafts])

    async def hear(self, *said: str, sender: str) -> None:
        """Take in texts at once: of a caller who waits for the answer."""
        async with self.lock:
            drafts = [ev.text_envelope(text) for text in said]
            await self._write(lambda page: [page.say(sender, draft) for draft in drafts])

    async def count_attempt(self) -> None:
        """Count that the present round is begun again, before it is."""
        if self.epoch is not None:
            self.attempts = await self.log.attempt(self.id, self.epoch)

    async def give_up(self, code: str, message: str) -> None:
        """Fail the present round for good, whoever's it is."""
        if self.attempts <= 2 * ATTEMPTS:  # it may be the undoing that kills the process
            for speaker in self.state.due:
                round = Round(self, speaker, self.state.round, self.attempts, self.state)
                if self._ends_with(round):
                    await roll_back(RoundLedger(round), "round_failed")

        def fill(page: Page) -> None:
            for speaker in page.state.due:
                told = {"speaker": speaker, "round": page.state.round, "attempt": self.attempts}
                lost = {"lost": SHARE * (self.attempts - 1)}
                page.fail({**told, "code": code, "message": message, **lost}, final=True)

        async with self.lock:
            await self._write(fill)

    async def close(self, reason: str) -> None:
        """End the session from outside of its rounds."""
        async with self.lock:
            if not self.state.is_ended:
                await self._write(lambda page: page.close(reason))

    async def conclude(self) -> None:
        """Write the end of a session that has been decided to end, as a fork may have been."""
        async with self.lock:
            await self._write(lambda page: None)

    async def _end(self, round: Round, fill: Callable[[Page], None]) -> None:
        async with self.lock:
            self.busy.discard(round.speaker)
            is_due = round.speaker in self.state.due and round.number == self.state.round
            if is_due and not self.state.is_ended:
                await self._write(fill)

    async def _write(self, fill: Callable[[Page], object]) -> None:
        """Append a page; where something slips in before the end, that is taken along."""
        while True:
            page = Page(self.state, self.rules)
            fill(page)
            if page.ends:
                await self._take_rest(page)
                for draft in self.tasks.cut_off():
                    page.add(ev.SYSTEM, draft)
                page.finish()
            try:
                await self._append(page)
                return
            except InboxConflict:
                self.has_mail = True

    async def _append(self, page: Page) -> None:
        if not page.envelopes and not page.admitted_ids:
            return
        appending = asyncio.ensure_future(self._put_down(page))
        try:
            await asyncio.shield(appending)
        except asyncio.CancelledError:
            # Whoever goes on must know whether it is in the log: it is brought to its end first.
            while not appending.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({appending})
            if not appending.cancelled():
                appending.exception()  # seen, so that asyncio does not complain
            raise

    async def _put_down(self, page: Page) -> None:
        begins = page.state.round != self.state.round
        failed = page.state.failures != self.state.failures and not begins
        attempts = 1 if begins else self.attempts + failed
        due_at = next_due(self.record, page.state)
        await self.log.append(
            self.id,
            page.envelopes,
            self.state.sequence,
            page.state,
            epoch=self.epoch,
            due_at=due_at,
            admitted_ids=page.admitted_ids,
            attempts=attempts if attempts != self.attempts else None,
        )
        self.state, self.attempts, self.due_at = page.state, attempts, due_at
        self.appended(self, page.envelopes)

    async def _take_rest(self, page: Page) -> None:
        """Put before the end what was accepted and waits; requests are answered by the end."""
        for one in sorted(await self.log.inbox(self.id), key=urgency):
            if one.envelope_id not in page.admitted_ids:
                page.admitted_ids.add(one.envelope_id)
                if one.draft.event_type not in REQUESTS:
                    page.add(one.sender_id, one.draft, envelope_id=one.envelope_id)

    def _may_enter(self, waiting: InboxEntry) -> bool:
        is_said = waiting.draft.event_type in ev.SUBSTANTIVE
        return not is_said or self.state.status in ("active", "waiting_human")


async def load_state(log: Log, stored: StoredSession) -> SessionState:
    """Return a session's state: its snapshot, else what its log folds to."""
    if stored.state is not None:
        return stored.state
    envelopes = await log.read(stored.record.session_id)
    return folded(SessionState.initial(stored.record), envelopes)


_MESSAGE = 2_000
"""How much of what a failure says of itself is told: its envelope must fit into the log."""
_HOPELESS = frozenset({"guard", "left"})
"""Failures that a second attempt would only repeat."""


def _balance(round: Round) -> dict[str, Any]:
    balance = RoundLedger(round).balance
    path = round.live.walks.take(round.speaker)
    return {"account": balance, "path": path} if balance else {}
