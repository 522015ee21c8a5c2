"""An inner session: a team's session for one round of an outer one, in the same log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentgraph.clock import clock
from agentgraph.errors import RoundConflict, SessionClosed
from agentgraph.running import current_run, inside_part
from agentgraph.sessions.log import Log
from agentgraph.sessions.rounds.admission import begin_log
from agentgraph.sessions.rounds.owned_session import OwnedSession, load_state
from agentgraph.sessions.rounds.round import RETRIES
from agentgraph.sessions.state.envelope import EV_ROUND_FAILED, Envelope
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import Parent, SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team.opening import new_record
from agentgraph.sessions.team.spec import TeamSpec

_CREATOR = "caller"
"""The creator of an inner session where the outer one's is the name of an agent in it."""


async def open_inner(
    outer: OwnedSession, team: TeamSpec, session_id: str, round: int, speaker: str
) -> OwnedSession:
    """Open a session for a round of another one, or go on with it where an attempt has begun it."""
    creator = outer.record.creator
    record = new_record(
        team,
        session_id,
        creator=creator if creator not in team.names else _CREATOR,
        expectations=(),  # the outer session's hold for its round
        parent=Parent(outer.id, round, speaker),
    )
    session = await open_session(outer.log, team, record)
    if outer.owner is not None:
        # The owner of the outer session owns its inner ones: a former owner must be locked out.
        now = clock().wall()
        session.epoch = await outer.log.claim(session.id, outer.owner, now, force=True)
        stored_session = await outer.log.load(session.id)
        if stored_session is not None:
            session.state = await load_state(outer.log, stored_session)
    session.owner, session.on_appended = outer.owner, outer.on_appended
    session.is_in_graph, session.handle, session.outer = True, outer.handle, outer
    outer.inner_ids.add(session_id)
    return session


async def close_inner(session: OwnedSession) -> None:
    """Close an inner session: its round is over."""
    if not session.state.is_ended:
        with suppress(RoundConflict, SessionClosed):  # another process may have closed it meanwhile
            await session.close("round_over")
    await release_inner(session)


async def release_inner(session: OwnedSession) -> None:
    """Give an inner session back to the store, if it has ended."""
    if not session.state.is_ended:
        return
    if session.outer is not None:
        # There is one for each round, and the outer session must not collect them all.
        session.outer.inner_ids.discard(session.id)
    if session.owner is not None:
        await session.log.release(session.id, session.owner)


async def open_session(log: Log, team: TeamSpec, record: SessionRecord) -> OwnedSession:
    """Begin a session that no hub drives, or go on with it where the log has it."""
    rules = team.rules_of(record)
    page = Page(SessionState.initial(record), rules)
    begin_log(page, record)
    await log.create(record, page.envelopes, page.state, runnable=False)
    stored_session = await log.load(record.session_id)
    assert stored_session is not None  # it was created, or was there
    return OwnedSession(
        log,
        record,
        rules,
        await load_state(log, stored_session),
        may_have_inbox=False,
        guards=team.active_guards,
        effects=team.effects,
    )


def inner_ids(outer_id: str, round: int, name: str) -> list[str]:
    """Return the ids of a team's sessions for a round, one for each try at it."""
    first = f"{outer_id}/{round}/{name}"
    return [first, *(f"{first}/{attempt}" for attempt in range(2, RETRIES + 2))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a session has come to, for whoever has opened it inside of something else."""

    last: Envelope | None
    """The last words of an agent."""
    usage: Mapping[str, Mapping[str, Any]]
    """Tokens by agent."""
    stopped_by: str | None
    """The guard that has ended the session, if one has."""

    def record_usage(self, part: str) -> None:
        """Count the usage in the run around this code, where no packet says so: a round failed."""
        run = current_run()
        if run is not None:
            with inside_part(part):
                for path, figures in self.usage.items():
                    run.record_figures(path, figures)


def outcome_of(envelopes: Sequence[Envelope], people: Collection[str]) -> Outcome:
    """Sum up a session; what people have said is no answer of the team's."""
    answers = [
        envelope
        for envelope in envelopes
        if envelope.is_substantive and envelope.sender_id not in people
    ]
    last = answers[-1] if answers else None
    return Outcome(last, _usage_of(envelopes), _guard_of(envelopes))


def _usage_of(envelopes: Sequence[Envelope]) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for usage in (envelope.event_data.get("usage") or {} for envelope in envelopes):
        for path, figures in usage.items():
            total = totals.setdefault(path, {})
            for name, figure in figures.items():
                total[name] = total.get(name, 0) + figure if isinstance(figure, int) else figure
    return totals


def _guard_of(envelopes: Sequence[Envelope]) -> str | None:
    last = envelopes[-1].event_data if envelopes else {}
    failures = (
        envelope.event_data for envelope in envelopes if envelope.event_type == EV_ROUND_FAILED
    )
    guards = [failure["message"] for failure in failures if failure["code"] == "guard"]
    return guards[-1] if guards and last.get("reason") == guards[-1] else None
