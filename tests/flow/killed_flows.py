"""Flows whose processes are killed at any instant: each worker pays for something, maybe is undone.

Each process goes on from what its predecessors have left on the thread, to the end of the flow. As
a script it forks a child per order, as `tests.sessions.crashing` does.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import interrupt

from agentgraph import Agent, Hub, Team, effect, idempotency_key
from agentgraph.agents.run.threads import thread_config
from agentgraph.errors import RoutingError
from agentgraph.flow import Flow, FlowResult, debate
from agentgraph.graphs.public_graph import whole_state
from agentgraph.guards import AuditTrail, Backoff, Guards, MemorySink, Record
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, call
from tests.guards.processes.shops import Books
from tests.sessions.crashing import serve, tell

TOPOLOGIES = ("supervisor", "hierarchical", "handoff", "debate", "sop")
ENDS = ("finished", "replanned", "approved", "rejected", "aborted", "asked")
"""At its first result; at its second; after a human's approval; by a human's rejection, or as no
result is accepted, and then undone; or each worker asks a human before it pays."""
UNDONE = ("rejected", "aborted")
INSTANTS = ("before", "after", "answered", "finished", "undoing", "undone")
WORKERS = ("a", "b", "c", "x", "y", "below")


@dataclass(frozen=True)
class Deadly:
    """Kills its process at an instant, such as "after a", when a worker comes to it first."""

    at: str | None

    def come_to(self, instant: str) -> None:
        if instant == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Sink(MemorySink):
    """Enters in the books which work was told as finished."""

    def __init__(self, books: Books, deadly: Deadly) -> None:
        super().__init__()
        self._books, self._deadly = books, deadly

    def write(self, record: Record) -> None:
        super().write(record)
        data: Mapping[str, Any] = record.data
        if record.kind == "stage" and data["status"] == "finished" and data["worker"]:
            asked = [key for what, who, key in self._books.acts() if (what, who) == _asks(data)]
            if asked:
                self._books.enter("finished", str(data["worker"]), asked[-1])
            self._deadly.come_to(f"finished {data['worker']}")


def _asks(data: Mapping[str, Any]) -> tuple[str, str]:
    return "asked", str(data["worker"])


@dataclass(frozen=True)
class Staff:
    """The agents of a flow; what they say depends on nothing but what they are told."""

    books: Books
    deadly: Deadly
    end: str
    looks_up: bool = True

    def worker(self, name: str, peer: str = "") -> Agent[Any]:
        """Return a worker who pays for something of each brief, and then answers or hands over."""
        books, deadly, asks = self.books, self.deadly, self.end == "asked"

        def undo(item: str, key: str) -> None:
            deadly.come_to(f"undoing {name}")
            books.enter("undo", item, key)
            deadly.come_to(f"undone {name}")

        async def pay(item: str) -> str:
            """Pay for something."""
            if asks:
                interrupt({"pay": item})
            deadly.come_to(f"before {name}")
            books.enter("pay", item, idempotency_key())
            deadly.come_to(f"after {name}")
            return f"paid for {item}"

        def turn(messages: list[Any]) -> Any:
            text = str(next(m for m in messages if m.type == "human").text)
            books.enter("asked", name, text)
            attempt = re.findall(r"attempt (\d+)", text)[0]
            item = f"{name}{attempt}{'-again' if 'You may keep your answer' in text else ''}"
            if not any(isinstance(m, ToolMessage) and m.name == "pay" for m in messages):
                return call("pay", item=item)
            deadly.come_to(f"answered {name}")
            return call(f"transfer_to_{peer}") if peer else f"{item} is done"

        find = books.receipt if self.looks_up else None
        tools = [effect(compensate=undo, lookup=find)(pay)]
        model = ScriptedModel(turn)
        return Agent(name, f"does {name}", model=model, tools=tools, default_tools=False)

    def lead(self, *workers: str) -> Agent[Any]:
        """Return the supervisor, who gives each worker a brief and judges what comes of it."""

        def turn(messages: list[Any]) -> Any:
            text = str(messages[-1].text)
            attempt = 1 + max(
                (int(n) for n in re.findall(r"attempt (\d+) is weak", text)), default=0
            )
            if text.startswith("Plan the work"):
                briefs = [{"worker": name, "task": f"attempt {attempt}"} for name in workers]
                return call("Plan", briefs=briefs)
            if "Make one result" in text:
                return " + ".join(re.findall(r"\w+[\w-]* is done", text))
            return self._verdict(text)

        return Agent("lead", "leads", model=ScriptedModel(turn), default_tools=False)

    def _verdict(self, text: str) -> Any:
        attempt = max(int(n) for n in re.findall(r"\w(\d)(?:-again)? is done", text))
        is_weak = self.end == "aborted" or (self.end == "replanned" and attempt == 1)
        problems = [f"attempt {attempt} is weak"] if is_weak else []
        confidence = 0.2 if self.end in ("approved", "rejected") else 0.9
        return call("Verdict", accepted=not is_weak, confidence=confidence, problems=problems)


def flow_of(topology: str, staff: Staff, **fields: Any) -> Flow[Any]:
    """Return a flow of a topology, whose workers all pay for something."""
    worker, way = staff.worker, topology
    briefs: tuple[str, ...] = ("a",) if topology == "handoff" else ("a", "b", "c")
    match topology:
        case "hierarchical":
            inner: Any = Flow("inner", "works inside", work=[worker("x"), worker("y")])
            below = worker("below")
            boss: Any = Agent(
                "boss", "leads", model=ScriptedModel(lambda m: call("transfer_to_below")),
                agents=[below], default_tools=False,
            )  # fmt: skip
            work, briefs = [inner, boss, worker("a")], ("inner", "boss", "a")
        case "handoff":
            work = [worker("a", "b"), worker("b", "c"), worker("c")]
        case _:
            work = [worker("a"), worker("b"), worker("c")]
    rules: Any = debate(rounds=2) if way == "debate" else way
    return Flow("report", supervisor=staff.lead(*briefs), work=work, topology=rules, **fields)


def policy(sink: MemorySink) -> Guards:
    """Return guards that let two workers begin at once, so that more of them work in waves."""
    return Guards.batch(
        audit=AuditTrail(sink), backoff=Backoff(0, 0), replans=1, fan_out=2, velocity=None
    )


async def play(
    url: str,
    books: str,
    topology: str,
    end: str,
    thread: str = "t",
    kill: str | None = None,
    looks_up: bool = True,
    durability: Any = "sync",
    says: str | None = None,
    decides: Mapping[str, str] | None = None,
    waits: bool = False,
) -> None:
    """Begin a flow, or go on with it, to its end; all questions are answered, unless it `waits`.

    It `says` a new input, or `decides` on questions, where it is told to.
    """
    ledger, deadly = Books(books), Deadly(kill)
    staff = Staff(ledger, deadly, end, looks_up)
    guards = policy(Sink(ledger, deadly))
    flow = flow_of(topology, staff, checkpointer=url, guards=guards, durability=durability)
    if kill == "stored":
        _die_with_input_stored(deadly)
    tell(began=topology)
    result: FlowResult[Any] | None
    try:
        if decides is not None:
            result = await flow.aresume(thread, decides)
        elif says is not None:
            result = await flow.ainvoke(says, thread_id=thread)
        else:
            result = await _at_work(flow, thread)
    except RoutingError as error:
        tell(done=None, refused=error.code)
        return
    if waits and result is not None:
        tell(done=None, asked=[question.id for question in result.interrupts])
        return
    while result is not None and result.status == "waiting":
        decision = "reject" if end == "rejected" else "approve"
        decisions = {question.id: decision for question in result.interrupts}
        result = await flow.aresume(thread, decisions)
    state = await whole_state(flow._graph, thread_config(thread))
    tokens = [report["usage"]["total_tokens"] for report in state.values["reports"].values()]
    told = None if result is None else result.usage.total_tokens
    paid = state.values["guarded"]["spends"][""]["paid"].values()
    spent = sum(row[1] for row in paid)
    figures = {"tokens": sum(tokens), "told": told, "spent": spent}
    messages = [str(message.text) for message in state.values["messages"]]
    tell(done=state.values["end"], messages=messages, **figures)


def _die_with_input_stored(deadly: Deadly) -> None:
    """Kill this process as soon as an input is stored, and nothing else of its run."""
    put: Any = AsyncSqliteSaver.aput

    async def aput(saver: Any, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        result = await put(saver, config, checkpoint, metadata, versions)
        if metadata.get("source") == "input":
            deadly.come_to("stored")
        return result

    setattr(AsyncSqliteSaver, "aput", aput)  # noqa: B010


async def seated(
    url: str,
    books: str,
    place: str,
    topology: str,
    end: str,
    thread: str = "t",
    kill: str | None = None,
    looks_up: bool = True,
    durability: Any = "sync",
) -> None:
    """Begin a run with a flow in its place, or go on with it, to its end."""
    ledger, deadly = Books(books), Deadly(kill)
    staff, guards = Staff(ledger, deadly, end, looks_up), policy(Sink(ledger, deadly))
    decision = "reject" if end == "rejected" else "approve"
    if place in ("team", "alone"):
        flow = flow_of(topology, staff, **({"guards": guards} if place == "alone" else {}))
        rules = sequence(["report"])
        served: Any = flow if place == "alone" else Team([flow], rules, name="desk", guards=guards)
        tell(done=await _in_session(url, thread, served, decision))
        return
    flow = flow_of(topology, staff)
    boss = boss_of(flow, place, checkpointer=url, guards=guards, durability=durability)
    tell(done=await _with_boss(boss, thread, decision))


def boss_of(flow: Flow[Any], place: str, **fields: Any) -> Agent[Any]:
    """Return an agent who hands everything over to a flow, as a sub-agent or as a tool."""

    def turn(messages: list[Any]) -> Any:
        if messages[-1].type != "human":
            return str(messages[-1].text)
        return call("report", request="go") if place == "tool" else call("transfer_to_report")

    below: dict[str, Any] = {"agents": [flow]} if place != "tool" else {"tools": [flow.as_tool()]}
    if place == "delegate":
        fields["handoff"] = "delegate"
    return Agent("boss", model=ScriptedModel(turn), default_tools=False, **below, **fields)


async def _with_boss(boss: Agent[Any], thread: str, decision: str) -> str:
    try:
        reply = await boss.acontinue(thread)
    except RoutingError as error:
        if error.code == "waits_for_decisions":
            ids = [question.id for question in await boss.ainterrupts(thread)]
            reply = await boss.aresume(thread, dict.fromkeys(ids, decision))
        elif messages := await boss.ahistory(thread):
            return str(messages[-1].text)
        else:
            reply = await boss.ainvoke("go", thread_id=thread)
    while reply.interrupts:
        ids = [question.id for question in reply.interrupts]
        reply = await boss.aresume(thread, dict.fromkeys(ids, decision))
    return reply.text


async def _in_session(url: str, thread: str, served: Any, decision: str) -> str:
    async with await Hub.open(url, serve=[served]) as hub:
        session = await hub.session(served.name, id=thread, ttl=None)
        if not session.state.is_ended:
            await session.send("user", "go", idempotency_key="go")
        while True:
            state = await session.settled()
            waiting = [key for key, asked in state.interrupts.items() if "decision" not in asked]
            if state.is_ended or not waiting:
                return str(state.status)
            await session.decide(waiting[0], decision)


async def _at_work(flow: Flow[Any], thread: str) -> FlowResult[Any] | None:
    """Go on with a flow that was cut off, or begin it; None where it has come to its end."""
    try:
        return await flow.acontinue(thread)
    except RoutingError as error:
        if error.code != "not_cut_off":
            raise
    if await flow.ahistory(thread):
        return None
    return await flow.ainvoke("go", thread_id=thread)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where does it hang?
    serve({"play": play, "seated": seated})
