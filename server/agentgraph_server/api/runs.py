"""The routes of runs: a message begins one, which goes on when its connection ends."""

from __future__ import annotations

import asyncio
import re
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, model_validator

from agentgraph.sessions import Answer, Draft, Priority
from agentgraph.sessions.hub.run import Run, RunStatus
from agentgraph.sessions.hub.webhooks import Webhooks
from agentgraph_server.api.live import CURSOR, SessionEvents
from agentgraph_server.api.own_sessions import (
    HubOfApp,
    OwnSession,
    ReadableSession,
    RunnableSession,
    find_run,
)
from agentgraph_server.api.run_slots import run_slot
from agentgraph_server.api.sessions import ReceiptView
from agentgraph_server.principals.principal import Reader, Runner
from agentgraph_server.problems import problems
from agentgraph_server.wire import JsonObject, JsonValue, Name, RequestBody, Text, address

router = APIRouter(tags=["runs"])

EVENT_STREAM = "text/event-stream"
MAX_WAIT_S = 3_600.0


class NewMessage(RequestBody):
    """What is said in a session: a text, content blocks, or an event of a type of your own."""

    text: Annotated[str, Field(min_length=1, examples=["I was charged twice"])] | None = None
    content: Annotated[list[JsonObject], Field(min_length=1)] | None = Field(
        default=None, description="LangChain's content blocks: texts, images, files."
    )
    event_type: Name | None = None
    event_data: JsonObject | None = None
    audience: Annotated[list[Name], Field(max_length=100)] | None = Field(
        default=None, description="Who may see it; all, if not given."
    )
    idempotency_key: Name | None = None
    causation_id: Name | None = None
    priority: Literal["low", "normal", "high", "urgent"] = "normal"
    metadata: JsonObject | None = None
    webhook: Annotated[str, Field(min_length=1, max_length=2_000)] | None = Field(
        default=None,
        description="An http or https address that gets the run, by POST, when it has ended.",
        examples=["https://example.com/runs"],
    )

    @model_validator(mode="after")
    def _check_content(self) -> NewMessage:
        parts = [self.text, self.content, self.event_type]
        if sum(part is not None for part in parts) != 1:
            raise ValueError("give one of text, content and event_type")
        if self.event_data is not None and self.event_type is None:
            raise ValueError("event_data is the data of an event_type: give that too")
        if self.text is not None and not self.text.strip():
            raise ValueError("the text is blank: say something")
        return self

    def as_draft(self) -> str | list[dict[str, Any]] | Draft:
        """Return what is sent."""
        if self.event_type is not None:
            return Draft(self.event_type, self.event_data or {})
        return self.content or [] if self.text is None else self.text


class QuestionView(BaseModel):
    """A question that a human must decide."""

    id: str
    payload: JsonValue
    response_schema: JsonValue = None
    speaker: str = ""


class AnswerView(BaseModel):
    """What a session has answered to an input, or asks."""

    text: Text
    speaker: str | None
    agent: str | None = Field(description="The path of the agent below the speaker.")
    status: str = Field(description="The status of the session when it had settled.")
    close_reason: str | None
    interrupts: list[QuestionView]
    usage: dict[str, Any]
    output: JsonValue = None
    run_id: str
    sequence: int = Field(description="The sequence of its last envelope.")

    @classmethod
    def of(cls, answer: Answer) -> AnswerView:
        """Return an answer as JSON."""
        return cls(**answer.to_dict())


class FailureView(BaseModel):
    """Why a run has failed."""

    code: str
    message: Text


class RunView(BaseModel):
    """An input of a session, and what has become of it."""

    id: str
    session_id: str
    status: RunStatus
    created_at: str | None = None
    ended_at: str | None = None
    error: FailureView | None = None

    @classmethod
    def of(cls, run: Run) -> RunView:
        """Return a run as JSON."""
        return cls.model_validate(run, from_attributes=True)

    model_config = {"from_attributes": True}


RunId = Annotated[Name, Path(description="The id of a run.")]
Prefer = Annotated[str, Header(description="`wait`, or `wait=<seconds>`: answer when it is done.")]
LastEventId = Annotated[str, Header(description="The `id` of the event that was read last.")]
Accept = Annotated[str, Header(include_in_schema=False)]

_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
BEGIN = {
    **problems(404, 409, 413, 422, 502),
    200: {"model": AnswerView, **_STREAM, "description": "The answer, or the events of the run."},
}


@router.post(
    "/sessions/{id}/messages", status_code=202, response_model=ReceiptView, responses=BEGIN
)
async def send_message(
    own: RunnableSession,
    body: NewMessage,
    request: Request,
    accept: Accept = "",
    prefer: Prefer = "",
) -> Response:
    """Say something; it is durable when this answers, and the run goes on by itself.

    With `Prefer: wait` the answer comes once the session has settled, with
    `Accept: text/event-stream` the events of the run as they happen.
    """
    webhooks: Webhooks = request.app.state.webhooks
    if body.webhook is not None:
        webhooks.check(body.webhook)
    sender = own.sender
    async with own.presence(), live_from_start(own, accept):
        with run_slot(request) as slot:
            receipt = await own.session.send(
                sender,
                body.as_draft(),
                audience=body.audience,
                causation_id=body.causation_id,
                idempotency_key=body.idempotency_key,
                metadata=body.metadata,
                priority=Priority[body.priority.upper()],
            )
            slot.run = own.session, receipt.id
        if body.webhook is not None:
            await webhooks.add(own.session, receipt.id, body.webhook, reader=own.reader)
    return await begun(own, receipt.id, request, accept, prefer)


