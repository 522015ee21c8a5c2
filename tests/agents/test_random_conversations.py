"""Random conversations with a tree of three levels: no illegal history, no tool forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Guards
from agentgraph.agents.spec.values import Durability
from agentgraph.errors import ModelError, RoutingError
from agentgraph.guards import Backoff
from agentgraph.testing import IllegalHistory, ScriptedModel, call

Move = Literal[
    "text", "quick", "two", "ask", "ask_and_quick", "down", "help", "fail", "flap", "slow"
]
MOVES: list[Move] = [
    *("text", "quick", "two", "ask", "ask_and_quick"),
    *("down", "down", "help", "fail", "flap", "slow"),
]
PLAIN: dict[str, Any] = {
    "quick": call("quick"),
    "slow": [call("slow"), call("quick")],
    "two": [call("quick"), call("quick")],
    "ask": call("ask"),
    "ask_and_quick": [call("ask"), call("quick"), call("ask")],
    "fail": RuntimeError("this model is broken"),
    "flap": ConnectionError("the provider is down"),  # it is asked again
}


@dataclass
class World:
    """What the models do next, and what the tools have done."""

    moves: Iterator[Move]
    ran: list[str] = field(default_factory=list)
    last_view: str = ""

    def quick(self) -> Any:
        async def quick() -> str:
            """Work."""
            return self.finish()

        return quick

    def slow(self) -> Any:
        async def slow() -> str:
            """Work for a while."""
            await ticks(20)
            return self.finish()

        return slow

    def ask(self) -> Any:
        async def ask() -> str:
            """Ask a human."""
            answer = interrupt("sure?")
            return f"{self.finish()} {answer}"

        return ask

    def finish(self) -> str:
        token = f"<{len(self.ran)}>"
        self.ran.append(token)
        return token

    def model(self, child: str | None, supervised: bool) -> ScriptedModel:
        def turn(messages: Sequence[BaseMessage]) -> Any:
            self.last_view = " ".join(m.text for m in messages)
            known = " ".join(token for token in self.ran if token in self.last_view)
            match next(self.moves, "text"):
                case "down" if child is not None:
                    return [call("quick"), call(f"transfer_to_{child}")]
                case "help" if supervised:
                    return [call("request_help", reason=known), call("quick")]
                case move:
                    return PLAIN.get(move, f"a text {known}")

        return ScriptedModel(turn)

    def tree(self, saver: InMemorySaver, shape: Shape) -> Agent:
        tools = [self.quick(), self.slow(), self.ask()]
        leaf = Agent("leaf", model=self.model(None, True), tools=tools)
        below = [leaf] if shape.with_leaf else []
        child = "leaf" if shape.with_leaf else None
        mid = Agent(
            "mid",
            model=self.model(child, True),
            tools=tools,
            agents=below,
            handoff="delegate" if shape.mid_delegates else "sticky",
        )
        return Agent(
            "root",
            model=self.model("mid", False),
            tools=tools,
            agents=[mid],
            handoff="delegate" if shape.root_delegates else "sticky",
            checkpointer=saver,
            durability=shape.durability,
            guards=Guards.interactive(backoff=Backoff(base_s=0)),
        )


@dataclass(frozen=True)
class Shape:
    durability: Durability
    with_leaf: bool
    root_delegates: bool
    mid_delegates: bool


@dataclass(frozen=True)
class Step:
    """One call on the thread; cancelled after some turns of the event loop, or not."""

    shape: Shape
    resume: bool
    mention: str
    cancel_after: int | None


shapes = st.builds(
    Shape,
    durability=st.sampled_from(["sync", "async", "exit"]),
    with_leaf=st.sampled_from([True, True, True, False]),
    root_delegates=st.booleans(),
    mid_delegates=st.booleans(),
)
steps = st.builds(
    Step,
    shape=shapes,
    resume=st.booleans(),
    mention=st.sampled_from(["", "", "@root ", "@mid ", "@leaf "]),
    cancel_after=st.one_of(st.none(), st.integers(0, 120)),
)


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def ticks(count: int) -> None:
    """Let the event loop turn a number of times."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turned: asyncio.Future[None] = loop.create_future()
        loop.call_soon(wake, turned)
        await turned


async def take(step: Step, world: World, saver: InMemorySaver) -> None:
    agent = world.tree(saver, step.shape)
    snapshot = await agent.graph.aget_state({"configurable": {"thread_id": "t"}})
    pending = {i.id: "yes" for i in snapshot.interrupts}
    if step.resume and pending:
        run = asyncio.ensure_future(agent.aresume("t", pending))
    else:
        run = asyncio.ensure_future(agent.ainvoke(f"{step.mention}go", thread_id="t"))
    if step.cancel_after is not None:
        await ticks(step.cancel_after)
        run.cancel()
    try:
        await run
    except (asyncio.CancelledError, RoutingError):
        pass
    except ModelError as error:
        assert not isinstance(error.__cause__, IllegalHistory), error.__cause__


async def walk(moves: list[Move], plan: list[Step]) -> None:
    saver = InMemorySaver()
    world = World(iter(moves))
    for step in plan:
        await take(step, world, saver)
    world.moves = iter(())
    last = world.tree(saver, plan[-1].shape)

    await last.ainvoke("what has been done?", thread_id="t")

    forgotten = [token for token in world.ran if token not in world.last_view]
    assert not forgotten, f"{forgotten} of {world.ran} in {world.last_view}"
    answers = [m.tool_call_id for m in await last.ahistory("t") if isinstance(m, ToolMessage)]
    assert len(answers) == len(set(answers))


@pytest.mark.timeout(600)  # a guard against a hang: on a busy machine it works for minutes
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(MOVES), max_size=25), st.lists(steps, min_size=1, max_size=7))
def test_no_history_is_illegal_and_no_tool_is_forgotten(
    moves: list[Move], plan: list[Step]
) -> None:
    asyncio.run(walk(moves, plan))
