from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain.tools import ToolRuntime
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.testing import FakeClock, ScriptedModel, call

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)


@dataclass
class Customer:
    tier: str


def spy(order: str = "A7") -> str:
    """Look something up."""
    return f"{order} is lost"


def system_of(model: ScriptedModel) -> str:
    return model.requests[-1].system


async def test_prompt_heads_what_the_model_is_sent() -> None:
    model = ScriptedModel(["hello"])

    await Agent("Solo", model=model, system_prompt="Be brief.").ainvoke("hi")

    assert system_of(model).startswith("Be brief.")


async def test_prompt_may_be_a_message() -> None:
    model = ScriptedModel(["hello"])

    await Agent("Solo", model=model, system_prompt=SystemMessage("Be brief.")).ainvoke("hi")

    assert system_of(model).startswith("Be brief.")


async def test_date_is_added_below_the_prompt() -> None:
    model = ScriptedModel(["hello"])

    with FakeClock(NOON).installed():
        await Agent("Solo", model=model, system_prompt="Be brief.").ainvoke("hi")

    assert system_of(model) == "Be brief.\n\nCURRENT_DATE: 2026-03-14"


async def test_date_is_the_whole_prompt_where_there_is_no_other() -> None:
    model = ScriptedModel(["hello"])

    with FakeClock(NOON).installed():
        await Agent("Solo", model=model).ainvoke("hi")

    assert system_of(model) == "CURRENT_DATE: 2026-03-14"


@pytest.mark.parametrize("prompt", ["Today is 2026-03-14.", "CURRENT_DATE: a good day"])
async def test_date_is_not_added_twice(prompt: str) -> None:
    model = ScriptedModel(["hello"])

    with FakeClock(NOON).installed():
        await Agent("Solo", model=model, system_prompt=prompt).ainvoke("hi")

    assert system_of(model) == prompt


async def test_date_follows_the_clock_from_turn_to_turn() -> None:
    model = ScriptedModel(["hello", "hello"])
    agent = Agent("Solo", model=model)

    with FakeClock(NOON).installed() as clock:
        await agent.ainvoke("hi", thread_id="t")
        clock.advance(24 * 60 * 60)
        await agent.ainvoke("hi", thread_id="t")

    assert [r.system for r in model.requests] == [
        "CURRENT_DATE: 2026-03-14",
        "CURRENT_DATE: 2026-03-15",
    ]


