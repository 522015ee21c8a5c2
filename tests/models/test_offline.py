from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import BaseTool, StructuredTool, tool
from pydantic import BaseModel

from agentgraph.models import OfflineModel
from agentgraph.testing import FakeClock
from tests.models.chunks import merged


def tool_named(name: str, description: str, **schema: Any) -> BaseTool:
    def run(reason: str = "", summary: str = "") -> str:
        return reason + summary

    return StructuredTool.from_function(run, name=name, description=description, **schema)


@tool
def refund(reason: str) -> str:
    """Refund a customer who was charged twice or wrongly."""
    return f"refunded because {reason}"


BILLING = tool_named("transfer_to_billing", "Answers billing questions: charges, invoices, refunds")
TECHNICAL = tool_named(
    "transfer_to_technical", "Solves technical problems: passwords, logins, errors"
)
DEFAULTS = [
    tool_named("get_time_date", "Return the current time and date."),
    tool_named("list_tools_available", "List the tools of this agent."),
    tool_named("list_subagents_available", "List the agents that this one can transfer to."),
    tool_named("list_intents_available", "List the phrases that lead straight somewhere."),
    tool_named("get_current_active_agent", "Return the agent that has the conversation."),
    tool_named("get_supervisor_agent", "Return this agent's supervisor."),
    tool_named("request_help", "Ask the supervisor for help: charges, passwords, anything."),
]
DESK = [*DEFAULTS, BILLING, TECHNICAL]


def ask(tools: Sequence[BaseTool], *messages: BaseMessage | str) -> AIMessage:
    return OfflineModel().bind_tools(tools).invoke(list(messages))


def chosen(tools: Sequence[BaseTool], prompt: str) -> str | None:
    answer = ask(tools, prompt)
    return answer.tool_calls[0]["name"] if answer.tool_calls else None


def arguments(tool: BaseTool | dict[str, Any], prompt: str) -> dict[str, Any] | None:
    answer = OfflineModel().bind_tools([tool]).invoke(prompt)
    return answer.tool_calls[0]["args"] if answer.tool_calls else None


# -- the offline model: whom it calls


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("I was charged twice", "transfer_to_billing"),
        ("Where is my INVOICE?", "transfer_to_billing"),
        ("reset my password", "transfer_to_technical"),
        ("Resetting passwords fails", "transfer_to_technical"),
        ("I cannot log in: login error", "transfer_to_technical"),
        ("What time is it?", "get_time_date"),
        ("tell me today's date", "get_time_date"),
        ("Which tools do you have?", "list_tools_available"),
        ("list the sub-agents", "list_subagents_available"),
        ("show me your intents", "list_intents_available"),
        ("who am I talking to?", "get_current_active_agent"),
        ("who is your supervisor?", "get_supervisor_agent"),
        ("ask your supervisor", "request_help"),
        ("What is the date of my invoice?", "transfer_to_billing"),
        ("help", None),
        ("hello", None),
        ("this time it is the last time", None),
        ("", None),
    ],
)
def test_the_words_of_the_prompt_choose(prompt: str, name: str | None) -> None:
    assert chosen(DESK, prompt) == name


def test_of_equals_the_first() -> None:
    first, second = tool_named("a", "Reads books"), tool_named("b", "Reads books")
    assert chosen([first, second], "read a book") == "a"
    assert chosen([second, first], "read a book") == "b"


def test_names_count_as_words_however_they_are_written() -> None:
    for name in ("cancel_order", "cancelOrder", "Cancel-Order"):
        assert chosen([tool_named(name, "Does it.")], "cancel my orders") == name


def test_a_whole_turn_at_the_desk() -> None:
    prompt = HumanMessage("I was charged twice")
    transfer = ask(DESK, prompt)
    assert transfer.tool_calls[0]["args"] == {"reason": "I was charged twice"}
    moved = ToolMessage(
        "Conversation transferred to billing", tool_call_id=transfer.tool_calls[0]["id"] or ""
    )
    past = [SystemMessage("You do billing."), prompt, transfer, moved]
    call_ = ask([refund], *past)
    assert call_.tool_calls[0]["name"] == "refund"
    result = refund.invoke(call_.tool_calls[0])
    answer = ask([refund], *past, call_, result)
    assert answer.text == "Offline model: refund says: refunded because I was charged twice"


