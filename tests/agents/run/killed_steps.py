"""An agent that takes several steps, in a process that is killed at one of them, without a pause.

As a script it forks a child per order, as `tests.sessions.crashing` does.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from langchain_core.messages import ToolMessage

from agentgraph import Agent
from agentgraph.errors import RoutingError
from agentgraph.testing import ScriptedModel, call
from tests.sessions.crashing import serve, tell

THREAD = "t"
STEPS = 4
INSTANTS = (*(f"{what} {n}" for what in ("tool", "model") for n in range(1, STEPS + 1)), "end")


def walker(url: str, durability: Any, kill: str | None) -> Agent:
    """Return an agent that calls a tool a number of times."""

    def come_to(instant: str) -> None:
        if instant == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    async def step(n: int) -> str:
        """Take a step."""
        come_to(f"tool {n}")
        return f"step {n}"

    def turn(messages: list[Any]) -> Any:
        taken = sum(isinstance(message, ToolMessage) for message in messages)
        come_to(f"model {taken}")
        return call("step", n=taken + 1) if taken < STEPS else "done"

    return Agent(
        "walker",
        model=ScriptedModel(turn),
        tools=[step],
        default_tools=False,
        checkpointer=url,
        durability=durability,
    )


async def play(url: str, durability: str, do: str = "go", kill: str | None = None) -> None:
    """Begin, go on, or look; tell the kinds and texts of the thread's messages."""
    agent = walker(url, durability, kill)
    text = ""
    if do == "go":
        text = (await agent.ainvoke("go", thread_id=THREAD)).text
    elif do == "continue":
        try:
            text = (await agent.acontinue(THREAD)).text
        except RoutingError as error:
            text = error.code
    if kill == "end":
        os.kill(os.getpid(), signal.SIGKILL)
    tell(text=text, messages=[[m.type, m.text] for m in await agent.ahistory(THREAD)])


if __name__ == "__main__":
    serve({"play": play})
