"""An agent in a session of its own: beside bare LangGraph, and late in the session beside early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import perf_counter

from agentgraph import Agent, Hub, Session
from benchmarks.agents import TURN_10, bare_on_disk
from benchmarks.measure import Conversation, Row, side_by_side
from benchmarks.script import FunctionModel, look_up, question, then_answer
from benchmarks.stores import Server, Store, new_store

__all__ = ["single_rows"]

TURNS, HISTORY = 10_000, 20
FRESH = 4
"""The new sessions whose turns 6-15 are compared with the old one's, turn for turn."""
GOAL = 1.1


async def single_rows(server: Server) -> list[Row]:
    """Measure an agent with one tool in a session: one tool call in each turn."""
    contestants = {"ours": _in_session, "bare": bare_on_disk}
    times = await side_by_side(contestants, turns=TURN_10[1], repetitions=25)
    ours, bare = (times[name].around(*TURN_10) * 1000 for name in contestants)
    rows = [Row("agent in a session / bare LangGraph, SQLite, turn 10", ours, bare, 1.0)]
    with new_store("SQLite", server) as store:
        late, early, kept = await _grown(store)
    what = f"agent in a session, history={HISTORY}, SQLite: turn {TURNS:,} / turn 10"
    return [
        *rows,
        Row(what, late * 1000, early * 1000, GOAL),
        Row(f"bytes kept by it: turn {TURNS:,} / turn 20", *kept, GOAL, "kB"),
    ]


def _agent(history: int | None = None) -> Agent:
    model = FunctionModel(say=then_answer("look_up", order="A17"))
    return Agent("helper", model=model, tools=[look_up], history=history)


@asynccontextmanager
async def _in_session() -> AsyncIterator[Conversation]:
    agent = _agent()
    with TemporaryDirectory() as folder:
        async with await Hub.open(f"sqlite:///{Path(folder, 'sessions.db')}", serve=[agent]) as hub:
            session = await hub.session(agent)
            yield Conversation(lambda turn: session.ask(question(turn)))


async def _grown(store: Store) -> tuple[float, float, tuple[float, float]]:
    """Hold a long session; then its turns beside those of new ones.

    Returns the seconds of a turn late and early, and the kB that turns have kept late and early.
    """
    agent = _agent(HISTORY)
    async with await Hub.open(store.url, serve=[agent]) as hub:
        old = await hub.session(agent)
        weights = {}
        for number in range(1, TURNS + 1):
            await old.ask(question(number))
            if number in (10, 20, TURNS - 10, TURNS):
                weights[number] = await store.weigh(hub, old) / 1000
        kept = [(weights[turn] - weights[turn - 10]) / 10 for turn in (TURNS, 20)]
        late, early = await _beside(hub, agent, old)
    return late, early, (kept[0], kept[1])


async def _beside(hub: Hub, agent: Agent, old: Session) -> tuple[float, float]:
    first, last = TURN_10
    times: dict[str, list[list[float]]] = {key: [[] for _ in range(last)] for key in ("old", "new")}
    for _ in range(FRESH):
        new = await hub.session(agent)
        for number in range(last):
            for key, session in (("old", old), ("new", new)):
                began = perf_counter()
                await session.ask(question(number))
                times[key][number].append(perf_counter() - began)
    old_s, new_s = (fmean(min(one) for one in times[key][first - 1 :]) for key in ("old", "new"))
    return old_s, new_s
