"""The supervisor: an agent that runs beside the speakers, on each substantive envelope.

It blocks no speaker: it looks at a session after a commit, in a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentgraph.clock import new_id
from agentgraph.errors import SessionError, kind_of
from agentgraph.running import Run, inside_round, inside_run
from agentgraph.sessions.rounds.owned_session import OwnedSession, SessionHandle
from agentgraph.sessions.rounds.round import Round, inside
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.draft import Draft
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.packet import is_silent, packet_of
from agentgraph.sessions.team.speaker import Speaker, within

log = logging.getLogger("agentgraph")


@dataclass(slots=True)
class Supervisor:
    """Runs the supervising agent on one session: one run at a time, each on the latest state."""

    session: OwnedSession
    handle: SessionHandle
    speaker: Speaker
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Begins a task outside of the round that has just been committed."""
    task: asyncio.Task[None] | None = None
    has_news: bool = False

    def notice(self, envelopes: Sequence[Envelope]) -> None:
        """Run on envelopes of other senders, after the run that is under way, if there is one."""
        if not any(
            envelope.is_substantive and envelope.sender_id != self.speaker.name
            for envelope in envelopes
        ):
            return
        # While a run is under way the flag is enough: the task checks it again before it ends.
        self.has_news = True
        if self.task is None or self.task.done():
            self.task = self.spawn(self._run_on_news())

    async def stop(self) -> None:
        """Cancel the run that is under way."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})

    async def _run_on_news(self) -> None:
        while self.has_news and not self.session.state.is_ended:
            self.has_news = False
            try:
                await self._run()
            except Exception as error:  # it must not stop the session that it supervises
                log.warning("the supervisor of %s failed: %s", self.session.id, kind_of(error))

    async def _run(self) -> None:
        session, name, state = self.session, self.speaker.name, self.session.state
        # The supervisor is shown all envelopes, and not only those from before the round.
        round = Round(session, name, state.round, 1, replace(state, round_began=state.sequence))
        run = Run(new_id(), session.id)
        with inside_run(run), inside(round), inside_round(f"{session.id}/watch/{state.spoke}"):
            turn = await within(self.speaker.deadline_s, self.speaker.run(round))
        packet = packet_of(turn, (), state.round, 1)
        if turn.stopped_by is None and not is_silent(packet):
            try:
                await self.handle.interject(name, Draft(ev.EV_PACKET, packet))
            except SessionError:
                return  # the session ended meanwhile
