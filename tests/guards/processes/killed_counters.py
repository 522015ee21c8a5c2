"""Runs under a guard of a user, whose processes are killed while a model is asked.

As a script it forks a child per order, as `tests.sessions.crashing` does.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentgraph import Agent, Team, patched
from agentgraph.guards import AuditTrail, Guards, MemorySink
from agentgraph.routing import sequence
from agentgraph.sessions import Hub
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.users_guards import CallLimit
from tests.sessions.crashing import serve, tell

MOST = 4
"""How many calls the guard allows for one input."""
THREAD = "t"


@dataclass
class Desk:
    """A tool whose calls are counted in a file, and the model that calls it."""

    path: str
    dies_in: int | None
    """In which call of a model this process is killed."""
    asked: int = field(default=0)

    def look(self, number: int) -> str:
        """Look at something."""
        with open(self.path, "ab") as file:
            file.write(b".")
        return f"seen {number}"

    def turn(self, messages: Any) -> Scripted:
        """Call the tool until that is refused; kill the process in one of these calls."""
        self.asked += 1
        if self.asked == self.dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        last = str(messages[-1].content)
        return "Done." if last.startswith("Not executed") else call("look", number=len(messages))

    @property
    def model(self) -> ScriptedModel:
        return ScriptedModel(self.turn)


def guards() -> Guards:
    """Return guards of which only the user's one counts calls."""
    return Guards(extra=CallLimit(MOST), loop=None, audit=AuditTrail(MemorySink()))


def looked(path: str) -> int:
    """Return how often the tool has run, in whatever process."""
    return Path(path).stat().st_size if Path(path).exists() else 0


async def answer(url: str, desk: str, dies_in: int | None = None) -> None:
    """Have an agent go on with its turn, or begin one."""
    work = Desk(desk, dies_in)
    agent = Agent(
        "a",
        model=work.model,
        tools=[work.look],
        default_tools=False,
        guards=guards(),
        checkpointer=f"sqlite:///{url}",
        durability="sync",
    )
    is_begun = bool(await agent.ahistory(THREAD))
    reply = await (agent.acontinue(THREAD) if is_begun else agent.ainvoke("go", thread_id=THREAD))
    tell(text=reply.text)


async def speak(url: str, desk: str, dies_in: int | None = None) -> None:
    """Have a team go on with its session, or begin one."""
    work = Desk(desk, dies_in)
    speakers = [
        Agent(name, model=work.model, tools=[work.look], default_tools=False) for name in ("a", "b")
    ]
    team = Team(speakers, sequence(["a", "b"]), name="team", guards=guards(), expectations=())
    async with await Hub.open(f"sqlite:///{url}", serve=[team]) as hub:
        session = await hub.session(team, id="s", ttl=None)
        await session.send("user", "go", idempotency_key="go")
        state = await session.settled()
        tell(text=state.status)


async def patch(url: str, desk: str, dies_in: int | None = None) -> None:
    """Have a foreign graph go on with its thread, or begin it."""
    work = Desk(desk, dies_in)
    async with AsyncSqliteSaver.from_conn_string(url) as saver:
        graph: Any = create_agent(work.model, [work.look], checkpointer=saver)
        graph = patched(graph, guards())
        config: Any = {"configurable": {"thread_id": THREAD}}
        known = await graph.aget_state(config)
        said: Any = None if known.next else {"messages": [("user", "go")]}
        state = await graph.ainvoke(said, config, durability="sync")
        tell(text=str(state["messages"][-1].text))


if __name__ == "__main__":
    serve({"answer": answer, "speak": speak, "patch": patch})
