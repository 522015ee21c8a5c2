"""A team inside a team: a session of its own in the same log, for one round of the outer one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage

from agentgraph.errors import SessionError
from agentgraph.guards import Guards
from agentgraph.guards.records.registry import account_of
from agentgraph.sessions.hub.ledger import Around, RoundLedger
from agentgraph.sessions.hub.live import RETRIES, LiveSession
from agentgraph.sessions.hub.round import Round
from agentgraph.sessions.state.packet import TurnOutput
from agentgraph.sessions.team.outcome import outcome_of
from agentgraph.sessions.team.private_session import at_table, given_back, held_inside, left
from agentgraph.sessions.team.speaker import Speaker, heard_by, view_of

if TYPE_CHECKING:
    from agentgraph.sessions.team.team import Team


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
            await left(await self._session(round))

    async def run(self, round: Round) -> TurnOutput:
        ledger, account = RoundLedger(round), None
        if self.guards is not None:
            account = account_of(self.guards, ledger.input_id, None, ledger, ledger.id_scope)
        inner = await self._session(round)
        inner.around = Around(self.name, self.name, ledger, account)
        if inner.state.round == 0 and not inner.state.is_ended:
            shown = await view_of(round.live.log, self, round)
            await inner.hear(str(shown[-1].text), sender=inner.record.creator)
        if not inner.state.is_ended:
            try:
                with at_table(inner):
                    listeners = heard_by(round.live.listeners())
                    await self.graph.ainvoke({"round": inner.state.round}, listeners)
            finally:
                await given_back(inner)
        elif inner.state.pending_close_reason == "round_failed":
            outcome_of(await inner.log.read(inner.id), inner.people).charge(self.name)
            raise SessionError(f"a round of the team {self.name!r} failed", code="round_failed")
        came = outcome_of(await inner.log.read(inner.id), inner.people)
        used = {f"{self.name}/{path}": figures for path, figures in came.used.items()}
        if came.stopped_by is not None:
            return TurnOutput((), stopped_by=came.stopped_by, usage=used, hops=inner.state.hops)
        last = came.last
        said = [] if last is None else [AIMessage(last.text, id=last.envelope_id, name=self.name)]
        return TurnOutput(said, usage=used, hops=inner.state.hops)

    def _id(self, round: Round) -> str:
        failures = round.state.failures.get(self.name, 0)
        return inner_ids(round.live.id, round.number, self.name)[failures]

    async def _session(self, round: Round) -> LiveSession:
        """Open the round's session; one that a dead attempt has begun goes on."""
        assert self.team is not None
        return await held_inside(round.live, self.team, self._id(round), round.number, self.name)


def inner_ids(outer_id: str, round: int, name: str) -> list[str]:
    """Return what a team's sessions for a round are called: each try has its own."""
    first = f"{outer_id}/{round}/{name}"
    return [first, *(f"{first}/{again}" for again in range(2, RETRIES + 2))]