def answered(name: str, content: str, status: Literal["success", "error"] = "success") -> list[Any]:
    made = {"name": name, "args": {}, "id": f"id-{name}", "type": "tool_call"}
    said = AIMessage("", tool_calls=[made])
    return [said, ToolMessage(content, tool_call_id=f"id-{name}", status=status)]


def test_no_tool_is_called_twice_for_one_prompt() -> None:
    back = answered("transfer_to_billing", "Conversation transferred to billing")
    assert not ask(DESK, "I was charged twice", *back).tool_calls
    assert ask(DESK, "I was charged twice", *back, HumanMessage("charged again")).tool_calls


def test_a_delegate_is_quoted_by_its_name_and_once() -> None:
    told = answered("transfer_to_billing", "Offline model: refund says: done")
    assert ask(DESK, "I was charged twice", *told).text == (
        "Offline model: billing says: refund says: done"
    )


def test_all_results_are_told_and_a_failure_is_named() -> None:
    results = [*answered("a", "fine"), *answered("b", "no such order", "error")]
    assert ask([], "go on", *results).text == "Offline model: a says: fine b failed: no such order"


@pytest.mark.parametrize("name", ["request_help", "transfer_to_technical"])
def test_bookkeeping_is_no_result(name: str) -> None:
    kept = answered(name, "Not executed: one transfer at a time")
    assert ask(DESK, "I was charged twice", *kept).tool_calls[0]["name"] == "transfer_to_billing"


def test_a_sub_agent_does_not_ask_for_help_on_its_own() -> None:
    answer = ask([*DEFAULTS, refund], "reset my password")
    assert not answer.tool_calls
    assert "rule-based stand-in" in answer.text
    assert "'reset my password'" in answer.text
    assert answer.text.endswith("I have: refund.")


def test_without_tools_it_owns_up() -> None:
    assert OfflineModel().invoke("A page on tidal power").text.endswith("I have none.")


@pytest.mark.parametrize(
    "prompt", ["let me talk to a human", "a real agent please", "Is there a PERSON here?"]
)
def test_a_wish_for_a_human(prompt: str) -> None:
    assert ask(DESK, prompt).text == "Offline model: I would pass this conversation to a human now."


def test_a_tool_for_humans_is_called() -> None:
    escalate = tool_named("escalate", "Reaches a human.")
    assert chosen([*DESK, escalate], "let me talk to a human") == "escalate"


def test_there_may_be_nothing_to_answer() -> None:
    answer = OfflineModel().invoke([SystemMessage("be kind")])
    assert answer.text == "Offline model: there is no message to answer."


# -- the offline model: with which arguments


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "extra large"


def order(
    product_id: str,
    size: Size,
    count: int,
    note: str = "",
    discount: float = 0.0,
    colour: Literal["red", "green"] = "red",
    gift: bool = False,
    source: str = "web",
) -> str:
    """Order products."""
    return ""


def test_arguments_are_taken_from_the_prompt() -> None:
    prompt = "Order 12 green extra-large ones of product AB-1"
    assert arguments(tool(order), prompt) == {
        "product_id": "AB-1",
        "size": "extra large",
        "count": 12,
        "note": prompt,
        "colour": "green",
    }
    prompt = "order AB-1, a small gift, count 2, with 12.5 as discount"
    assert arguments(tool(order), prompt) == {
        "product_id": "AB-1",
        "size": "small",
        "count": 2,
        "note": prompt,
        "discount": 12.5,
        "gift": True,
    }


@pytest.mark.parametrize(
    "prompt",
    ["order a small one of AB-1", "order 3 of AB-1", "order some small product"],
)
def test_a_tool_with_an_open_required_argument_is_passed_over(prompt: str) -> None:
    assert arguments(tool(order), prompt) is None


def test_the_next_best_tool_takes_over() -> None:
    other = tool_named("shop", "Knows products.")
    assert chosen([tool(order), other], "order some product") == "shop"


