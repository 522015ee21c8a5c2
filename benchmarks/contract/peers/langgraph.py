"""LangGraph: a `StateGraph` with a saver, by its pages "Persistence", "Durable execution",
"Interrupts" and "Use time travel".

Durability is "sync", the strongest of the three that "Durable execution" names. The state is a
pydantic model, as "Use the graph API" checks a state at run time. The store is a file of SQLite
(`AsyncSqliteSaver`) or a Postgres (`AsyncPostgresSaver`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from benchmarks.contract.scenario import Outcome, astep, job, play, wait_for_the_others


class Work(BaseModel):
    """The state of a run."""

    done: list[str] = []
    count: int = 0
    answer: str = ""


async def draft(state: Work) -> dict[str, Any]:
    await astep("draft")
    return {"done": [*state.done, "draft"], "count": "many" if job().misfit else 1}


async def charge(state: Work) -> dict[str, Any]:
    await astep("charge")
    return {"done": [*state.done, "charge"]}


async def report(state: Work) -> dict[str, Any]:
    await astep("report")
    return {"done": [*state.done, "report"]}


async def pay(state: Work) -> dict[str, Any]:
    if interrupt({"pay": 5}) != "yes":
        return {"answer": "refused"}
    await astep("pay")
    return {"answer": "paid"}


@asynccontextmanager
async def _graph() -> AsyncIterator[Any]:
    """Compile the graph of the "Persistence" page on the store of the job."""
    graph = StateGraph(Work)
    nodes = (draft, charge, report, pay)
    for node in nodes:
        graph.add_node(node.__name__, node)
    for first, second in zip((START, *(node.__name__ for node in nodes)), nodes, strict=False):
        graph.add_edge(first, second.__name__)
    graph.add_edge("pay", END)
    postgres = job().store.startswith("postgresql")
    kind = AsyncPostgresSaver if postgres else AsyncSqliteSaver
    async with kind.from_conn_string(_url()) as saver:
        await saver.setup()
        yield graph.compile(checkpointer=saver)


class LangGraph:
    async def begin(self) -> Outcome:
        async with _graph() as graph:
            return await _drive(graph, {})

    async def resume(self) -> Outcome:
        # "Durable execution": to resume after a failure, pass None as the input.
        async with _graph() as graph:
            return await _drive(graph, None)

    async def answer(self) -> Outcome:
        async with _graph() as graph:
            await graph.aget_state(_thread())  # the connection and the tables are there
            wait_for_the_others()
            return await _drive(graph, Command(resume=job().value))

    async def state(self) -> Outcome:
        async with _graph() as graph:
            return await _outcome(graph)

    async def fork(self) -> Outcome:
        # "Use time travel": update_state on an earlier checkpoint makes a fork.
        async with _graph() as graph:
            asks = (await graph.aget_state(_thread())).config
            fork = await graph.aupdate_state(asks, {"count": 1}, as_node="report")
            config = {"configurable": fork["configurable"]}
            await graph.ainvoke(None, config, durability="sync")
            return await _outcome(graph, config)

    async def tear(self) -> Outcome:
        if job().store.startswith("postgresql"):
            # Half of the JSON of a checkpoint is none, so Postgres would not take it: the blob is.
            query = (
                "UPDATE checkpoint_blobs SET blob = substring(blob for length(blob) / 2) "
                "WHERE channel = 'done' AND version = (SELECT max(version) FROM checkpoint_blobs "
                "WHERE channel = 'done')"
            )
            with psycopg.connect(job().store, autocommit=True) as connection:
                count = connection.execute(query).rowcount
        else:
            query = (
                "UPDATE checkpoints SET checkpoint = substr(checkpoint, 1, length(checkpoint) / 2) "
                "WHERE checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints)"
            )
            with sqlite3.connect(_url()) as file:
                count = file.execute(query).rowcount
        assert count == 1, count
        return Outcome("torn")


def _url() -> str:
    return job().store if job().store.startswith("postgresql") else f"{job().store}/threads.db"


def _thread() -> dict[str, Any]:
    thread, _, checkpoint = job().run.partition("@")
    config = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": config | ({"checkpoint_id": checkpoint} if checkpoint else {})}


async def _drive(graph: Any, value: Any) -> Outcome:
    config = _thread()
    result = await graph.ainvoke(value, config, durability="sync")
    asks = "__interrupt__" in result
    state = {key: result.get(key) for key in ("done", "count", "answer")}
    return Outcome("asks" if asks else "ended", state, str(result.get("answer", "")))


async def _outcome(graph: Any, config: Any = None) -> Outcome:
    snapshot = await graph.aget_state(config or _thread())
    state = {key: snapshot.values.get(key) for key in ("done", "count", "answer")}
    status = "asks" if snapshot.interrupts else "open" if snapshot.next else "ended"
    place = snapshot.config["configurable"]
    name = f"{place['thread_id']}@{place['checkpoint_id']}"
    return Outcome(status, state, str(state["answer"] or ""), name)


if __name__ == "__main__":
    play(LangGraph)
