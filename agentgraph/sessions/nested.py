"""A team inside a team: a session of its own in the same log, for one round of the outer one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage

from agentgraph.clock import clock
from agentgraph.errors import RoundConflict, SessionClosed, SessionError
from agentgraph.guards import Guards
from agentgraph.guards.accounts import account_of
from agentgraph.sessions.ledger import Around, RoundLedger
from agentgraph.sessions.live import RETRIES, LiveSession, load_state
from agentgraph.sessions.outcome import outcome_of
from agentgraph.sessions.packet import Spoken
from agentgraph.sessions.record import Parent
from agentgraph.sessions.round import Round
from agentgraph.sessions.speaker import Speaker, heard_by, view_of
from agentgraph.sessions.table import at_table, begun

if TYPE_CHECKING:
    from agentgraph.sessions.team import Team

__all__ = ["TeamSpeaker", "inner_ids"]

_CALLER = "caller"


@dataclass(frozen=True, slots=True)
class TeamSpeaker(Speaker):
    """A team that speaks: its session's last words are what it says."""

    team: Team | None = None
    guards: Guards | None = None
    """Those around it, which count what it does with all else of their input."""

    async def speak(self, round: Round) -> None:
        """Run a round; an inner session that it leaves open is closed with it."""
        await Speaker.speak(self, round)
        stored = await round.live.log.load(self._id(round))
        if stored is not None and not (stored.state and stored.state.is_ended):
            inner = await self._session(round)
            with suppress(RoundConflict, SessionClosed):  # somebody has looked at it meanwhile
                await inner.close("round_over")
            await _given_back(inner)

    async def run(self, round: Round) -> Spoken:
        ledger, account = RoundLedger(round), None
        if self.guards is not None:
            account = account_of(self.guards, ledger.input_id, None, ledger, ledger.home)
        inner = await self._session(round)
        inner.around = Around(self.name, ledger, account)
        if inner.state.round == 0 and not inner.state.is_ended:
            shown = await view_of(round.live.log, self, round)
            await inner.hear(str(shown[-1].text), sender=inner.record.creator)
        if not inner.state.is_ended:
            try:
                with at_table(inner):
                    listeners = heard_by(round.live.listeners())
                    await self.graph.ainvoke({"round": inner.state.round}, listeners)
            finally:
                await _given_back(inner)
        elif inner.state.pending_close_reason == "round_failed":
            raise SessionError(f"a round of the team {self.name!r} failed", code="round_failed")
        came = outcome_of(await inner.log.read(inner.id), inner.record.creator)
        used = {f"{self.name}/{path}": figures for path, figures in came.used.items()}
        if came.stopped_by is not None:
            return Spoken((), stopped_by=came.stopped_by, usage=used, hops=inner.state.hops)
        last = came.last
        said = [] if last is None else [AIMessage(last.text, id=last.envelope_id, name=self.name)]
        return Spoken(said, usage=used, hops=inner.state.hops)

    def _id(self, round: Round) -> str:
        failures = round.state.failures.get(self.name, 0)
        return inner_ids(round.live.id, round.number, self.name)[failures]

    async def _session(self, round: Round) -> LiveSession:
        """Open the round's session; one that a dead attempt has begun goes on."""
        outer, team = round.live, self.team
        assert team is not None
        creator = outer.record.creator
        creator = creator if creator not in team.names else _CALLER
        record = team.record(
            self._id(round),
            creator=creator,
            humans=(),
            expectations=(),  # the outer session's hold for its round
            parent=Parent(outer.id, round.number, self.name),
        )
        live = await begun(outer.log, team, record)
        if outer.owner is not None:
            # Whoever has the outer session has its inner ones: a former owner is to be locked out.
            now = clock().wall()
            live.epoch = await outer.log.claim(live.id, outer.owner, now, force=True)
            stored = await outer.log.load(live.id)
            if stored is not None:
                live.state = await load_state(outer.log, stored)
        live.owner, live.inside_graph, live.appended = outer.owner, True, outer.appended
        live.handle = outer.handle
        return live


def inner_ids(outer_id: str, round: int, name: str) -> list[str]:
    """Return what a team's sessions for a round are called: each try has its own."""
    first = f"{outer_id}/{round}/{name}"
    return [first, *(f"{first}/{again}" for again in range(2, RETRIES + 2))]


async def _given_back(inner: LiveSession) -> None:
    if inner.state.is_ended and inner.owner is not None:
        await inner.log.release(inner.id, inner.owner)