async def test_callable_prompt_is_given_the_whole_history() -> None:
    seen: list[list[str]] = []

    def prompt(messages: list[AnyMessage]) -> str:
        seen.append([m.text for m in messages])
        return f"There are {len(messages)} messages."

    model = ScriptedModel(["one", "two"])
    agent = Agent("Solo", model=model, system_prompt=prompt, history=1)

    await agent.ainvoke("first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert seen == [["first"], ["first", "one", "second"]]
    assert system_of(model).startswith("There are 3 messages.")


async def test_callable_prompt_may_be_async() -> None:
    async def prompt(messages: list[AnyMessage]) -> str:
        return f"The last is {messages[-1].text}."

    model = ScriptedModel(["hello"])

    await Agent("Solo", model=model, system_prompt=prompt).ainvoke("hi")

    assert system_of(model).startswith("The last is hi.")


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (SystemMessage("Be brief."), "Be brief."),
        (SystemMessage([{"type": "text", "text": "Be brief."}]), "Be brief."),
        ([SystemMessage("Be brief."), "Be kind."], "Be brief.\n\nBe kind."),
        ([], "CURRENT_DATE"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_callable_prompt_may_return_system_messages(
    returned: Any, text: str, is_async: bool
) -> None:
    def prompt(messages: list[AnyMessage]) -> Any:
        return returned

    async def async_prompt(messages: list[AnyMessage]) -> Any:
        return returned

    model = ScriptedModel(["hello"])
    agent = Agent("Solo", model=model, system_prompt=async_prompt if is_async else prompt)

    await agent.ainvoke("hi")

    assert system_of(model).startswith(text)


@pytest.mark.parametrize("returned", [None, 3, HumanMessage("hi"), ["a", HumanMessage("hi")]])
async def test_callable_prompt_that_returns_no_text_is_an_error(returned: Any) -> None:
    agent = Agent("Solo", model=ScriptedModel([]), system_prompt=lambda _: returned)

    advice = r"agent 'Solo' returned a .*: return a text"
    with pytest.raises(ConfigurationError, match=advice) as error:
        await agent.ainvoke("hi")

    assert error.value.code == "system_prompt"


async def test_callable_prompt_of_a_sub_agent_is_given_the_parents_history_too() -> None:
    seen: list[list[str]] = []

    def prompt(messages: list[AnyMessage]) -> str:
        seen.append([m.text for m in messages])
        return "Help."

    sub = Agent("Sub", model=ScriptedModel(["one", "two"]), system_prompt=prompt)
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub])

    await agent.ainvoke("@Sub first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert seen == [["@Sub first"], ["@Sub first", "one", "second"]]


async def test_sub_agents_prompt_is_headed_by_its_supervisor() -> None:
    model = ScriptedModel(["hello"])
    sub = Agent("Sub", model=model, system_prompt="Answer billing questions.")

    with FakeClock(NOON).installed():
        await Agent("Root", model=ScriptedModel([]), agents=[sub]).ainvoke("@Sub hi")

    assert system_of(model) == (
        "SUPERVISOR SYSTEM PROMPT:\n"
        "Remember, you are a specialized agent working under Root.\n"
        "Stay focused on your role. Use `request_help` if uncertain.\n"
        "SUBAGENT SYSTEM PROMPT:\n"
        "Answer billing questions.\n"
        "\n"
        "CURRENT_DATE: 2026-03-14"
    )


async def test_supervisor_in_the_prompt_is_the_one_right_above() -> None:
    model = ScriptedModel(["hello"])
    mid = Agent("Mid", model=ScriptedModel([]), agents=[Agent("Leaf", model=model)])

    await Agent("Root", model=ScriptedModel([]), agents=[mid]).ainvoke("@Leaf hi")

    assert "working under Mid." in system_of(model)


async def test_same_agent_alone_has_no_supervisor_in_its_prompt() -> None:
    model = ScriptedModel(["below", "alone"])
    sub = Agent("Sub", model=model)
    await Agent("Root", model=ScriptedModel([]), agents=[sub]).ainvoke("@Sub hi")

    await sub.ainvoke("hi")

    assert "SUPERVISOR" not in system_of(model)
    assert "request_help" not in model.requests[-1].tools


async def test_history_as_a_number_shows_the_last_messages() -> None:
    model = ScriptedModel(["one", "two", "three"])
    agent = Agent("Solo", model=model, history=2)

    for text in ("first", "second", "third"):
        await agent.ainvoke(text, thread_id="t")

    assert [m.text for m in model.requests[-1].messages[1:]] == ["second", "two", "third"]
    assert len(await agent.ahistory("t")) == 6


async def test_history_as_a_number_keeps_calls_and_answers_together() -> None:
    both = [call("spy", order="A7"), call("spy", order="B8")]
    model = ScriptedModel([both, "done"])
    agent = Agent("Solo", model=model, tools=[spy], history=1)

    await agent.ainvoke("hi")

    assert [m.type for m in model.requests[-1].messages[1:]] == ["human", "ai", "tool", "tool"]


async def test_history_as_a_function_decides_itself() -> None:
    def humans(messages: list[AnyMessage]) -> list[AnyMessage]:
        return [m for m in messages if isinstance(m, HumanMessage)]

    model = ScriptedModel(["one", "two"])
    agent = Agent("Solo", model=model, history=humans)

    await agent.ainvoke("first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert [m.text for m in model.requests[-1].messages[1:]] == ["first", "second"]


async def test_history_as_a_function_that_tears_a_pair_apart_is_mended() -> None:
    def torn(messages: list[AnyMessage]) -> list[AnyMessage]:
        return [m for m in messages if not isinstance(m, ToolMessage)]

    model = ScriptedModel([call("spy"), "done"])
    agent = Agent("Solo", model=model, tools=[spy], history=torn)

    reply = await agent.ainvoke("hi")

    assert reply.text == "done"
    assert "Outcome unknown" in model.requests[-1].messages[-1].text


async def test_history_as_a_function_may_add_a_system_message() -> None:
    def summed_up(messages: list[AnyMessage]) -> list[AnyMessage]:
        return [SystemMessage("Earlier: greetings."), *messages[-1:]]

    model = ScriptedModel(["one"])
    agent = Agent("Solo", model=model, system_prompt="Be brief.", history=summed_up)

    await agent.ainvoke("first")

    assert [m.type for m in model.requests[-1].messages] == ["system", "human"]
    assert "Earlier: greetings." in system_of(model)


async def test_history_is_cut_for_a_sub_agent_as_well() -> None:
    model = ScriptedModel(["one", "two"])
    sub = Agent("Sub", model=model, history=1)
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub])

    await agent.ainvoke("@Sub first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert [m.text for m in model.requests[-1].messages[1:]] == ["second"]


@pytest.mark.parametrize("agent_path", ["root", "sub"])
async def test_context_reaches_tools(agent_path: str) -> None:
    seen: list[str] = []

    def tier_of(runtime: ToolRuntime[Customer]) -> str:
        """Tell the customer's tier."""
        seen.append(runtime.context.tier)
        return "told"

    worker = Agent(
        "Sub",
        model=ScriptedModel([call("tier_of"), "done"]),
        tools=[tier_of],
        context_schema=Customer,
    )
    root = Agent("Root", model=ScriptedModel([]), agents=[worker], context_schema=Customer)
    agent, text = (worker, "hi") if agent_path == "root" else (root, "@Sub hi")

    await agent.ainvoke(text, context=Customer("gold"))

    assert seen == ["gold"]


async def test_config_reaches_tools() -> None:
    seen: list[object] = []

    def read(config: RunnableConfig) -> str:
        """Read the configuration."""
        seen.append((config["configurable"]["tenant"], config["configurable"]["thread_id"]))
        return "read"

    sub = Agent("Sub", model=ScriptedModel([call("read"), "done"]), tools=[read])
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub])

    await agent.ainvoke("@Sub hi", thread_id="t", config={"configurable": {"tenant": "acme"}})

    assert seen == [("acme", "t")]