def live_from_start(own: OwnSession, accept: str) -> AbstractAsyncContextManager[None]:
    """Return a context: what begins in it is told live from its start, if it is to be streamed."""
    return own.session.told_live() if EVENT_STREAM in accept else nullcontext()


async def begun(
    own: OwnSession, run_id: str, request: Request, accept: str, prefer: str
) -> Response:
    """Answer a request that has begun a run: with its events, its answer, or its receipt."""
    location = address(request, f"/runs/{quote(run_id, safe='')}")
    headers = {"Location": location, "Content-Location": location}
    if EVENT_STREAM in accept:
        return SessionEvents(own, run_id=run_id, headers=headers)
    if (wait_s := _wait_of(prefer)) is not None:
        try:
            async with asyncio.timeout(wait_s):
                answer = await own.session.answer(run_id, reader=own.reader)
        except TimeoutError:
            pass  # as RFC 7240 has it: the receipt then
        else:
            headers["Preference-Applied"] = "wait"
            return JSONResponse(AnswerView.of(answer).model_dump(mode="json"), headers=headers)
    return JSONResponse(ReceiptView(run_id=run_id).model_dump(), 202, headers=headers)


def _wait_of(prefer: str) -> float | None:
    """Return how long a client prefers to wait, by RFC 7240; None if it does not."""
    for preference in prefer.replace(";", ",").split(","):
        name, _, value = preference.strip().partition("=")
        if name.strip().lower() == "wait":
            digits = value.strip().strip('"')
            return min(float(digits), MAX_WAIT_S) if digits.isdecimal() else MAX_WAIT_S
    return None


@router.get(
    "/sessions/{id}/events",
    status_code=200,
    response_class=Response,
    responses={
        **problems(404, 422),
        200: {**_STREAM, "description": "Envelopes and live events, each with its id."},
        204: {"description": "The session has ended, and all of it was read."},
    },
)
async def follow_session(
    own: ReadableSession,
    after: Annotated[str, Field(pattern=CURSOR)] = "0",
    live: bool = True,
    last_event_id: LastEventId = "",
) -> Response:
    """Follow a session: its envelopes after a sequence, then what happens as it happens.

    `Last-Event-ID` continues where a connection broke. With `live=false` it ends at the head.
    """
    cursor = _place(last_event_id) or after
    state = await own.session.refresh()
    if state.is_ended and int(cursor.partition(".")[0]) >= state.sequence:
        return Response(status_code=204)
    return SessionEvents(own, cursor, is_live=live)


async def _to_read(run_id: RunId, hub: HubOfApp, principal: Reader) -> tuple[OwnSession, Run]:
    return await find_run(hub, run_id, principal)


async def _to_run(run_id: RunId, hub: HubOfApp, principal: Runner) -> tuple[OwnSession, Run]:
    return await find_run(hub, run_id, principal)


ReadableRun = Annotated[tuple[OwnSession, Run], Depends(_to_read)]
RunnableRun = Annotated[tuple[OwnSession, Run], Depends(_to_run)]


@router.get("/runs/{run_id}", responses=problems(404, 422))
async def read_run(own_run: ReadableRun) -> RunView:
    """Tell what has become of an input."""
    _, run = own_run
    return RunView.of(run)


@router.get(
    "/runs/{run_id}/events",
    status_code=200,
    response_class=Response,
    responses={
        **problems(404, 422),
        200: {**_STREAM, "description": "The events of the run; the last one is `done`."},
    },
)
async def follow_run(own_run: ReadableRun, last_event_id: LastEventId = "") -> Response:
    """Follow a run from its beginning, or from `Last-Event-ID`, to its end."""
    own, run = own_run
    return SessionEvents(own, _place(last_event_id), run_id=run.id)


def _place(last_event_id: str) -> str | None:
    """Return the place after which a client wants to go on; None for what is no place of ours."""
    return last_event_id if re.match(CURSOR, last_event_id) else None


@router.post("/runs/{run_id}/cancel", status_code=204, responses=problems(404, 409, 422))
async def cancel_run(own_run: RunnableRun) -> Response:
    """End a run; what it did is kept. One that has ended stays as it is, and so do all others."""
    own, run = own_run
    own.check_takes_part()
    await own.session.cancel_run(run.id)
    return Response(status_code=204)


@router.get("/sessions/{id}/runs", responses=problems(404, 422))
async def list_runs(
    own: ReadableSession, limit: Annotated[int, Field(ge=1, le=100)] = 20
) -> list[RunView]:
    """List the runs of a session, the newest first."""
    return [RunView.of(run) for run in await own.session.runs(reader=own.reader, limit=limit)]
