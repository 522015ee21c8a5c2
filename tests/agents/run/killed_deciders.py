"""Agents that ask humans, in processes that are killed once they have acted on a decision.

As a script it forks a child per order, as `tests.sessions.crashing` does.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import AgentGraphError, AlreadyDecided
from agentgraph.testing import ScriptedModel, call
from tests.sessions.crashing import serve, tell

THREAD = "t"
PLACES = ("root", "deep", "delegate")


def payer(world: Path, items: list[str], kill: str | None) -> Agent:
    """Return an agent that asks about each item, all at once, and acts on the answers."""

    async def pay(item: str) -> str:
        """Pay for something, if a human agrees."""
        answer = interrupt(f"pay for {item}?")
        with world.open("a") as file:
            file.write(f"{item}: {answer}\n")
            file.flush()
            os.fsync(file.fileno())
        if kill == item:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{item}: {answer}"

    def turn(messages: list[Any]) -> Any:
        answers = [m.text for m in messages if isinstance(m, ToolMessage) and m.name == "pay"]
        return " ".join(answers) if answers else [call("pay", item=item) for item in items]

    return Agent("payer", "pays", model=ScriptedModel(turn), tools=[pay], default_tools=False)


def tree(place: str, worker: Agent, **fields: Any) -> Agent:
    """Return a tree in which the worker has its place."""

    def passing(name: str) -> ScriptedModel:
        def turn(messages: list[Any]) -> Any:
            tool = f"transfer_to_{name}"
            is_back = any(isinstance(m, ToolMessage) and m.name == tool for m in messages)
            return messages[-1].text if is_back else call(tool)

        return ScriptedModel(turn)

    match place:
        case "root":
            return worker.replace(**fields)
        case "deep":
            mid = Agent("mid", "leads", model=passing("payer"), agents=[worker])
            return Agent("boss", model=passing("mid"), agents=[mid], **fields)
        case _:
            handoff: Any = "delegate"
            return Agent("boss", model=passing("payer"), agents=[worker], handoff=handoff, **fields)


async def play(
    url: str,
    world: str,
    do: str,
    place: str = "root",
    durability: Any = "sync",
    items: list[str] | None = None,
    decisions: dict[str, str] | None = None,
    sender: str | None = None,
    kill: str | None = None,
) -> None:
    """Ask, go on, decide, or look what is open; tell what comes of it."""
    worker = payer(Path(world), items or ["tea"], kill)
    agent = tree(place, worker, checkpointer=url, durability=durability)
    try:
        if do == "look":
            tell(open=[question.id for question in await agent.ainterrupts(THREAD)])
            return
        if do == "ask":
            reply = await agent.ainvoke("go", thread_id=THREAD)
        elif do == "continue":
            reply = await agent.acontinue(THREAD)
        else:
            reply = await agent.aresume(THREAD, decisions or {}, sender=sender)
    except AlreadyDecided as error:
        at = error.decided_at.isoformat() if error.decided_at else None
        tell(refused=error.code, decision=error.decision, sender=error.sender, decided_at=at)
    except AgentGraphError as error:
        tell(refused=error.code)
    else:
        ids = {str(question.payload): question.id for question in reply.interrupts}
        tell(text=reply.text, asked=ids)


if __name__ == "__main__":
    serve({"play": play})
