"""Agents on threads whose processes are killed around an action, at once and from inside.

As a script it forks a child per order, as `tests.sessions.crashing` does.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage

from agentgraph import Agent, Reply, effect, idempotency_key
from agentgraph.agents.nodes.calls import TRANSFER_MADE
from agentgraph.clock import SystemClock, use_clock
from agentgraph.guards import AuditTrail, Guards, MemorySink, Record
from agentgraph.testing import ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, unsure
from tests.guards.guarded_agents import watched
from tests.guards.processes.killed_agents import ITEMS, World
from tests.sessions.crashing import serve, tell

THREAD = "t"
PLACES = ("root", "deep", "delegate", "tool")
INSTANTS = ("before", "after", "ended", "logged", "think")
"""Around an action: before and after it changes the world, when its outcome is recorded, when it is
in the log, and in the model call after it."""


@dataclass(frozen=True)
class Killer:
    """Kills its own process at an instant, such as "after milk", without a pause."""

    at: str | None

    def come_to(self, instant: str) -> None:
        if instant == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Later(SystemClock):
    """The time of day some seconds later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wall(self) -> float:
        return SystemClock.wall() + self._seconds


class Sink(MemorySink):
    """Kills when the outcome of an action is recorded, which is before it is stored."""

    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self._killer = killer
        self._ended = 0

    def write(self, record: Record) -> None:
        super().write(record)
        if record.kind == "effect" and record.data["state"] == "done":
            self._ended += 1
            self._killer.come_to(f"ended {ITEMS[min(self._ended, len(ITEMS)) - 1]}")


class AfterCall(AgentMiddleware[Any, Any]):
    """Kills when a call of a tool has returned, and no checkpoint has its answer yet."""

    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self._killer = killer

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        self._killer.come_to(f"logged {request.tool_call['args'].get('item')}")
        return answer


def clerk(
    world: World, killer: Killer, *, looks_up: bool, at_once: bool, has_doubts: bool
) -> Agent:
    """Return an agent who pays for three things, one by one or at once."""

    def undo(item: str, key: str) -> None:
        killer.come_to(f"undoing {item}")
        world.change("undo", item, key)
        killer.come_to(f"undone {item}")

    def find(key: str) -> str | None:
        return world.find(key)

    @effect(compensate=undo, lookup=find if looks_up else None)
    async def pay(item: str) -> str:
        """Pay for something."""
        killer.come_to(f"before {item}")
        world.change("pay", item, idempotency_key())
        killer.come_to(f"after {item}")
        return f"paid for {item}"

    def turn(messages: list[Any]) -> Any:
        answers = [m for m in messages if isinstance(m, ToolMessage) and m.name == "pay"]
        last = str(messages[-1].text)
        if has_doubts and last.startswith("doubt"):
            return ANSWER
        if len(answers) < len(ITEMS):
            if answers:
                killer.come_to(f"think {ITEMS[len(answers) - 1]}")
            left = ITEMS[len(answers) :]
            return [call("pay", item=item) for item in (left if at_once else left[:1])]
        killer.come_to("think jam")
        return ANSWER

    return Agent(
        "clerk",
        "pays",
        model=ScriptedModel(turn),
        tools=[pay],
        default_tools=False,
        middleware=[AfterCall(killer)],
    )


def tree(place: str, worker: Agent, **fields: Any) -> Agent:
    """Return a tree in which the worker has its place."""

    def passing(tool: str, argument: str = "") -> ScriptedModel:
        def turn(messages: list[Any]) -> Any:
            last = messages[-1]
            is_handed_over = str(last.text).startswith(TRANSFER_MADE) and last.name != tool
            if last.type == "human" or is_handed_over:
                return call(tool, **({argument: str(last.text)} if argument else {}))
            return f"The clerk: {last.text}"

        return ScriptedModel(turn)

    match place:
        case "root":
            return worker.replace(**fields)
        case "deep":
            mid = Agent("mid", "leads", model=passing("transfer_to_clerk"), agents=[worker])
            return Agent("boss", model=passing("transfer_to_mid"), agents=[mid], **fields)
        case "delegate":
            model = passing("transfer_to_clerk")
            return Agent("boss", model=model, agents=[worker], handoff="delegate", **fields)
        case _:
            model = passing("clerk", "request")
            return Agent("boss", model=model, agents=[worker.as_tool()], **fields)


def policy(killer: Killer, *, has_doubts: bool) -> Guards:
    sink = Sink(killer)
    return unsure("doubt", sink) if has_doubts else watched(audit=AuditTrail(sink))


async def play(later_s: float = 0.0, **order: Any) -> None:
    """Play an order, maybe some time later."""
    with use_clock(Later(later_s)):
        await run(**order)


async def run(
    url: str,
    world: str,
    place: str = "root",
    durability: Any = "sync",
    kill: str | None = None,
    looks_up: bool = False,
    at_once: bool = False,
    says: str | None = "go",
    has_doubts: bool = False,
    decides: str | None = None,
) -> None:
    """Say something on the thread, go on with a run that was cut off, or decide."""
    killer = Killer(kill)
    worker = clerk(World(world), killer, looks_up=looks_up, at_once=at_once, has_doubts=has_doubts)
    guards = policy(killer, has_doubts=has_doubts)
    agent = tree(place, worker, checkpointer=url, durability=durability, guards=guards)
    reply: Reply
    if decides is not None:
        waiting = await agent.ainterrupts(THREAD)
        reply = await agent.aresume(THREAD, {one.id: decides for one in waiting})
    elif says is None:
        reply = await agent.acontinue(THREAD)
    else:
        reply = await agent.ainvoke(says, thread_id=THREAD)
    tell(
        text=reply.text,
        reason=reply.close_reason,
        asked=[one.id for one in reply.interrupts],
        messages=[[m.type, str(m.text)] for m in await agent.ahistory(THREAD)],
    )


if __name__ == "__main__":
    serve({"play": play})
