"""The routes of sessions: open, list, read, close, and change their context and their branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.datastructures import URL

from agentgraph.routing.frozen_json import thaw
from agentgraph.sessions import Receipt, Session, SessionExplanation, audit_of
from agentgraph_server.api.own_sessions import (
    HubOfApp,
    ReadableSession,
    RunnableSession,
    find_session,
    is_agent,
)
from agentgraph_server.api.run_slots import run_slot
from agentgraph_server.masking import public_fields
from agentgraph_server.principals.principal import Forbidden, Reader, Runner
from agentgraph_server.problems import problems
from agentgraph_server.wire import (
    JsonObject,
    JsonValue,
    Name,
    RequestBody,
    Storable,
    address,
    instant,
    path_of,
)

router = APIRouter(tags=["sessions"])

MAX_PAGE = 100

Status = Literal[
    "pending", "active", "waiting_human", "waiting_decision", "closing", "closed", "expired"
]


class NewSession(RequestBody):
    """Which session is to be opened."""

    served: Name
    id: Annotated[Name, Field(pattern=r"^[^/]*[^/.][^/]*$")] | None = Field(
        default=None,
        description="An id of your own, without slashes; that of an existing session of "
        "yours returns it, if all else agrees.",
    )
    context: JsonObject | None = Field(default=None, description="The session's variables.")
    participants: Annotated[Sequence[Name], Field(max_length=100)] = ()
    ttl: str | Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="When it expires: a number of seconds, or a text such as 30m."
    )
    metadata: JsonObject | None = None


class SessionCard(BaseModel):
    """A session, as lists and answers show it."""

    id: str
    served: str
    status: Status
    creator: str
    participants: Sequence[str]
    context: JsonValue
    metadata: JsonValue
    sequence: int = Field(description="The sequence of its last envelope.")
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, session: Session) -> SessionCard:
        """Describe a session as it is now."""
        state, record = session.state, session.record
        return cls(
            id=session.id,
            served=record.team,
            status=state.status,
            creator=record.creator,
            participants=state.participant_order,
            context=thaw(state.context_vars),
            metadata=thaw(record.metadata),
            sequence=state.sequence,
            created_at=instant(record.created_at),
            updated_at=state.updated_at or instant(record.created_at),
        )


class SessionStateView(BaseModel):
    """The folded state of a session: who has the floor, what is waited for, the variables."""

    status: Status
    participants: Sequence[str]
    expected_next_speaker: str | None
    speakers: Sequence[str]
    last_speaker_id: str | None
    turn_count: int
    round: int
    phase: str
    context: JsonValue
    active: JsonValue = Field(description="By participant, the sub-agent that has the floor.")
    close_reason: str | None
    sequence: int
    quarantine: str | None = Field(
        default=None, description="Why it cannot run here, if it cannot."
    )

    @classmethod
    def of(cls, session: Session) -> SessionStateView:
        """Describe the state of a session as it is now."""
        state, fault = session.state, session.quarantine
        return cls(
            status=state.status,
            participants=state.participant_order,
            expected_next_speaker=state.expected_next_speaker,
            speakers=state.due,
            last_speaker_id=state.last_speaker_id,
            turn_count=state.turn_count,
            round=state.round,
            phase=str(state.phase),
            context=thaw(state.context_vars),
            active=thaw(state.active),
            close_reason=state.pending_close_reason if state.is_ended else None,
            sequence=state.sequence,
            quarantine=None if fault is None else str(fault),
        )


class EnvelopeView(BaseModel):
    """An entry of a session's log."""

    envelope_id: str
    session_id: str
    sender_id: str
    audience: Sequence[str] | None
    event_type: str
    event_data: JsonValue
    causation_id: str | None
    priority: int
    idempotency_key: str | None
    metadata: JsonValue
    created_at: str
    sequence: int


class RuleView(BaseModel):
    """A rule that was tried on an envelope, and what came of it."""

    rule: int | str = Field(description="Its place among the rules, or `default` and the like.")
    text: str
    fired: bool
    why: str = Field(description="Why it did not fire, if it did not.")


class ExplanationView(BaseModel):
    """Why a decision was made on an envelope, and why no earlier rule made it."""

    sequence: int
    decision: JsonValue
    text: str
    rules: Sequence[RuleView] = Field(
        description="The rules in the order in which they were tried; none, if no rule decided."
    )

    @classmethod
    def of(cls, explanation: SessionExplanation) -> ExplanationView:
        """Return an explanation as JSON."""
        envelope, reasons = explanation.envelope, explanation.explanation
        verdicts = () if reasons is None else reasons.verdicts
        return cls(
            sequence=envelope.sequence,
            decision=thaw(envelope.event_data.get("decision")),
            text=str(explanation),
            rules=[RuleView.model_validate(each, from_attributes=True) for each in verdicts],
        )


