"""The routes of what is served: teams, agents, flows and graphs, each with its members."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field

from agentgraph import Agent, AgentGraphError, Flow
from agentgraph.drawing.graph import NodeKind
from agentgraph.errors import ConfigurationError
from agentgraph.participant import Graph, Participant
from agentgraph.sessions.single.team import SingleTeam, team_of
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph_server.agents.schemas import ToolCard, tools_of
from agentgraph_server.api.pictures import picture_of_served
from agentgraph_server.principals.principal import Reader
from agentgraph_server.problems import problems
from agentgraph_server.wire import JsonValue, Name

router = APIRouter(tags=["served"])

Served: TypeAlias = CompiledTeam | Participant | Graph
"""What can be served: a team, an agent, a flow, or a named compiled graph with `messages`."""
Teams: TypeAlias = Mapping[str, CompiledTeam]
Kind = Literal["agent", "team", "flow", "graph"]


class UnknownServed(AgentGraphError):
    """Nothing of this name is served."""

    code = "unknown_served"


class ServedCard(BaseModel):
    """What is served, or a member of it."""

    name: str
    kind: Kind
    description: str = ""
    tools: list[ToolCard] = []
    members: list[ServedCard] = Field(
        default=[], description="Sub-agents, members of a team, workers."
    )


class ServedDetail(ServedCard):
    """What is served, with the forms of what goes in and comes out."""

    humans: Sequence[str] = Field(default=[], description="The people that a team has by name.")
    output_schema: JsonValue = Field(
        default=None, description="A JSON Schema of `output`, if it has one."
    )


def served_by_name(values: Sequence[Served]) -> Teams:
    """Return the teams that hold the sessions of what is served, by name.

    Raises `ConfigurationError` with every fault: each value that cannot be served, and each name
    that two have.
    """
    teams: dict[str, CompiledTeam] = {}
    faults = [] if values else ["nothing to serve: give at least one agent, team, flow or graph"]
    for value in values:
        try:
            team = team_of(value)
        except ConfigurationError as error:
            faults += error.faults
            continue
        if team.name in teams:
            text = "two that are served are called {!r}: their addresses would be the same"
            faults.append(text.format(team.name))
        teams[team.name] = team
    if faults:
        raise ConfigurationError(faults)
    return teams


def card_of(member: object, name: str) -> ServedCard:
    """Describe a participant, and those below it."""
    card = ServedCard(name=name, kind=_kind_of(member), description=_description_of(member))
    if isinstance(member, Agent):
        card.tools = tools_of(member)
        card.members = [card_of(below, below.name) for below in member.sub_agents]
    elif isinstance(member, Flow):
        card.members = [card_of(worker, worker.name) for worker in member.participants]
    elif isinstance(member, CompiledTeam):
        card.members = [card_of(part, part.name) for part in member.participants]
    return card


def _subject(team: CompiledTeam) -> object:
    """Return what was given to be served."""
    return team.participant if isinstance(team, SingleTeam) else team


def _kind_of(member: object) -> Kind:
    if isinstance(member, Agent):
        return "agent"
    if isinstance(member, Flow):
        return "flow"
    return "team" if isinstance(member, CompiledTeam) else "graph"


def _description_of(member: object) -> str:
    return str(getattr(member, "description", "") or "")


def _teams(request: Request) -> Teams:
    teams: Teams = request.app.state.served
    return teams


TeamsOfApp = Annotated[Teams, Depends(_teams)]


def _team(name: Annotated[Name, Path()], teams: TeamsOfApp) -> CompiledTeam:
    try:
        return teams[name]
    except KeyError:
        names = ", ".join(teams)
        raise UnknownServed(f"nothing called {name!r} is served: there are {names}") from None


TeamInPath = Annotated[CompiledTeam, Depends(_team)]
_READ = problems(404, 422)


@router.get("/served")
async def list_served(teams: TeamsOfApp, principal: Reader) -> list[ServedCard]:
    """List what is served."""
    return [card_of(_subject(team), name) for name, team in teams.items()]


@router.get("/served/{name}", responses=_READ)
async def describe_served(team: TeamInPath, principal: Reader) -> ServedDetail:
    """Describe what is served: its members, their tools, the people it knows."""
    subject = _subject(team)
    form: Any = getattr(subject, "response_format", None) or getattr(subject, "outcome", None)
    return ServedDetail(
        **card_of(subject, team.name).model_dump(),
        humans=team.humans,
        output_schema=_schema_of(form),
    )


def _schema_of(form: object) -> object:
    if isinstance(form, type) and issubclass(form, BaseModel):
        return form.model_json_schema()
    return form if isinstance(form, dict) else None


class NodeView(BaseModel):
    """A node with its place; `x` and `y` are its upper left corner."""

    id: str = Field(description="Of an agent its path, as events have it in `agent`.")
    label: str
    kind: NodeKind
    parent: str | None = Field(description="The id of the node that it is a part of.")
    description: str
    x: float
    y: float
    width: float
    height: float


class EdgeView(BaseModel):
    """An edge, and the points that it passes from its source to its target."""

    source: str
    target: str
    label: str
    dashed: bool = Field(description="Whether it is taken only sometimes.")
    points: Sequence[tuple[float, float]]
    label_at: tuple[float, float] | None = Field(description="The middle of the label.")


class GraphView(BaseModel):
    """What is served as a graph: agents with their tools, rules or stages; positions in pixels."""

    name: str
    kind: Kind
    width: float
    height: float
    nodes: Sequence[NodeView]
    edges: Sequence[EdgeView]


@router.get(
    "/served/{name}/graph",
    response_model=GraphView,
    responses={
        **_READ,
        200: {
            "content": {
                "image/svg+xml": {"schema": {"type": "string"}},
                "text/plain": {"schema": {"type": "string"}},
            }
        },
    },
)
async def draw_served(
    team: TeamInPath,
    principal: Reader,
    format: Annotated[Literal["json", "svg", "mermaid"], Query()] = "json",
) -> Response:
    """Draw what is served: as JSON with positions, as SVG, or as Mermaid text."""
    subject: Any = _subject(team)
    if format == "json":
        # A large graph takes a while to lay out.
        scene = await asyncio.to_thread(picture_of_served, subject)
        view = GraphView(name=team.name, kind=_kind_of(subject), **scene.to_dict())
        return Response(view.model_dump_json(), media_type="application/json")
    if not hasattr(subject, "svg"):
        subject = team
    if format == "svg":
        return Response(subject.svg(), media_type="image/svg+xml")
    return Response(subject.mermaid(), media_type="text/plain")
