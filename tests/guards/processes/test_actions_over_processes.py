"""Whoever answers, and in whatever process: each action is done once, and asked for as it was."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, effect, idempotency_key
from agentgraph.testing import ScriptedModel, call
from tests.guards.actions.test_actions_in_agents import killed
from tests.guards.guarded_agents import watched
from tests.guards.records.test_account_in_a_new_process import another_process

KINDS = ("pay", "ask", "careful")
PROCESSES = ("same", "another", "killed", "first")
Steps = list[list[str]]
"""What a worker calls in each of its messages."""


def ask(item: str) -> str:
    """Ask a human."""
    return str(interrupt(f"May I, for {item}?"))


@dataclass
class World:
    """What was done, by the key of the action."""

    done: list[tuple[str, str]] = field(default_factory=list)

    @property
    def tools(self) -> list[Any]:
        @effect
        async def pay(item: str) -> str:
            """Pay for something."""
            self.done.append((item, idempotency_key()))
            return f"paid for {item}"

        @effect
        async def careful(item: str) -> str:
            """Pay for something, if a human agrees."""
            interrupt(f"May I pay for {item}?")
            return str(await pay(item))

        return [pay, careful, ask]


def worker(name: str, steps: Steps, world: World) -> Agent:
    """Return an agent that knows by its messages how far it has come, in whatever process."""

    def turn(messages: list[BaseMessage]) -> Any:
        own = [m for m in messages if isinstance(m, AIMessage) and m.name == name]
        if len(own) == len(steps):
            return f"{name} is done."
        kinds = enumerate(steps[len(own)])
        return [call(kind, item=f"{name}-{len(own)}-{n}") for n, kind in kinds]

    fields: dict[str, Any] = {"tools": world.tools, "default_tools": False}
    return Agent(name, model=ScriptedModel(turn), **fields)


def boss_of(workers: list[Agent], **kept: Any) -> Agent:
    calls = [call(f"transfer_to_{one.name}") for one in workers]

    def turn(messages: list[BaseMessage]) -> Any:
        return calls if messages[-1].type == "human" else "Done."

    boss = Agent("boss", model=ScriptedModel(turn), agents=workers, handoff="delegate")
    return boss.replace(default_tools=False, **kept)


plans = st.lists(
    st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3), min_size=1, max_size=2),
    min_size=1,
    max_size=3,
)


@pytest.mark.timeout(240)  # half a minute on a quiet machine
@settings(max_examples=40)
@given(plans, st.sampled_from(["sync", "async", "exit"]), st.data())
def test_each_action_is_done_once_whoever_answers(
    plan: list[Steps], durability: Any, data: st.DataObject
) -> None:
    world = World()

    def make(saver: InMemorySaver) -> Agent:
        workers = [worker(f"w{number}", steps, world) for number, steps in enumerate(plan)]
        kept = {"checkpointer": saver, "durability": durability, "guards": watched()}
        return boss_of(workers, **kept)

    async def run() -> str:
        saver = InMemorySaver()
        first = agent = make(saver)
        is_shared = True
        reply = await agent.ainvoke("go", thread_id="t")
        while questions := await agent.ainterrupts("t"):
            assert all("nobody knows" not in str(one.payload) for one in questions)
            some = data.draw(st.lists(st.sampled_from(questions), min_size=1, unique_by=id))
            where = data.draw(st.sampled_from(PROCESSES if is_shared else PROCESSES[:3]))
            if where == "killed":
                saver, is_shared = killed(saver), False
                agent = make(saver)
            elif where == "another":
                saver = another_process(saver)
                agent = make(saver)
            elif where == "first":
                agent = first
            gc.collect()
            reply = await agent.aresume("t", {one.id: "yes" for one in some})
        return reply.text

    assert asyncio.run(run()) == "Done."
    asked_for = {
        f"w{number}-{step}-{n}"
        for number, steps in enumerate(plan)
        for step, kinds in enumerate(steps)
        for n, kind in enumerate(kinds)
        if kind != "ask"
    }
    assert Counter(item for item, _ in world.done) == Counter(asked_for)
