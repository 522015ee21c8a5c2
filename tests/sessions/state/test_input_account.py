"""What the guards of one input have counted is no other input's, whatever both are called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Team, sequence
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import after, held


def look() -> str:
    """Look."""
    return "nothing"


def approve() -> str:
    """Look, if a human agrees."""
    return str(interrupt("may I look?"))


def looking(tool: Callable[[], str]) -> Agent:
    """Return an agent that takes as many steps as it may."""
    model = ScriptedModel([call(tool.__name__), "I have looked."])
    return Agent("a", model=model, tools=[tool], guards=Guards.interactive(steps=2))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_sessions_of_one_id_in_two_stores_are_counted_apart(
    store: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    closed = []
    async with AsyncExitStack() as both:
        for _ in range(2):
            path = tmp_path_factory.mktemp("store") / "s.db"
            url = None if store == "memory" else f"sqlite:///{path}"
            team = Team([looking(look)], sequence(["a"]), name="team")
            session = await both.enter_async_context(held(team, url=url, id="s"))
            closed.append((await after(session, "user", "go")).pending_close_reason)

    assert closed == ["sequence_complete", "sequence_complete"]


async def test_runs_of_one_id_on_two_stores_are_counted_apart() -> None:
    agents = [looking(approve), looking(approve)]
    said = []

    for agent in agents:
        with FakeClock().installed():  # as if in two processes: both give the same ids
            await agent.ainvoke("go", thread_id="t")
    for agent in agents:
        with FakeClock().installed():
            [question] = await agent.ainterrupts("t")
            said.append((await agent.aresume("t", {question.id: "yes"})).text)

    assert said == ["I have looked.", "I have looked."]
