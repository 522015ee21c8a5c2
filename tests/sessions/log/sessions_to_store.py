"""Sessions to be stored, and what is heard of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgraph.sessions.envelopes.draft import Draft, text_envelope
from agentgraph.sessions.envelopes.envelope import (
    EV_AUDIT,
    EV_SESSION_CLOSED,
    EV_TEXT,
    Envelope,
    Priority,
)
from agentgraph.sessions.log import InboxEntry, Log
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.record import Parent, SessionRecord
from agentgraph.sessions.state.state import SessionState

PATIENCE_S = 30

AWKWARD = 'nul \0 half \ud800 quote " back \\ umlaut ü \U0001f600'
"""What not every store can hold."""


def record(
    session_id: str = "s",
    *,
    created_at: float = 1.5,
    team: str = "team",
    creator: str = "user",
    tenant: str = "default",
    metadata: Mapping[str, Any] | None = None,
) -> SessionRecord:
    return SessionRecord(
        session_id=session_id,
        team=team,
        creator=creator,
        agents=("a", "b"),
        humans=(),
        graph={"version": 1, "transitions": []},
        created_at=created_at,
        context={"tier": "gold"},
        parent=Parent("origin", 2, "a", 7) if session_id == "child" else None,
        tenant=tenant,
        metadata=metadata or {},
    )


def envelope(
    sequence: int,
    *,
    session_id: str = "s",
    event_type: str = EV_TEXT,
    key: str | None = None,
    sender: str = "a",
    envelope_id: str | None = None,
) -> Envelope:
    data = {"text": f"word {sequence}", "nested": [1, {"ü": None}]}
    return Envelope(
        envelope_id or f"{session_id}-{sequence}",
        session_id,
        sender,
        ("a", "b") if sequence % 2 else None,
        event_type,
        data,
        causation_id="before",
        priority=Priority.HIGH,
        idempotency_key=key,
        metadata={"m": AWKWARD},
        created_at="2026-01-01T00:00:00+00:00",
        sequence=sequence,
    )


def note(sequence: int, session_id: str = "s") -> Envelope:
    return envelope(sequence, session_id=session_id, event_type=EV_AUDIT)


def waiting(envelope_id: str, *, key: str | None = None, sender: str = "user") -> InboxEntry:
    draft = text_envelope(
        "hello", audience=["a"], idempotency_key=key, priority=Priority.URGENT, metadata={"m": 1}
    )
    return InboxEntry(envelope_id, sender, replace(draft, causation_id="before"))


def awkward_waiting() -> InboxEntry:
    draft = Draft("my.event", {"text": AWKWARD}, idempotency_key=AWKWARD)
    return InboxEntry(AWKWARD, AWKWARD, draft)


@dataclass
class Writer:
    """One who appends to a session as a hub does."""

    log: Log
    session_id: str = "s"
    state: SessionState = field(init=False)
    envelopes: list[Envelope] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record = record(self.session_id)
        self.state = SessionState.initial(self.record)

    @property
    def head(self) -> int:
        return len(self.envelopes)

    async def begin(self, *envelopes: Envelope, due_at: float | None = None) -> Writer:
        self._grow(envelopes)
        assert await self.log.create(self.record, envelopes, self.state, due_at=due_at)
        return self

    async def add(
        self,
        *envelopes: Envelope,
        epoch: int | None = None,
        due_at: float | None = None,
        taken: Sequence[str] = (),
        attempts: int | None = None,
        closing: bool = False,
        blobs: Mapping[str, str] | None = None,
    ) -> None:
        """Append, and remember it only if that went well."""
        state, known = self.state, list(self.envelopes)
        head = self.head
        if closing:
            last = self.head + len(envelopes) + 1
            ended = envelope(last, session_id=self.session_id, event_type=EV_SESSION_CLOSED)
            envelopes = (*envelopes, ended)
        self._grow(envelopes)
        try:
            await self.log.append(
                self.session_id,
                envelopes,
                head,
                self.state,
                epoch=epoch,
                due_at=due_at,
                admitted_ids=taken,
                attempts=attempts,
                blobs=blobs or {},
            )
        except BaseException:
            self.state, self.envelopes = state, known
            raise

    async def say(self, count: int = 1, **more: object) -> None:
        for _ in range(count):
            await self.add(self.next(**more))  # type: ignore[arg-type]

    def next(self, event_type: str = EV_TEXT, **more: str | None) -> Envelope:
        made = envelope(self.head + 1, session_id=self.session_id, event_type=event_type)
        return replace(made, **{k: v for k, v in more.items() if v is not None})  # type: ignore[arg-type]

    def _grow(self, envelopes: Sequence[Envelope]) -> None:
        self.state = fold_all(self.state, envelopes)
        self.envelopes += envelopes


class Heard:
    """What was told of changes."""

    def __init__(self) -> None:
        self.told: list[str | None] = []
        self._more = asyncio.Event()

    def __call__(self, session_id: str | None) -> None:
        self.told.append(session_id)
        self._more.set()

    async def until(self, is_enough: Callable[[list[str | None]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_enough(self.told):
                self._more.clear()
                await self._more.wait()

    async def of(self, session_id: str) -> None:
        """Return once a session was named, or it may be any."""
        await self.until(lambda told: session_id in told or None in told)


async def eventually(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Return once something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            pass
