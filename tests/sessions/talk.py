"""Sessions that are held: who takes part, what is said, and what came of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from agentgraph import Agent, Guards
from agentgraph.guards import CostBudget
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph
from agentgraph.sessions import Envelope, Hub, Session, SessionState, Team
from agentgraph.sessions.state.fold import fold_all
from agentgraph.testing import FakeClock, Request, ScriptedModel
from agentgraph.testing.answers import Scripted

PATIENCE_S = 20


def agent(name: str, *turns: Scripted, **fields: Any) -> Agent:
    """Return an agent that says its turns, or without any the same each time."""
    model = ScriptedModel(turns or (lambda messages: f"{name} speaks"))
    fields = {"default_tools": False, **fields}
    return Agent(name, f"does {name}", model=model, **fields)


def dialogue(name: str) -> TransitionGraph:
    """Return rules by which an agent answers each message, and the session then waits."""
    return TransitionGraph(name, [Transition(FromSpeaker("human"), name)], HumanTarget())


def untried() -> Guards:
    """Return the usual guards, but that a call which fails is left to its round to try again."""
    return Guards.interactive(retry=None)


def ample() -> Guards:
    """Return the usual guards, with a budget that is no matter."""
    return Guards.interactive(budget=CostBudget(tokens=100_000_000))


def asked(participant: Agent) -> list[Request]:
    """Return what an agent's model was asked."""
    model = participant.model
    assert isinstance(model, ScriptedModel)
    return model.requests


def shown(participant: Agent, time: int = -1) -> str:
    """Return all that an agent's model was shown, as one text."""
    return "\n".join(f"{m.type}: {m.text}" for m in asked(participant)[time].messages)


def heard(messages: Sequence[BaseMessage]) -> str:
    """Return the last human message."""
    return next(str(m.text) for m in reversed(messages) if isinstance(m, HumanMessage))


def hub_of(session: Session) -> Hub:
    """Return the hub that a session is a handle of."""
    hub = session._hub
    assert isinstance(hub, Hub)
    return hub


@asynccontextmanager
async def held(
    team: Team, *, url: str | None = None, clock: FakeClock | None = None, **fields: Any
) -> AsyncIterator[Session]:
    """Hold a session of a team on a hub of its own; its log folds to it, whatever happened."""
    async with await Hub.open(url, serve=[team], clock=clock) as hub:
        session = await hub.session(team, **fields)
        yield session
        history = await session.history()
        assert [one.sequence for one in history] == [*range(1, len(history) + 1)]
        state = fold_all(SessionState.initial(session.record), history)
        assert state == await session.refresh()
        assert SessionState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


async def settled(session: Session) -> SessionState:
    """Wait until nothing moves by itself."""
    async with asyncio.timeout(PATIENCE_S):
        return await session.settled()


async def after(session: Session, sender: str, *said: Any, **fields: Any) -> SessionState:
    """Say something, and wait until nothing moves by itself."""
    for one in said:
        await session.send(sender, one, **fields)
    return await settled(session)


async def of_type(session: Session, *types: str) -> list[Envelope]:
    """Return the envelopes of some types."""
    return [one for one in await session.history() if one.event_type in types]


async def talk(session: Session) -> list[tuple[str, str]]:
    """Return what was said, and by whom."""
    return [(one.sender_id, one.text) for one in await session.history() if one.is_substantive]


async def until(is_so: Callable[[], Any]) -> None:
    """Wait until something is so, turn by turn of the loop."""

    async def holds() -> bool:
        found = is_so()
        return bool(await found if isawaitable(found) else found)

    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - of a model, or of a state, there is no event
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no wait
