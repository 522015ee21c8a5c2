"""agentgraph: an `Agent` on a thread, on SQLite or Postgres, by README, "A human decides", "Memory"
and "Guards", and by `docs/how_to/use_langgraph_tools.md`.

The model follows a script that depends only on the messages. `charge` is an `@effect` whose outcome
`lookup` finds in the ledger.
"""

from __future__ import annotations

import sqlite3
from typing import Annotated, Any

import psycopg
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import AgentState
from langchain.tools import InjectedToolCallId, tool
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command, interrupt

from agentgraph import Agent, current_history, effect
from agentgraph.testing import ScriptedModel, call
from benchmarks.contract.scenario import (
    STEPS,
    Outcome,
    astep,
    job,
    lines,
    play,
    wait_for_the_others,
)


class CountState(AgentState[Any]):
    """The state of a run: one more channel, an int."""

    count: int


class Counts(AgentMiddleware[CountState, Any, Any]):
    state_schema = CountState


@tool
async def draft(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write a draft."""
    await astep("draft")
    answer = ToolMessage("draft", tool_call_id=call_id, name="draft")
    return Command(update={"messages": [answer], "count": "many" if job().misfit else 1})


def find(key: str) -> str | None:
    """Look for the charge where it was made."""
    return "charge" if "charge" in lines(job().ledger) else None


@effect(lookup=find)
async def charge() -> str:
    """Charge the customer."""
    await astep("charge")
    return "charge"


async def report() -> str:
    """Report."""
    await astep("report")
    return "report"


async def pay() -> str:
    """Pay, if a human agrees."""
    done = [str(message.text) for message in current_history() if message.type == "tool"]
    if interrupt({"pay": 5, "done": done}) != "yes":
        return "refused"
    await astep("pay")
    return "paid"


def turn(messages: list[BaseMessage]) -> Any:
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    names = (*STEPS, "pay")
    return call(names[len(answers)]) if len(answers) < len(names) else str(answers[-1].text)


class AgentGraph:
    def __init__(self) -> None:
        postgres = job().store.startswith("postgresql")
        self._agent = Agent(
            "clerk",
            model=ScriptedModel(turn),
            tools=[draft, charge, report, pay],
            middleware=[Counts()],
            checkpointer=job().store if postgres else f"sqlite:///{job().store}/threads.db",
            durability="sync",
            default_tools=False,
        )
        thread, _, checkpoint = job().run.partition("@")
        place = {"thread_id": thread, "checkpoint_ns": ""}
        self._thread = thread
        self._config: Any = {
            "configurable": place | ({"checkpoint_id": checkpoint} if checkpoint else {})
        }

    async def begin(self) -> Outcome:
        await self._agent.ainvoke("pay the bill", thread_id=self._thread)
        return await self._outcome(self._config)

    async def resume(self) -> Outcome:
        await self._agent.acontinue(self._thread)
        return await self._outcome(self._config)

    async def answer(self) -> Outcome:
        questions = await self._agent.ainterrupts(self._thread)
        wait_for_the_others()
        if "@" in job().run:  # a fork is addressed as LangGraph addresses it
            await self._agent.graph.ainvoke(Command(resume=job().value), self._config)
            return await self._outcome({"configurable": {"thread_id": self._thread}})
        decisions = {question.id: job().value for question in questions}
        await self._agent.aresume(self._thread, decisions)
        return await self._outcome(self._config)

    async def state(self) -> Outcome:
        return await self._outcome(self._config)

    async def fork(self) -> Outcome:
        graph = self._agent.graph
        asks = (await graph.aget_state(self._config)).config
        fork: Any = await graph.aupdate_state(asks, None, as_node="__copy__")
        await graph.ainvoke(None, fork)
        return await self._outcome({"configurable": {"thread_id": self._thread}})

    async def tear(self) -> Outcome:
        if job().store.startswith("postgresql"):
            query = (
                "UPDATE checkpoint_blobs SET blob = substring(blob for length(blob) / 2) "
                "WHERE channel = 'messages' AND version = (SELECT max(version) "
                "FROM checkpoint_blobs WHERE channel = 'messages')"
            )
            with psycopg.connect(job().store, autocommit=True) as connection:
                count = connection.execute(query).rowcount
        else:
            query = (
                "UPDATE checkpoints SET checkpoint = substr(checkpoint, 1, length(checkpoint) / 2) "
                "WHERE checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints "
                "WHERE checkpoint_ns = '') AND checkpoint_ns = ''"
            )
            with sqlite3.connect(f"{job().store}/threads.db") as file:
                count = file.execute(query).rowcount
        assert count == 1, count
        return Outcome("torn")

    async def _outcome(self, config: Any) -> Outcome:
        snapshot = await self._agent.graph.aget_state(config)
        messages = snapshot.values.get("messages", [])
        answers = [str(message.text) for message in messages if isinstance(message, ToolMessage)]
        state = {"done": answers, "count": snapshot.values.get("count")}
        status = "asks" if snapshot.interrupts else "open" if snapshot.next else "ended"
        place = snapshot.config["configurable"]
        name = f"{place['thread_id']}@{place['checkpoint_id']}"
        last = answers[-1] if len(answers) > len(STEPS) else ""
        return Outcome(status, state, last, name)


if __name__ == "__main__":
    play(AgentGraph)
