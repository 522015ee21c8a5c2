"""The routes: completions, streams, resumes, threads, and descriptions of the agents."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from agentgraph.sessions.single.team import SingleTeam
from agentgraph.stream import Event
from agentgraph_server.agents.schemas import (
    AgentCard,
    AgentDetail,
    Answer,
    Decisions,
    Prompt,
    Question,
    ThreadId,
    ThreadMessage,
)
from agentgraph_server.agents.schemas import Thread as ThreadView
from agentgraph_server.agents.threads import (
    Agents,
    Threads,
    UnknownAgent,
    agent_of,
    agents_of,
)
from agentgraph_server.agents.turn import Turn, begin_turn, resume_turn
from agentgraph_server.agents.turn_stream import TurnStream
from agentgraph_server.api.own_sessions import HubOfApp
from agentgraph_server.disconnects import unless_disconnected
from agentgraph_server.principals.principal import Decider, Reader, Runner
from agentgraph_server.problems import problems
from agentgraph_server.wire import address

router = APIRouter(tags=["agents"])

# The error responses of a turn, for the OpenAPI document.
_TURN = problems(404, 409, 422, 502)
_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


# Dependencies are coroutines: FastAPI runs others in threads, which takes longer than they do.


async def _agents(request: Request) -> Agents:
    return agents_of(request.app.state.served)


AgentsOfApp = Annotated[Agents, Depends(_agents)]


async def _agent(name: str, agents: AgentsOfApp) -> SingleTeam:
    try:
        return agents[name]
    except KeyError:
        names = ", ".join(agents)
        raise UnknownAgent(f"no agent is called {name!r}: there are {names}") from None


AgentInPath = Annotated[SingleTeam, Depends(_agent)]
ThreadInPath = Annotated[ThreadId, Path()]


async def _threads(agent: AgentInPath, hub: HubOfApp, request: Request) -> Threads:
    state = request.app.state
    return Threads(agent, hub, state.earlier_threads[agent.name], state.turns)


ThreadsInPath = Annotated[Threads, Depends(_threads)]


@router.post("/agents/{name}/completion", response_model=Answer, responses=_TURN)
async def complete(
    threads: ThreadsInPath, body: Prompt, principal: Runner, request: Request
) -> Response:
    """Answer a prompt; a client that goes away ends the run."""
    thread = threads.of(principal, body.thread_id)
    turn = await begin_turn(thread, body.prompt, request, streams=False)
    return await _answer(turn, request)


@router.post(
    "/agents/{name}/stream-completion",
    status_code=200,  # set, or FastAPI looks for it in the signature of the class
    response_class=TurnStream,
    responses={**_TURN, 200: {**_STREAM, "description": "The events of the turn, then `done`."}},
)
async def stream_completion(
    threads: ThreadsInPath, body: Prompt, principal: Runner, request: Request
) -> Response:
    """Answer a prompt, telling all that happens as it happens."""
    thread = threads.of(principal, body.thread_id)
    turn = await begin_turn(thread, body.prompt, request, streams=True)
    return _stream(turn, request)


@router.post(
    "/agents/{name}/resume",
    response_model=Answer,
    responses={**_TURN, 200: _STREAM},
)
async def resume(
    threads: ThreadsInPath, body: Decisions, principal: Decider, request: Request
) -> Response:
    """Go on with decisions; as a stream, where the client accepts `text/event-stream`."""
    thread = threads.of(principal, body.thread_id)
    streams = "text/event-stream" in request.headers.get("accept", "")
    turn = await resume_turn(thread, body.decisions, request, streams=streams)
    return _stream(turn, request) if streams else await _answer(turn, request)


@router.get("/agents")
async def list_agents(agents: AgentsOfApp, principal: Reader) -> list[AgentCard]:
    """Describe all agents."""
    return [AgentCard.of(agent_of(team)) for team in agents.values()]


@router.get("/agents/{name}", responses=problems(404, 422))
async def describe_agent(agent: AgentInPath, principal: Reader) -> AgentDetail:
    """Describe an agent: its tools, its sub-agents, its graph."""
    participant = agent_of(agent)
    card = AgentCard.of(participant)
    return AgentDetail(**card.model_dump(), mermaid=participant.mermaid())


@router.get("/agents/{name}/threads/{thread_id}", responses=problems(404, 422))
async def read_thread(
    threads: ThreadsInPath, thread_id: ThreadInPath, principal: Reader
) -> ThreadView:
    """Return a conversation, and what it waits for."""
    content = await threads.of(principal, thread_id).read()
    return ThreadView(
        thread_id=thread_id,
        busy=content.is_busy,
        messages=[ThreadMessage.of(message) for message in content.messages],
        interrupts=[Question.model_validate(q, from_attributes=True) for q in content.questions],
    )


@router.delete(
    "/agents/{name}/threads/{thread_id}",
    status_code=204,
    responses=problems(404, 409, 422),
)
async def forget_thread(
    threads: ThreadsInPath, thread_id: ThreadInPath, principal: Runner
) -> Response:
    """Delete a conversation; one that is not there is as good as deleted."""
    await threads.of(principal, thread_id).forget()
    return Response(status_code=204)


async def _answer(turn: Turn, request: Request) -> Response:
    """Wait for the end of a turn, unless its client leaves before."""
    try:
        answer = await unless_disconnected(request, turn.answer())
    finally:
        await turn.end()
    headers = _location_headers(request, turn)
    return Response(answer.model_dump_json(), headers=headers, media_type="application/json")


def _stream(turn: Turn, request: Request) -> TurnStream:
    begin = Event(agent=turn.name, thread_id=turn.thread_id)
    return TurnStream(turn.events(), turn.end, begin, _location_headers(request, turn))


def _location_headers(request: Request, turn: Turn) -> dict[str, str]:
    path = f"/agents/{turn.name}/threads/{turn.thread_id}"
    return {"Content-Location": address(request, path)}
