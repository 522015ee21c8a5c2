"""Graphs of others that have a model and no tools: under the same guards as those with tools."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel, Field

from agentgraph import Agent, Team
from agentgraph.errors import ModelError
from agentgraph.guards import CostBudget, Escalation, Gate, MemorySink, Subject
from agentgraph.routing import round_robin
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.guarded_agents import audited, is_legal, watched, words_of


def alone(model: Any) -> Any:
    return create_agent(model, [], name="clerk")


def alone_by_hand(model: Any) -> Any:
    async def ask(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_edge(START, "model")
    return graph.compile(name="clerk")


def secretive() -> ScriptedModel:
    used: Any = {"input_tokens": 900, "output_tokens": 100, "total_tokens": 1_000}
    return ScriptedModel(lambda _: Turn("The secret is 7.", usage=used))


def is_harmless(subject: Subject) -> bool:
    return "secret" not in subject.text


ALONE = pytest.mark.parametrize("made", [alone, alone_by_hand], ids=["langchain", "by hand"])


@ALONE
@pytest.mark.parametrize("mode", ["sticky", "delegate"])
async def test_a_sub_agent_without_tools_has_its_supervisor_s_gates(made: Any, mode: Any) -> None:
    sink = MemorySink()
    boss = ScriptedModel([call("transfer_to_clerk"), "I am here."])
    guards = watched(sink, gates=Gate(policy=is_harmless))
    agent = Agent("boss", model=boss, agents=[made(secretive())], handoff=mode, guards=guards)
    reply = await agent.ainvoke("go", thread_id="t")
    assert (words_of(reply), reply.close_reason) == ("", "gate")
    assert audited(sink) == [("boss/clerk", "gate", "abort")]
    assert is_legal(await agent.ahistory("t"))


@ALONE
async def test_a_sub_agent_without_tools_is_weighed_by_a_critic(made: Any) -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1 if subject.stage == "clerk" else 1.0)
    boss = ScriptedModel([call("transfer_to_clerk")])
    agent = Agent("boss", model=boss, agents=[made(secretive())], guards=watched(escalation=critic))
    (question,) = (await agent.ainvoke("go", thread_id="t")).interrupts
    reply = await agent.aresume("t", {question.id: "approve"})
    assert (reply.text, reply.close_reason) == ("The secret is 7.", None)


@ALONE
@pytest.mark.parametrize(
    ("held", "reason", "asked"),
    [
        ({"steps": 2}, "max_steps", 2),
        ({"budget": CostBudget(tokens=2_000)}, "cost_budget", 2),
        ({"gates": Gate(policy=is_harmless)}, "gate", 1),
    ],
)
async def test_a_speaker_without_tools_is_under_its_team_s_guards(
    made: Any, held: Any, reason: str, asked: int
) -> None:
    model = secretive()
    team = Team([made(model)], round_robin(["clerk"], max_turns=4), guards=watched(**held))
    reply = await team.arun("go")
    assert (reply.close_reason, len(model.requests)) == (reason, asked)


class Kept(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = Field(default_factory=list)


async def test_a_graph_with_a_model_of_pydantic_as_state_is_guarded() -> None:
    model = ScriptedModel(["The secret is 7.", "I cannot say."])
    graph = StateGraph(Kept)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state.messages)]})
    graph.add_edge(START, "model")
    boss = ScriptedModel([call("transfer_to_clerk")])
    guards = watched(gates=Gate(policy=is_harmless))
    agent = Agent("boss", model=boss, agents=[graph.compile(name="clerk")], guards=guards)
    reply = await agent.ainvoke("go")
    assert (reply.close_reason, "secret" in reply.text) == ("gate", False)


async def test_a_node_that_may_be_any_work_is_not_run_again() -> None:
    charged: list[str] = []

    def charge(state: MessagesState) -> Any:
        charged.append("charged")
        raise ConnectionError("lost")

    graph = StateGraph(MessagesState)
    graph.add_node("agent", charge)
    graph.add_edge(START, "agent")
    boss = ScriptedModel([call("transfer_to_clerk")])
    agent = Agent("boss", model=boss, agents=[graph.compile(name="clerk")], guards=watched())
    with pytest.raises(ModelError, match="ConnectionError"):
        await agent.ainvoke("go")
    assert charged == ["charged"]
