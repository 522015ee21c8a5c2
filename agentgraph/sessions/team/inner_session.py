"""An inner session: a team's session for one round of an outer session, in the same log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage

from agentgraph.clock import clock
from agentgraph.errors import RoundConflict, SessionClosed, SessionError
from agentgraph.running import current_run, inside_part
from agentgraph.sessions.envelopes.draft import Content
from agentgraph.sessions.envelopes.envelope import (
    EV_CANCELLED,
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    Envelope,
)
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.rows import unknown_session
from agentgraph.sessions.rounds.admission import begin_log
from agentgraph.sessions.rounds.owned_session import OwnedSession, load_state
from agentgraph.sessions.state.input_account import add_usage
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.parallel import in_list_order
from agentgraph.sessions.state.record import Parent, SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import Audience
from agentgraph.sessions.team.inner_id import is_inner_of, path_of
from agentgraph.sessions.team.opening import new_record
from agentgraph.sessions.team.spec import TeamSpec

TURN_ENDS = frozenset({EV_PACKET, EV_ROUND_FAILED, EV_INTERRUPT, EV_CANCELLED})
"""The types with which a turn ends or is suspended: these have its round and its usage."""

_CREATOR = "caller"
"""The creator of an inner session after private talk in the outer session, or if the team has an
agent with the outer creator's name."""


async def open_inner(
    outer: OwnedSession, team: TeamSpec, session_id: str, parent: Parent, audience: Audience
) -> OwnedSession:
    """Open the session for the round that `parent` names, or resume that of an earlier attempt.

    `audience` is the audience of that round. Raises `SessionError` if the log has another session
    with this id.
    """
    creator = outer.record.creator
    # The input of the inner session is what its team has seen of the outer one. After private talk
    # the creator may not have seen all of it, and must have no right to read it there.
    is_hidden = bool(outer.state.visibility)
    record = new_record(
        team,
        session_id,
        creator=_CREATOR if is_hidden or creator in team.names else creator,
        expectations=(),  # the outer session's expectations cover its round
        parent=parent,
        tenant=outer.record.tenant,
    )
    session = await open_session(outer.log, team, record, parent_epoch=outer.epoch)
    if not is_inner_of(session.record, parent, team.name):
        raise SessionError(
            f"session {session_id!r} does not serve round {parent.round} of {parent.session_id!r}",
            code="not_inner",
        )
    if outer.owner is not None:
        # The owner of the outer session owns its inner ones: a former owner must be locked out.
        now = clock().wall()
        session.epoch = await outer.log.claim(session.id, outer.owner, now, force=True)
        stored_session = await outer.log.load(session.id)
        if stored_session is not None:
            session.state = await load_state(outer.log, stored_session)
    session.owner, session.on_appended = outer.owner, outer.on_appended
    session.is_in_graph, session.handle, session.outer = True, outer.handle, outer
    session.outer_audience = audience if outer.outer is None else outer.outer_audience
    outer.inner_ids.add(session.id)
    return session


async def say_input(session: OwnedSession, *texts: Content) -> None:
    """Append the input of a session that no hub drives.

    For an outer round that is private, the input is for the agents of the inner team.
    """
    is_private = session.outer is not None and session.outer_audience is not None
    audience = session.record.agents if is_private else None
    await session.say(*texts, sender=session.record.creator, audience=audience)


def content_of(message: BaseMessage) -> Content:
    """Return the content of a message as an envelope has it: its text, or its content blocks."""
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": block} if isinstance(block, str) else block
        for block in message.content
    ]


async def usage_in_inner(log: Log, session_ids: Iterable[str], speaker: str) -> Mapping[str, Any]:
    """Return the usage in open inner sessions of a speaker's turn, by the path of an agent."""
    totals: Mapping[str, Any] = {}
    for session_id in session_ids:
        stored_session = await log.load(session_id)
        parent = stored_session.record.parent if stored_session is not None else None
        if stored_session is None or parent is None or parent.speaker != speaker:
            continue
        if stored_session.state is None or not stored_session.state.is_ended:
            usage = _usage_of(await log.read(session_id))
            path = path_of(stored_session.record)
            totals = add_usage(totals, {f"{path}/{key}": usage[key] for key in usage})
    return totals


