"""The sessions of a team whose graph runs without a hub: as a node, in Studio, in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from langchain_core.messages import AIMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig

from agentgraph.clock import new_id
from agentgraph.errors import SessionError
from agentgraph.guards.records.account import Account
from agentgraph.history import is_blank
from agentgraph.interception import current_interceptor, current_ledger
from agentgraph.sessions.envelopes.draft import Content
from agentgraph.sessions.log import MemoryLog, StoredSession
from agentgraph.sessions.rounds.ledger import RoundLedger
from agentgraph.sessions.rounds.outer_input import OuterInput
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.state.record import DEFAULT_TENANT, Parent, session_key
from agentgraph.sessions.team.graph import TeamState
from agentgraph.sessions.team.inner_id import inner_id, is_inner_of, path_of
from agentgraph.sessions.team.inner_session import (
    content_of,
    open_inner,
    open_session,
    say_input,
)
from agentgraph.sessions.team.opening import new_record
from agentgraph.sessions.team.spec import TeamSpec

_MOST_SESSIONS = 1_000


@dataclass(slots=True)
class PrivateSessions:
    """Sessions in memory, by thread; for a team inside an agent also by its place in that agent.

    If that agent speaks in a session of a hub, they are inner sessions in the hub's log.
    """

    team: TeamSpec
    counts_in_outer: bool = False
    """Whether the guards of the outer graph count the work of these sessions."""
    log: MemoryLog = field(default_factory=MemoryLog)
    sessions: dict[str, OwnedSession] = field(default_factory=dict)
    latest_ids: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The last session of each place: once it has ended, the next input begins a new session."""

    async def find(
        self, state: TeamState, config: RunnableConfig, *, takes_input: bool = False
    ) -> OwnedSession:
        """Return the session of a run; `takes_input` writes the run's input to its log."""
        texts = _input_texts(state) if takes_input else []
        place = state.get("place") if takes_input and not state.get("listened") else None
        # A graph without a thread id has a new session for each run; the run's state names it.
        thread = str(config.get("configurable", {}).get("thread_id") or "")
        ledger = current_ledger()
        outer = ledger if isinstance(ledger, RoundLedger) else None
        session_id = state.get("session")
        if place is not None:
            session = await self._at_place(place, thread, outer)
            session.outer_input = self._outer_input(place["path"], outer)
        elif texts or not session_id:
            key = (thread or session_id or new_id(),)
            session = await self._in_memory(key, begins_anew=bool(texts))
        else:
            session = await self._resume(session_id, outer)
        if outer is not None and session.outer is None:
            session.outer_audience = outer.audience
        # A repeated round finds its input in the log: only a new inner session takes the input.
        is_repeated = outer is not None and place is not None and session.state.round > 0
        if texts and not is_repeated:
            session.sequence_before_run = session.state.sequence
            await say_input(session, *texts)
        return session

    async def _at_place(
        self, place: Mapping[str, str], thread: str, outer: RoundLedger | None
    ) -> OwnedSession:
        """Return the session of a place in an agent."""
        if outer is None:
            path, turn = place["path"], place["turn"]
            # A delegate has a new session for each turn; at any other place the session continues.
            key = (thread, path, turn if "@" in path else "")
            return await self._in_memory(key, begins_anew=True, name=f"{thread}/{path}/{turn}")
        parent = _parent(outer, place["path"])
        log, record = outer.session.log, outer.session.record
        for attempt in count(1):
            session_id = await inner_id(log, record, parent, attempt, self.team.name)
            stored_session = await log.load(session_key(record.tenant, session_id))
            # A failed attempt is followed by a new session; any other session of the place is
            # resumed, and one that has ended has its answer in the log.
            if stored_session is None or not _has_failed(stored_session):
                break
        return await self._inner(outer, session_id, parent)

    async def _resume(self, key: str, outer: RoundLedger | None) -> OwnedSession:
        """Return the session that a run was in before it was interrupted.

        An inner session is returned only inside the round that it serves.
        """
        session = self.sessions.get(key)
        if session is not None and (session.outer is None or _is_inside(session, outer)):
            return session
        if outer is not None:
            stored_session = await outer.session.log.load(key)
            path = path_of(stored_session.record) if stored_session is not None else ""
            parent = _parent(outer, path)
            if stored_session is not None and is_inner_of(
                stored_session.record, parent, self.team.name
            ):
                session_id = stored_session.record.session_id
                session = await self._inner(outer, session_id, parent)
                session.outer_input = self._outer_input(path, outer)
                return session
        raise SessionError(
            f"the session {key!r} of the team {self.team.name!r} was in the memory of "
            "another process: hold it on a hub, or have its agent speak in a team that is",
            code="session_lost",
        )

    async def _in_memory(
        self, key: tuple[str, ...], begins_anew: bool, name: str = ""
    ) -> OwnedSession:
        """Return the last session of a place; with `begins_anew` a new one if that has ended."""
        session = self.sessions.get(self.latest_ids.get(key, ""))
        if session is None or (session.state.is_ended and begins_anew):
            first = name = name or key[0]
            attempt = 1
            while await self.log.load(session_key(DEFAULT_TENANT, name)) is not None:
                attempt += 1
                name = f"{first}~{attempt}"
            record = new_record(self.team, name, creator="user")
            session = await open_session(self.log, self.team, record)
            session.is_in_graph = True
            self._remember(session)
            self.latest_ids[key] = session.id
        return session

    async def _inner(self, outer: RoundLedger, session_id: str, parent: Parent) -> OwnedSession:
        audience = outer.audience
        session = await open_inner(outer.session, self.team, session_id, parent, audience)
        self._remember(session)
        return session

    def _remember(self, session: OwnedSession) -> None:
        """Store a session for the nodes of its run; over the limit, drop the oldest ended one."""
        self.sessions[session.id] = session
        if len(self.sessions) > _MOST_SESSIONS:
            candidates = self.sessions.items()
            ended_ids = (name for name, candidate in candidates if candidate.state.is_ended)
            if (oldest := next(ended_ids, None)) is not None:
                del self.sessions[oldest]
                latest_ids = self.latest_ids.items()
                self.latest_ids = {key: name for key, name in latest_ids if name != oldest}

    def _outer_input(self, path: str, outer: RoundLedger | None) -> OuterInput:
        """Return the outer input of a session at a path, with the account of the outer guards."""
        interceptor = current_interceptor() if self.counts_in_outer else None
        account = interceptor.account if interceptor is not None else None
        part = path.partition("@")[0]
        return OuterInput(part, path, outer, account if isinstance(account, Account) else None)


