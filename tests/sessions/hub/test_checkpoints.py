"""Rounds write a checkpoint only where somebody is asked something."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Hub, Team, sequence
from agentgraph.sessions.log import MemoryLog
from agentgraph.testing import ScriptedModel, call


class CountingSaver(InMemorySaver):
    """Counts the checkpoints that are written."""

    written = 0

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        self.written += 1
        return await super().aput(*args, **kwargs)


def ask() -> str:
    """Ask."""
    return str(interrupt("May I?"))


async def opened(saver: CountingSaver, team: Team) -> Hub:
    hub = Hub(MemoryLog(), saver, [team], 30.0)
    await hub.start(None)
    return hub


async def test_a_round_that_ends_writes_no_checkpoint() -> None:
    team = Team([Agent("a", model=ScriptedModel(["Done."]))], sequence(["a"]))
    saver = CountingSaver()
    async with await opened(saver, team) as hub:
        session = await hub.session(team)
        await session.send("user", "Go.")
        assert (await session.settled()).status == "closed"
    assert saver.written == 0


async def test_what_asks_somebody_is_kept_until_it_is_decided() -> None:
    model = ScriptedModel([call("ask"), "Done."])
    team = Team([Agent("a", model=model, tools=[ask])], sequence(["a"]))
    saver = CountingSaver()
    async with await opened(saver, team) as hub:
        session = await hub.session(team)
        await session.send("user", "Go.")
        state = await session.settled()
        assert state.status == "waiting_decision"
        assert saver.written > 0 and saver.storage[session.id]
        [question] = state.interrupts
        await session.decide(question, "yes")
        assert (await session.settled()).status == "closed"
    assert session.id not in saver.storage