async def test_thread_may_be_named_in_the_config() -> None:
    agent = Agent("Solo", model=ScriptedModel(["one", "two"]))

    reply = await agent.ainvoke("hi", config={"configurable": {"thread_id": "t"}})

    assert reply.thread_id == "t"


async def test_tool_sees_the_whole_history_at_depth() -> None:
    seen: list[list[str]] = []

    def read(runtime: ToolRuntime) -> str:
        """Read the history."""
        seen.append([m.text for m in runtime.state["messages"]])
        return "read"

    sub = Agent("Sub", model=ScriptedModel(["one", call("read"), "done"]), tools=[read])
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub])

    await agent.ainvoke("@Sub first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert seen == [["@Sub first", "one", "second", ""]]


async def test_replace_changes_one_agent_and_leaves_the_given_one() -> None:
    old, new = ScriptedModel(["old"]), ScriptedModel(["new"])
    agent = Agent("Solo", model=old, system_prompt="Be brief.")

    reply = await agent.replace(model=new).ainvoke("hi")

    assert (reply.text, agent.model) == ("new", old)
    assert system_of(new).startswith("Be brief.")


async def test_replace_without_deep_leaves_the_sub_agents() -> None:
    below = ScriptedModel(["below"])
    agent = Agent("Root", model=ScriptedModel([]), agents=[Agent("Sub", model=below)])

    reply = await agent.replace(model=ScriptedModel(["new"])).ainvoke("@Sub hi")

    assert reply.text == "below"


async def test_deep_replace_changes_all_levels_and_keeps_names() -> None:
    new = ScriptedModel(["one", "two", "three"])
    leaf = Agent("Leaf", "The last", model=ScriptedModel([]))
    errand = Agent("Clerk", model=ScriptedModel([])).as_tool()
    mid = Agent("Mid", model=ScriptedModel([]), agents=[leaf], tools=[errand])
    agent = Agent("Root", model=ScriptedModel([]), tools=[mid]).replace(deep=True, model=new)

    replies = [await agent.ainvoke(text) for text in ("hi", "@Mid hi", "@Leaf hi")]

    assert [(r.text, r.agent) for r in replies] == [
        ("one", "Root"),
        ("two", "Root/Mid"),
        ("three", "Root/Mid/Leaf"),
    ]


async def test_deep_replace_reaches_agents_that_answer_like_tools() -> None:
    new = ScriptedModel([call("Clerk", request="look"), "looked", "done"])
    errand = Agent("Clerk", model=ScriptedModel([])).as_tool()
    agent = Agent("Root", model=ScriptedModel([]), tools=[errand])

    reply = await agent.replace(deep=True, model=new).ainvoke("hi")

    assert reply.text == "done"


def test_replace_refuses_what_an_agent_has_not() -> None:
    with pytest.raises(ConfigurationError, match="'colour'"):
        Agent("Solo", model=ScriptedModel([])).replace(colour="red")  # type: ignore[call-overload]


def test_replace_checks_the_new_agent() -> None:
    with pytest.raises(ConfigurationError, match="not legal"):
        Agent("Solo", model=ScriptedModel([])).replace(name="no good")
