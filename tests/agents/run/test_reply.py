from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel

from agentgraph import Agent, Finish, Guards
from agentgraph.stream import FinalStateEvent
from agentgraph.testing import ScriptedModel, call


class Weather(BaseModel):
    """The weather of a town."""

    town: str
    rain: bool = True


def look() -> str:
    """Look something up."""
    return "looked up"


@tool(return_direct=True)
def show() -> str:
    """Show something to the user at once."""
    return "shown"


def end() -> Finish:
    """End the turn."""
    return Finish("That is all.")


def ask() -> str:
    """Ask a human."""
    return str(interrupt("Sure?"))


def agent(*turns: Any, **fields: Any) -> Agent:
    tools: list[Any] = [look, show, end, ask]
    return Agent("desk", model=ScriptedModel(turns), tools=tools, **fields)


async def test_messages_of_a_reply_can_be_the_update_of_a_node() -> None:
    desk = agent("hello")

    async def node(state: MessagesState) -> MessagesState:
        reply = await desk.ainvoke(state["messages"])
        return {"messages": reply.messages}

    builder = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
    result = await builder.compile().ainvoke({"messages": [HumanMessage("hi")]})

    assert [m.text for m in result["messages"]] == ["hi", "hello"]


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        ([call("look"), "Done."], "Done."),
        ([call("show")], "shown"),
        ([call("end")], "That is all."),
    ],
)
async def test_text_is_what_ended_the_turn(turns: list[Any], text: str) -> None:
    assert (await agent(*turns).ainvoke("go")).text == text


async def test_text_of_an_answer_in_a_form_is_its_json() -> None:
    desk = agent(call("Weather", town="Bath"), response_format=Weather)

    reply = await desk.ainvoke("go")

    assert reply.text == '{"town":"Bath","rain":true}'
    assert reply.output == Weather(town="Bath")


async def test_text_is_empty_while_the_run_waits_for_a_human() -> None:
    desk = agent(call("ask"), "Done.")

    waiting = await desk.ainvoke("go", thread_id="t")
    done = await desk.aresume("t", {waiting.interrupts[0].id: "yes"})

    assert (waiting.text, len(waiting.interrupts), done.text) == ("", 1, "Done.")


@pytest.mark.parametrize("depth", [0, 1])
async def test_text_of_a_run_that_a_guard_ended_says_which_and_why(depth: int) -> None:
    desk = agent(*[call("look")] * 9)  # enough for two runs
    for name in ["above"][:depth]:
        turns = [call("transfer_to_desk")] * 2
        desk = Agent(name, model=ScriptedModel(turns), agents=[desk])
    desk = desk.replace(guards=Guards.interactive(steps=3))

    reply = await desk.ainvoke("go")
    events = [e async for e in desk.astream("go") if isinstance(e, FinalStateEvent)]

    assert reply.close_reason == "max_steps"
    assert reply.text.startswith("The run was ended by the guard max_steps: ")
    assert reply.text.endswith(".")
    assert [e.text for e in events] == [reply.text]


async def test_text_of_a_run_that_a_guard_ended_is_what_was_said_so_far_and_why_it_ended() -> None:
    spoken = AIMessage("Let me look.", tool_calls=[call("look")])
    turns: list[Any] = [spoken, call("look"), call("look")]
    desk = Agent(
        "desk", model=ScriptedModel(turns), tools=[look], guards=Guards.interactive(steps=2)
    )

    reply = await desk.ainvoke("go")

    assert reply.close_reason == "max_steps"
    assert reply.text.startswith("Let me look.\n\nThe run was ended by the guard max_steps: ")


def test_policy_is_the_guards_in_force() -> None:
    own = Guards.interactive(steps=3)

    assert agent(guards=own).policy is own
    assert agent(guards=None).policy is None
    default = agent()
    assert isinstance(default.policy, Guards)
    assert default.policy is default.policy
    assert default.policy.tier == "interactive"