class AuditView(BaseModel):
    """Who acted in a session, what it cost, and what guards decided."""

    path: Sequence[str] = Field(description="The agents in the order in which they acted.")
    spend: JsonValue = Field(description="Calls, tokens and dollars, as the guards count them.")
    usage: JsonValue = Field(description="Tokens and cost, of all and by agent.")
    decisions: Sequence[JsonValue]
    steps: int
    hops: int
    effects: Sequence[Sequence[str]] = Field(description="What was done, and what became of it.")
    began_at: float | None
    ended_at: float | None
    end: str


class At(RequestBody):
    """Up to which envelope a fork has the log of the session."""

    at: Annotated[int, Field(ge=1)]


class To(RequestBody):
    """The envelope after which a rewound session goes on."""

    to: Annotated[int, Field(ge=1)]


class Reason(RequestBody):
    """Why it is done, for the log."""

    reason: Annotated[Storable, Field(max_length=1_000)] | None = None


class ReleaseTo(RequestBody):
    """Which agent gets the conversation; by default the one that had it before."""

    agent: Name | None = None


class Value(RequestBody):
    """The value of a context variable."""

    value: Storable


class ReceiptView(BaseModel):
    """That something was accepted, durably; `run_id` is the run that it begins."""

    run_id: str

    @classmethod
    def of(cls, receipt: Receipt) -> ReceiptView:
        """Return the receipt of an input, a decision, a rewind or a release."""
        return cls(run_id=receipt.id)


_READ = problems(404, 422)
_CHANGE = problems(404, 409, 422)


@router.post("/sessions", status_code=201, responses=_CHANGE)
async def open_session(
    body: NewSession, hub: HubOfApp, principal: Runner, response: Response, request: Request
) -> SessionCard:
    """Open a session with a team, an agent, a flow or a graph, as its creator."""
    settings = {} if body.ttl is None else {"ttl": body.ttl}
    if is_agent(principal.speaker, _agents_of(request, body.served)):
        raise Forbidden(f"{principal.speaker!r} is an agent of {body.served!r}: use another name")
    session = await hub.session(
        body.served,
        creator=principal.speaker,
        id=body.id,
        participants=body.participants,
        context=body.context,
        metadata=body.metadata,
        tenant=principal.tenant,
        **settings,  # type: ignore[arg-type]
    )
    await session.refresh()
    response.headers["Location"] = address(request, f"/sessions/{quote(session.id, safe='')}")
    return SessionCard.of(session)


def _agents_of(request: Request, name: str) -> Sequence[str | None]:
    team = request.app.state.served.get(name)
    return () if team is None else (team.name, *team.names, team.supervisor_name)


