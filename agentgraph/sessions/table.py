"""Where a team's graph finds its session: at the table of whoever runs it, or at one of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig

from agentgraph.clock import new_id
from agentgraph.guards.account import Account
from agentgraph.sentry import current_ledger, on_duty
from agentgraph.sessions.admission import open_session
from agentgraph.sessions.ledger import Around, RoundLedger
from agentgraph.sessions.live import LiveSession, load_state
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.page import Page
from agentgraph.sessions.record import SessionRecord
from agentgraph.sessions.state import SessionState
from agentgraph.telling import AGENT_TAG

if TYPE_CHECKING:
    from agentgraph.sessions.team import Team

__all__ = ["PrivateTable", "at_table", "begun", "last_heard", "opened"]

_live: ContextVar[LiveSession | None] = ContextVar("agentgraph_live_session", default=None)


@contextmanager
def at_table(live: LiveSession) -> Iterator[None]:
    """Run a team's graph on a session."""
    token = _live.set(live)
    try:
        yield
    finally:
        _live.reset(token)


@dataclass(slots=True)
class PrivateTable:
    """The sessions of a team whose graph somebody runs without a hub: in memory, by thread."""

    team: Team
    is_part: bool = False
    """Whether what is done here counts for whoever is on duty around it."""
    log: MemoryLog = field(default_factory=MemoryLog)
    sessions: dict[str, LiveSession] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    """How many sessions each thread has had: where one has ended, new words begin another."""

    async def __call__(
        self, state: Mapping[str, Any], config: RunnableConfig, *, listens: bool = False
    ) -> LiveSession:
        """Return the session of a run; who listens hears what the run was given."""
        live = _live.get()
        if live is not None and live.record.team == self.team.name:
            return live
        said = _last_words(state) if listens else []
        key = config.get("configurable", {}).get("thread_id") or state.get("session") or new_id()
        live = self.sessions.get(str(key))
        if live is None or (live.state.is_ended and said):
            held = self.held[str(key)] = self.held.get(str(key), 0) + 1
            live = await self._opened(str(key) if held == 1 else f"{key}~{held}")
            self.sessions[str(key)] = live
        if said:
            live.heard_at = live.state.sequence
            if self.is_part:
                live.around = _around(config)
            await live.hear(*said, sender=live.record.creator)
        return live

    async def _opened(self, session_id: str) -> LiveSession:
        record = self.team.record(session_id, creator="user", humans=())
        live = await begun(self.log, self.team, record)
        live.inside_graph = True
        return live


async def begun(log: Any, team: Team, record: SessionRecord) -> LiveSession:
    """Begin a session that opens at once, or go on with it."""
    rules = team.rules_of(record)
    page = opened(record, Page(SessionState.initial(record), rules))
    await log.create(record, page.envelopes, page.state, runnable=False)
    stored = await log.load(record.session_id)
    state = await load_state(log, stored)
    guards, effects = team.in_force, team.effects
    return LiveSession(log, record, rules, state, has_mail=False, guards=guards, effects=effects)


def opened(record: SessionRecord, page: Page) -> Page:
    """Begin a log: it opens at once, or says whom it waits for."""
    from agentgraph.sessions import envelope as ev

    for name in record.invited:
        page.note(
            ev.EV_SESSION_INVITE, {"invitee": name, "creator": record.creator}, audience=[name]
        )
    if not record.invited:
        open_session(page)
    return page


def last_heard(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note that what a run was given has been heard, and is not to be heard again."""
    messages = convert_to_messages(list(state.get("messages") or ()))
    return {"listened": True, "heard": messages[-1].id if messages else state.get("heard")}


def _around(config: RunnableConfig) -> Around | None:
    """Return what a run inside of somebody's run is a part of."""
    sentry, ledger = on_duty(), current_ledger()
    account = sentry.account if sentry is not None else None
    part = str(config.get("metadata", {}).get(AGENT_TAG) or "")
    return Around(
        part,
        ledger if isinstance(ledger, RoundLedger) else None,
        account if isinstance(account, Account) else None,
    )


def _last_words(state: Mapping[str, Any]) -> list[str]:
    """Return what was said since an assistant has spoken last: the input of a run."""
    said: list[str] = []
    if state.get("listened"):
        return said
    for message in reversed(convert_to_messages(list(state.get("messages") or ()))):
        # Who has only called something, as a supervisor who hands over, has not spoken.
        has_spoken = isinstance(message, AIMessage) and not message.tool_calls
        if has_spoken or (message.id and message.id == state.get("heard")):
            break
        if isinstance(message, HumanMessage) and message.text:
            said.append(str(message.text))
    return said[::-1]
