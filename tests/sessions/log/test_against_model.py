"""Whatever is done to sessions, in any order: a file answers as memory does."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentgraph.errors import SessionError
from agentgraph.sessions.envelopes.envelope import EV_AUDIT, EV_SESSION_CLOSED, EV_TEXT, Envelope
from agentgraph.sessions.log import Log, MemoryLog, SessionQuery
from agentgraph.sessions.log.sqlite.log import SQLiteLog
from agentgraph.sessions.state.fold import fold
from agentgraph.sessions.state.state import SessionState
from tests.sessions.log.sessions_to_store import AWKWARD, envelope, record, waiting

SESSIONS = st.sampled_from(["s", "s", "t", "child"])
OWNERS = st.sampled_from(["a", "b"])
SENDERS = st.sampled_from(["a", "user"])
KEYS = st.sampled_from([None, "k", "l"])
TIMES = st.integers(0, 6).map(float)
SMALL = st.integers(-1, 9)
TENANTS = st.sampled_from(["default", "acme", "s"])
SESSION_IDS = st.sampled_from(["u", "acme/u", "acme/acme/u", "/u", "a b/u"])
VALUES = st.sampled_from([1, 1.0, True, "1", None, [1, {"ü": 2.0}], [1.0, {"ü": 2}]])
METADATA = st.dictionaries(st.sampled_from(["a", "b", AWKWARD]), VALUES, max_size=2)
QUERIES = st.builds(
    SessionQuery,
    status=st.sampled_from([None, "pending", "closed"]),
    team=st.sampled_from([None, "team", "other"]),
    creator=st.sampled_from([None, "user", "ann"]),
    tenant=st.none() | TENANTS,
    metadata=METADATA,
    after=st.sampled_from([None, "s", "acme/u", "u", "nobody"]),
    limit=st.none() | st.integers(1, 4),
    newest_first=st.booleans(),
)


class Twins(RuleBasedStateMachine):
    """A log in a file and one in memory, to which the same is done."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._runner = asyncio.Runner()
        self._logs: tuple[Log, Log] = (
            MemoryLog(),
            SQLiteLog(str(Path(self._folder.name) / "twin.db")),
        )
        self._ids = 0
        for log in self._logs:
            self._runner.run(log.open())
        self.create("s", None, None)
        for said in ([(EV_TEXT, "a", "k"), (EV_AUDIT, "a", None), (EV_TEXT, "user", None)],) * 2:
            self.append("s", said, 0, None, None, 0, None, False)

    def teardown(self) -> None:
        for log in self._logs:
            self._runner.run(log.close())
        self._runner.close()
        self._folder.cleanup()

    def both(self, ask: Callable[[Log], Awaitable[Any]]) -> Any:
        """Do the same to both, and return what both say."""

        async def told(log: Log) -> Any:
            try:
                return await ask(log)
            except SessionError as error:
                return type(error), error.code

        memory, file = (self._runner.run(told(log)) for log in self._logs)
        assert file == memory
        return memory

    def new_id(self) -> str:
        self._ids += 1
        return f"e{self._ids}"

    @rule(session_id=SESSIONS, due_at=st.none() | TIMES, runnable=st.none() | st.booleans())
    def create(self, session_id: str, due_at: float | None, runnable: bool | None) -> None:
        made = record(session_id)
        state = SessionState.initial(made)
        self.both(lambda log: log.create(made, [], state, due_at=due_at, runnable=runnable))

    @rule(
        session_id=SESSIONS,
        kinds=st.lists(st.tuples(st.sampled_from([EV_TEXT, EV_AUDIT]), SENDERS, KEYS), max_size=3),
        drift=st.sampled_from([0, 0, 0, 1, -1]),
        epoch=st.none() | st.integers(0, 3),
        due_at=st.none() | TIMES,
        take=st.integers(0, 3),
        attempts=st.none() | st.integers(0, 3),
        ends=st.sampled_from([False, False, False, True]),
    )
    def append(
        self,
        session_id: str,
        kinds: list[tuple[str, str, str | None]],
        drift: int,
        epoch: int | None,
        due_at: float | None,
        take: int,
        attempts: int | None,
        ends: bool,
    ) -> None:
        stored = self.both(lambda log: log.load(session_id))
        if stored is None:
            return
        waits = self.both(lambda log: log.inbox(session_id))
        taken = [one.envelope_id for one in waits[:take]]
        head, state = stored.head + drift, stored.state
        envelopes: list[Envelope] = []
        for kind, sender, key in [*kinds, *([(EV_SESSION_CLOSED, "a", None)] if ends else [])]:
            made = envelope(
                head + len(envelopes) + 1,
                session_id=session_id,
                event_type=kind,
                sender=sender,
                key=key,
                envelope_id=self.new_id(),
            )
            envelopes.append(made)
            state = fold(state, made)
        self.both(
            lambda log: log.append(
                session_id,
                envelopes,
                head,
                state,
                epoch=epoch,
                due_at=due_at,
                admitted_ids=taken,
                attempts=attempts,
            )
        )

    @rule(session_id=SESSIONS, sender=SENDERS, key=KEYS)
    def put(self, session_id: str, sender: str, key: str | None) -> None:
        given = waiting(self.new_id(), key=key, sender=sender)
        self.both(lambda log: log.enqueue(session_id, given))

    @rule(session_id=SESSIONS, owner=OWNERS, now=TIMES, gone=st.booleans(), force=st.booleans())
    def claim(self, session_id: str, owner: str, now: float, gone: bool, force: bool) -> None:
        self.both(
            lambda log: log.claim(session_id, owner, now, is_gone=lambda _: gone, force=force)
        )

    @rule(owner=OWNERS, until=TIMES)
    def beat(self, owner: str, until: float) -> None:
        self.both(lambda log: log.heartbeat(owner, until))

    @rule(owner=OWNERS)
    def retire(self, owner: str) -> None:
        self.both(lambda log: log.release_all(owner))

    @rule(session_id=SESSIONS, owner=OWNERS, attempts=st.none() | st.integers(0, 3))
    def release(self, session_id: str, owner: str, attempts: int | None) -> None:
        self.both(lambda log: log.release(session_id, owner, attempts=attempts))

    @rule(session_id=SESSIONS, epoch=st.integers(0, 3))
    def attempt(self, session_id: str, epoch: int) -> None:
        self.both(lambda log: log.attempt(session_id, epoch))

    @rule(session_id=SESSIONS, after=SMALL, limit=st.none() | st.integers(0, 6))
    def read(self, session_id: str, after: int, limit: int | None) -> None:
        self.both(lambda log: log.read(session_id, after, limit))

    @rule(session_id=SESSIONS, count=st.integers(0, 6), before=st.none() | SMALL)
    def tail(self, session_id: str, count: int, before: int | None) -> None:
        self.both(lambda log: log.tail(session_id, count, before))

    @rule(session_id=SESSIONS, number=st.integers(1, 9))
    def find(self, session_id: str, number: int) -> None:
        self.both(lambda log: log.find(session_id, f"e{number}"))

    @rule(now=TIMES)
    def look(self, now: float) -> None:
        self.both(lambda log: log.unfinished_sessions(now))
        self.both(lambda log: log.next_due())

    @rule(
        tenant=TENANTS, creator=st.sampled_from(["user", "ann"]), metadata=METADATA, id=SESSION_IDS
    )
    def create_of(self, tenant: str, creator: str, metadata: dict[str, Any], id: str) -> None:
        made = record(id, tenant=tenant, creator=creator, metadata=metadata)
        self.both(lambda log: log.create(made, [], SessionState.initial(made)))

    @rule(session_id=SESSIONS | SESSION_IDS, drift=st.sampled_from([0, 0, 1, -1]))
    def forget(self, session_id: str, drift: int) -> None:
        stored = self.both(lambda log: log.load(session_id))
        epoch = drift + (stored.epoch if stored is not None else 0)
        self.both(lambda log: log.forget(session_id, epoch))
        self.both(lambda log: log.children("origin"))

    @rule(query=QUERIES)
    def sessions(self, query: SessionQuery) -> None:
        self.both(lambda log: log.sessions(query))

    @invariant()
    def same(self) -> None:
        for session_id in ("s", "child"):
            self.both(lambda log, session_id=session_id: log.load(session_id))  # type: ignore[misc]


Twins.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestTwins = Twins.TestCase