async def close_inner(session: OwnedSession) -> None:
    """Close an inner session: its round is over."""
    if not session.state.is_ended:
        with suppress(RoundConflict, SessionClosed):  # another process may have closed it
            await session.close("round_over")
    await release_inner(session)


async def release_inner(session: OwnedSession) -> None:
    """End the ownership of an inner session that has ended, and forget its id."""
    if not session.state.is_ended:
        return
    if session.outer is not None:
        # There is one id per round, and the outer session must not collect all of them.
        session.outer.inner_ids.discard(session.id)
    if session.owner is not None:
        await session.log.release(session.id, session.owner)


async def open_session(
    log: Log, team: TeamSpec, record: SessionRecord, *, parent_epoch: int | None = None
) -> OwnedSession:
    """Begin a session that no hub drives, or resume it if the log has it.

    A session that serves a round can begin only under the epoch of the outer session.
    """
    rules = team.rules_of(record)
    page = Page(SessionState.initial(record), rules)
    begin_log(page, record)
    await log.create(record, page.envelopes, page.state, runnable=False, parent_epoch=parent_epoch)
    stored_session = await log.load(record.key)
    if stored_session is None:
        raise unknown_session(record.key)  # somebody has forgotten it since
    return OwnedSession(
        log,
        stored_session.record,
        rules,
        await load_state(log, stored_session),
        may_have_inbox=False,
        guards=team.active_guards,
        effects=team.effects,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a session, for the code that opened it as part of an outer run."""

    last: Envelope | None
    """The last text of an agent of the team; a supervisor's remark is none."""
    usage: Mapping[str, Mapping[str, Any]]
    """Usage by the path of an agent: tokens and cost."""
    stopped_by: str | None
    """The guard that has ended the session, None if no guard has."""
    cause: str = ""
    """Why that guard has ended it, "" where that is unknown."""

    def record_usage(self, part: str) -> None:
        """Record the usage in the current run, where no packet carries it: the round failed."""
        run = current_run()
        if run is not None:
            with inside_part(part):
                for path, figures in self.usage.items():
                    run.record_figures(path, figures)


def outcome_of(envelopes: Sequence[Envelope], record: SessionRecord) -> Outcome:
    """Summarise a session: only what its agents have said counts as an answer of the team."""
    in_order = in_list_order([envelope for envelope in envelopes if envelope.is_substantive])
    answers = (e for e in reversed(in_order) if e.text and e.sender_id in record.agents)
    return Outcome(next(answers, None), _usage_of(envelopes), *_guard_of(envelopes))


def usage_records(envelopes: Iterable[Envelope]) -> Iterator[Mapping[str, Mapping[str, Any]]]:
    """Yield what each turn has used until it ended or was suspended, by agent."""
    for envelope in envelopes:
        usage = envelope.event_data.get("usage") if envelope.event_type in TURN_ENDS else None
        if isinstance(usage, Mapping):
            yield usage


def _usage_of(envelopes: Sequence[Envelope]) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for usage in usage_records(envelopes):
        for path, figures in usage.items():
            total = totals.setdefault(path, {})
            for name, figure in figures.items():
                total[name] = total.get(name, 0) + figure if isinstance(figure, int) else figure
    return totals


def _guard_of(envelopes: Sequence[Envelope]) -> tuple[str | None, str]:
    """Return the guard that has ended the session, None if none has, and why."""
    last = envelopes[-1].event_data if envelopes else {}
    for envelope in reversed(envelopes):
        data = envelope.event_data
        if envelope.event_type == EV_ROUND_FAILED and data["code"] == "guard":
            is_end = last.get("reason") == data["message"]
            return (data["message"], data.get("cause", "")) if is_end else (None, "")
    return None, ""
