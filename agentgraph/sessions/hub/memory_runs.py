"""The runs of a team in memory: those that wait for decisions are kept until they go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgraph.clock import new_id
from agentgraph.errors import ConfigurationError, SessionError
from agentgraph.routing.values import json_equal
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import EV_DECISION
from agentgraph.sessions.hub.hub import LEASE_S, Hub
from agentgraph.sessions.hub.questions import decisions_in, late_decision
from agentgraph.sessions.hub.session import Session
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.storage import open_saver

_MOST_WAITING = 1_000
"""How many runs of one team may wait; then the oldest is forgotten."""


@dataclass(slots=True)
class _Store:
    """The memory of one run. Unlike a hub it is bound to no event loop."""

    log: MemoryLog = field(default_factory=MemoryLog)
    saver: BaseCheckpointSaver[str] = field(default_factory=lambda: open_saver("memory"))

    @asynccontextmanager
    async def hub(self, team: CompiledTeam) -> AsyncIterator[Hub]:
        """Open a hub on the running loop, and close it afterwards."""
        hub = Hub(self.log, self.saver, [team], LEASE_S)
        await hub.start(None, is_part_of_run=True)
        async with hub:
            yield hub


@dataclass(slots=True)
class MemoryRuns:
    """The runs of one team that wait for decisions, each with a log of its own.

    Each call has a hub of its own, which ends with it: the next call may come from another loop.
    """

    team: CompiledTeam
    _stores: dict[str, _Store] = field(default_factory=dict)
    """The stores of the waiting runs by session id, the oldest first."""

    @asynccontextmanager
    async def begin(
        self, creator: str, context: Mapping[str, object] | None
    ) -> AsyncIterator[Session]:
        """Open a session for one run; invited humans count as present."""
        store, session_id = _Store(), new_id()
        try:
            async with store.hub(self.team) as hub:
                session = await hub.session(
                    self.team, creator=creator, id=session_id, context=context, ttl=None
                )
                for name in session.record.invited:
                    await session.join(name)  # there is no other caller to accept the invitation
                yield session
        finally:
            await self._keep(session_id, store)

    @asynccontextmanager
    async def resume(
        self, session_id: str, decisions: Mapping[str, object]
    ) -> AsyncIterator[Session]:
        """Go on with a run that waits, after these decisions.

        Raises `SessionError` for a session that does not wait, and for a decision on what is not
        asked; the run waits on then.
        """
        store = self._stores.pop(session_id, None)
        if store is None:
            raise SessionError(
                f"no run of this team waits in session {session_id!r}: give the session_id of a "
                "result that has interrupts, once; it is known to the process that began the run",
                code="not_waiting",
            )
        try:
            async with store.hub(self.team) as hub:
                session = await hub.get(session_id)
                await _decide(session, decisions)
                yield session
        finally:
            await self._keep(session_id, store)

    async def _keep(self, session_id: str, store: _Store) -> None:
        """Keep a run whose questions have no decision yet, or whose resumption was cut off."""
        stored_session = await store.log.load(session_id)
        state = stored_session.state if stored_session is not None else None
        if state is not None and state.interrupts:
            self._stores[session_id] = store
            if len(self._stores) > _MOST_WAITING:
                del self._stores[next(iter(self._stores))]


async def _decide(session: Session, decisions: Mapping[str, object]) -> None:
    """Send decisions, all or none; none are needed where a resumption was cut off.

    What such a resumption has decided already may be given again, and changes nothing.
    """
    if not isinstance(decisions, Mapping):
        raise ConfigurationError(
            "decisions are given by the ids of their interrupts: {interrupt.id: decision}",
            code="input",
        )
    questions = session.state.interrupts.items()
    open_ids = [key for key, question in questions if "decision" not in question]
    drafts = {  # raises for what cannot be stored
        key: Draft(EV_DECISION, {"interrupt_id": key, "decision": decision})
        for key, decision in decisions.items()
    }
    new_ids = [key for key in drafts if key in open_ids]
    earlier = {key: draft for key, draft in drafts.items() if key not in open_ids}
    strange_ids = [repr(key) for key in await _strange_ids(session, earlier)]
    if strange_ids or (open_ids and not decisions):
        fault = f"it does not wait for {', '.join(strange_ids)}"
        raise SessionError(
            f"session {session.id!r}: {fault if strange_ids else 'give at least one decision'}; "
            f"it waits for {', '.join(open_ids) or 'nothing: give {} to go on with it'}",
            code="unknown_interrupt",
        )
    for interrupt_id in new_ids:
        await session.decide(interrupt_id, decisions[interrupt_id])


async def _strange_ids(session: Session, earlier: Mapping[str, Draft]) -> list[str]:
    """Return which decisions are on what was never asked; the same once more is right.

    Raises `AlreadyDecided` for another one.
    """
    decisions = decisions_in(await session.history()) if earlier else {}
    for key, draft in earlier.items():
        decision = decisions.get(key)
        if decision is not None and not json_equal(
            decision.event_data["decision"], draft.event_data["decision"]
        ):
            raise late_decision(decision)
    return [key for key in earlier if key not in decisions]
