"""Processes that take one step in the sessions of a store: what the random model does, for real.

As a script it forks a child per order, as `tests.contract.child` does. Each session is of an agent
who pays for what it is sent; of what has an odd number it asks a human first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.types import interrupt

from agentgraph import Agent, Hub, current_session, effect, idempotency_key
from agentgraph.errors import AlreadyDecided
from agentgraph.sessions import EV_DECISION, EV_TEXT, Session, open_log
from agentgraph.sessions.single.team import SingleTeam
from agentgraph.storage import open_saver
from agentgraph.testing import ScriptedModel, call
from tests.contract.cells import AFTER_EFFECT, INSIDE
from tests.contract.child import LEASE_S
from tests.contract.ledger import Ledger
from tests.contract.site import Site, WatchedLog, watch_savers
from tests.sessions.crashing import serve


def shopper(site: Site) -> Agent[Any]:
    """Return the agent, whose payments are effects that can be looked up."""

    @effect(lookup=site.ledger.receipt)
    async def pay(item: str) -> str:
        """Pay for something."""
        if int(item) % 2 and interrupt({"pay": item}) != "approve":
            return f"refused {item}"
        site.come_to(INSIDE)
        site.ledger.write("paid", item, idempotency_key(), current_session().id)
        site.come_to(AFTER_EFFECT)
        return f"paid {item}"

    def turn(messages: list[Any]) -> Any:
        last = messages[-1]
        return str(last.text) if last.type == "tool" else call("pay", item=str(last.text))

    return Agent("shopper", model=ScriptedModel(turn), tools=[pay], default_tools=False)


class Steps:
    """The steps that a process can take in one session."""

    def __init__(self, hub: Hub, session: Session, ledger: Ledger) -> None:
        self._hub, self._session, self._ledger = hub, session, ledger

    async def send(self, text: str) -> None:
        await self._session.send("user", text, idempotency_key=text)

    async def decide(self, text: str) -> None:
        """Decide the open question, where this process is the first to do so."""
        for key in await self.open_ids():
            try:
                await self._session.decide(key, text)
            except AlreadyDecided:
                self._ledger.write("late", text)

    async def decide_late(self, text: str) -> None:
        """Decide again what was decided last."""
        history = await self._session.history()
        decisions = [one for one in history if one.event_type == EV_DECISION]
        if decisions:
            try:
                await self._session.decide(decisions[-1].event_data["interrupt_id"], text)
            except AlreadyDecided:
                return
            raise AssertionError("one question has taken two decisions")

    async def rewind(self, text: str) -> None:
        texts = [one for one in await self._session.history() if one.event_type == EV_TEXT]
        [sequence] = [one.sequence for one in texts if one.text == text]
        await self._session.rewind(sequence)

    async def fork(self, text: str) -> None:
        state = await self._session.settled()
        self._session = await self._session.fork(state.sequence)
        self._ledger.write("forked", self._session.id)

    async def rest(self, text: str) -> None:
        """Do nothing but what is left to do."""

    async def end(self) -> None:
        """Wait until nothing is left to do, and note what the session waits for."""
        await self._session.settled()
        self._ledger.write("end", self._session.id, data=len(await self.open_ids()))

    async def open_ids(self) -> list[str]:
        questions = (await self._session.settled()).interrupts.items()
        return [key for key, question in questions if "decision" not in question]


async def step(
    url: str, ledger: str, action: str, session: str, text: str = "", kill: str = ""
) -> None:
    """Take a step in a session, up to its end or to the instant of a kill."""
    site = Site(Ledger(ledger), "effect", kill)
    async with _opened(url, site) as (hub, here):
        steps = Steps(hub, await here(session), site.ledger)
        await getattr(steps, action)(text)
        await steps.end()


@asynccontextmanager
async def _opened(url: str, site: Site) -> AsyncIterator[Any]:
    watch_savers(site)
    log: Any = WatchedLog(open_log(url), site)
    served = SingleTeam.of(shopper(site))
    hub = Hub(log, open_saver(url), [served], LEASE_S)
    await hub.start(None)

    async def here(id: str) -> Session:
        return await (hub.session(served, id=id, ttl=None) if id == "main" else hub.get(id))

    async with hub:
        yield hub, here


if __name__ == "__main__":
    serve({"step": step})
