"""The routes: completions, streams, resumes, threads, and descriptions of the agents."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from langgraph.types import Command

from agentgraph import FlowResult, Reply
from agentgraph.agents import Input
from agentgraph.clock import new_id
from agentgraph.stream import Event
from agentgraph_server.agents.catalogue import Catalogue, Served, UnknownThread
from agentgraph_server.agents.schemas import (
    AgentCard,
    AgentDetail,
    Answer,
    Decisions,
    Prompt,
    Question,
    Thread,
    ThreadId,
    ThreadMessage,
)
from agentgraph_server.agents.turn_stream import TurnStream
from agentgraph_server.disconnects import unless_disconnected
from agentgraph_server.problems import problems
from agentgraph_server.wire import address

router = APIRouter()

# The error responses of a turn, for the OpenAPI document.
_TURN = problems(404, 409, 422, 502, 503)
_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


def _catalogue(request: Request) -> Catalogue:
    catalogue: Catalogue = request.app.state.catalogue
    return catalogue


def _agent(name: str, catalogue: Annotated[Catalogue, Depends(_catalogue)]) -> Served:
    return catalogue.find(name)


CatalogueOfApp = Annotated[Catalogue, Depends(_catalogue)]
AgentInPath = Annotated[Served, Depends(_agent)]
ThreadInPath = Annotated[ThreadId, Path()]


@router.post("/agents/{name}/completion", response_model=Answer, responses=_TURN)
async def complete(
    agent: AgentInPath, body: Prompt, catalogue: CatalogueOfApp, request: Request
) -> Response:
    """Answer a prompt; a client that goes away ends the run."""
    return await _answer(agent, body.prompt, body.thread_id or new_id(), catalogue, request)


@router.post(
    "/agents/{name}/stream-completion",
    status_code=200,  # set, or FastAPI looks for it in the signature of the class
    response_class=TurnStream,
    responses={**_TURN, 200: {**_STREAM, "description": "The events of the turn, then `done`."}},
)
async def stream_completion(
    agent: AgentInPath, body: Prompt, catalogue: CatalogueOfApp, request: Request
) -> Response:
    """Answer a prompt, telling all that happens as it happens."""
    return await _stream(agent, body.prompt, body.thread_id or new_id(), catalogue, request)


@router.post("/agents/{name}/resume", response_model=Answer, responses={**_TURN, 200: _STREAM})
async def resume(
    agent: AgentInPath, body: Decisions, catalogue: CatalogueOfApp, request: Request
) -> Response:
    """Go on with decisions; as a stream, where the client accepts `text/event-stream`."""
    command: Command[str] = Command(resume=body.decisions)
    if "text/event-stream" in request.headers.get("accept", ""):
        return await _stream(agent, command, body.thread_id, catalogue, request)
    return await _answer(agent, command, body.thread_id, catalogue, request)


@router.get("/agents")
async def list_agents(catalogue: CatalogueOfApp) -> list[AgentCard]:
    """Describe all agents."""
    return [AgentCard.of(agent) for agent in catalogue.agents.values()]


@router.get("/agents/{name}", responses=problems(404, 422))
async def describe_agent(agent: AgentInPath) -> AgentDetail:
    """Describe an agent: its tools, its sub-agents, its graph."""
    return AgentDetail(**AgentCard.of(agent).model_dump(), mermaid=agent.mermaid())


@router.get("/agents/{name}/threads/{thread_id}", responses=problems(404, 422, 503))
async def read_thread(
    agent: AgentInPath, thread_id: ThreadInPath, catalogue: CatalogueOfApp
) -> Thread:
    """Return a conversation, and what it waits for."""
    messages = await agent.ahistory(thread_id)
    questions = await agent.ainterrupts(thread_id)
    if not messages and not questions and not catalogue.is_busy(agent, thread_id):
        raise UnknownThread(f"there is no thread {thread_id!r}: a prompt on it begins it")
    return Thread(
        thread_id=thread_id,
        busy=catalogue.is_busy(agent, thread_id),
        messages=[ThreadMessage.of(message) for message in messages],
        interrupts=[Question.model_validate(q, from_attributes=True) for q in questions],
    )


@router.delete(
    "/agents/{name}/threads/{thread_id}", status_code=204, responses=problems(404, 409, 422, 503)
)
async def forget_thread(
    agent: AgentInPath, thread_id: ThreadInPath, catalogue: CatalogueOfApp
) -> Response:
    """Delete a conversation; one that is not there is as good as deleted."""
    async with await catalogue.lock(agent, thread_id):
        await agent.aforget(thread_id)
    return Response(status_code=204)


async def _answer(
    agent: Served, message: Input, thread_id: str, catalogue: Catalogue, request: Request
) -> Response:
    """Run a turn to its end; 409 if the thread is busy."""
    reply: Reply[Any] | FlowResult[Any]
    async with await catalogue.lock(agent, thread_id):
        reply = await unless_disconnected(request, agent.ainvoke(message, thread_id=thread_id))
    headers = _location_headers(request, agent, thread_id)
    answer = Answer.of(reply, agent.name).model_dump_json()
    return Response(answer, headers=headers, media_type="application/json")


async def _stream(
    agent: Served, message: Input, thread_id: str, catalogue: Catalogue, request: Request
) -> TurnStream:
    """Run a turn as a stream, whose end unlocks the thread."""
    lock = await catalogue.lock(agent, thread_id)
    begin = Event(agent=agent.name, thread_id=thread_id)
    events = agent.astream(message, thread_id=thread_id)
    return TurnStream(events, lock, begin, _location_headers(request, agent, thread_id))


def _location_headers(request: Request, agent: Served, thread_id: str) -> dict[str, str]:
    return {"Content-Location": address(request, f"/agents/{agent.name}/threads/{thread_id}")}
