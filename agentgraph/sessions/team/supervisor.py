"""The supervisor: beside the speakers, on each thing that is said, in nobody's way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from agentgraph.clock import new_id
from agentgraph.errors import SessionError, kind_of
from agentgraph.running import Run, inside_round, inside_run
from agentgraph.sessions.hub.live import LiveSession
from agentgraph.sessions.hub.round import Round, inside
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.draft import Draft
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.packet import is_silent, packet_of
from agentgraph.sessions.team.speaker import Speaker, within

log = logging.getLogger("agentgraph")


@dataclass(slots=True)
class Watch:
    """One session, watched: a look after each commit, one at a time, the latest last."""

    live: LiveSession
    speaker: Speaker
    interject: Callable[[str, Draft], Any]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Begins a task outside of the round whose commit is looked at."""
    looking: asyncio.Task[None] | None = None
    has_news: bool = False

    def look(self, envelopes: Sequence[Envelope]) -> None:
        """Look at what others said, after the look that is under way, if one is."""
        if not any(one.is_substantive and one.sender_id != self.speaker.name for one in envelopes):
            return
        self.has_news = True
        if self.looking is None or self.looking.done():
            self.looking = self.spawn(self._look())

    async def stop(self) -> None:
        """Look away."""
        if self.looking is not None and not self.looking.done():
            self.looking.cancel()
            await asyncio.wait({self.looking})

    async def _look(self) -> None:
        while self.has_news and not self.live.state.is_ended:
            self.has_news = False
            try:
                await self._judge()
            except Exception as error:  # it must not stop what it watches
                log.warning("the supervisor of %s failed: %s", self.live.id, kind_of(error))

    async def _judge(self) -> None:
        live, name = self.live, self.speaker.name
        state = live.state
        round = Round(live, name, state.round, 1, _shown_to_the_end(state))
        run = Run(new_id(), live.id)
        with inside_run(run), inside(round), inside_round(f"{live.id}/watch/{state.spoke}"):
            spoken = await within(self.speaker.deadline_s, self.speaker.run(round))
        packet = packet_of(spoken, (), state.round, 1)
        if spoken.stopped_by is None and not is_silent(packet):
            try:
                await self.interject(name, Draft(ev.EV_PACKET, packet))
            except SessionError:
                return  # it ended meanwhile


def _shown_to_the_end(state: Any) -> Any:
    from dataclasses import replace

    return replace(state, round_began=state.sequence)
