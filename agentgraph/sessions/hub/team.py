"""The `Team` that users write: a compiled team that can also run itself, on a hub of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

from agentgraph.blocking import run_sync
from agentgraph.display import code, escaped, panel, prose, row, shortened
from agentgraph.guards import Guards
from agentgraph.guards.records.enclosure import current_enclosure
from agentgraph.outcomes import Interrupt
from agentgraph.sessions.envelopes.draft import Content
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.hub.answer import words_of_end
from agentgraph.sessions.hub.memory_runs import MemoryRuns
from agentgraph.sessions.hub.questions import questions_in
from agentgraph.sessions.hub.session import Session
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rewind import live_envelopes
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.sessions.team.inner_session import outcome_of, usage_records
from agentgraph.stream import AnyEvent
from agentgraph.usage import Usage

Escalate: TypeAlias = Callable[[Session, Envelope], Awaitable[None] | None]
"""Called with the session and the envelope of the handoff, after that envelope is in the log."""


@dataclass(frozen=True, eq=False, repr=False)
class Team(CompiledTeam):
    """Participants, and rules that decide which of them speaks next.

    `durability="round"` repeats an interrupted round from its start, `"step"` from its last step.
    After a round that failed for good, `failure_target` has the floor: an agent or `"human"`;
    without it the session closes. `escalations` maps each `channel_escalation` of a handoff, except
    `same`, to a function.

    >>> team = Team([researcher, writer], sequence(["researcher", "writer"]))
    >>> team.run("A page on tidal power").text
    """

    escalations: Mapping[str, Escalate] = field(default_factory=dict, kw_only=True)

    async def arun(
        self, input: Content, *, creator: str = "user", context: Mapping[str, Any] | None = None
    ) -> TeamResult:
        """Run one session in memory, until it closes or waits for a human.

        Invited humans count as present. Where the result has `interrupts`, `aresume` goes on.
        """
        async with self._runs.begin(creator, context) as session:
            await session.send(creator, input)
            return await _result_of(session)

    async def aresume(self, session_id: str, decisions: Mapping[str, object]) -> TeamResult:
        """Go on with a run that waits for decisions, given by the ids of its interrupts.

            result = await team.arun("Refund order 7")
            (question,) = result.interrupts
            result = await team.aresume(result.session_id, {question.id: True})

        It works in the process that began the run, on any event loop, and once for each result: of
        a team's runs, the last thousand that wait are kept. If it is cancelled, the same call goes
        on with the run: no decision is made twice. Raises `SessionError` for a session that does
        not wait, for a decision on what was not asked, and for another one than was made before.
        """
        async with self._runs.resume(session_id, decisions) as session:
            return await _result_of(session)

    async def astream(
        self, input: Content, *, creator: str = "user", context: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Envelope | AnyEvent, None]:
        """Run one session in memory, as `arun` does; yield its envelopes and live events."""
        async with self._runs.begin(creator, context) as session:
            async for item in _stream_until_settled(session, creator, input):
                yield item

    def run(
        self, input: Content, *, creator: str = "user", context: Mapping[str, Any] | None = None
    ) -> TeamResult:
        """Run one session, as `arun` does; works in a notebook as well as in a script."""
        return run_sync(self.arun(input, creator=creator, context=context))

    def resume(self, session_id: str, decisions: Mapping[str, object]) -> TeamResult:
        """Go on with a run that waits for decisions, as `aresume` does."""
        return run_sync(self.aresume(session_id, decisions))

    def mermaid(self) -> str:
        """Draw the rules, as Mermaid text."""
        return self.rules.mermaid()

    def svg(self) -> str:
        """Draw the rules, as a standalone SVG picture."""
        return self.rules.svg()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "text/plain": repr(self),
            "text/vnd.mermaid": self.mermaid(),
            "image/svg+xml": self.svg(),
        }

    @property
    def _runs(self) -> MemoryRuns:
        """The runs in memory; in a guarded agent's tool, a team without guards is under its."""
        enclosure = current_enclosure() if self.active_guards is None else None
        if enclosure is None:
            return self._own_runs
        team = self.under_guards(cast(Guards, enclosure.policy), self.name)
        return MemoryRuns(team, self._own_runs._stores)

    @cached_property
    def _own_runs(self) -> MemoryRuns:
        return MemoryRuns(self)


@dataclass(frozen=True, slots=True)
class TeamResult:
    """The result of a team's run."""

    text: str
    """What the last speaker said; where nobody said anything, why a guard or a failure ended the
    session. It is never a remark of the supervisor, and empty while a first answer is awaited."""
    close_reason: str | None
    """Why the session closed; None if it waits for a human or for decisions."""
    envelopes: tuple[Envelope, ...]
    state: SessionState
    usage: Usage = field(default_factory=Usage)
    interrupts: tuple[Interrupt, ...] = ()
    """The open questions: `team.aresume(session_id, {question.id: decision})` goes on."""
    session_id: str = ""

    @classmethod
    def of(
        cls, envelopes: Sequence[Envelope], record: SessionRecord, state: SessionState
    ) -> TeamResult:
        """Summarise a session's envelopes and state."""
        last = outcome_of(live_envelopes(envelopes), record).last
        reason = state.pending_close_reason if state.is_ended else None
        usage = Usage.of_records(usage_records(envelopes))
        text = last.text if last is not None else words_of_end(reason, envelopes)
        questions = questions_in(envelopes, state)
        return cls(text, reason, tuple(envelopes), state, usage, questions, record.session_id)

    def _repr_html_(self) -> str:
        senders = [envelope.sender_id for envelope in self.envelopes if envelope.is_substantive]
        rows = [prose(self.text)] if self.text else []
        rows.append(row("spoke", escaped(shortened(" → ".join(senders)))))
        if self.close_reason is not None:
            rows.append(row("closed", code(self.close_reason)))
        else:
            rows += self.state.open_questions_html()
        if self.usage.total_tokens:
            rows.append(row("used", escaped(self.usage.summary())))
        return panel(self.state.last_speaker_id or "nobody", *rows)


async def _result_of(session: Session) -> TeamResult:
    """Wait until a session has settled, and summarise it."""
    state = await session.settled()
    return TeamResult.of(await session.history(), session.record, state)


async def _stream_until_settled(
    session: Session, sender: str, text: Content
) -> AsyncGenerator[Envelope | AnyEvent, None]:
    """Send a text; yield envelopes and events until the session has settled."""
    last = 0
    items = session.stream(after=session.state.sequence)
    next_item = asyncio.ensure_future(anext(items, None))
    await session.send(sender, text)
    settled_task = asyncio.ensure_future(session.settled())
    try:
        while True:
            await asyncio.wait({next_item, settled_task}, return_when=asyncio.FIRST_COMPLETED)
            if not next_item.done() and last >= session.state.sequence:
                return
            item = await next_item
            if item is None:
                return
            last = item.sequence if isinstance(item, Envelope) else last
            yield item
            next_item = asyncio.ensure_future(anext(items, None))
    finally:
        for task in (next_item, settled_task):
            task.cancel()
        await asyncio.gather(next_item, settled_task, return_exceptions=True)
        await items.aclose()
