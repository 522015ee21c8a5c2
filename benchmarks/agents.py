"""An agent with a tool beside bare LangGraph; a supervisor with a sub-agent beside its peer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentgraph import Agent
from benchmarks.measure import Conversation, Opening, Row, bytes_in, side_by_side
from benchmarks.peers import bare_langgraph, langgraph_supervisor
from benchmarks.script import FunctionModel, WordyModel, answer, look_up, question, then_answer

__all__ = ["TURN_10", "agent_rows", "bare_on_disk", "streamed_rows", "supervisor_rows"]

Saver: TypeAlias = BaseCheckpointSaver[Any]
Ask: TypeAlias = Callable[[str], Any]
"""Takes a message, returns what to await."""

TURN_10 = (6, 15)
TURN_200 = (176, 225)  # the histories' snapshots, every 100 updates, come round in 25 or 50 turns
BYTES = (100, 200)
THREAD: Any = {"configurable": {"thread_id": "1"}}


async def agent_rows() -> list[Row]:
    """Measure an agent with one tool: two model calls and one tool call in each turn.

    Bare LangGraph guards nothing, so the agent is measured without its guards, too.
    """
    contestants = {"ours": _agent, "unguarded": _unguarded, "bare": _bare}
    in_memory = {name: _in_memory(make) for name, make in contestants.items()}
    on_disk = {name: _on_disk(make) for name, make in contestants.items()}
    short = await side_by_side(in_memory, turns=TURN_10[1], repetitions=30)
    disk = await side_by_side(on_disk, turns=TURN_10[1], repetitions=25)
    long = await side_by_side(in_memory, turns=TURN_200[1], repetitions=3)
    return [
        Row(f"agent with one tool{which} / bare LangGraph, {where}", *_both(times, at, who), goal)
        for where, goal, times, at in (
            ("memory, turn 10", 1.25, short, TURN_10),
            ("SQLite, turn 10", 1.5, disk, TURN_10),
            ("memory, turn 200", 0.75, long, TURN_200),
        )
        for which, who in (("", "ours"), (", guards=None", "unguarded"))
    ]


async def supervisor_rows() -> list[Row]:
    """Measure a supervisor with a sub-agent that answers.

    A handoff turn of ours is two model calls. A sticky one is one, since the sub-agent kept the
    conversation; langgraph-supervisor has no such turn, so it is its whole turn that compares.
    """
    contestants = {
        "handoff": _in_memory(_handoff),
        "sticky": _in_memory(_sticky),
        "peer": _in_memory(_supervisor),
    }
    short = await side_by_side(contestants, turns=TURN_10[1], repetitions=15)
    long = await side_by_side(contestants, turns=TURN_200[1], repetitions=3, weigh_after=BYTES)
    what = "turn / langgraph-supervisor's, memory, turn"
    kept = [long[name].bytes_per_turn(*BYTES) / 1000 for name in ("handoff", "peer")]
    return [
        Row(f"handoff {what} 10", *_both(short, TURN_10, "handoff", "peer"), 0.45),
        Row(f"handoff {what} 200", *_both(long, TURN_200, "handoff", "peer"), 0.13),
        Row(f"sticky {what} 10", *_both(short, TURN_10, "sticky", "peer"), None),
        Row(f"sticky {what} 200", *_both(long, TURN_200, "sticky", "peer"), 0.06),
        Row("bytes kept per handoff turn, mean of turns 100-200", *kept, 1 / 80, "kB"),
    ]


async def streamed_rows() -> list[Row]:
    """Measure the same agent's turn as a stream of tokens and events."""
    contestants = {"ours": _in_memory(_streamed_agent), "bare": _in_memory(_streamed_bare)}
    times = await side_by_side(contestants, turns=TURN_10[1], repetitions=15)
    what = "streamed turn of 100 tokens with one tool / bare LangGraph's astream, memory, turn 10"
    return [Row(what, *_both(times, TURN_10), None)]


def _both(times: Any, turns: tuple[int, int], ours: str = "ours", peer: str = "bare") -> Any:
    return [times[name].around(*turns) * 1000 for name in (ours, peer)]


def _agent(saver: Saver) -> Ask:
    agent = _helper(saver, FunctionModel)
    return lambda text: agent.ainvoke(text, thread_id="1")


def _unguarded(saver: Saver) -> Ask:
    agent = _helper(saver, FunctionModel).replace(guards=None)
    return lambda text: agent.ainvoke(text, thread_id="1")


def _bare(saver: Saver) -> Ask:
    return _invoke(bare_langgraph(saver, FunctionModel))


def _streamed_agent(saver: Saver) -> Ask:
    agent = _helper(saver, WordyModel)
    return lambda text: _read(agent.astream(text, thread_id="1"))


def _streamed_bare(saver: Saver) -> Ask:
    graph = bare_langgraph(saver, WordyModel)
    modes: Any = ["messages", "custom"]
    return lambda text: _read(
        graph.astream({"messages": [("user", text)]}, THREAD, stream_mode=modes, durability="async")
    )


async def _read(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


def _helper(saver: Saver, kind: type[FunctionModel]) -> Agent:
    model = kind(say=then_answer("look_up", order="A17"))
    return Agent("helper", model=model, tools=[look_up], checkpointer=saver)


def _team(saver: Saver) -> Agent:
    worker = Agent(
        "orders",
        "Knows orders.",
        model=FunctionModel(say=lambda _: answer()),
        tools=[look_up],
        system_prompt="You know orders.",
    )
    model = FunctionModel(say=then_answer("transfer_to_orders"))
    return Agent(
        "support", model=model, system_prompt="You supervise.", agents=[worker], checkpointer=saver
    )


def _handoff(saver: Saver) -> Ask:
    team = _team(saver)
    return lambda text: team.ainvoke(f"@supervisor {text}", thread_id="1")


def _sticky(saver: Saver) -> Ask:
    team = _team(saver)
    return lambda text: team.ainvoke(text, thread_id="1")


def _supervisor(saver: Saver) -> Ask:
    return _invoke(langgraph_supervisor(saver))


def _invoke(graph: Any) -> Ask:
    return lambda text: graph.ainvoke({"messages": [("user", text)]}, THREAD, durability="async")


def _in_memory(make: Callable[[Saver], Ask]) -> Opening:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Conversation]:
        saver = InMemorySaver()
        asked = make(saver)
        yield Conversation(lambda turn: asked(question(turn)), lambda: bytes_in(saver))

    return opened


def _on_disk(make: Callable[[Saver], Ask]) -> Opening:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Conversation]:
        with TemporaryDirectory() as folder:
            file = str(Path(folder, "threads.db"))
            async with AsyncSqliteSaver.from_conn_string(file) as saver:
                asked = make(saver)
                yield Conversation(lambda turn: asked(question(turn)))

    return opened


bare_on_disk = _on_disk(_bare)
