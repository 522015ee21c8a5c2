"""Runs in a process that is killed while a model is asked, and a file of what was paid for.

As a script it forks a child per order, as `tests.sessions.crashing` does.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage

from agentgraph import Agent, Guards, Team
from agentgraph.errors import SessionClosed
from agentgraph.graphs.public_graph import run_whole
from agentgraph.guards import CostBudget
from agentgraph.routing import (
    Always,
    ParallelTarget,
    Transition,
    TransitionGraph,
    round_robin,
)
from agentgraph.sessions import Hub
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.metered_models import PAID, Metered, paid
from tests.sessions.crashing import serve, tell

NAMES = ("alice", "bob")
THREAD = "t"


@dataclass(frozen=True)
class Till:
    """What was paid for model calls, in a file that outlives its processes: a byte for a call."""

    path: str
    dies_in: int | None = None
    """In which call of this process it is killed."""

    def pay(self) -> None:
        """Pay for a call, and at its last one wait for the end."""
        with open(self.path, "ab") as file:
            file.write(b".")
        _begun.append(self.path)
        if len(_begun) == self.dies_in:
            tell(begun=len(_begun))
            signal.pause()


def spent(till: str, *names: str) -> int:
    """Return how many tokens agents have paid for, in whatever process."""
    files = [Path(f"{till}-{name}") for name in names or NAMES]
    return PAID * sum(file.stat().st_size for file in files if file.exists())


_begun: list[str] = []


def model_of(till: Till, looks: int) -> ScriptedModel:
    """Return a model that looks so many times at something before it answers."""

    def turn(messages: Any) -> Scripted:
        till.pay()
        looked = _looked(messages)
        return paid(call("look", number=looked)) if looked < looks else paid("Seen.")

    return Metered(turn)


def _looked(messages: Sequence[Any]) -> int:
    """Return how often this turn has looked."""
    count = 0
    for message in reversed(messages):
        if not isinstance(message, ToolMessage | AIMessage):
            break
        count += isinstance(message, ToolMessage)
    return count


def look(number: int) -> str:
    """Look at something."""
    return f"seen {number}"


def agent_of(name: str, till: Till, looks: int, **fields: Any) -> Agent:
    return Agent(name, model=model_of(till, looks), tools=[look], default_tools=False, **fields)


def rules_of(kind: str, rounds: int) -> TransitionGraph:
    """Return who speaks when: one after the other, or both at once after the first."""
    if kind == "turns":
        return round_robin(NAMES, max_turns=rounds)
    both = ParallelTarget(NAMES, join="alice")
    return TransitionGraph("alice", [Transition(Always(), both)], max_turns=rounds)


async def play(
    url: str,
    till: str,
    budget: int,
    looks: int,
    rounds: int = 60,
    kind: str = "turns",
    durability: str = "round",
    stage: bool = False,
    dies_in: int | None = None,
) -> None:
    """Have a session go on until it ends; the budget is the whole one's, or that of a stage."""
    limit = CostBudget(tokens=budget)
    others: Any = {"steps": 1_000, "loop": None}
    guards = Guards.interactive(budget=limit, **others)
    if stage:
        stages = {"alice": Guards(budget=limit)}
        guards = Guards.interactive(budget=CostBudget(tokens=10**9), stages=stages, **others)
    team = Team(
        [agent_of(name, Till(f"{till}-{name}", dies_in), looks) for name in NAMES],
        rules_of(kind, rounds),
        name="burning",
        durability=durability,  # type: ignore[arg-type]
        guards=guards,
        expectations=(),
    )
    async with await Hub.open(url, serve=[team]) as hub:
        here = await hub.session(team, id="s", ttl=None)
        with suppress(SessionClosed):
            await here.send("user", "go", idempotency_key="go")
        state = await here.settled()
        tell(status=state.status, reason=state.pending_close_reason)


def boss_of(till: Till, looks: int, count: int) -> Agent:
    """Return an agent that asks several others at once, again and again."""
    workers = [agent_of(f"w{number}", till, looks) for number in range(count)]

    def turn(messages: Any) -> Scripted:
        till.pay()
        return paid([call(one.name, request=f"look, {len(messages)}") for one in workers])

    tools = [one.as_tool() for one in workers]
    return Agent("boss", model=Metered(turn), agents=tools, default_tools=False)


async def answer(
    url: str,
    till: str,
    budget: int,
    looks: int,
    workers: int = 0,
    durability: Any = "sync",
    dies_in: int | None = None,
) -> None:
    """Have a plain agent go on with its turn, or begin one."""
    guards = Guards.interactive(budget=CostBudget(tokens=budget), loop=None, fan_out=16)
    given: Any = {"durability": durability, "guards": guards, "checkpointer": url}
    agent = agent_of("alice", Till(f"{till}-alice", dies_in), looks, **given)
    if workers:
        agent = boss_of(Till(f"{till}-alice", dies_in), looks, workers).replace(**given)
    config: Any = {"configurable": {"thread_id": THREAD}}
    known = await agent.graph.aget_state(config)
    said: Any = None if known.next else {"messages": [("user", "go")]}
    result = await run_whole(agent.graph, said, config, durability=durability)
    tell(status="closed", reason=result["turn"].get("closed"))


if __name__ == "__main__":
    serve({"play": play, "answer": answer})
