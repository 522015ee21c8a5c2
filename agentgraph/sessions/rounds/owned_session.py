"""A session in the process of its owner: the one place that appends to its log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from langchain_core.callbacks import BaseCallbackHandler

from agentgraph.blocking import run_to_end
from agentgraph.clock import clock, new_id
from agentgraph.errors import RoundConflict, SessionClosed, StaleOwner
from agentgraph.guards import Effect, Guards
from agentgraph.guards.records.account import Account
from agentgraph.interception import outer_call
from agentgraph.running import Journal, Run, inside_run
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Content, Draft, text_envelope
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.envelopes.packet import UnfinishedTurn
from agentgraph.sessions.log import NO_BLOBS, InboxConflict, InboxEntry, Log, StoredSession
from agentgraph.sessions.log.blobs import NewBlobs
from agentgraph.sessions.log.live import START, Cursor
from agentgraph.sessions.rounds.admission import (
    admissible,
    admit_all,
    admit_rest,
    before_stop,
    may_enter,
)
from agentgraph.sessions.rounds.branch import Branch, state_at
from agentgraph.sessions.rounds.outer_input import OuterInput
from agentgraph.sessions.rounds.questions import JUDGE, transcript_of, with_answer
from agentgraph.sessions.rounds.recent import RecentEnvelopes
from agentgraph.sessions.rounds.run_requests import RunRequests, run_of_request
from agentgraph.sessions.rounds.stop_requests import Rewind, Stop
from agentgraph.sessions.rounds.tasks import Tasks
from agentgraph.sessions.state.expectations import next_due, overdue
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rewind import effect_list
from agentgraph.sessions.state.rules import Answers, NeedsAnswer, Rules
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import Audience, round_audience

TakeBack: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
AppendHook: TypeAlias = Callable[["OwnedSession", Sequence[Envelope]], None]


class SessionHandle(Protocol):
    """The part of the session handle that modules below the hub need."""

    key: str
    """The session's key in the log."""

    async def interject(self, sender: str, draft: Draft) -> None:
        """Put a draft into the inbox without checks; only the supervisor does this."""
        ...


@dataclass(slots=True)
class AgentPaths:
    """The agents that acted in the rounds under way, for the packets of these rounds."""

    _visits: dict[str, list[list[Any]]] = field(default_factory=dict)
    """By speaker: each agent that acted, and its model calls until the next agent acted."""

    def add(self, speaker: str, agent: str, *, asks_model: bool) -> None:
        """Note that an agent acts, or calls its model."""
        visits = self._visits.setdefault(speaker, [])
        if not visits or visits[-1][0] != agent:
            visits.append([agent, 0])
        visits[-1][1] += asks_model

    def take(self, speaker: str) -> list[list[Any]]:
        """Remove and return the path of a speaker's round: it is written only once."""
        return self._visits.pop(speaker, [])

    def put_back(self, speaker: str, path: Sequence[list[Any]]) -> None:
        """Put a path back that was taken for a packet which is not committed yet."""
        self._visits[speaker] = [*path, *self._visits.get(speaker, [])]