@router.get("/sessions", responses=problems(404, 422))
async def list_sessions(
    hub: HubOfApp,
    principal: Reader,
    request: Request,
    response: Response,
    status: Status | None = None,
    served: Annotated[Name | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    after: Annotated[Name | None, Query(description="The id of the last one of a page.")] = None,
) -> list[SessionCard]:
    """List your sessions, the newest first; `metadata.<key>=<text>` selects by metadata.

    The header `Link` has the address of the next page, if there is one.
    """
    metadata = {
        key.removeprefix("metadata."): value
        for key, value in request.query_params.items()
        if key.startswith("metadata.")
    }
    if after is not None:
        await find_session(hub, after, principal)
    summaries = await hub.sessions(
        status,
        served=served,
        person=None if principal.operates else principal.speaker,
        tenant=principal.tenant,
        metadata=metadata or None,
        limit=limit + 1,
        after=after,
        newest_first=True,
    )
    page = [
        await hub.get(summary.session_id, tenant=principal.tenant) for summary in summaries[:limit]
    ]
    if len(summaries) > limit:
        url = _address_after(request, page[-1].id)
        response.headers["Link"] = f'<{url}>; rel="next"'
    return [SessionCard.of(session) for session in page]


def _address_after(request: Request, id: str) -> str:
    url: URL = request.url.include_query_params(after=id)
    return address(request, f"{path_of(request.scope)}?{url.query}")


@router.get("/sessions/{id}", responses=_READ)
async def read_session(own: ReadableSession) -> SessionCard:
    """Describe a session."""
    return SessionCard.of(own.session)


@router.delete("/sessions/{id}", status_code=204, responses=_CHANGE)
async def erase_session(own: RunnableSession, hub: HubOfApp) -> Response:
    """Erase a session and all that is stored of it; `POST …/close` ends it and keeps its log."""
    own.check_owner()
    await hub.forget(own.session.id, tenant=own.principal.tenant)
    return Response(status_code=204)


@router.get("/sessions/{id}/log", responses=_READ)
async def read_log(
    own: ReadableSession,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
) -> list[EnvelopeView]:
    """Return the envelopes after a sequence that you may see."""
    envelopes = await own.session.history(after, reader=own.reader, limit=limit)
    return [EnvelopeView(**thaw(public_fields(envelope))) for envelope in envelopes]


@router.get("/sessions/{id}/state", responses=_READ)
async def read_state(own: ReadableSession) -> SessionStateView:
    """Return the state that the log folds to."""
    return SessionStateView.of(own.session)


@router.get("/sessions/{id}/explain/{sequence}", responses=problems(404, 409, 422))
async def explain_decision(
    own: ReadableSession, sequence: Annotated[int, Path(ge=1)]
) -> ExplanationView:
    """Explain why the floor moved after an envelope, and why no earlier rule moved it."""
    return ExplanationView.of(await own.session.explain(sequence, reader=own.reader))


@router.get("/sessions/{id}/audit", responses=_READ)
async def read_audit(own: ReadableSession) -> AuditView:
    """Return who acted, what it cost, and what guards decided, of what you may see."""
    session = own.session
    audit = audit_of(session.record, await session.history(reader=own.reader))
    return AuditView.model_validate(audit.to_dict())


@router.put("/sessions/{id}/context/{key}", status_code=204, responses=_CHANGE)
async def set_variable(own: RunnableSession, key: Annotated[Name, Path()], body: Value) -> Response:
    """Set a context variable at once."""
    sender = own.sender
    async with own.presence():
        await own.session.set_context(key, body.value, sender=sender)
    return Response(status_code=204)


@router.delete("/sessions/{id}/context/{key}", status_code=204, responses=_CHANGE)
async def delete_variable(own: RunnableSession, key: Annotated[Name, Path()]) -> Response:
    """Delete a context variable at once."""
    sender = own.sender
    async with own.presence():
        await own.session.delete_context(key, sender=sender)
    return Response(status_code=204)


@router.post("/sessions/{id}/cancel", status_code=204, responses=_CHANGE)
async def cancel_round(own: RunnableSession, body: Reason | None = None) -> Response:
    """End the round under way, and keep what is known of it."""
    own.check_takes_part()
    await own.session.cancel((body and body.reason) or "cancelled")
    return Response(status_code=204)


@router.post("/sessions/{id}/close", responses=_CHANGE)
async def close_session(own: RunnableSession, body: Reason | None = None) -> SessionCard:
    """End the session; its log stays."""
    own.check_owner()
    await own.session.close((body and body.reason) or "explicit_close")
    await own.session.refresh()
    return SessionCard.of(own.session)


@router.post("/sessions/{id}/fork", status_code=201, responses=_CHANGE)
async def fork_session(
    own: RunnableSession, body: At, request: Request, response: Response
) -> SessionCard:
    """Begin a session with a copy of the log up to an envelope."""
    own.check_owner()
    fork = await own.session.fork(body.at)
    response.headers["Location"] = address(request, f"/sessions/{quote(fork.id, safe='')}")
    return SessionCard.of(fork)


@router.post("/sessions/{id}/rewind", status_code=202, responses=_CHANGE)
async def rewind_session(own: RunnableSession, body: To, request: Request) -> ReceiptView:
    """Go back to the state after an envelope, and go on from there, as a run."""
    own.check_owner()
    with run_slot(request) as slot:
        receipt = await own.session.rewind(body.to)
        slot.run = own.session, receipt.id
    return ReceiptView.of(receipt)


@router.post("/sessions/{id}/release", status_code=202, responses=_CHANGE)
async def release_session(
    own: RunnableSession, request: Request, body: ReleaseTo | None = None
) -> ReceiptView:
    """Give the conversation back to an agent, as a run."""
    own.check_takes_part()
    with run_slot(request) as slot:
        receipt = await own.session.release(body.agent if body else None)
        slot.run = own.session, receipt.id
    return ReceiptView.of(receipt)


@router.post("/sessions/{id}/join", status_code=204, responses=_CHANGE)
async def accept_invitation(own: RunnableSession) -> Response:
    """Accept an invitation, as the participant that you are."""
    await own.session.join(own.sender)
    return Response(status_code=204)


@router.post("/sessions/{id}/reject", status_code=204, responses=_CHANGE)
async def decline_invitation(own: RunnableSession) -> Response:
    """Decline an invitation."""
    await own.session.reject(own.sender)
    return Response(status_code=204)


@router.post("/sessions/{id}/leave", status_code=204, responses=_CHANGE)
async def leave_session(own: RunnableSession) -> Response:
    """Leave a session."""
    await own.session.leave(own.sender)
    return Response(status_code=204)
