"""A text that a gate refuses never goes over the wire, neither as an event nor in an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent

from agentgraph import Agent, Guards
from agentgraph.guards import Gate, Subject
from agentgraph.testing import ScriptedModel, Turn, call
from tests.server.live_server import lookup, serving

SECRET = "The code is PIN4711."


def discreet(subject: Subject) -> bool:
    """Refuse what tells the code."""
    return SECRET not in subject.text


GATED = Guards.interactive(gates=[Gate(invariants=[discreet])])
TURNS: list[Any] = [Turn(SECRET, [call("lookup", order="A7")]), SECRET, "I may not say."]


def alone() -> Agent:
    return Agent("Solo", model=ScriptedModel(TURNS), tools=[lookup], guards=GATED)


def above(handoff: Any) -> Callable[[], Agent]:
    """Return an agent whose sub-agent tells the code."""

    def build() -> Agent:
        leaf = Agent("Leaf", model=ScriptedModel(TURNS), tools=[lookup])
        model = ScriptedModel([call("transfer_to_Leaf"), "I may not say."])
        return Agent("Solo", model=model, agents=[leaf], guards=GATED, handoff=handoff)

    return build


def above_foreign() -> Agent:
    graph: Any = create_agent(ScriptedModel(TURNS), [lookup], name="Leaf")
    model = ScriptedModel([call("transfer_to_Leaf")])
    return Agent("Solo", model=model, agents=[graph], guards=GATED)


SHAPES = {
    "alone": alone,
    "sticky": above("sticky"),
    "delegate": above("delegate"),
    "foreign": above_foreign,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", ["completion", "stream-completion"])
async def test_what_a_gate_refuses_is_not_on_the_wire(shape: str, path: str) -> None:
    async with serving(SHAPES[shape]()) as client:
        answer = await client.post(f"/agents/Solo/{path}", json={"prompt": "hi", "thread_id": "t"})
        thread = await client.get("/agents/Solo/threads/t")
    assert "I may not say." in answer.text
    assert "PIN4711" not in answer.text
    assert "PIN4711" not in thread.text


async def test_what_a_gate_allows_is_on_the_wire() -> None:
    agent = alone().replace(guards=Guards.interactive())
    async with serving(agent) as client:
        answer = await client.post("/agents/Solo/stream-completion", json={"prompt": "hi"})
    assert "PIN4711" in answer.text
