"""Where a team's graph finds its session: at the table of whoever runs it, or at one of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig

from agentgraph.clock import clock, new_id
from agentgraph.errors import RoundConflict, SessionClosed, SessionError
from agentgraph.guards.records.account import Account
from agentgraph.interception import current_ledger, on_duty
from agentgraph.sessions.hub.admission import open_session
from agentgraph.sessions.hub.ledger import Around, RoundLedger
from agentgraph.sessions.hub.live import LiveSession, load_state
from agentgraph.sessions.log import MemoryLog, StoredSession
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import Parent, SessionRecord
from agentgraph.sessions.state.state import SessionState

if TYPE_CHECKING:
    from agentgraph.sessions.team.team import Team


_MOST = 1_000
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
    """The sessions of a team whose graph somebody runs without a hub.

    They are in memory, by thread; those of a team inside of an agent by their place. Where that
    agent speaks in a session of a hub, they are in its log.
    """

    team: Team
    is_part: bool = False
    """Whether what is done here counts for whoever is on duty around it."""
    log: MemoryLog = field(default_factory=MemoryLog)
    sessions: dict[str, LiveSession] = field(default_factory=dict)
    latest: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The session that was held last at each place: where it has ended, words begin another."""

    async def __call__(
        self, state: Mapping[str, Any], config: RunnableConfig, *, listens: bool = False
    ) -> LiveSession:
        """Return the session of a run; who listens hears what the run was given."""
        live = _live.get()
        if live is not None and live.record.team == self.team.name:
            return live
        said = _last_words(state) if listens else []
        place = state.get("place") if listens and not state.get("listened") else None
        thread = str(config.get("configurable", {}).get("thread_id") or "")
        ledger = current_ledger()
        outer = ledger if isinstance(ledger, RoundLedger) else None
        if place is not None:
            live = await self._entered(place, thread, outer)
            live.around = self._around(place["path"], outer)
        elif said or not state.get("session"):
            live = await self._at((thread or state.get("session") or new_id(),), bool(said))
        else:
            live = await self._gone_on(state["session"], outer)
        if said and not (outer is not None and place is not None and live.state.round > 0):
            live.heard_at = live.state.sequence
            await live.hear(*said, sender=live.record.creator)
        return live

    async def _entered(
        self, place: Mapping[str, str], thread: str, outer: RoundLedger | None
    ) -> LiveSession:
        """Return the session of a place in an agent."""
        if outer is None:
            path, turn = place["path"], place["turn"]
            # A delegate's is its own each time, any other goes on from turn to turn.
            known = (thread, path, turn if "@" in path else "")
            return await self._at(known, says=True, name=f"{thread}/{path}/{turn}")
        turn_of, base = outer.turn, f"{outer.turn.live.id}/{outer.turn.number}/{place['path']}"
        for again in count(1):
            name = base if again == 1 else f"{base}/{again}"
            stored = await turn_of.live.log.load(name)
            # One that has failed is not gone on with; one that has ended is not held again.
            if stored is None or not _has_failed(stored):
                break
        return await self._inside(outer, name)

    async def _gone_on(self, name: str, outer: RoundLedger | None) -> LiveSession:
        """Return the session that a run was in before it was resumed."""
        if name in self.sessions:
            return self.sessions[name]
        round_of = "" if outer is None else f"{outer.turn.live.id}/{outer.turn.number}/"
        is_known = outer is not None and await outer.turn.live.log.load(name) is not None
        if outer is not None and is_known and name.startswith(round_of):
            live = await self._inside(outer, name)
            path = name.removeprefix(round_of)
            live.around = self._around(path, outer)
            return live
        raise SessionError(
            f"the session {name!r} of the team {self.team.name!r} was in the memory of another "
            "process: hold it on a hub, or have its agent speak in a team that is",
            code="session_lost",
        )

    async def _at(self, place: tuple[str, ...], says: bool, name: str = "") -> LiveSession:
        """Return the session that is held at a place, in memory."""
        live = self.sessions.get(self.latest.get(place, ""))
        if live is None or (live.state.is_ended and says):
            first = name = name or place[0]
            again = 1
            while await self.log.load(name) is not None:
                again += 1
                name = f"{first}~{again}"
            record = self.team.record(name, creator="user", humans=())
            live = await begun(self.log, self.team, record)
            live.inside_graph = True
            self._keep(live)
            self.latest[place] = name
        return live

    async def _inside(self, outer: RoundLedger, name: str) -> LiveSession:
        turn = outer.turn
        live = await held_inside(turn.live, self.team, name, turn.number, turn.speaker)
        self._keep(live)
        return live

    def _keep(self, live: LiveSession) -> None:
        """Keep a session for the nodes of its run; of those that have ended, the last ones."""
        self.sessions[live.id] = live
        if len(self.sessions) > _MOST:
            ended = (name for name, one in self.sessions.items() if one.state.is_ended)
            if (oldest := next(ended, None)) is not None:
                del self.sessions[oldest]
                self.latest = {at: name for at, name in self.latest.items() if name != oldest}

    def _around(self, place: str, outer: RoundLedger | None) -> Around | None:
        """Return what a session is a part of."""
        sentry = on_duty() if self.is_part else None
        account = sentry.account if sentry is not None else None
        part = place.partition("@")[0]
        return Around(part, place, outer, account if isinstance(account, Account) else None)


def _has_failed(stored: StoredSession) -> bool:
    state = stored.state
    return state is not None and state.is_ended and state.pending_close_reason == "round_failed"


_CALLER = "caller"


async def held_inside(
    outer: LiveSession, team: Team, name: str, round: int, speaker: str
) -> LiveSession:
    """Open a session for a round of another one, in its log; one that was begun goes on."""
    creator = outer.record.creator
    record = team.record(
        name,
        creator=creator if creator not in team.names else _CALLER,
        humans=(),
        expectations=(),  # the outer session's hold for its round
        parent=Parent(outer.id, round, speaker),
    )
    live = await begun(outer.log, team, record)
    if outer.owner is not None:
        # Whoever has the outer session has its inner ones: a former owner is to be locked out.
        now = clock().wall()
        live.epoch = await outer.log.claim(live.id, outer.owner, now, force=True)
        stored = await outer.log.load(live.id)
        if stored is not None:
            live.state = await load_state(outer.log, stored)
    live.owner, live.inside_graph, live.appended = outer.owner, True, outer.appended
    live.handle = outer.handle
    outer.inside.add(name)
    return live


async def left(live: LiveSession) -> None:
    """Let go of a session that was held for a round: with that it is over."""
    if not live.state.is_ended:
        with suppress(RoundConflict, SessionClosed):  # somebody has looked at it meanwhile
            await live.close("round_over")
    await given_back(live)


async def given_back(live: LiveSession) -> None:
    """Let others have a session that has ended."""
    if not live.state.is_ended:
        return
    if live.around is not None and live.around.ledger is not None:
        # One for each round: the session around it must not remember them all.
        live.around.ledger.turn.live.inside.discard(live.id)
    if live.owner is not None:
        await live.log.release(live.id, live.owner)


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
    from agentgraph.sessions.state import envelope as ev

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