def _parent(outer: RoundLedger, path: str) -> Parent:
    """Return the parent of an inner session that serves the round of a ledger."""
    return Parent(outer.session.record.session_id, outer.round, outer.speaker, path=path)


def _is_inside(session: OwnedSession, outer: RoundLedger | None) -> bool:
    """Tell whether a ledger is that of the round which an inner session serves."""
    parent = session.record.parent
    if outer is None or parent is None or session.outer is not outer.session:
        return False
    return (parent.round, parent.speaker) == (outer.round, outer.speaker)


def _has_failed(stored_session: StoredSession) -> bool:
    state = stored_session.state
    return state is not None and state.is_ended and state.pending_close_reason == "round_failed"


def _input_texts(state: TeamState) -> list[Content]:
    """Return the texts since the last answer of an assistant: the input of a run."""
    texts: list[Content] = []
    if state.get("listened"):
        return texts
    for message in reversed(convert_to_messages(list(state.get("messages") or ()))):
        # A message with tool calls is no answer: a supervisor's handover, for instance.
        has_spoken = isinstance(message, AIMessage) and not message.tool_calls
        if has_spoken or (message.id and message.id == state.get("heard")):
            break
        if isinstance(message, HumanMessage) and (message.text or not is_blank(message)):
            texts.append(content_of(message))
    return texts[::-1]