@dataclass(slots=True)
class OwnedSession:
    """A session's state and epoch, and every way in which its log grows.

    All appends take one lock and start from `state`, so each is decided on the newest envelope. The
    epoch lets the store refuse an owner that has lost its lease.
    """

    id: str = field(init=False)
    """The session's key in the log."""
    log: Log
    record: SessionRecord
    rules: Rules
    state: SessionState
    epoch: int | None = None
    """The number of this ownership; None if no other process can own the session."""
    attempts: int = 0
    """How often the present round has been begun."""
    may_have_inbox: bool = True
    """Whether the inbox may have entries: if not, it is not read."""
    stop_request: InboxEntry | None = None
    """The stop request that is to be carried out next, as far as the inbox was read."""
    on_appended: AppendHook = lambda session, envelopes: None
    busy_speakers: set[str] = field(default_factory=set)
    """The speakers whose rounds are under way."""
    journals: dict[str, tuple[int, Journal]] = field(default_factory=dict)
    """By speaker of the present round, its attempt and the messages that this process has made."""
    unfinished_usage: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By speaker of the present round, what its turn had used when its run was cancelled."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    owner: str | None = None
    is_in_graph: bool = False
    """Whether the team's graph was called directly, without a hub: its caller wants an answer."""
    handle: SessionHandle | None = None
    """The handle of this session, or of the outer one; None if no hub drives either."""
    listeners: Callable[[], Sequence[BaseCallbackHandler]] = lambda: ()
    """Returns the callbacks for the model calls of a new turn."""
    due_at: float | None = None
    """When the next expectation or time limit is due, as of the last append."""
    account: Account | None = None
    """The guards' account of the present input, for all its rounds."""
    sequence_before_run: int = 0
    """The log's sequence before the input of the graph's caller was appended."""
    inner_ids: set[str] = field(default_factory=set)
    """The inner sessions of this session's rounds; they end with those rounds."""
    outer: OwnedSession | None = None
    """The session whose round this session serves, None if it serves none."""
    outer_audience: Audience = None
    """Who may see what is said in the hub's round that this session is part of; None: everybody."""
    outer_input: OuterInput | None = None
    """The outer input that this session serves, None if it serves none."""
    guards: Guards | None = None
    """The guards of the team."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """How the actions of the team's agents are undone."""
    agent_paths: AgentPaths = field(default_factory=AgentPaths)
    audited_input: str = ""
    """The input whose begin this process has written to the audit trail."""
    recent: RecentEnvelopes = field(default_factory=RecentEnvelopes)
    answers: dict[str, Answers] = field(default_factory=dict)
    """What models have answered on messages that are not admitted yet, by their ids."""
    live_cursor: Cursor = START
    """The place of the last live event."""
    has_void_events: bool = False
    """Whether a former owner has told live events of a turn that has begun again."""
    around_append: Callable[[OwnedSession], AbstractAsyncContextManager[None]] = lambda _: (
        nullcontext()
    )
    """Entered around each append: it keeps live events in order with the envelopes."""
    tasks: Tasks = field(init=False)
    blobs: NewBlobs = field(default_factory=NewBlobs)

    def __post_init__(self) -> None:
        self.id = self.record.key
        self.tasks = Tasks(self.note)

    @property
    def counts_in_outer(self) -> bool:
        """Whether guards count this session's work with the outer input."""
        has_account = self.outer_input is not None and self.outer_input.account is not None
        return has_account or outer_call() is not None

    @property
    def due(self) -> tuple[str, ...]:
        """The agents that have the floor and have not spoken; none once they are to stop."""
        if self.state.status != "active" or self.stop_request is not None:
            return ()
        return tuple(name for name in self.state.due if name not in self.state.humans)

    @property
    def is_running(self) -> bool:
        """Whether a round is under way, or a decision has to be carried out."""
        return self.state.is_runnable and self.state.status != "closing"

    async def read(self, after: int, upto: int) -> list[Envelope]:
        """Return the envelopes between two sequences, of which the first is left out."""
        recent = self.recent.between(after, upto)
        if recent is not None:
            return recent
        return await self.log.read(self.id, after, max(upto - after, 0))

    async def admit(self, *, at_boundary: bool = True) -> None:
        """Admit entries of the inbox.

        Between two rounds all entries; while a round is under way, only those that move no floor.
        A model that has to be asked who speaks after an entry is asked before.
        """
        await self._with_answers(lambda: self._admit(at_boundary))

    async def _admit(self, at_boundary: bool) -> None:
        if not self.may_have_inbox or self.state.is_ended:
            return
        async with self.lock:
            self.may_have_inbox = False  # before the read: it may miss a new entry
            entries = await self.log.inbox(self.id)
            self.stop_request = None
            if not entries:
                return
            entries = await self._without_run_requests(entries)
            ready, request = admissible(self.state, entries, at_boundary=at_boundary)
            if request is not None and not self.is_undoing:  # what is undone is undone to its end
                self.stop_request = request
            self.may_have_inbox |= len(ready) < len(entries)
            if ready:
                await self._write(lambda page: admit_all(page, ready))
                self.may_have_inbox |= self.state.is_single and len(ready) > 1

    async def _without_run_requests(self, entries: Sequence[InboxEntry]) -> list[InboxEntry]:
        """Carry out the requests to cancel single runs that need no stop; return what is left."""
        if not any(run_of_request(entry) for entry in entries):
            return [*entries]
        requests = await RunRequests.among(entries, self.log, self.record)
        if requests:
            await self._write(requests.carry_out)
        return requests.entries

    async def admit_at_rest(self, entry: InboxEntry) -> bool:
        """Append a message at once, without the inbox, if nothing is under way and nothing waits.

        Returns False, and has changed nothing, if it has to go by way of the inbox.
        """
        if self.state.status not in ("active", "waiting_human"):
            return False  # a question is to be taken back first
        try:
            return await self.begin([entry])
        except (NeedsAnswer, RoundConflict, SessionClosed, StaleOwner):
            return False  # a model has to be asked first; or the session is another hub's

    async def begin(self, entries: Sequence[InboxEntry], take_back: TakeBack | None = None) -> bool:
        """Append a message, or decisions, if nothing is under way and nothing waits.

        Returns False, and has changed nothing, if that is not so, or if another decision came
        first. A message takes open questions back: `take_back` returns what their run has left.
        Before the first message may stand what an earlier thread has left.
        """
        async with self.lock:
            kind = entries[0].draft.event_type
            is_decision = kind == ev.EV_DECISION
            if kind == ev.EV_CANCELLED and self.state.said:
                return False
            waits = self.state.status == "waiting_decision"
            if self.due or self.state.is_runnable or (waits and not is_decision and not take_back):
                return False
            if not all(may_enter(self.state, entry) for entry in entries):
                return False
            if is_decision and not all(map(self._is_open, entries)):
                return False
            if self.may_have_inbox and await self.log.inbox(self.id):
                return False  # what was sent before comes first
            remains = await take_back() if take_back and waits and not is_decision else None

            def fill(page: Page) -> None:
                if remains is not None:
                    page.withdraw_questions(remains)
                admit_all(page, entries)

            await self._write(fill)
            return True

    def _is_open(self, entry: InboxEntry) -> bool:
        """Tell whether a decision is on a question that waits for one."""
        question = self.state.interrupts.get(str(entry.draft.event_data["interrupt_id"]))
        return question is not None and "decision" not in question

    async def takes_question_back(self) -> bool:
        """Tell whether a text waits that takes the open questions of a session of one back."""
        entries = await self.log.inbox(self.id) if self.may_have_inbox else ()
        texts = [entry for entry in entries if entry.draft.event_type in ev.SUBSTANTIVE]
        return any(may_enter(self.state, entry) for entry in texts)

    @property
    def is_undoing(self) -> bool:
        """Whether the effects of the present input are being undone in this round."""
        return self.state.undoing.get("round") == self.state.round and self.is_running

    async def stop_round(self, turns: Mapping[str, UnfinishedTurn]) -> None:
        """Carry out the stop request that arrived first, as the round is not running any more.

        `turns` is what is known of its turns, by speaker.
        """
        async with self.lock:
            entries = await self._without_run_requests(await self.log.inbox(self.id))
            earlier, request = before_stop(entries)
            self.stop_request, self.may_have_inbox = None, True
            if request is None or self.state.is_ended:
                return
            rewind = None
            if request.draft.event_type == ev.EV_REWOUND:
                rewind = await self._rewind_to(request.draft.event_data["to"])
                # The supervisor remarks on what it has seen, however late its remark arrives.
                supervisor = self.record.supervisor
                late = [entry for entry in entries if entry.order > request.order]
                earlier += [entry for entry in late if entry.sender_id == supervisor]
            stop = Stop(request, earlier, turns, self.attempts, rewind)
            await self._write(stop.carry_out)

    async def _rewind_to(self, sequence: int) -> Rewind:
        then = await state_at(self.log, self.record, sequence, rewound=self.state.rewound)
        since = await Branch(self.log, self.state).read(sequence)
        return Rewind(then, effect_list(since))

    async def catch_up(self) -> None:
        """Admit entries that need no boundary, and append what overdue timers cause."""
        await self.admit(at_boundary=False)
        if overdue(self.record, self.state):
            async with self.lock:
                # Checked again: the awaited participant may have spoken while this waited for the
                # lock.
                if fires := overdue(self.record, self.state):
                    await self._write(lambda page: [fire(page) for fire in fires])

    async def end_turn(self, speaker: str, round: int, fill: Callable[[Page], None]) -> None:
        """Append the end of a speaker's turn; if the turn has ended already, append nothing.

        Raises `NeedsAnswer`, and appends nothing, if a model has to be asked who speaks next.
        """
        async with self.lock:
            self.busy_speakers.discard(speaker)
            is_due = speaker in self.state.due and round == self.state.round
            if is_due and not self.state.is_ended:
                try:
                    await self._write(fill)
                except NeedsAnswer:
                    self.busy_speakers.add(speaker)
                    raise

    async def write_interrupts(
        self,
        questions: Sequence[Mapping[str, Any]],
        usage_of: Callable[[str], Mapping[str, Any]] = lambda speaker: {},
        remains: Mapping[str, Any] | None = None,
    ) -> None:
        """Append new interrupts, once the checkpoint has them, with the usage so far.

        The first one has `remains`, what the run has made until then.
        """
        async with self.lock:
            # A checkpoint may be behind the log: interrupts of a speaker who has spoken are void.
            due, known_ids = self.state.due, self.state.interrupts
            fresh = [
                question
                for question in questions
                if question["speaker"] in due and question["id"] not in known_ids
            ]
            if fresh and not self.state.is_ended:
                notes = [*self._with_usage(fresh, usage_of)]
                notes[0] = {**notes[0], **(remains or {})}

                def fill(page: Page) -> None:
                    for question in notes:
                        audience = round_audience(page.state, question["speaker"])
                        page.note(ev.EV_INTERRUPT, question, audience=audience)

                await self._write(fill)

    def _with_usage(
        self,
        questions: Sequence[Mapping[str, Any]],
        usage_of: Callable[[str], Mapping[str, Any]],
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the questions; the first one of each speaker carries its usage and path so far."""
        speakers: set[str] = set()
        for question in questions:
            speaker = str(question["speaker"])
            is_first = speaker not in speakers
            speakers.add(speaker)
            usage = usage_of(speaker) if is_first else {}
            path = self.agent_paths.take(speaker) if is_first else []
            figures = {"usage": dict(usage), "path": path}
            yield {**question, **{name: value for name, value in figures.items() if value}}

    async def note(self, *drafts: Draft, sender: str = ev.SYSTEM) -> None:
        """Append envelopes that decide nothing."""
        async with self.lock:
            if not self.state.is_ended:
                await self._write(lambda page: [page.add(sender, draft) for draft in drafts])

    async def say(self, *texts: Content, sender: str, audience: Audience = None) -> None:
        """Append texts at once, without the inbox: the caller waits for the answer."""
        drafts = [(clock().new_id(), text_envelope(text, audience=audience)) for text in texts]

        def fill(page: Page) -> None:
            for key, draft in drafts:
                page.say(sender, draft, envelope_id=key)

        for _, draft in drafts:
            self.blobs.add(draft.blobs)
        await self._with_answers(lambda: self._write_locked(fill))

    async def _write_locked(self, fill: Callable[[Page], object]) -> None:
        async with self.lock:
            await self._write(fill)

    async def _with_answers(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write messages from outside; ask models for the rules, until these need no more answers.

        The run of such a model is one of its own, under the team's guards, as it precedes the input
        on which it decides. It is not locked: the session goes on meanwhile, and what was asked in
        vain, because the state has changed, is asked again.
        """
        while True:
            try:
                return await write()
            except NeedsAnswer as need:
                self.may_have_inbox = True
                key, run = need.envelope.envelope_id, Run(new_id(), self.id)
                with inside_run(run), inside_session(None):
                    entry = await self.ask(need)
                usage = run.take_usage(JUDGE)
                self.answers[key] = with_answer(self.answers.get(key, {}), entry, usage)

    async def ask(self, need: NeedsAnswer) -> dict[str, Any]:
        """Ask a model what the rules need to know of an envelope; return the answer."""
        assert self.rules.asker is not None  # the rules need no answers where nobody can be asked
        transcript = await transcript_of(Branch(self.log, self.state), need.envelope)
        return await self.rules.asker.ask(need.question, transcript)

    async def count_attempt(self) -> None:
        """Count an attempt at the present round, before the attempt begins."""
        if self.epoch is not None:
            self.attempts = await self.log.attempt(self.id, self.epoch)

    async def fail_all(self, failures: Callable[[str], Mapping[str, Any]]) -> None:
        """Append a final failure of each speaker of the present round."""

        def fill(page: Page) -> None:
            for speaker in page.state.due:
                page.fail(failures(speaker), final=True)

        async with self.lock:
            await self._write(fill)

    async def close(self, reason: str) -> None:
        """End the session by a decision from outside of its rounds."""
        async with self.lock:
            if not self.state.is_ended:
                await self._write(lambda page: page.close(reason))

    async def finish(self) -> None:
        """Append the end of a session whose last decision ends it, as after a fork."""
        async with self.lock:
            await self._write(lambda page: None)

    async def write(self, fill: Callable[[Page], object]) -> None:
        """Append what `fill` adds to a page, unless the session has ended."""
        async with self.lock:
            if not self.state.is_ended:
                await self._write(fill)

    async def _write(self, fill: Callable[[Page], object]) -> None:
        """Append a page; a page that ends the session admits the rest of the inbox first."""
        while True:
            page = Page(self.state, self.rules, answers=self.answers)
            fill(page)
            if page.ends:
                admit_rest(page, await self.log.inbox(self.id))
                for draft in self.tasks.drafts_at_close():
                    page.add(ev.SYSTEM, draft)
                page.finish()
            try:
                await self._append(page)
                return
            except InboxConflict:
                self.may_have_inbox = True

    async def _append(self, page: Page) -> None:
        """Append a page, all or nothing, also if the caller is cancelled meanwhile."""
        if not page.envelopes and not page.admitted_ids:
            return
        await run_to_end(self._append_page(page))

    async def _append_page(self, page: Page) -> None:
        is_new_round = page.state.round != self.state.round
        has_failed = page.state.failures != self.state.failures and not is_new_round
        attempts = 1 if is_new_round else self.attempts + has_failed
        due_at = next_due(self.record, page.state)
        blobs = self.blobs.of(page.envelopes) if self.blobs.texts else NO_BLOBS
        async with self.around_append(self):
            await self.log.append(
                self.id,
                page.envelopes,
                self.state.sequence,
                page.state,
                epoch=self.epoch,
                due_at=due_at,
                admitted_ids=page.admitted_ids,
                attempts=attempts if attempts != self.attempts else None,
                blobs=blobs,
            )
            if blobs:
                self.blobs.drop(blobs)
            self.state, self.attempts, self.due_at = page.state, attempts, due_at
            self.recent.add(page.envelopes)
            if is_new_round:
                self.journals.clear()
                self.unfinished_usage.clear()
            for envelope in page.envelopes if self.answers else ():
                self.answers.pop(envelope.envelope_id, None)
            self.on_appended(self, page.envelopes)


async def load_state(log: Log, stored_session: StoredSession) -> SessionState:
    """Return a session's state: its snapshot, else what its log folds to."""
    if stored_session.state is not None:
        return stored_session.state
    return await state_at(log, stored_session.record, stored_session.head)


_current: ContextVar[OwnedSession | None] = ContextVar("agentgraph_owned_session", default=None)


def current_owned_session() -> OwnedSession | None:
    """Return the session that the surrounding graph runs on, None outside of one."""
    return _current.get()


@contextmanager
def inside_session(session: OwnedSession | None) -> Iterator[None]:
    """Make `session` the current session for the team's graph that runs inside this block.

    None is for a participant's turn: a team's graph in it is not that of the session around it.
    """
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)
