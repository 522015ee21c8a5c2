"""What is served as a graph for people: agents with their tools, rules, stages; no plumbing.

The id of an agent's node is its path, as events have it in `agent`: a page can show who has the
floor. What is no agent has an id that no path can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentgraph import Agent, Flow
from agentgraph.drawing import Edge, Node
from agentgraph.drawing.graph import NodeKind
from agentgraph.drawing.scene import Scene, scene_of
from agentgraph.flow.display.flow_picture import picture_graph
from agentgraph.participant import Graph, Participant
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph_server.agents.schemas import tools_of

_STAGES: dict[str, NodeKind] = {"escalate": "human", "__start__": "start", "__end__": "end"}

Parts = tuple[list[Node], list[Edge]]


def picture_of_served(subject: object) -> Scene:
    """Return what is served as a graph with positions."""
    if isinstance(subject, CompiledTeam):
        nodes, edges = _team(subject)
    elif isinstance(subject, Flow):
        nodes, edges = _flow(subject)
    elif isinstance(subject, Agent):
        nodes, edges = _agent(subject, subject.name, None)
    else:
        nodes, edges = _graph(subject)
    return scene_of(nodes, edges)


def _agent(agent: Agent[Any], path: str, parent: str | None) -> Parts:
    """Return an agent, its tools and those below it; the parts of each are its children."""
    nodes = [Node(path, agent.name, "agent", parent=parent, description=agent.description)]
    edges: list[Edge] = []
    members = {member.name for member in agent.sub_agents}
    for tool in tools_of(agent):
        if tool.name not in members:
            id = f"{path}#{tool.name}"
            nodes.append(Node(id, tool.name, "tool", parent=path, description=tool.description))
            edges.append(Edge(path, id, dashed=True))
    for member in agent.sub_agents:
        id = f"{path}/{member.name}"
        below, ways = _member(member, id, path)
        nodes += below
        edges += [Edge(path, id, agent.handoff), *ways]
    return nodes, edges


def _member(member: Participant, path: str, parent: str | None) -> Parts:
    if isinstance(member, Agent):
        return _agent(member, path, parent)
    kind: NodeKind = "flow" if isinstance(member, Flow) else "graph"
    kind = "team" if isinstance(member, CompiledTeam) else kind
    description = str(getattr(member, "description", "") or "")
    return [Node(path, member.name, kind, parent=parent, description=description)], []


def _team(team: CompiledTeam) -> Parts:
    """Return the speakers of a team with what is below them, and its rules as the ways between."""
    speakers, ways = team.rules.parts()
    members = {member.name: member for member in team.participants}
    ids = {node.id: node.id.removeprefix(":") for node in speakers if node.id.startswith(":")}
    nodes: list[Node] = []
    edges: list[Edge] = []
    for node in speakers:
        id = ids.get(node.id, f"({node.id})")
        ids[node.id] = id
        member = members.pop(id, None) if node.id.startswith(":") else None
        if member is not None:
            below, inner = _member(member, id, None)
            nodes += below
            edges += inner
        else:
            nodes.append(Node(id, node.label, _kind_of(node, team.humans)))
    for member in members.values():  # whom no rule names, such as a supervisor
        below, inner = _member(member, member.name, None)
        nodes += below
        edges += inner
    edges += [Edge(ids[way.source], ids[way.target], way.label, way.dashed) for way in ways]
    return nodes, edges


def _kind_of(node: Node, humans: Sequence[str]) -> NodeKind:
    name = node.id.removeprefix(":")
    return "human" if node.id.startswith(":") and name in (*humans, "human") else node.kind


def _flow(flow: Flow[Any]) -> Parts:
    """Return the stages of a flow, its gates, and its workers with what is below them."""
    workers = {worker.name: worker for worker in flow.participants}
    names = [name for name in flow.workers if name in workers]
    has_guards = flow.policy is not None
    picture = picture_graph([*flow.workers], flow.work_topology.name, asks_humans=has_guards)
    ids = {f"work:{name}": f"{flow.name}/{name}" for name in flow.workers}
    nodes: list[Node] = []
    edges: list[Edge] = []
    for name in picture.nodes:
        if name in ids and name.removeprefix("work:") in names:
            worker = workers[name.removeprefix("work:")]
            below, inner = _member(worker, ids[name], "(fan_out)")
            nodes += below
            edges += inner
        else:
            ids.setdefault(name, f"({name.strip('_')})")
            label = name.removeprefix("work:").strip("_").replace("_", " ")
            nodes.append(Node(ids[name], label, _stage_kind(name)))
    for way in picture.edges:
        label = "" if way.data is None else str(way.data)
        edges.append(Edge(ids[way.source], ids[way.target], label, dashed=way.conditional))
    return nodes, edges


def _stage_kind(name: str) -> NodeKind:
    default: NodeKind = "gate" if name.endswith("_gate") else "stage"
    return _STAGES.get(name, default)


def _graph(graph: Any) -> Parts:
    """Return the nodes of a compiled graph, which are all that is known of it."""
    compiled_graph: Graph = getattr(graph, "graph", graph)
    picture = compiled_graph.get_graph()
    nodes = [Node(name, name.strip("_"), _graph_kind(name)) for name in picture.nodes]
    return nodes, [*_graph_edges(picture.edges)]


def _graph_edges(edges: Sequence[Any]) -> Iterator[Edge]:
    for edge in edges:
        label = "" if edge.data is None else str(edge.data)
        yield Edge(edge.source, edge.target, label, dashed=edge.conditional)


def _graph_kind(name: str) -> NodeKind:
    return _STAGES[name] if name in ("__start__", "__end__") else "box"