@pytest.mark.parametrize(
    ("schema", "prompt", "value"),
    [
        ({"type": "string"}, "weather in Paris today", "Paris"),
        ({"type": "string"}, "weather in New York", "New York"),
        ({"type": "string"}, 'weather of "the moon"', "the moon"),
        ({"type": "string"}, "weather please", "weather please"),
        ({}, "weather please", "weather please"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "weather in 3 days", 3),
        ({"type": ["null", "integer"]}, "weather in 3 days", 3),
        ({"type": "integer"}, "weather at 1.5 in 2 days", 2),
        ({"type": "integer"}, "weather in 1,200 days", 1200),
        ({"type": "number"}, "weather at -4", -4),
        ({"type": "number"}, "weather on 2026-11-18", None),
        ({"type": "integer"}, "weather at 1.5", None),
        ({"type": "array", "items": {"type": "number"}}, "weather at 4", [4]),
        ({"type": "array", "items": {"enum": ["wet"]}}, "weather", None),
        ({"type": "boolean"}, "weather in what place", True),
        ({"type": "boolean"}, "weather", None),
        ({"enum": []}, "weather", None),
        ({"type": "object"}, "weather", None),
    ],
)
def test_each_type_is_filled_or_left(schema: dict[str, Any], prompt: str, value: object) -> None:
    parameters = {"type": "object", "properties": {"place": schema}, "required": ["place"]}
    weather = {"name": "weather", "description": "Weather.", "parameters": parameters}
    assert arguments(weather, prompt) == (None if value is None else {"place": value})


def test_an_email_is_found() -> None:
    def write(email: str) -> str:
        """Write mail."""
        return ""

    assert arguments(tool(write), "write mail to ann@example.org.") == {"email": "ann@example.org"}
    assert arguments(tool(write), "write mail") is None


def test_the_words_of_an_enum_draw_its_tool() -> None:
    def hand_over(target: Literal["writer", "editor"], reason: str = "") -> str:
        """Pass the work on."""
        return ""

    assert arguments(tool(hand_over), "let the editor see it") == {
        "target": "editor",
        "reason": "let the editor see it",
    }


# -- the offline model: as a model


def test_native_tools_are_passed_over() -> None:
    native: list[Any] = [{"type": "web_search"}, {"type": "memory_20260101", "name": "memory"}]
    assert not OfflineModel().bind_tools(native).invoke("search my memory").tool_calls


def test_tool_choice() -> None:
    def forced(choice: Any, prompt: str = "hello") -> str | None:
        made = OfflineModel().bind_tools(DESK, tool_choice=choice).invoke(prompt).tool_calls
        return made[0]["name"] if made else None

    assert forced("any") == forced(True) == "transfer_to_billing"
    assert forced("required", "password") == "transfer_to_technical"
    assert forced("get_time_date") == "get_time_date"
    named = {"type": "function", "function": {"name": "request_help"}}
    assert forced(named) == "request_help"
    assert forced("none", "charged") is None
    assert forced("auto") is None


def test_structured_output() -> None:
    class City(BaseModel):
        """A city."""

        name: str

    assert OfflineModel().with_structured_output(City).invoke("I am in New York") == City(
        name="New York"
    )


prompts = st.text() | st.lists(
    st.sampled_from(["charged", "password", "what", "time", "human", "  ", "42", "\n"]), max_size=6
).map(" ".join)


@given(prompts)
def test_it_always_calls_or_says_and_streams_the_same(prompt: str) -> None:
    model = OfflineModel().bind_tools(DESK)
    with FakeClock().installed():
        said = model.invoke([HumanMessage(prompt)])
    with FakeClock().installed():
        streamed = merged(list(model.stream([HumanMessage(prompt)])))
    assert (said.content, said.tool_calls) == (streamed.content, streamed.tool_calls)
    assert said.response_metadata == streamed.response_metadata == {"model_name": "offline"}
    assert said.text.startswith("Offline model: ") or said.tool_calls


async def test_it_streams_by_word_in_async_code_too() -> None:
    model = OfflineModel()
    chunks = [chunk.text async for chunk in model.astream("a human")]
    assert chunks[:3] == ["Offline", " model:", " I"]
    assert "".join(chunks) == (await model.ainvoke("a human")).text
