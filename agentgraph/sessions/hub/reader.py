"""The reading side of a session: its state, its envelopes, and explanations of decisions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from langchain_core.messages import AnyMessage

from agentgraph.display import code, escaped, panel, row
from agentgraph.errors import ConfigurationError, Quarantined, SessionError
from agentgraph.sessions.drivers.drivers import Drivers
from agentgraph.sessions.drivers.live import LiveEvents
from agentgraph.sessions.drivers.quarantine import load_readable, readable_state
from agentgraph.sessions.drivers.session_stream import Item, SessionStream
from agentgraph.sessions.drivers.subscribers import MaySee, Subscribers, watch
from agentgraph.sessions.envelopes.envelope import Envelope, for_participant, visible_to
from agentgraph.sessions.hub.questions import OpenQuestion, open_questions
from agentgraph.sessions.hub.run import Run, RunSpan, begins_run, latest_runs
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.live import Cursor
from agentgraph.sessions.log.protocol import DamagedSession
from agentgraph.sessions.log.rows import unknown_session
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.single.memory import messages_in
from agentgraph.sessions.single.messages import conversation_of
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rewind import is_live, live_envelopes
from agentgraph.sessions.state.rules import Rules, SessionExplanation, explain_envelope
from agentgraph.sessions.state.state import SessionState
from agentgraph.stream import AnyEvent


class ReaderHub(Protocol):
    """What a reader needs of its hub."""

    log: Log
    subscribers: Subscribers
    drivers: Drivers
    live: LiveEvents

    def check_open(self) -> None:
        """Raise if the hub is closed."""
        ...

    def rules_of(self, record: SessionRecord) -> Rules:
        """Return a session's rules; `Quarantined` if they need code that the hub lacks."""
        ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task for as long as the hub is open."""
        ...


class SessionReader:
    """The reading side of a `Session`: no method changes the session."""

    def __init__(self, hub: ReaderHub, record: SessionRecord) -> None:
        self._hub = hub
        self.record = record
        self.key = record.key
        """The session's key in the log, which is also its thread id."""
        self._state = SessionState.initial(record)
        self._is_forgotten = False

    def __repr__(self) -> str:
        status = "forgotten" if self._is_forgotten else self.state.status
        return f"Session({self.id!r}, {status})"

    def _repr_html_(self) -> str:
        state = self.state
        rows = [row("status", code(state.status)), *state.open_questions_html()]
        rows.append(row("with", escaped(", ".join(state.participant_order))))
        if state.context_vars:
            rows.append(row("context", code(state.context_vars)))
        if state.is_ended:
            rows.append(row("closed", code(state.pending_close_reason)))
        return panel(f"{self.record.team} {self.id}", *rows)

    @property
    def id(self) -> str:
        """The id, by which every hub of the store finds the session in its tenant."""
        return self.record.session_id

    @property
    def state(self) -> SessionState:
        """The current state; if another hub owns the session, the state at the last `refresh`."""
        return self._now

    @property
    def _now(self) -> SessionState:
        if self._is_forgotten:
            raise unknown_session(self.key)
        owned_session = self._hub.drivers.owned_session(self.key)
        return owned_session.state if owned_session is not None else self._state

    @property
    def quarantine(self) -> Quarantined | None:
        """Why the session cannot run in this hub, None if it can.

        Of damaged records this is what the hub has found so far; it looks again every second.
        """
        driver = self._hub.drivers.get(self.key)
        if driver is not None and isinstance(driver.quarantine, DamagedSession):
            return driver.quarantine
        try:
            # An inner session has its code from the outer session; a damaged record has no graph.
            if self.record.graph and not self.record.serves:
                self._hub.rules_of(self.record)
        except Quarantined as fault:
            return fault
        return None

    async def history(
        self, after: int = 0, *, reader: str | None = None, limit: int | None = None
    ) -> list[Envelope]:
        """Return the envelopes after the sequence `after`, at most `limit` of them.

            await session.history(reader="ann")  # what ann may see, and no more

        With a `reader`, a participant, the sequence may have holes. `SessionError` if nobody of
        this name has ever taken part.
        """
        may_see = self._sight_of(reader)
        position, visible = _sequence(after), list[Envelope]()
        while limit is None or len(visible) < limit:
            # What the reader may not see does not count, so the next page may be needed too.
            page = await self._read(position, limit)
            visible += filter(may_see, page)
            if limit is None or len(page) < limit:
                break
            position = page[-1].sequence
        visible = visible[:limit]
        return visible if reader is None else [*map(for_participant, visible)]

    async def messages(self, *, reader: str | None = None) -> list[AnyMessage]:
        """Return the conversation of a session of one, as a thread of its agent would have it.

        A call that runs, or waits for a decision, has no answer yet. `reader` is as for `history`.
        `SessionError` for the session of a team, whose conversation its envelopes tell.
        """
        if not self.record.is_single:
            raise SessionError(
                f"session {self.id!r} is one of a team, which has no messages: read its history",
                code="no_messages",
            )
        under_way = self._messages_under_way(reader)  # first: the log has them at the run's end
        envelopes = live_envelopes(await self.history(reader=reader))
        messages = await messages_in(self._hub.log, self.key, envelopes)
        return conversation_of([messages, under_way])

    def _messages_under_way(self, reader: str | None) -> list[AnyMessage]:
        """Return what the run has made so far that this hub has under way."""
        owned_session = self._hub.drivers.owned_session(self.key)
        if owned_session is None:
            return []
        audience = owned_session.state.audience
        if reader is not None and audience is not None and reader not in audience:
            return []
        journals = [journal for _, journal in owned_session.journals.values()]
        return [message for journal in journals for message in journal.get(None, ())]

    async def run(self, run_id: str, *, reader: str | None = None) -> Run:
        """Return what has become of an input, a decision, a rewind or a release so far.

            receipt = await session.send("user", "I was charged twice")
            run = await session.run(receipt.id)
            run.status, run.ended_at

        `run_id` is the id of its receipt, which is that of its envelope. `reader` is as for
        `history`. Raises `SessionError` (`unknown_run`) if the reader may see no such run.
        """
        may_see = self._sight_of(reader)
        span = await self._run_span(run_id) if isinstance(run_id, str) else None
        if span is not None and may_see(span.envelopes[0]):
            return span.run(may_see)
        for entry in await self._hub.log.inbox(self.key) if span is None else ():
            if entry.envelope_id == run_id and may_see(entry.as_envelope(self.id)):
                return Run(run_id, self.id, "pending")
        # It may have left the inbox since the look at the log.
        span = await self._run_span(run_id) if span is None else None
        if span is None or not may_see(span.envelopes[0]):
            raise SessionError(f"the session has no run {run_id!r}", code="unknown_run")
        return span.run(may_see)

    async def questions(self, *, reader: str | None = None) -> list[OpenQuestion]:
        """Return the questions that wait for a decision; `reader` is as for `history`."""
        self._sight_of(reader)
        return open_questions(await self.refresh(), reader)

    async def runs(self, *, reader: str | None = None, limit: int = 20) -> list[Run]:
        """Return the last runs, the newest first: what waits in the inbox, then those of the log.

        `reader` is as for `history`.
        """
        may_see = self._sight_of(reader)
        self._check_open()
        entries = [entry.as_envelope(self.id) for entry in await self._hub.log.inbox(self.key)]
        waiting = [
            Run(entry.envelope_id, self.id, "pending")
            for entry in reversed(entries)
            if begins_run(entry, self.record) and may_see(entry)
        ]
        runs = await latest_runs(self._hub.log, self.record, limit, may_see)
        known = {run.id for run in runs}  # one may have left the inbox meanwhile
        return [*(run for run in waiting if run.id not in known), *runs][:limit]

    async def _run_span(self, run_id: str) -> RunSpan | None:
        """Return the envelopes of a run as far as they are in the log, None if it is not there."""
        self._check_open()
        envelope = await self._hub.log.find(self.key, run_id)
        if envelope is None or not begins_run(envelope, self.record):
            return None
        span = RunSpan(await state_at(self._hub.log, self.record, envelope.sequence - 1))
        await span.read(self._read)
        return span

    def watch(self, after: int = 0, *, reader: str | None = None) -> AsyncGenerator[Envelope, None]:
        """Yield the envelopes after a sequence, and new ones until the session ends.

        `reader` is as for `history`.
        """
        if self._is_forgotten:
            raise unknown_session(self.key)
        hub, may_see = self._hub, self._sight_of(reader)
        envelopes = watch(hub.log, hub.subscribers, self.key, _sequence(after), may_see)
        return envelopes if reader is None else _for_participant(envelopes)

    def stream(
        self, after: int | str = 0, *, reader: str | None = None
    ) -> AsyncGenerator[Envelope | AnyEvent, None]:
        """Yield envelopes, and live events from whichever hub runs the session, in order.

            async for item in session.stream():
                last = item.cursor
            async for item in session.stream(last):  # in another process, too
                ...

        `after` is a sequence, or the `cursor` of what was read last: the stream goes on there.
        Envelopes are never missing. Where live events of a turn under way are, because the reader
        was too slow or away too long, or because the turn begins again, there is a `ResetEvent`
        with what the turn has said so far.

        Live events carry their round and attempt: those of an attempt that failed are void.
        `reader` is as for `history`: live events are those of the rounds that this reader may see.
        """
        return _one_by_one(self.batches(after, reader=reader))

    def batches(
        self,
        after: int | str = 0,
        *,
        reader: str | None = None,
        is_last: Callable[[Envelope], bool] = lambda envelope: False,
    ) -> AsyncGenerator[Sequence[Item], None]:
        """Yield what `stream` does, as many items at a time as there are.

        It ends with the envelope of which `is_last` is true, whether the reader may see that or
        not.
        """
        hub, may_see = self._hub, self._sight_of(reader)
        if self._is_forgotten:
            raise unknown_session(self.key)

        def show(envelope: Envelope) -> Envelope | None:
            if not may_see(envelope):
                return None
            return envelope if reader is None else for_participant(envelope)

        return SessionStream(
            hub.log, hub.live, self.key, _cursor(after), reader, show, is_last, self.look
        ).batches()

    @asynccontextmanager
    async def told_live(self) -> AsyncIterator[None]:
        """Have live events told while the block runs, for a stream that begins after it.

        Without a reader nothing is told live: a run that begins before its stream is opened would
        not be told from its first token.
        """
        self._check_open()
        async with self._hub.live.kept(self.key):
            yield

    def can_send(self, name: str) -> bool:
        """Tell whether a message that this participant sends now would count as its turn."""
        state = self._now
        if state.is_ended or state.status in ("pending", "closing"):
            return False
        is_opening = state.decision is None and not state.speakers
        return name in state.due or (is_opening and name == state.creator_id)

    async def explain(self, sequence: int, *, reader: str | None = None) -> SessionExplanation:
        """Explain the decision on an envelope, and why no earlier rule made it.

        Raises `SessionError` if there is no such envelope, or none that the `reader` may see.
        """
        may_see = self._sight_of(reader)
        await self.refresh()
        self._check_sequence(sequence)
        (envelope,) = await self._hub.log.read(self.key, sequence - 1, 1)
        if not may_see(envelope):
            raise SessionError(
                f"there is no envelope {sequence!r} that {reader!r} may see",
                code="unknown_sequence",
            )
        before = await state_at(self._hub.log, self.record, sequence - 1)
        explanation = explain_envelope(self._hub.rules_of(self.record), before, envelope)
        if reader is None:
            return explanation
        return replace(explanation, envelope=for_participant(explanation.envelope))

    async def refresh(self) -> SessionState:
        """Load the state again, if another hub owns the session."""
        self._check_open()
        owned_session = self._hub.drivers.owned_session(self.key)
        if owned_session is not None:
            async with owned_session.lock:  # waits for an append that the store already has
                self.record = owned_session.record  # whole, where it was damaged before
        if self._hub.drivers.owned_session(self.key) is None:
            stored_session = await load_readable(self._hub.log, self.key)
            if stored_session is None or not self.is_of(stored_session.record):
                self.mark_forgotten()
            else:
                if stored_session.record.graph:  # else the record is damaged, and read in part
                    self.record = stored_session.record
                self._state = await readable_state(self._hub.log, stored_session)
        return self.state

    def look(self) -> None:
        """Have the session driven, if it has something to do and this hub is one that drives.

        Mostly that is so anyway: whoever has sent something has woken its driver. But a fork begins
        when it is looked at.
        """
        if self._state.is_runnable:
            self._hub.drivers.look(self.key)

    def update(self, state: SessionState) -> None:
        """Replace the state by a newer one."""
        self._state = state

    async def _read(self, after: int, limit: int | None = None) -> list[Envelope]:
        """Return the envelopes after a sequence; a damaged one quarantines the session."""
        self._check_open()
        try:
            return await self._hub.log.read(self.key, after, limit)
        except DamagedSession as damage:
            if is_live(self._now, damage.sequence):
                self._hub.drivers.quarantine(self.key, damage)
            raise

    def _check_open(self) -> None:
        """Raise if the hub is closed, or the session forgotten."""
        self._hub.check_open()
        if self._is_forgotten:
            raise unknown_session(self.key)

    def is_of(self, record: SessionRecord) -> bool:
        """Tell whether a record is of this session, and not of a later one with its id."""
        is_whole = bool(record.graph and self.record.graph)  # a damaged one has no secret
        return not is_whole or record.secret == self.record.secret

    def mark_forgotten(self) -> None:
        """Raise from now on that there is no such session, though a later one may have its id."""
        self._is_forgotten = True
        self._state = SessionState.initial(self.record)

    def _sight_of(self, reader: str | None) -> MaySee:
        """Return what tells whether a reader may see an envelope; None may see all of them."""
        if reader is None:
            return lambda envelope: True
        record = self.record
        names = (*record.agents, *record.people, *filter(None, (record.supervisor,)))
        if reader not in names:
            raise SessionError(
                f"reader={reader!r} takes no part in the session: there are {', '.join(names)}",
                code="stranger",
            )
        sees_all = reader == record.supervisor
        return lambda envelope: (
            visible_to(envelope, reader) or (sees_all and envelope.is_substantive)
        )

    def _check_sequence(self, sequence: object) -> None:
        is_number = isinstance(sequence, int) and not isinstance(sequence, bool)
        if not is_number or not 1 <= int(sequence) <= self._now.sequence:  # type: ignore[call-overload]
            raise SessionError(
                f"there is no envelope {sequence!r}: there are 1 to {self._now.sequence}",
                code="unknown_sequence",
            )


async def _for_participant(
    envelopes: AsyncGenerator[Envelope, None],
) -> AsyncGenerator[Envelope, None]:
    async with aclosing(envelopes):
        async for envelope in envelopes:
            yield for_participant(envelope)


async def _one_by_one(
    batches: AsyncGenerator[Sequence[Item], None],
) -> AsyncGenerator[Item, None]:
    async with aclosing(batches):
        async for items in batches:
            for item in items:
                yield item


def _cursor(after: object) -> Cursor:
    if not isinstance(after, str):
        return Cursor(_sequence(after))
    try:
        return Cursor.parse(after)
    except ValueError:
        raise ConfigurationError(
            f"after={after!r}: give the sequence of an envelope, or the cursor of what came last"
        ) from None


def _sequence(after: object) -> int:
    if isinstance(after, int) and not isinstance(after, bool):
        return after
    raise ConfigurationError(f"after={after!r}: give the sequence of an envelope, a whole number")
