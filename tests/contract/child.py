"""The processes of the matrix: each goes on from what its predecessors have left, to the end.

As a script it forks a child per order, as `tests.sessions.crashing` does. All that a child has to
tell is in the ledger: what its store had when it began, how it was refused, and the end.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgraph import Hub
from agentgraph.clock import SystemClock, use_clock
from agentgraph.errors import AgentGraphError, RoutingError, SessionError
from agentgraph.sessions import open_log
from agentgraph.sessions.single.memory import messages_in
from agentgraph.storage import open_saver
from tests.contract.cells import UNSEEN, Subject
from tests.contract.ledger import Ledger
from tests.contract.site import Site, WatchedLog, watch_savers
from tests.contract.subjects import Till, runner_of, served_of
from tests.sessions.crashing import serve, tell

THREAD = "t"
LEASE_S = 30.0
RACE_IS_LOST = frozenset({"not_cut_off", "unknown_interrupt", "too_late", "decided"})
"""The codes of the errors by which a process hears that another one was first."""


@dataclass
class Actor:
    """One process at work on a cell."""

    url: str
    till: Till
    decides: str
    """What it decides on each question."""
    begins: bool
    """Whether it sends the first message, where there is none: one process does."""
    greets: bool
    """Whether it says hello in the end, to see that the thread goes on."""
    thread: str = THREAD

    @property
    def ledger(self) -> Ledger:
        return self.till.site.ledger

    def note_end(self, end: Any) -> None:
        self.till.site.come_to(UNSEEN)
        self.ledger.write("end", data=end)

    def note_refusal(self, error: AgentGraphError) -> None:
        self.ledger.write("refused", error.code, data=str(error))
        if error.code not in RACE_IS_LOST:
            raise error

    # On threads.

    async def on_thread(self, gate: str) -> None:
        """Go on with an agent or a flow on its thread, and then say hello."""
        subject = self.till.subject
        is_flow = subject.home == "flow"
        runner = runner_of(self.till, self.url)
        stored = rows(await runner.ahistory(self.thread))
        await wait_at(gate)
        self.ledger.write("stored", data=stored)
        reply = await self._begun(runner)
        while reply is not None and reply.interrupts:
            self.till.site.come_to(UNSEEN, "milk" if subject.asks else "")
            reply = await self._decided(runner, [question.id for question in reply.interrupts])
        self.note_end(await self._end(runner))
        if not is_flow and self.greets:
            reply = await runner.ainvoke("hello", thread_id=self.thread)
            self.ledger.write("alive", data=bool(reply.text or reply.interrupts))

    async def _begun(self, runner: Any) -> Any:
        try:
            return await runner.acontinue(self.thread)
        except RoutingError as error:
            if error.code == "waits_for_decisions":
                ids = [question.id for question in await runner.ainterrupts(self.thread)]
                return await self._decided(runner, ids)
            if error.code != "not_cut_off":
                raise
        if await runner.ahistory(self.thread) or not self.begins:
            return None
        return await runner.ainvoke("go", thread_id=self.thread)

    async def _decided(self, runner: Any, ids: list[str]) -> Any:
        try:
            return await runner.aresume(self.thread, dict.fromkeys(ids, self.decides))
        except RoutingError as error:
            self.note_refusal(error)
            return await self._begun(runner) if await runner.ainterrupts(self.thread) else None

    async def _end(self, runner: Any) -> Any:
        messages = rows(await runner.ahistory(self.thread))
        if self.till.subject.home != "flow":
            return {"messages": messages}
        result = await runner.aresult(self.thread) if messages else None
        stages = [[s.stage, s.worker] for s in result.stages] if result else []
        return {"messages": messages, "status": result and result.status, "stages": stages}

    # In sessions.

    async def in_session(self, gate: str) -> None:
        """Go on with a session, until it is closed or has nothing to do."""
        subject, site = self.till.subject, self.till.site
        stored = await self._stored_envelopes()
        await wait_at(gate)
        self.ledger.write("stored", data=stored)
        log: Any = WatchedLog(open_log(self.url), site)
        served = served_of(self.till)
        hub = Hub(log, open_saver(self.url), [served], LEASE_S)
        await hub.start(None)
        async with hub:
            session = await hub.session(served, id=THREAD, ttl=None)
            await self.settle(session)
            envelopes = await session.history()
            told = (
                rows(await messages_in(log, THREAD, envelopes)) if subject.home == "alone" else []
            )
            end = {"messages": [envelope_row(one) for one in envelopes], "told": told}
            self.note_end({**end, "status": session.state.status})
            if self.greets and not session.state.is_ended:
                answer = await session.ask("hello")
                self.ledger.write("alive", data=bool(answer.text or answer.interrupts))

    async def _stored_envelopes(self) -> list[list[Any]]:
        """Return what the log has, without a hub: that would drive the session at once."""
        log = open_log(self.url)
        await log.open()
        try:
            is_stored = await log.load(THREAD) is not None
            envelopes = await log.read(THREAD) if is_stored else []
        finally:
            await log.close()
        return [envelope_row(one) for one in envelopes]

    async def settle(self, session: Any) -> None:
        """Begin a session where that is to be done, and decide until it has nothing to do."""
        if self.begins and not session.state.is_ended:
            await session.send("user", "go", idempotency_key="go")
        subject = self.till.subject
        while True:
            state = await session.settled()
            asked = state.interrupts.items()
            open_ids = [key for key, question in asked if "decision" not in question]
            if state.is_ended or not open_ids:
                return
            self.till.site.come_to(UNSEEN, "milk" if subject.asks else "")
            try:
                await session.decide(open_ids[0], self.decides)
            except SessionError as error:
                self.note_refusal(error)


def rows(messages: list[Any]) -> list[list[Any]]:
    """Return messages without what differs from run to run."""
    calls = [[[c["name"], c["args"]] for c in getattr(m, "tool_calls", ())] for m in messages]
    return [[m.type, str(m.text), each] for m, each in zip(messages, calls, strict=True)]


def envelope_row(envelope: Any) -> list[Any]:
    """Return what is to stay of an envelope for ever."""
    data: Mapping[str, Any] = envelope.event_data
    said = data.get("body", data.get("text", data.get("decision", "")))
    return [envelope.sequence, envelope.envelope_id, envelope.event_type, envelope.sender_id, said]


async def wait_at(gate: str) -> None:
    """Say that all is ready, and wait until the gate, a named pipe, is opened; "" is none."""
    if gate:
        tell(ready=True)
        await asyncio.to_thread(Path(gate).read_bytes)


async def play(
    url: str,
    ledger: str,
    subject: list[str],
    kill: str = "",
    gate: str = "",
    decides: str = "approve",
    begins: bool = True,
    greets: bool = True,
    now: float | None = None,
) -> None:
    """Go on with a cell to its end, or up to the instant of a kill; `now` sets the clock."""
    with use_clock(SystemClock() if now is None else ClockFrom(now)):
        await _play(url, ledger, Subject(*subject), kill, gate, decides, begins, greets)


class ClockFrom(SystemClock):
    """The machine's clock, set to an instant."""

    def __init__(self, instant: float) -> None:
        shift = instant - time.time()  # noqa: TID251 - the clock itself
        self.wall = lambda: time.time() + shift  # noqa: TID251


async def _play(
    url: str,
    ledger: str,
    what: Subject,
    kill: str,
    gate: str,
    decides: str,
    begins: bool,
    greets: bool,
) -> None:
    site = Site(Ledger(ledger), what.operation, kill)
    watch_savers(site)
    actor = Actor(url, Till(what, site), decides, begins, greets)
    if what.home in ("alone", "team"):
        await actor.in_session(gate)
    else:
        await actor.on_thread(gate)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where does it hang?
    serve({"play": play})
