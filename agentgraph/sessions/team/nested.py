"""A team as a speaker in another team: the last answer of its inner session is its packet."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from langchain_core.messages import AIMessage

from agentgraph.errors import SessionError
from agentgraph.graphs.public_graph import run_whole
from agentgraph.guards import Guards
from agentgraph.guards.records.registry import account_of
from agentgraph.sessions.envelopes.packet import TurnOutput
from agentgraph.sessions.rounds.outer_input import OuterInput
from agentgraph.sessions.rounds.owned_session import OwnedSession, inside_session
from agentgraph.sessions.rounds.round import Round
from agentgraph.sessions.state.record import Parent, session_key
from agentgraph.sessions.team.inner_id import inner_id
from agentgraph.sessions.team.inner_session import (
    close_inner,
    content_of,
    open_inner,
    outcome_of,
    release_inner,
    say_input,
)
from agentgraph.sessions.team.speaker import Speaker, config_with, view_of
from agentgraph.sessions.team.spec import TeamSpec


@dataclass(frozen=True, slots=True)
class TeamSpeaker(Speaker):
    """A speaker that runs a team in an inner session.

    The inner rounds have deadlines, so the outer round has none.
    """

    _: KW_ONLY
    team: TeamSpec
    guards: Guards | None = None
    """The outer team's guards, which count the inner session's work with their own input."""

    async def speak(self, round: Round) -> None:
        """Run a round; an inner session that is still open afterwards is closed."""
        await Speaker.speak(self, round)
        key = session_key(round.session.record.tenant, await self._id(round))
        stored_session = await round.session.log.load(key)
        if stored_session is not None and not (
            stored_session.state and stored_session.state.is_ended
        ):
            await close_inner(await self._open(round))

    async def run(self, round: Round) -> TurnOutput:
        """Run the inner session to its end, or resume the one that a killed attempt has begun."""
        ledger, account = round.ledger(), None
        if self.guards is not None:
            account = account_of(self.guards, ledger.input_id, None, ledger, ledger.id_scope)
        inner = await self._open(round)
        inner.outer_input = OuterInput(self.name, self.name, ledger, account)
        # In a later round the session has its input: from a killed attempt, or before an interrupt.
        if inner.state.round == 0 and not inner.state.is_ended:
            messages = await view_of(round.session.log, self, round)
            await say_input(inner, content_of(messages[-1]))
        if not inner.state.is_ended:
            try:
                with inside_session(inner):
                    config = config_with(round.session.listeners())
                    graph_input = {"round": inner.state.round}
                    await run_whole(self.graph, graph_input, config, **self.own_context(round))
            finally:
                # One that has not ended waits for a human; its round resumes it.
                await release_inner(inner)
        elif inner.state.pending_close_reason == "round_failed":
            # A killed attempt has seen the inner session fail, but has not counted its usage.
            outcome_of(await inner.log.read(inner.id), inner.record).record_usage(self.name)
            raise SessionError(f"a round of the team {self.name!r} failed", code="round_failed")
        outcome = outcome_of(await inner.log.read(inner.id), inner.record)
        usage = {f"{self.name}/{path}": figures for path, figures in outcome.usage.items()}
        if outcome.stopped_by is not None:
            return TurnOutput(
                (),
                stopped_by=outcome.stopped_by,
                cause=outcome.cause,
                usage=usage,
                hops=inner.state.hops,
            )
        last = outcome.last
        reply = [] if last is None else [AIMessage(last.text, id=last.envelope_id, name=self.name)]
        return TurnOutput(reply, usage=usage, hops=inner.state.hops)

    async def _id(self, round: Round) -> str:
        """Return the id of the inner session; after a failure of the round it is another one."""
        session, attempt = round.session, 1 + round.state.failures.get(self.name, 0)
        parent = self._parent(round)
        return await inner_id(session.log, session.record, parent, attempt, self.team.name)

    def _parent(self, round: Round) -> Parent:
        return Parent(round.session.record.session_id, round.number, self.name, path=self.name)

    async def _open(self, round: Round) -> OwnedSession:
        session_id = await self._id(round)
        parent = self._parent(round)
        return await open_inner(round.session, self.team, session_id, parent, round.audience)
