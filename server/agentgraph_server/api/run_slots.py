"""A run as its principal's limits count it: from its begin until it has ended or asks a human."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request

from agentgraph import AgentGraphError
from agentgraph.remote import Principal
from agentgraph.sessions import Hub, Session
from agentgraph_server.principals.limits import Limits
from agentgraph_server.principals.principal import principal_of


@dataclass(slots=True)
class RunSlot:
    """One of the runs that a principal may have at once; whoever begins it says which run it is."""

    run: tuple[Session, str] | None = None
    """A run of a session, which takes the slot until it ends."""
    end_of_run: asyncio.Task[None] | None = None
    """Ends when the slot of that run is free; None while there is none."""
    is_lent: bool = False
    """Whether what is no run of a session takes the slot until it calls `end`, once."""
    end: Callable[[int], None] = lambda tokens: None
    """Frees a slot that is lent, with the tokens that were used."""


@contextmanager
def run_slot(request: Request) -> Iterator[RunSlot]:
    """Count what is begun inside the block as a run of the principal that asks.

        with run_slot(request) as slot:
            receipt = await session.send(speaker, "hello")
            slot.run = session, receipt.id

    Raises `LimitReached` before it, if the principal may begin none now. The run counts until it
    ends, whoever is connected then, and what it has used counts as its principal's.
    """
    limits: Limits = request.app.state.limits
    if not limits.watches_runs:
        yield RunSlot()
        return
    principal = principal_of(request)
    limits.begin_run(principal)
    slot = RunSlot(end=partial(limits.end_run, principal))
    try:
        yield slot
    except BaseException:
        limits.end_run(principal)
        raise
    if slot.run is not None:
        hub: Hub = request.app.state.hub  # open, as the session is one of it
        slot.end_of_run = hub.spawn(_end_of_run(limits, principal, *slot.run))
    elif not slot.is_lent:
        limits.end_run(principal)


async def _end_of_run(limits: Limits, principal: Principal, session: Session, run_id: str) -> None:
    tokens = 0
    try:
        tokens = (await session.answer(run_id)).usage.total_tokens
    except AgentGraphError:  # it has failed: what it has used until then counts too
        figures = session.state.used.values()
        tokens = sum(int(usage.get("total_tokens", 0)) for usage in figures)
    finally:
        limits.end_run(principal, tokens)
