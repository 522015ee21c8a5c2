"""Runs whose processes are killed while they act, think, or undo what they did.

As a script it plays what it is ordered to; see `tests.sessions.crashing`. Whoever is ordered to
hang somewhere says so when it is there, and waits until it is killed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage

from agentgraph import Agent, Team, TransitionGraph, effect, idempotency_key, set_context
from agentgraph.guards import AuditTrail, JSONLSink, MemorySink, SQLiteSink
from agentgraph.routing import sequence
from agentgraph.sessions import Hub
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, unsure
from tests.guards.guarded_agents import watched
from tests.sessions.crashing import serve, tell

ITEMS = ("tea", "milk", "jam")
LOOP = 9
KILLED = 9


@dataclass(frozen=True)
class World:
    """What was done and undone, each under its key once, however often it is tried."""

    path: str

    def change(self, what: str, item: str, key: str) -> None:
        with closing(self._open()) as file, file:
            file.execute("INSERT INTO tries VALUES (?)", (f"{what} {item}",))
            file.execute("INSERT OR IGNORE INTO done VALUES (?, ?, ?)", (what, item, key))

    def tries(self) -> list[str]:
        """Return all that was tried, in its order."""
        return [row[0] for row in self._read("SELECT what FROM tries ORDER BY rowid")]

    def done(self) -> list[str]:
        """Return what came to be, in its order."""
        return [f"{what} {item}" for what, item, _ in self._read("SELECT * FROM done")]

    def find(self, key: str) -> str | None:
        """Return what was paid for under a key."""
        rows = self._read("SELECT item FROM done WHERE what = 'pay' AND key = ?", key)
        return f"paid for {rows[0][0]}" if rows else None

    def _read(self, query: str, *values: str) -> list[Any]:
        with closing(self._open()) as file:
            return file.execute(query, values).fetchall()

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=20)
        file.execute("CREATE TABLE IF NOT EXISTS tries (what TEXT)")
        file.execute(
            "CREATE TABLE IF NOT EXISTS done (what TEXT, item TEXT, key TEXT, UNIQUE (what, key))"
        )
        return file


@dataclass(frozen=True)
class Hazard:
    """Where a process hangs: "undo milk before", "pay tea after", "think"."""

    at: str | None = None

    def befall(self, where: str) -> None:
        if where == self.at:
            tell(hangs=where)
            threading.Event().wait()


def shopper(world: World, hazard: Hazard, way: str, **fields: Any) -> Agent:
    """Return an agent who pays for three things; then its run is rejected, fails, or circles."""

    def undo(item: str, key: str) -> None:
        hazard.befall(f"undo {item} before")
        world.change("undo", item, key)
        hazard.befall(f"undo {item} after")

    def find(key: str) -> str | None:
        return world.find(key)

    @effect(compensate=undo, lookup=find if way == "lookup" else None)
    def pay(item: str) -> str:
        """Pay for something."""
        hazard.befall(f"pay {item} before")
        world.change("pay", item, idempotency_key())
        if way in ("lookup", "unknown"):
            set_context(item, "paid")
        hazard.befall(f"pay {item} after")
        return f"paid for {item}"

    def look() -> str:
        """Look around."""
        return "nothing"

    def turn(messages: Any) -> Any:
        paid = sum(isinstance(one, ToolMessage) for one in messages)
        if paid < len(ITEMS) and not str(messages[-1].text).startswith("and now"):
            return call("pay", item=ITEMS[paid])
        if way == "fail":
            return Fault.server_error()
        hazard.befall("think")
        if way == "crash":
            os._exit(KILLED)
        return call("look") if way == "abort" and paid < len(ITEMS) + LOOP else ANSWER

    tools: list[Any] = [pay, look]
    return Agent("clerk", model=ScriptedModel(turn), tools=tools, default_tools=False, **fields)


def sink_at(path: str | None) -> AuditTrail:
    if path is None:
        return AuditTrail(MemorySink())
    return AuditTrail(JSONLSink(path) if path.endswith(".jsonl") else SQLiteSink(path))


def guards(way: str, audit: AuditTrail) -> Any:
    if way == "reject":
        return unsure("doubt", audit=audit)
    given: dict[str, Any] = {"retry": None} if way == "fail" else {}
    return watched(audit=audit, **given)


async def agent(
    url: str,
    world: str,
    way: str,
    hang: str | None = None,
    says: str = "go",
    decides: str | None = None,
    audit: str | None = None,
) -> None:
    """Say something to an agent, or decide what it has asked."""
    fields = {"checkpointer": url, "durability": "sync", "guards": guards(way, sink_at(audit))}
    clerk = shopper(World(world), Hazard(hang), way, **fields)
    if decides is not None:
        reply = await clerk.aresume("t", {decides: "reject"})
    else:
        reply = await clerk.ainvoke(says, thread_id="t")
    asked = [one.id for one in reply.interrupts]
    tell(text=reply.text, reason=reply.close_reason, asked=asked)


def looker(hazard: Hazard) -> Agent:
    """Return an agent who goes round in a circle, until its guards end that."""

    def look() -> str:
        """Look around."""
        return "nothing"

    def turn(messages: Any) -> Any:
        hazard.befall("look")
        return call("look")

    return Agent("looker", model=ScriptedModel(turn), tools=[look], default_tools=False)


async def team(
    url: str,
    world: str,
    way: str,
    durability: Any = "round",
    hang: str | None = None,
    decides: Any = None,
    audit: str | None = None,
) -> None:
    """Have a session go on, until it is closed or waits for somebody."""
    clerk: Any = shopper(World(world), Hazard(hang), way)
    policy = guards(way, sink_at(audit))
    rules, rest = TransitionGraph("clerk"), []
    if way == "inside":
        clerk = Team([clerk], TransitionGraph("clerk"), name="store", durability=durability)
        rules, rest = sequence(["store", "looker"]), [looker(Hazard(hang))]
    shop = Team([clerk, *rest], rules, name="shop", guards=policy, durability=durability)
    async with await Hub.open(url, serve=[shop]) as hub:
        session = await hub.session(shop, id="s", ttl=None)
        if not session.state.is_ended:
            await session.send("user", "go", idempotency_key="go")
        state = await session.settled()
        waiting = [key for key, one in state.interrupts.items() if "decision" not in one]
        if waiting and decides is not None:
            await session.decide(waiting[0], decides)
            state = await session.settled()
        asked = [one["payload"]["guard"] for one in state.interrupts.values()]
        told = {"status": state.status, "reason": state.pending_close_reason, "asked": asked}
        context = dict(state.context_vars)
    tell(**told, context=context)


if __name__ == "__main__":
    serve({"agent": agent, "team": team})
