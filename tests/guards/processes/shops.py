"""A shop whose processes are killed: it pays for three things, or has all of that rejected.

Each process goes on from what its predecessors have left, on a thread or in a session, to the end
of a stage: "buy" until all is paid, or "reject" until a human has rejected what was said then. As a
script it forks a child per order, as `tests.sessions.crashing` does.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from agentgraph import Agent, Hub, Session, Team, TransitionGraph, effect, idempotency_key
from agentgraph.errors import RoutingError, SessionError
from agentgraph.guards import AuditTrail, Escalation, Guards, SQLiteSink, Subject
from agentgraph.routing import FromSpeaker, HumanTarget, Transition
from agentgraph.testing import ScriptedModel, call
from tests.guards.processes.killed_threads import tree
from tests.sessions.crashing import serve, tell

ITEMS = ("tea", "milk", "jam")
BOUGHT, DOUBTED = "All is paid.", "I am not sure about that."
INSTANTS = ("before", "after", "logged", "undoing", "undone")


@dataclass(frozen=True)
class Books:
    """What was done and undone in the world, by key, each time that it was tried."""

    path: str

    def enter(self, what: str, item: str, key: str) -> None:
        with closing(self._open()) as file, file:
            file.execute("INSERT INTO acts VALUES (?, ?, ?)", (what, item, key))

    def acts(self) -> list[tuple[str, str, str]]:
        """Return what was tried, with item and key, in its order."""
        with closing(self._open()) as file:
            return file.execute("SELECT * FROM acts ORDER BY rowid").fetchall()

    def receipt(self, key: str) -> str | None:
        """Return what a payment has led to, None if it was never made."""
        paid = [item for what, item, of in self.acts() if (what, of) == ("pay", key)]
        return f"paid for {paid[0]}" if paid else None

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=20)
        file.execute("CREATE TABLE IF NOT EXISTS acts (what TEXT, item TEXT, key TEXT)")
        return file


class Deadly(AgentMiddleware[Any, Any]):
    """Kills its process at an instant, such as "after milk"."""

    def __init__(self, at: str | None) -> None:
        super().__init__()
        self._at = at

    def come_to(self, instant: str) -> None:
        if instant == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        self.come_to(f"logged {request.tool_call['args'].get('item')}")
        return answer


def clerk(books: Books, deadly: Deadly, *, looks_up: bool, at_once: bool) -> Agent:
    """Return an agent who pays for what is not paid for, one by one or at once."""

    def undo(item: str, key: str) -> None:
        deadly.come_to(f"undoing {item}")
        books.enter("undo", item, key)
        deadly.come_to(f"undone {item}")

    async def pay(item: str) -> str:
        """Pay for something."""
        deadly.come_to(f"before {item}")
        books.enter("pay", item, idempotency_key())
        deadly.come_to(f"after {item}")
        return f"paid for {item}"

    def turn(messages: list[Any]) -> Any:
        inputs = [str(m.text) for m in messages if isinstance(m, HumanMessage)]
        if "check" in inputs[-1]:
            return DOUBTED
        calls = [m for m in messages if isinstance(m, ToolMessage) and m.name == "pay"]
        # Of parallel calls some may be unknown: what was asked for is not asked for again.
        left = ITEMS[len(calls) :]
        if not left:
            return BOUGHT
        return [call("pay", item=item) for item in (left if at_once else left[:1])]

    find = books.receipt if looks_up else None
    tools = [effect(compensate=undo, lookup=find)(pay)]
    fields: dict[str, Any] = {"tools": tools, "default_tools": False, "middleware": [deadly]}
    return Agent("clerk", "pays", model=ScriptedModel(turn), **fields)


def policy(audit: str) -> Guards:
    """Return guards that ask a human about what the clerk is not sure of."""

    def score(subject: Subject) -> float:
        return 0.1 if DOUBTED in subject.text else 1.0

    trail = AuditTrail(SQLiteSink(audit))
    return Guards.interactive(escalation=Escalation(0.5, score), audit=trail)


async def on_thread(
    url: str,
    books: str,
    audit: str,
    stage: str,
    place: str,
    durability: Any,
    looks_up: bool,
    at_once: bool,
    resends: bool,
    kill: str | None = None,
) -> None:
    """Go on with a thread to the end of a stage."""
    worker = clerk(Books(books), Deadly(kill), looks_up=looks_up, at_once=at_once)
    agent = tree(place, worker, checkpointer=url, durability=durability, guards=policy(audit))
    tell(began=stage)
    match stage:
        case "buy":
            await _bought(agent, resends=resends)
        case "reject":
            await _rejected(agent)
    tell(done=_is_answered(await agent.ahistory("t")))


async def _bought(agent: Agent, *, resends: bool) -> None:
    for _ in range(9):
        if waiting := await agent.ainterrupts("t"):
            reply = await agent.aresume("t", {question.id: "approve" for question in waiting})
        elif _is_answered(await agent.ahistory("t")):
            return
        elif resends:
            reply = await agent.ainvoke("buy it", thread_id="t")
        else:
            try:
                reply = await agent.acontinue("t")
            except RoutingError as error:
                if error.code != "not_cut_off":
                    raise
                reply = await agent.ainvoke("buy it", thread_id="t")
        if not reply.interrupts:
            return


def _is_answered(messages: list[Any]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, AIMessage) and not last.tool_calls


async def _rejected(agent: Agent) -> None:
    waiting = [question.id for question in await agent.ainterrupts("t")]
    if not waiting:
        reply = await agent.ainvoke("check it", thread_id="t")
        waiting = [question.id for question in reply.interrupts]
    await agent.aresume("t", dict.fromkeys(waiting, "reject"))


async def in_session(
    url: str,
    books: str,
    audit: str,
    stage: str,
    place: str,
    durability: Any,
    looks_up: bool,
    at_once: bool,
    resends: bool,
    kill: str | None = None,
) -> None:
    """Go on with a session to the end of a stage; what is still under way is cancelled first."""
    worker = clerk(Books(books), Deadly(kill), looks_up=looks_up, at_once=at_once)
    async with await Hub.open(url, serve=[served(place, worker, durability, audit)]) as hub:
        session = await hub.session("shop" if place == "team" else "clerk", id="s", ttl=None)
        tell(began=stage)
        if stage == "buy":
            await session.send("user", "buy it", idempotency_key="buy")
            await _decided(session, "approve")
        elif not session.state.is_ended:
            if resends:
                await session.cancel()
            await session.send("user", "check it", idempotency_key="check")
            await _decided(session, "reject")
    tell(done=True)


def served(place: str, worker: Agent, durability: Any, audit: str) -> Any:
    if place == "single":
        sync: Any = "sync" if durability == "step" else "async"
        return worker.replace(durability=sync, guards=policy(audit))
    rules = [
        Transition(FromSpeaker("user"), "clerk"),
        Transition(FromSpeaker("clerk"), HumanTarget()),
    ]
    fields: Mapping[str, Any] = {"guards": policy(audit), "expectations": ()}
    graph = TransitionGraph("clerk", rules)
    return Team([worker], graph, name="shop", durability=durability, **fields)


async def _decided(session: Session, decision: str) -> None:
    """Wait until nothing is under way, and decide what is asked until then."""
    while True:
        state = await session.settled()
        waiting = [key for key, asked in state.interrupts.items() if "decision" not in asked]
        if state.is_ended or not waiting:
            return
        try:
            await session.decide(waiting[0], decision)
        except SessionError as error:
            if error.code not in ("unknown_interrupt", "already_decided", "too_late"):
                raise


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where does it hang?
    serve({"thread": on_thread, "session": in_session})
