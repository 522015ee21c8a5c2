"""What is served as a graph with positions: agents, tools, rules and stages, and no plumbing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agentgraph import Agent, Flow, Team, sequence
from agentgraph.testing import ScriptedModel
from tests.server.live_server import approve, lookup, serving


def agent(name: str, **fields: Any) -> Agent[Any]:
    return Agent(name, model=ScriptedModel(["never"]), **fields)


def desk() -> Agent[Any]:
    below = agent("billing", tools=[approve], description="Knows about bills.")
    return agent("desk", tools=[lookup], agents=[below])


def team() -> Team:
    writer, editor = agent("writer", tools=[lookup]), agent("editor")
    return Team([writer, editor], sequence(["writer", "editor"]), name="page")


def flow() -> Flow[Any]:
    return Flow("report", supervisor=agent("lead"), work=[agent("a", tools=[lookup]), agent("b")])


async def graph_of(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await client.get(f"/served/{name}/graph")
    assert answer.status_code == 200, answer.text
    graph: dict[str, Any] = answer.json()
    return graph


def kinds_of(graph: dict[str, Any]) -> dict[str, str]:
    return {node["id"]: node["kind"] for node in graph["nodes"]}


def ways_of(graph: dict[str, Any]) -> set[tuple[str, str]]:
    return {(edge["source"], edge["target"]) for edge in graph["edges"]}


async def test_agent_has_its_tools_and_those_below_it() -> None:
    async with serving(desk()) as client:
        graph = await graph_of(client, "desk")

    assert (graph["name"], graph["kind"]) == ("desk", "agent")
    assert kinds_of(graph) == {
        "desk": "agent",
        "desk#lookup": "tool",
        "desk/billing": "agent",
        "desk/billing#approve": "tool",
    }
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert nodes["desk/billing"]["parent"] == "desk"
    assert nodes["desk/billing"]["description"] == "Knows about bills."
    assert nodes["desk#lookup"]["description"] == "Look an order up."
    assert ways_of(graph) == {
        ("desk", "desk#lookup"),
        ("desk", "desk/billing"),
        ("desk/billing", "desk/billing#approve"),
    }


async def test_team_has_its_speakers_and_its_rules() -> None:
    async with serving(team()) as client:
        graph = await graph_of(client, "page")

    assert (
        kinds_of(graph).items()
        >= {
            "(start)": "start",
            "(end)": "end",
            "writer": "agent",
            "writer#lookup": "tool",
            "editor": "agent",
        }.items()
    )
    assert ways_of(graph) >= {("(start)", "writer"), ("writer", "editor"), ("(anyone)", "(end)")}


async def test_flow_has_its_stages_and_workers() -> None:
    async with serving(flow()) as client:
        graph = await graph_of(client, "report")

    assert (
        kinds_of(graph).items()
        >= {
            "(plan)": "stage",
            "(plan_gate)": "gate",
            "(escalate)": "human",
            "report/a": "agent",
            "report/a#lookup": "tool",
            "report/b": "agent",
        }.items()
    )
    assert ways_of(graph) >= {("(plan)", "(plan_gate)"), ("(fan_out)", "report/a")}
    assert {node["parent"] for node in graph["nodes"] if node["id"] == "report/b"} == {"(fan_out)"}


async def test_compiled_graph_has_its_nodes() -> None:
    graph = desk().graph
    graph.name = "foreign"
    async with serving(graph) as client:
        picture = await graph_of(client, "foreign")

    assert kinds_of(picture).items() >= {"__start__": "start", "call_model": "box"}.items()


@pytest.mark.parametrize("make", [desk, team, flow])
async def test_nodes_are_in_the_picture_apart_and_joined_by_their_edges(make: Any) -> None:
    async with serving(make()) as client:
        graph = await graph_of(client, make().name)

    nodes = {node["id"]: node for node in graph["nodes"]}
    for node in nodes.values():
        assert node["x"] >= 0 and node["x"] + node["width"] <= graph["width"]
        assert node["y"] >= 0 and node["y"] + node["height"] <= graph["height"]
        assert node["parent"] is None or node["parent"] in nodes
    boxes = list(nodes.values())
    assert not any(overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
    for edge in graph["edges"]:
        first, last = edge["points"][0], edge["points"][-1]
        assert touches(nodes[edge["source"]], first), edge
        assert touches(nodes[edge["target"]], last), edge


def overlap(a: dict[str, Any], b: dict[str, Any]) -> bool:
    apart_x = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
    apart_y = a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
    return not (apart_x or apart_y)


def touches(node: dict[str, Any], point: list[float]) -> bool:
    x, y = point
    inside_x = node["x"] - 1 <= x <= node["x"] + node["width"] + 1
    return bool(inside_x and node["y"] - 1 <= y <= node["y"] + node["height"] + 1)


@pytest.mark.parametrize(
    ("format", "media_type", "begin"),
    [("svg", "image/svg+xml", "<svg"), ("mermaid", "text/plain", "")],
)
async def test_other_forms_are_on_request(format: str, media_type: str, begin: str) -> None:
    async with serving(desk()) as client:
        answer = await client.get("/served/desk/graph", params={"format": format})

    assert answer.headers["content-type"].startswith(media_type)
    assert answer.text.startswith(begin)
