"""Sessions in a store, for the commands that read them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from langgraph.types import interrupt

from agentgraph import Agent, Hub, Session, Team, TransitionGraph
from agentgraph.phases import ConversationPipeline, PipelineStage
from agentgraph.sessions import SessionState, set_context
from agentgraph.testing import Fault, ScriptedModel, call
from tests.sessions.log.sessions_to_store import PATIENCE_S

__all__ = ["ask", "clerk", "desk", "hold", "tear"]

Held = Callable[[Session], Awaitable[object]]


def rate(tier: str) -> str:
    """Rate a customer."""
    set_context("tier", tier)
    return f"{tier} it is"


def pay(amount: int) -> str:
    """Pay an amount, if a human agrees."""
    return "paid" if interrupt({"pay": amount}) == "yes" else "not paid"


def desk() -> Team:
    """A team that returns once, sets a value, and fails once."""
    triage = ScriptedModel([call("rate", tier="gold"), "A billing case."])
    handler = ScriptedModel(["Refunded.", Fault.server_error(), "Refunded, and told them."])
    back = call("handoff_conversation", target="handler", reason="untold", summary="Write to them.")
    reviewer = ScriptedModel([back, "Good."])
    return Team(
        [
            Agent("triage", model=triage, tools=[rate]),
            Agent("handler", model=handler),
            Agent("reviewer", model=reviewer),
        ],
        ConversationPipeline(
            [
                PipelineStage("intake", "triage", next="handling"),
                PipelineStage("handling", "handler", next="review"),
                PipelineStage("review", "reviewer", can_return_to={"handling"}),
            ]
        ),
        guards=None,  # they would ask the model again, and the fault is to be one of its round
    )


def clerk() -> Team:
    """A team of one, who asks before it pays."""
    model = ScriptedModel([call("pay", amount=5), "It is paid."])
    return Team([Agent("clerk", model=model, tools=[pay])], TransitionGraph("clerk"))


def hold(url: str, team: Team, then: Held, session_id: str = "s") -> None:
    """Hold a session in a store."""

    async def held() -> None:
        async with asyncio.timeout(PATIENCE_S), await Hub.open(url, serve=[team]) as hub:
            await then(await hub.session(team, id=session_id))

    asyncio.run(held())


async def ask(session: Session) -> SessionState:
    await session.send("user", "I was charged twice")
    return await session.settled()


def tear(path: Path, sequence: int) -> None:
    """Break an envelope in a file."""
    query = "UPDATE agentgraph_envelopes SET data = '{\"torn' WHERE sequence = ?"
    with closing(sqlite3.connect(path)) as file:
        file.execute(query, (sequence,))
        file.commit()
