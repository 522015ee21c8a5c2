"""Whatever shape a graph of others has: guards hold in it, or say that they do not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool

from agentgraph import Agent, Hub, Team, patched
from agentgraph.errors import ConfigurationError
from agentgraph.guards import CostBudget, Gate, Guards, Subject
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.foreign_graphs.foreign_shapes import SHAPES, Shape, functional
from tests.guards.guarded_agents import watched

# langgraph-supervisor uses what LangGraph has moved elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent")
GO = {"messages": [HumanMessage("go")]}
SECRET = "Rosebud"
MODES: Any = ["messages", "values", "updates", "custom", "debug"]
EVERY = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


class Office:
    """A graph of a shape, its model, and what its tool has done."""

    def __init__(self, shape: Shape) -> None:
        self.ran: list[str] = []
        self.is_found = shape.is_found
        turns: list[Any] = [
            Turn(f"{SECRET} first.", calls=[call("wipe", disk="c")]),
            f"It is {SECRET}.",
            "I may not say.",
        ]
        self.model = ScriptedModel(turns)
        self.graph = shape.make(self.model, self._tool())

    def _tool(self) -> BaseTool:
        @tool
        def wipe(disk: str) -> str:
            """Wipe a disk."""
            self.ran.append(disk)
            return "wiped"

        return wipe

    def patched(self, guards: Guards) -> Any:
        """Return the graph under guards; its model's node is named where guards do not find it."""
        if self.is_found:
            return patched(self.graph, guards)
        with pytest.raises(ConfigurationError, match="name it, patched"):
            patched(self.graph, guards)
        name = next(node for node in ("think", "work") if node in self.graph.builder.nodes)
        return patched(self.graph, guards, model=name)

    def agent(self, guards: Guards) -> Agent:
        """Return an agent above the graph."""
        boss = ScriptedModel([call("transfer_to_office"), "Bye."])
        return Agent("boss", model=boss, agents=[self.graph], guards=guards)

    def team(self, guards: Guards) -> Team:
        """Return a team of the graph alone."""
        return Team([self.graph], sequence(["office"]), guards=guards)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Expect a warning where guards do not find the model's node, and none elsewhere."""
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            yield
        texts = [str(record.message) for record in records]
        assert any("in a node that guards cannot find" in text for text in texts) != self.is_found


def is_allowed(subject: Subject) -> bool:
    return subject.tool != "wipe"


def is_discreet(subject: Subject) -> bool:
    return SECRET not in subject.text


@EVERY
@pytest.mark.parametrize("door", ["patched", "sync", "agent", "team", "session", "served"])
async def test_a_forbidden_tool_never_runs(shape: Shape, door: str) -> None:
    office, guards = Office(shape), watched(gates=Gate(policy=is_allowed))
    if door == "patched":
        await office.patched(guards).ainvoke(GO)
    elif door == "sync":
        office.patched(guards).invoke(GO)
    elif door == "agent":
        with office.told():
            await office.agent(guards).ainvoke("go")
    elif door == "team":
        with office.told():
            await office.team(guards).arun("go")
    elif door == "session":
        with office.told():
            await served(office.team(guards))
    else:
        await served(office.patched(guards))
    assert office.ran == []
    assert office.model.requests


async def served(team: Any) -> str:
    async with await Hub.open("memory", serve=[team]) as hub:
        session = await hub.session(team, id="s", ttl=None)
        await session.send("user", "go")
        await session.settled()
        return repr(await session.history())


@EVERY
@pytest.mark.parametrize("limits", [{"steps": 2}, {"budget": CostBudget(tokens=2_500)}])
@pytest.mark.filterwarnings("ignore:guards")
async def test_each_call_of_a_model_counts(shape: Shape, limits: Any) -> None:
    usage: Any = {"input_tokens": 900, "output_tokens": 100, "total_tokens": 1_000}
    office = Office(shape)
    turn = Turn("", calls=[call("wipe", disk="c")], usage=usage)
    office.model = ScriptedModel(lambda _: turn)
    office.graph = shape.make(office.model, office._tool())
    await office.agent(watched(loop=None, **limits)).ainvoke("go")
    # No worst case is reserved for a call that guards cannot find, so one more is made.
    assert len(office.model.requests) <= (2 if "steps" in limits else 3)


@EVERY
@pytest.mark.filterwarnings("ignore:guards")
async def test_no_stream_of_the_graph_shows_what_a_gate_refuses(shape: Shape) -> None:
    async def shown(graph: Any) -> str:
        parts = [part async for part in graph.astream(GO, stream_mode=MODES, subgraphs=True)]
        return repr(parts)

    async def events(graph: Any) -> str:
        return repr([event async for event in graph.astream_events(GO, version="v2")])

    guards = watched(gates=Gate(invariants=[is_discreet]))
    assert SECRET not in await shown(Office(shape).patched(guards))
    assert SECRET not in await events(Office(shape).patched(guards))
    assert SECRET not in await shown(Office(shape).agent(guards).graph)
    parts = Office(shape).patched(guards).stream(GO, stream_mode=MODES, subgraphs=True)
    assert SECRET not in repr([*parts])


@EVERY
@pytest.mark.filterwarnings("ignore:guards")
async def test_no_stream_above_the_graph_shows_what_a_gate_refuses(shape: Shape) -> None:
    guards = watched(gates=Gate(invariants=[is_discreet]))
    agent = Office(shape).agent(guards)
    told = [event.to_json().decode() async for event in agent.astream("go", thread_id="t")]
    assert SECRET not in "".join(told)
    assert SECRET not in repr(await Office(shape).team(guards).arun("go"))


async def test_a_text_that_passes_is_shown_once_and_whole() -> None:
    shape = SHAPES["custom stream"]
    office, guards = Office(shape), watched(gates=Gate(invariants=[lambda subject: True]))
    parts = office.patched(guards).astream(GO, stream_mode=["messages", "custom"])
    chunks = [(mode, chunk) async for mode, chunk in parts]
    assert "".join(chunk for mode, chunk in chunks if mode == "custom").endswith(f"It is {SECRET}.")
    told = [str(chunk[0].text) for mode, chunk in chunks if mode == "messages"]
    assert told.count(f"It is {SECRET}.") == 1
    agent = Office(shape).agent(guards)
    events = [event async for event in agent.astream("go", thread_id="t")]
    assert [e.text for e in events if e.type == "ai_message"] == [
        f"{SECRET} first.",
        f"It is {SECRET}.",
    ]


@pytest.mark.parametrize("door", ["patched", "agent", "team", "hub"])
async def test_the_functional_api_is_refused(door: str) -> None:
    office = Office(Shape(functional))
    with pytest.raises(ConfigurationError, match="functional API"):
        if door == "patched":
            patched(office.graph, watched())
        elif door == "agent":
            office.agent(watched())
        elif door == "team":
            office.team(watched())
        else:
            await Hub.open("memory", serve=[office.graph])
    assert office.model.requests == []
