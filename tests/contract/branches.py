"""Processes that go on in a branch of what another one has run: a fork, a rewind, a copied thread.

As a script it forks a child per order, as `tests.contract.child` does.
"""

from __future__ import annotations

from typing import Any

from agentgraph import Hub
from agentgraph.sessions import EV_PACKET, EV_REWOUND, EV_TEXT, Session, open_log
from agentgraph.storage import open_saver
from tests.contract.cells import Subject
from tests.contract.child import LEASE_S, THREAD, Actor, envelope_row, play, rows
from tests.contract.ledger import Ledger
from tests.contract.site import Site, WatchedLog, watch_savers
from tests.contract.subjects import Till, runner_of, served_of
from tests.sessions.crashing import serve

COPY = "t-copy"


async def branch(
    url: str, ledger: str, subject: list[str], kill: str = "", decides: str = "approve"
) -> None:
    """Begin a branch, or go on with the one that is there, to its end."""
    what = Subject(*subject)
    site = Site(Ledger(ledger), what.operation, kill)
    watch_savers(site)
    actor = Actor(url, Till(what, site), decides, begins=False, greets=False)
    if what.home == "thread":
        await _on_copied_thread(actor)
    else:
        await _in_session(actor)


async def _on_copied_thread(actor: Actor) -> None:
    """Copy the thread, and go on with the copy."""
    runner = runner_of(actor.till, actor.url)
    before = rows(await runner.ahistory(THREAD))
    saver: Any = open_saver(actor.url)
    if not await runner.ahistory(COPY):
        await saver.acopy_thread(THREAD, COPY)
    actor.ledger.write("begins", data=[before, rows(await runner.ahistory(COPY))])
    actor.thread = COPY
    await actor.on_thread("")
    after = rows(await runner.ahistory(THREAD))
    actor.ledger.write("beside", data=[before, after])


async def _in_session(actor: Actor) -> None:
    log: Any = WatchedLog(open_log(actor.url), actor.till.site)
    served = served_of(actor.till)
    hub = Hub(log, open_saver(actor.url), [served], LEASE_S)
    await hub.start(None)
    async with hub:
        session = await hub.get(THREAD)
        before = [envelope_row(one) for one in await session.history()]
        if served.name == "shop":
            target, at = await _fork_of(hub, session)
            copied = [envelope_row(one) for one in await target.history()]
            actor.ledger.write("begins", data=[_unnamed(before[:at]), _unnamed(copied[:at])])
        else:
            target = session
            await _go_back(session)
        await actor.settle(target)
        actor.note_end([envelope_row(one) for one in await target.history()])
        after = [envelope_row(one) for one in await session.history()]
        actor.ledger.write("beside", data=[before, after[: len(before)]])


async def _fork_of(hub: Hub, session: Session) -> tuple[Session, int]:
    """Return the fork of a session at its first packet, and that packet's sequence."""
    packets = [one for one in await session.history() if one.event_type == EV_PACKET]
    at = packets[0].sequence
    summaries = [one for one in await hub.sessions() if one.session_id != THREAD]
    target = await hub.get(summaries[0].session_id) if summaries else await session.fork(at)
    return target, at


async def _go_back(session: Session) -> None:
    """Take a session back to its first input, unless a process before has done that."""
    history = await session.history()
    if not any(one.event_type == EV_REWOUND for one in history):
        [text] = [one for one in history if one.event_type == EV_TEXT]
        await session.rewind(text.sequence)


def _unnamed(envelopes: list[list[Any]]) -> list[list[Any]]:
    return [[row[0], *row[2:]] for row in envelopes]


if __name__ == "__main__":
    serve({"play": play, "branch": branch})
