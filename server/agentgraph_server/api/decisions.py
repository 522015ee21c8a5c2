"""The routes of decisions: what waits for a human, and what the human decides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from agentgraph.sessions.hub.questions import OpenQuestion
from agentgraph_server.api.own_sessions import (
    DecidableSession,
    HubOfApp,
    OwnSession,
    ReadableSession,
    find_session,
)
from agentgraph_server.api.run_slots import run_slot
from agentgraph_server.api.runs import BEGIN, Accept, Prefer, begun, live_from_start
from agentgraph_server.api.sessions import MAX_PAGE, ReceiptView
from agentgraph_server.principals.principal import Decider
from agentgraph_server.problems import problems
from agentgraph_server.wire import JsonValue, Name, RequestBody, Storable, instant

router = APIRouter(tags=["decisions"])


class NewDecision(RequestBody):
    """What a human has decided."""

    decision: Storable = Field(description="What `response_schema` of the question asks for.")


class DecisionView(BaseModel):
    """A question that waits for a decision."""

    interrupt_id: str
    session_id: str
    speaker: str = Field(description="The path of the agent that asks.")
    payload: JsonValue
    response_schema: JsonValue = Field(description="A JSON Schema of the decision, if it has one.")
    asked_at: str
    expires_at: str | None = Field(description="When it is denied, if nobody has decided.")

    @classmethod
    def of(cls, question: OpenQuestion, session_id: str) -> DecisionView:
        """Return a question as JSON."""
        end = question.expires_at
        return cls(
            interrupt_id=question.id,
            session_id=session_id,
            speaker=question.speaker,
            payload=question.payload,
            response_schema=question.response_schema,
            asked_at=question.asked_at,
            expires_at=None if end is None else instant(end),
        )


@router.get("/decisions", responses=problems(422))
async def list_all_decisions(
    hub: HubOfApp,
    principal: Decider,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
) -> list[DecisionView]:
    """List what waits for you in all your sessions, the newest first."""
    summaries = await hub.sessions(
        "waiting_decision",
        person=None if principal.operates else principal.speaker,
        tenant=principal.tenant,
        limit=limit,
        newest_first=True,
    )
    decisions: list[DecisionView] = []
    for summary in summaries:
        own = await find_session(hub, summary.session_id, principal)
        decisions += await _waiting(own)
    return decisions


@router.get("/sessions/{id}/decisions", responses=problems(404, 422))
async def list_decisions(own: ReadableSession) -> list[DecisionView]:
    """List what waits for a decision in a session."""
    return [*await _waiting(own)]


async def _waiting(own: OwnSession) -> Iterable[DecisionView]:
    questions = await own.session.questions(reader=own.reader)
    return [DecisionView.of(question, own.session.id) for question in questions]


@router.post(
    "/sessions/{id}/decisions/{interrupt_id}",
    status_code=202,
    response_model=ReceiptView,
    responses=BEGIN,
)
async def decide(
    own: DecidableSession,
    interrupt_id: Annotated[Name, Path(description="The id of a question.")],
    body: NewDecision,
    request: Request,
    accept: Accept = "",
    prefer: Prefer = "",
) -> Response:
    """Decide a question; the run that waited goes on, as a run of its own.

    `Prefer: wait` and `Accept: text/event-stream` are as for messages.
    """
    sender = None if own.reader is None else own.sender
    async with own.presence(), live_from_start(own, accept):
        with run_slot(request) as slot:
            receipt = await own.session.decide(interrupt_id, body.decision, sender=sender)
            slot.run = own.session, receipt.id
    return await begun(own, receipt.id, request, accept, prefer)
