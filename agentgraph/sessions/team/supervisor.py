"""The supervisor: an agent that runs beside the speakers, on each substantive envelope.

It blocks no speaker: it looks at a session after a commit, in a task of its own. What is said to
some and what is said to all are looked at one by one: a remark is for those who may see what it
remarks on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgraph.clock import new_id
from agentgraph.errors import SessionError, kind_of
from agentgraph.remote.principal import inside_principal
from agentgraph.running import Run, inside_round, inside_run
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.envelopes.packet import is_silent, packet_of
from agentgraph.sessions.rounds.owned_session import OwnedSession, SessionHandle
from agentgraph.sessions.rounds.round import Round, inside
from agentgraph.sessions.state.parallel import STAMP
from agentgraph.sessions.state.visibility import Audience, with_names
from agentgraph.sessions.team.speaker import Speaker, within

log = logging.getLogger("agentgraph")


@dataclass(slots=True)
class Supervisor:
    """Runs the supervising agent on one session: one run at a time, each on the latest envelope."""

    session: OwnedSession
    handle: SessionHandle
    speaker: Speaker
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Begins a task outside of the round that has just been committed."""
    task: asyncio.Task[None] | None = None
    news: dict[Audience, Envelope] = field(default_factory=dict)
    """The last envelope that has not been looked at, by who may see it; None means everybody."""

    def notice(self, envelopes: Sequence[Envelope]) -> None:
        """Run on envelopes of other senders, after the run that is under way, if there is one."""
        name = self.speaker.name
        fresh = [item for item in envelopes if item.is_substantive and item.sender_id != name]
        for envelope in fresh:
            self.news[_readers_of(envelope)] = envelope
        if not fresh:
            return
        # While a run is under way this is enough: the task looks for news again before it ends.
        if self.task is None or self.task.done():
            self.task = self.spawn(self._run_on_news())

    async def stop(self) -> None:
        """Cancel the run that is under way."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})

    async def forget(self) -> None:
        """Remark on nothing that was said until now: the session goes back."""
        self.news.clear()
        await self.stop()

    async def _run_on_news(self) -> None:
        while self.news and not self.session.state.is_ended:
            readers = next(iter(self.news))
            envelope = self.news.pop(readers)
            try:
                await self._run(envelope)
            except Exception as error:  # it must not stop the session that it supervises
                log.warning("the supervisor of %s failed: %s", self.session.id, kind_of(error))

    async def _run(self, envelope: Envelope) -> None:
        """Run on an envelope, the last that is shown: who may see it may see the remark."""
        session, name = self.session, self.speaker.name
        audience = _readers_of(envelope)
        # The supervisor is shown all envelopes, and not only those from before the round.
        state = replace(session.state, round_began=envelope.sequence, audience=audience)
        round = Round(session, name, state.round, 1, state)
        run = Run(new_id(), session.id)
        key = inside_round(f"{session.id}/watch/{state.spoke}")
        with inside_run(run), inside(round), key, inside_principal(round.principal):
            turn = await within(self.speaker.deadline_s, self.speaker.run(round))
        packet = packet_of(turn, (), state.round, 1)
        if turn.stopped_by is None and not is_silent(packet):
            try:
                await self.handle.interject(name, Draft(ev.EV_PACKET, packet, audience=audience))
            except SessionError:
                return  # the session ended meanwhile


def _readers_of(envelope: Envelope) -> Audience:
    """Return who may see an envelope, and so a remark on it.

    Parallel speakers do not see each other's packets: a remark on them is for their audience alone.
    """
    senders = () if STAMP in envelope.event_data else (envelope.sender_id,)
    readers = with_names(envelope.audience, senders)
    return None if readers is None else tuple(sorted(readers))
