"""What guards add to a step: a model call and the tool call that follows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, effect
from agentgraph.guards import (
    AuditTrail,
    CostBudget,
    CostVelocity,
    Escalation,
    Gate,
    Guards,
    JSONLSink,
    Sink,
    SQLiteSink,
)
from benchmarks.measure import Conversation, Opening, Row, side_by_side
from benchmarks.script import FunctionModel, Say, answer, ask, look_up

__all__ = ["guard_rows"]

LENGTHS = (5, 20, 45)
DEFAULT_GOAL, ALL_GOAL, FLAT = 1.12, 1.18, 1.25
TURNS, REPETITIONS = 4, 20
_SHORT, _USUAL, _LONG = LENGTHS
_threads = count()

MakePolicy: TypeAlias = Callable[[Path], Guards | None]


@tool
async def book(order: str) -> str:
    """Book an order."""
    return f"Order {order} has been booked and leaves the depot on Thursday."


async def guard_rows() -> list[Row]:
    """Measure runs of several lengths with all guards and with none, and what makes them last."""
    default = await _step(_USUAL, _default)
    rows = [_row(_USUAL, "default guards / none", default, DEFAULT_GOAL)]
    for used, told, goal in ((look_up, "", ALL_GOAL), (effect(book), ", tool with @effect", None)):
        runs = {length: await _step(length, _all, used) for length in LENGTHS}
        rows += [
            _row(length, f"all guards{told} / none", pair, goal) for length, pair in runs.items()
        ]
        added = [runs[length][0] - runs[length][1] for length in (_LONG, _SHORT)]
        what = f"what all guards add to a step{told}, run of {_LONG} / run of {_SHORT}"
        rows.append(Row(what, *added, FLAT))
    for where, make in (("JSONL", _jsonl), ("SQLite", _sqlite)):
        pair = await _step(_USUAL, make, timer=perf_counter)
        rows.append(_row(_USUAL, f"all guards, audit in a {where} file / none, elapsed", pair))
    return rows


def _row(length: int, what: str, pair: tuple[float, float], goal: float | None = None) -> Row:
    on, off = pair
    return Row(f"a step, run of {length}, {what}", on, off, goal, "ms", f"+{on - off:.2f} ms")


async def _step(
    length: int,
    make: MakePolicy,
    used: BaseTool = look_up,
    timer: Callable[[], float] = process_time,
) -> tuple[float, float]:
    """Return the milliseconds of a step with guards and without."""
    contestants = {name: _opening(length, kind, used) for name, kind in _sides(make)}
    # The first turn after a collection of garbage finds cold caches.
    times = await side_by_side(contestants, turns=TURNS + 1, repetitions=REPETITIONS, timer=timer)
    on, off = (times[name].around(2, TURNS + 1) * 1000 / length for name in ("on", "off"))
    return on, off


def _sides(make: MakePolicy) -> list[tuple[str, MakePolicy]]:
    return [("off", lambda _: None), ("on", make)]


def _opening(length: int, make: MakePolicy, used: BaseTool) -> Opening:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Conversation]:
        with TemporaryDirectory() as folder:
            guards = make(Path(folder))
            agent = Agent(
                "helper",
                model=FunctionModel(say=_calling(used.name, length - 1)),
                tools=[used],
                guards=guards,
                checkpointer=InMemorySaver(),
            )
            yield Conversation(lambda _: _run(agent, length))
            if guards is not None and guards.audit is not None:
                guards.audit.close()

    return opened


async def _run(agent: Agent, length: int) -> None:
    reply = await agent.ainvoke("Where are they all?", thread_id=str(next(_threads)))
    assert reply.close_reason is None and len(reply.messages) == 2 * length - 1


def _calling(name: str, times: int) -> Say:
    """Call a tool so many times, for another order each, then answer."""

    def say(messages: list[BaseMessage]) -> AIMessage:
        made = sum(isinstance(one, ToolMessage) for one in messages)
        return ask(name, order=f"A{made}") if made < times else answer()

    return say  # type: ignore[return-value]


def _all(_: Path, sink: Sink | None = None) -> Guards:
    """Return a policy in which every guard is on, and none has anything to object."""
    return Guards.interactive(
        velocity=CostVelocity(tokens_per_min=10**9, usd_per_hour=10**6),
        budget=CostBudget(tokens=10**9, usd=10**6, prices={"FunctionModel": (1, 2)}),
        gates=Gate(
            policy=lambda subject: True,
            invariants=[lambda subject: True],
            grounding=lambda subject: True,
        ),
        escalation=Escalation(0.5, critic=lambda subject: 1.0),
        audit=AuditTrail(sink),
    )


def _default(_: Path) -> Guards:
    return Guards.interactive()


def _jsonl(folder: Path) -> Guards:
    return _all(folder, JSONLSink(folder / "audit.jsonl"))


def _sqlite(folder: Path) -> Guards:
    return _all(folder, SQLiteSink(folder / "audit.db"))
