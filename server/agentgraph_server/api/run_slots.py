"""A run as its principal's limits count it: from its begin until it has ended or asks a human."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request

from agentgraph import AgentGraphError
from agentgraph.remote import Principal
from agentgraph.sessions import Hub, Session
from agentgraph_server.principals.limits import Limits
from agentgraph_server.principals.principal import principal_of


@dataclass(slots=True)
class RunSlot:
    """One of the runs that a principal may have at once."""

    run_id: str | None = None
    """The run that takes the slot; whoever begins it fills this in."""


@contextmanager
def run_slot(request: Request, session: Session) -> Iterator[RunSlot]:
    """Count what is begun inside the block as a run of the principal that asks.

        with run_slot(request, session) as slot:
            receipt = await session.send(speaker, "hello")
            slot.run_id = receipt.id

    Raises `LimitReached` before it, if the principal may begin none now. The run counts until it
    ends, whoever is connected then, and what it has used counts as its principal's.
    """
    limits: Limits = request.app.state.limits
    slot = RunSlot()
    if not limits.watches_runs:
        yield slot
        return
    principal = principal_of(request)
    limits.begin_run(principal)
    try:
        yield slot
    except BaseException:
        limits.end_run(principal)
        raise
    if slot.run_id is None:
        limits.end_run(principal)
    else:
        hub: Hub = request.app.state.hub  # open, as the session is one of it
        hub.spawn(_end_of_run(limits, principal, session, slot.run_id))


async def _end_of_run(limits: Limits, principal: Principal, session: Session, run_id: str) -> None:
    tokens = 0
    try:
        tokens = (await session.answer(run_id)).usage.total_tokens
    except AgentGraphError:  # it has failed: what it has used until then counts too
        figures = session.state.used.values()
        tokens = sum(int(usage.get("total_tokens", 0)) for usage in figures)
    finally:
        limits.end_run(principal, tokens)
