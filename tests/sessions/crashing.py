"""Sessions in a process that is killed: it plays one as ordered, and says when a round begins.

As a script it imports everything once and then forks a child per order, which has a hub of its own:
an order is a line of JSON, and so is what is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import interrupt

from agentgraph import Agent, Team, current_session, effect, idempotency_key, set_context
from agentgraph.clock import SystemClock
from agentgraph.errors import SessionClosed, SessionError
from agentgraph.routing import (
    AllOf,
    Always,
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.sessions import EV_CANCELLED, EV_REWOUND, Hub, Log, Session, open_log
from agentgraph.sessions.single.team import SingleTeam
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.storage import open_saver
from agentgraph.testing import ScriptedModel, call

KINDS = (
    "turns",
    "parallel",
    "asked",
    "asked-parallel",
    "once",
    "once-parallel",
    "cancelled",
    "rewound",
    "private",
    "private-parallel",
    "single",
    "single-asked",
)
STOPS = {"cancelled": EV_CANCELLED, "rewound": EV_REWOUND}
"""By kind, what ends the first round of bob, who asks for it himself."""
REASON = "all is paid"
SAID = ("pay, please", "and once more")
PURCHASES = {"alice": ("tea", "milk"), "bob": ("bread",), "carol": ("jam",)}


def tell(**told: object) -> None:
    """Tell whoever ordered this."""
    told["at"] = SystemClock().monotonic()
    os.write(1, f"{json.dumps(told)}\n".encode())


@dataclass
class Ledger:
    """What was paid for, outside of all sessions; each key once."""

    path: str

    def book(self, round: int, what: str) -> None:
        with closing(self._open()) as file, file:
            file.execute(
                "INSERT INTO paid (key, round, what) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET times = times + 1",
                (idempotency_key(), round, what),
            )

    def entries(self) -> list[tuple[int, str, int]]:
        """Return the round of each, what was paid for, and how often that was tried."""
        with closing(self._open()) as file:
            query = "SELECT round, what, times FROM paid ORDER BY round, what"
            return file.execute(query).fetchall()

    def receipt(self, key: str) -> str | None:
        """Return what came of a payment, None if it was never made."""
        with closing(self._open()) as file:
            return "paid" if file.execute(_PAID, (key,)).fetchone() else None

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=20)
        file.execute(
            "CREATE TABLE IF NOT EXISTS paid "
            "(key TEXT PRIMARY KEY, round INTEGER, what TEXT, times INTEGER NOT NULL DEFAULT 1)"
        )
        return file


_PAID = "SELECT 1 FROM paid WHERE key = ?"


@dataclass(frozen=True)
class Hazards:
    """What befalls a payment: it waits at a gate, or it kills its process."""

    gate: str | None = None
    is_poison: bool = False

    def befall(self) -> None:
        if self.gate is not None and os.path.exists(self.gate):
            tell(gate=self.gate)
            # A named pipe: this waits until somebody opens it for writing.
            with open(self.gate) as pipe:
                pipe.read()
        if self.is_poison:
            os.kill(os.getpid(), signal.SIGKILL)


def team_of(
    kind: str, ledger: Ledger, durability: Any = "round", hazards: Hazards = Hazards()
) -> CompiledTeam:
    """Return three agents who pay for what they are asked to, or the first one alone."""
    asks = {"bob"} if kind.startswith("asked") else set()
    if kind.startswith("single"):
        alone = payer("alice", ledger, hazards, asks=kind == "single-asked", once=False)
        durable: Any = "sync" if durability == "step" else "async"
        return SingleTeam.of(replace(alone, durability=durable))
    once = kind.startswith("once")
    agents = [payer(name, ledger, hazards, asks=name in asks, once=once) for name in PURCHASES]
    if kind in STOPS:
        agents[1] = stopping(agents[1], STOPS[kind])
    rules = in_parallel() if kind.endswith("parallel") else in_turns()
    return Team(agents, rules, name=kind, durability=durability, expectations=())


def in_turns() -> TransitionGraph:
    """One after the other, twice."""
    is_done = AllOf((FromSpeaker("carol"), ContextEquals("laps", 2)))
    rules = [
        Transition(FromSpeaker("alice"), "bob"),
        Transition(FromSpeaker("bob"), "carol"),
        Transition(is_done, TerminateTarget(REASON)),
        Transition(FromSpeaker("carol"), HumanTarget()),
        Transition(FromSpeaker("user"), "alice"),
    ]
    return TransitionGraph("alice", rules)


def in_parallel() -> TransitionGraph:
    """One, then the two others at once, then the first again; all that twice."""
    both = ParallelTarget(("bob", "carol"), join="alice")
    rules = [
        Transition(
            AllOf((FromSpeaker("alice"), ContextEquals("said", 4))), TerminateTarget(REASON)
        ),
        Transition(AllOf((FromSpeaker("alice"), ContextEquals("said", 2))), HumanTarget()),
        Transition(FromSpeaker("alice"), both),
        Transition(FromSpeaker("user"), "alice"),
    ]
    return TransitionGraph("alice", rules)


def payer(name: str, ledger: Ledger, hazards: Hazards, *, asks: bool, once: bool) -> Agent:
    """Return an agent that pays; `once` leaves it to its guards that nothing is paid for twice."""

    def note() -> str:
        """Note how far it all is."""
        said = current_session().state.said
        set_context("laps", said["user"], public=True)
        if name == "alice":
            set_context("said", said.get(name, 0) + 1, public=True)
        return "noted"

    def pay(item: str) -> str:
        """Pay for something."""
        if asks and interrupt(f"may {name} buy {item}?") != "yes":
            return "refused"
        hazards.befall()
        if not once:
            note()
        ledger.book(current_session().state.round, item)
        return "paid"

    def turn(messages: Any) -> Any:
        if isinstance(messages[-1], ToolMessage):
            return f"{name} has paid"
        tell(round=name)
        return [*(call("pay", item=item) for item in PURCHASES[name]), *notes]

    notes = [call("note")] if once else []
    tools: list[Callable[..., Any]] = [pay]
    if once:
        tools = [effect(lookup=ledger.receipt)(pay), note]
    return Agent(name, model=ScriptedModel(turn), tools=tools, default_tools=False)


def stopping(agent: Agent, event_type: str) -> Agent:
    """Return an agent that first has its own round ended instead of paying."""
    (tool,) = agent.tools
    assert callable(tool)

    async def pay(item: str) -> str:
        """Pay for something."""
        session = current_session()
        if event_type in [one.event_type for one in await session.history()]:
            return str(tool(item))
        if event_type == EV_CANCELLED:
            await session.cancel()
        else:
            await session.rewind(2)
        await asyncio.Event().wait()
        return "never"

    return replace(agent, tools=[pay])


class DeadlyLog:
    """A log that counts what is written to it, and kills its process at one of these."""

    def __init__(self, log: Log, deadly: tuple[str, int] | None) -> None:
        self._log = log
        self._deadly = deadly
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        return self._counted(found) if name in _WRITES else found

    def _counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*given: Any, **named: Any) -> Any:
            self.writes += 1
            at = self.writes
            self._die("before", at)
            result = await write(*given, **named)
            self._die("after", at)
            if write.__name__ == "append" and given[3].is_ended:
                self._die("ended", 0)
            return result

        return counted

    def _die(self, when: str, at: int) -> None:
        if self._deadly == (when, at):
            os.kill(os.getpid(), signal.SIGKILL)


_WRITES = (
    "create",
    "append",
    "enqueue",
    "attempt",
    "claim",
    "release",
    "release_all",
    "store_blobs",
)


async def play(
    url: str,
    ledger: str,
    session: str,
    kind: str,
    durability: str,
    deadly: tuple[str, int] | None = None,
    lease_s: float = 30.0,
    gate: str | None = None,
    poison: bool = False,
    says: int = len(SAID),
) -> None:
    """Have a session go on, until it closes or asks something: who decides is another process."""
    log: Any = DeadlyLog(open_log(url), deadly)
    team = team_of(kind, Ledger(ledger), durability, Hazards(gate, poison))
    hub = Hub(log, open_saver(url), [team], lease_s)
    await hub.start(None)
    async with hub:
        here = await hub.session(team, id=session, ttl=None)
        with suppress(SessionClosed):
            await answer(here)
            await converse(here, says)
        await here.settled()  # what another process has left of an ended session is cleared away
        status = here.state.status
    tell(writes=log.writes, status=status)


async def answer(session: Session) -> None:
    """Decide what waited for a decision when this process began."""
    for key, asked in dict(session.state.interrupts).items():
        if "decision" in asked:
            continue
        try:
            await session.decide(key, "yes")
        except SessionError as gone:
            # No checkpoint held it, and it has been asked anew since.
            if gone.code not in ("unknown_interrupt", "already_decided"):
                raise


async def converse(session: Session, says: int) -> None:
    """Say all there is to say, what was said before too: it is not heard twice."""
    for number, text in enumerate(SAID[:says]):
        if session.state.is_ended:
            return
        is_private = session.record.team.startswith("private") and number == 0
        audience = ["alice"] if is_private else None
        await session.send("user", text, audience=audience, idempotency_key=f"said-{number}")
        state = await session.settled()
        if state.status == "waiting_decision":
            return
    if session.record.is_single:  # no run of its agent closes it
        await session.close(REASON)


async def chat(url: str, ledger: str, session: str, who: str, count: int) -> None:
    """Say many things in a session that others speak in too, and see all of it to its end."""
    team = chatting(Ledger(ledger))
    async with await Hub.open(url, serve=[team]) as hub:
        here = await hub.session(team, id=session, ttl=None)
        watching = asyncio.ensure_future(watched(here))
        for number in range(count):
            await here.send("user", f"{who}-{number}")
        tell(sent=count)
        seen = await watching
        ended = (await here.refresh()).is_ended
    tell(seen=seen, ended=ended)


async def watched(session: Session) -> list[tuple[int, str]]:
    """Return the sequence and the id of each envelope that a watch yields."""
    return [(one.sequence, one.envelope_id) async for one in session.watch()]


def chatting(ledger: Ledger) -> Team:
    """Return an agent who pays for a thing per turn."""

    def pay(item: str) -> str:
        """Pay for something."""
        ledger.book(current_session().state.round, item)
        return "paid"

    def turn(messages: Any) -> Any:
        return "paid" if isinstance(messages[-1], ToolMessage) else call("pay", item="tea")

    clerk = Agent("clerk", model=ScriptedModel(turn), tools=[pay], default_tools=False)
    rules = [Transition(FromSpeaker("clerk"), HumanTarget()), Transition(Always(), "clerk")]
    return Team([clerk], TransitionGraph("clerk", rules), name="chatting", expectations=())


def serve(orders: dict[str, Callable[..., Any]]) -> None:
    """Fork a child per order; it is left unburied until the next, so that its number stays its."""
    buried = 0
    for line in sys.stdin:
        if buried:
            os.waitpid(buried, 0)
        order = json.loads(line)
        buried = os.fork()
        if not buried:
            obey(orders[order.pop("run", "play")], order)
        tell(pid=buried)
        ended = os.waitid(os.P_PID, buried, os.WEXITED | os.WNOWAIT)
        tell(ended=ended.si_status if ended is not None else None)


def obey(run: Callable[..., Any], order: dict[str, Any]) -> None:
    status = 1
    try:
        if order.get("deadly"):
            order["deadly"] = tuple(order["deadly"])
        asyncio.run(run(**order))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve({"play": play, "chat": chat})
