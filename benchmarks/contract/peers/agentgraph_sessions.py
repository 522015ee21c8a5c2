"""agentgraph: the same agent in a session of a `Hub`, by README, "Run a session".

The next hub of the store goes on with a session that was cut off, `durability="step"` at the last
step. The question tells what was done before it, since the state of a round is no part of the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agentgraph import (
    Agent,
    FromSpeaker,
    Hub,
    Session,
    Team,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.testing import ScriptedModel
from benchmarks.contract.peers.agentgraph_threads import Counts, charge, draft, pay, report, turn
from benchmarks.contract.scenario import Outcome, job, play, wait_for_the_others

LEASE_S = 2.0


@asynccontextmanager
async def _hub() -> AsyncIterator[tuple[Hub, Team]]:
    agent = Agent(
        "clerk",
        model=ScriptedModel(turn),
        tools=[draft, charge, report, pay],
        middleware=[Counts()],
        default_tools=False,
    )
    rules = TransitionGraph("clerk", [Transition(FromSpeaker("clerk"), TerminateTarget("done"))])
    team = Team([agent], rules, name="desk", durability="step")
    url = f"sqlite:///{job().store}/sessions.db"
    async with await Hub.open(url, serve=[team], lease_s=LEASE_S) as hub:
        yield hub, team


class AgentGraphSessions:
    async def begin(self) -> Outcome:
        async with _hub() as (hub, team):
            session = await hub.session(team, id=job().run)
            await session.ask("pay the bill")
            return await _outcome(session)

    async def resume(self) -> Outcome:
        async with _hub() as (hub, _):
            session = await hub.get(job().run)
            await session.settled()
            return await _outcome(session)

    async def answer(self) -> Outcome:
        async with _hub() as (hub, _):
            session = await hub.get(job().run)
            state = await session.settled()
            wait_for_the_others()
            for question in list(state.interrupts):
                await session.decide(question, job().value)
            await session.settled()
            return await _outcome(session)

    async def state(self) -> Outcome:
        async with _hub() as (hub, _):
            session = await hub.get(job().run)
            return await _outcome(session)

    async def fork(self) -> Outcome:
        async with _hub() as (hub, _):
            session = await hub.get(job().run)
            fork = await session.fork(session.state.sequence)
            await fork.settled()
            return await _outcome(fork)

    async def tear(self) -> Outcome:
        query = (
            "UPDATE agentgraph_envelopes SET data = substr(data, 1, length(data) / 2) "
            "WHERE place = (SELECT max(place) FROM agentgraph_envelopes)"
        )
        with sqlite3.connect(f"{job().store}/sessions.db") as file:
            count = file.execute(query).rowcount
        assert count == 1, count
        return Outcome("torn")


async def _outcome(session: Session) -> Outcome:
    state = session.state
    questions = [question for question in state.interrupts.values() if "decision" not in question]
    texts = [envelope.text for envelope in await session.history() if envelope.text]
    told: dict[str, Any] = {"messages": texts, "questions": [_payload(one) for one in questions]}
    answer = texts[-1] if texts and texts[-1] in ("paid", "refused") else ""
    return Outcome("asks" if questions else "ended" if answer else "open", told, answer, session.id)


def _payload(question: Any) -> str:
    return str(question.get("payload", question))


if __name__ == "__main__":
    play(AgentGraphSessions)
