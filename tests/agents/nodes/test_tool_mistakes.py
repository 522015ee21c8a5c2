"""What of a tool raises, because no model can mend it, and what a model is told."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import InjectedState, InjectedStore
from langgraph.store.base import BaseStore
from langgraph.types import Command

from agentgraph import Agent, Guards
from agentgraph.errors import ConfigurationError
from agentgraph.stream import ToolResponseEvent
from agentgraph.testing import ScriptedModel, call


@pytest.fixture(params=[None, "guarded"])
def guards(request: pytest.FixtureRequest) -> Any:
    return Guards.interactive() if request.param else None


@tool
def remember(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Remember a text."""
    return "remembered"


@tool
def look_up(customer: Annotated[str, InjectedState("customer")]) -> str:
    """Look a customer up."""
    return customer


@tool
def forget_the_answer() -> Any:
    """Answer with a command that has no answer."""
    return Command(update={"messages": []})


def add(x: int) -> str:
    """Add a number."""
    if x < 0:
        raise ValueError("too small")
    return f"got {x}"


MISTAKES: Any = [
    (remember, {"text": "A7"}, "'remember'.*store"),
    (look_up, {}, "'look_up'.*customer"),
    (forget_the_answer, {}, "'forget_the_answer'.*ToolMessage"),
]


@pytest.mark.parametrize(("broken", "args", "text"), MISTAKES)
@pytest.mark.parametrize("beside", [False, True])
async def test_a_developers_mistake_raises(
    broken: Any, args: Any, text: str, beside: bool, guards: Any
) -> None:
    calls = [call(broken.name, **args), *([call("add", x=1)] if beside else [])]
    model = ScriptedModel([calls, "never"])
    agent = Agent("desk", model=model, tools=[broken, add], guards=guards)
    with pytest.raises(ConfigurationError, match=text):
        await agent.ainvoke("hi")


async def test_middleware_that_retries_does_not_hide_a_developers_mistake(guards: Any) -> None:
    retry: AgentMiddleware[Any, Any] = ToolRetryMiddleware(max_retries=1, initial_delay=0.0)
    model = ScriptedModel([call("remember", text="A7"), "never"])
    agent = Agent("desk", model=model, tools=[remember], middleware=[retry], guards=guards)
    with pytest.raises(ConfigurationError, match="'remember'"):
        await agent.ainvoke("hi")


async def test_a_models_mistake_is_told_to_the_model(guards: Any) -> None:
    script: list[Any] = [call("add", x="many"), call("add", x=-1), call("nothing"), "sorry"]
    agent = Agent("desk", model=ScriptedModel(script), tools=[add], guards=guards)
    reply = await agent.ainvoke("hi")
    answers = [m for m in reply.messages if isinstance(m, ToolMessage)]
    assert [m.status for m in answers] == ["error"] * 3
    assert reply.text == "sorry"


# A tool's own messages.


async def test_a_tools_own_message_keeps_its_name(guards: Any) -> None:
    @tool
    def ask(call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Ask somebody."""
        return ToolMessage("yes", tool_call_id=call_id, name="colleague")

    agent = Agent("desk", model=ScriptedModel([call("ask"), "done"]), tools=[ask], guards=guards)
    events = [event async for event in agent.astream("hi", thread_id="t")]
    history = await agent.ahistory("t")
    assert [m.name for m in history if isinstance(m, ToolMessage)] == ["colleague"]
    assert [e.tool for e in events if isinstance(e, ToolResponseEvent)] == ["ask"]


async def test_after_all_messages_are_removed_no_answer_is_invented(guards: Any) -> None:
    @tool
    def clear() -> Any:
        """Forget everything."""
        return Command(update={"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})

    model = ScriptedModel([call("clear"), "who are you?"])
    agent = Agent("desk", model=model, tools=[clear], guards=guards)
    await agent.ainvoke("hi", thread_id="t")
    history: list[AnyMessage] = await agent.ahistory("t")
    assert [type(message) for message in history] == [AIMessage]
    assert history[0].text == "who are you?"


async def test_of_parallel_calls_one_may_remove_all_messages(guards: Any) -> None:
    @tool
    def clear() -> Any:
        """Forget everything."""
        return Command(update={"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})

    model = ScriptedModel([[call("add", x=1), call("clear")], "who are you?"])
    agent = Agent("desk", model=model, tools=[clear, add], guards=guards)
    reply = await agent.ainvoke("hi", thread_id="t")
    assert reply.text == "who are you?"
    assert not [m for m in await agent.ahistory("t") if "is done" in str(m.text)]
