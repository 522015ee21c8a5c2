from __future__ import annotations

import enum
import logging
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import BaseTool, StructuredTool, tool
from langchain_openai import ChatOpenAI
from llmock.scenarios import Plan, ToolCall
from pydantic import BaseModel

from agentgraph.errors import ConfigurationError
from agentgraph.models import OfflineModel, price_of, resolve, resolve_model
from agentgraph.testing import FakeClock, ScriptedModel
from tests.wire import (
    Wire,
    call,
    calls,
    chat_openai,
    cut_off,
    delayed,
    disconnected,
    fail,
    malformed,
    rate_limit,
    serve,
    stalled,
    text,
    truncated,
)


def merged(chunks: Sequence[Any]) -> AIMessageChunk:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert isinstance(total, AIMessageChunk)
    return total


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


# -- by name


@pytest.fixture(autouse=True)
def no_notice_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    resolve._notice.cache_clear()
    yield
    resolve._notice.cache_clear()


def test_an_instance_is_itself() -> None:
    model = ScriptedModel([])
    assert resolve_model(model) is model


def test_openai_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    model = resolve_model("openai:gpt-4o")
    assert isinstance(model, ChatOpenAI)
    assert model.model_name == "gpt-4o"


def test_openai_without_a_key_says_so() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        resolve_model("openai:gpt-4o")


def test_another_provider_goes_through_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel([])
    monkeypatch.setattr("langchain.chat_models.init_chat_model", {"acme:x:1": model}.get)
    assert resolve_model("acme:x:1") is model


def test_another_provider_without_langchain_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(ConfigurationError, match="pip install langchain"):
        resolve_model("anthropic:claude")


@pytest.mark.parametrize("name", ["nobody:knows", "anthropic:claude"])
def test_a_provider_that_is_unknown_or_not_installed(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Model '{name}'"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["", "gpt-4o", "openai:", ":gpt-4o", "Offline"])
def test_a_malformed_name_says_what_to_write(name: str) -> None:
    with pytest.raises(ConfigurationError, match="write 'provider:name'"):
        resolve_model(name)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not 3"):
        resolve_model(3)  # type: ignore[arg-type]


def test_the_environment_names_the_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    monkeypatch.setenv("AGENTGRAPH_MODEL", "openai:gpt-4o")
    assert isinstance(resolve_model(None), ChatOpenAI)
    monkeypatch.setenv("AGENTGRAPH_MODEL", "offline")
    assert isinstance(resolve_model(None), OfflineModel)
    assert caplog.records == []


@pytest.mark.parametrize("unset", [True, False])
def test_without_a_model_the_offline_one_answers_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unset: bool
) -> None:
    if not unset:
        monkeypatch.setenv("AGENTGRAPH_MODEL", "")
    for _ in range(3):
        assert isinstance(resolve_model(None), OfflineModel)
    (notice,) = caplog.records
    assert (notice.name, notice.levelno) == ("agentgraph", logging.WARNING)
    assert "AGENTGRAPH_MODEL" in notice.getMessage()


def test_offline_by_name_needs_no_notice(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(resolve_model("offline"), OfflineModel)
    assert caplog.records == []


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


# -- prices


def usage(read: int, written: int, *, cached: int = 0) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written,
        input_token_details={"cache_read": cached},
    )


def test_a_known_model_has_a_price() -> None:
    assert price_of("gpt-4o", usage(1_000_000, 0)) == Decimal("2.5")
    assert price_of("openai:gpt-4o", usage(0, 1_000_000)) == Decimal("10")
    assert price_of("gpt-4o", usage(1_000_000, 0, cached=1_000_000)) == Decimal("1.25")


def test_what_is_unknown_has_none() -> None:
    assert price_of("scripted", usage(1, 1)) is None
    assert price_of("gpt-4o", None) is None
    assert price_of(None, usage(1, 1)) is None
    assert price_of("gpt-4o", usage(1, 1, cached=5)) is None


def test_without_the_extra_there_is_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert price_of("gpt-4o", usage(1, 1)) is None


# -- the wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serve() as served:
        yield served


async def test_a_tool_call_is_streamed_through(wire: Wire) -> None:
    wire.script(call("refund", reason="I was charged twice"), text("It is done."))
    model = chat_openai(wire).bind_tools([refund])
    chunks = [chunk async for chunk in model.astream("hello")]
    assert sum(bool(c.tool_call_chunks) for c in chunks if isinstance(c, AIMessageChunk)) > 2
    said = merged(chunks)
    assert said.tool_calls[0]["args"] == {"reason": "I was charged twice"}
    assert said.usage_metadata is not None
    answer = await model.ainvoke([HumanMessage("hello"), said, refund.invoke(said.tool_calls[0])])
    assert answer.text == "It is done."
    roles = [[m["role"] for m in body["messages"]] for body in wire.requests]
    assert roles == [["user"], ["user", "assistant", "tool"]]
    assert wire.requests[0]["tools"][0]["function"]["name"] == "refund"
    assert wire.left == 0


async def test_several_calls_and_a_text(wire: Wire) -> None:
    wire.script(calls(ToolCall("a"), ToolCall("b", {"x": 1}), said="Let me see."))
    said = merged([chunk async for chunk in chat_openai(wire).astream("hello")])
    assert said.text.strip() == "Let me see."
    assert [(c["name"], c["args"]) for c in said.tool_calls] == [("a", {}), ("b", {"x": 1})]


@pytest.mark.parametrize(
    ("plan", "error", "status"),
    [
        (rate_limit(2), openai.RateLimitError, 429),
        (fail(), openai.InternalServerError, 500),
        (fail(503), openai.InternalServerError, 503),
        (fail(401), openai.AuthenticationError, 401),
    ],
)
async def test_http_errors(
    wire: Wire, plan: Plan, error: type[openai.APIStatusError], status: int
) -> None:
    wire.script(plan, plan)
    model = chat_openai(wire)
    with pytest.raises(error) as generated:
        await model.ainvoke("hello")
    with pytest.raises(error):
        [chunk async for chunk in model.astream("hello")]
    assert generated.value.status_code == status


async def test_a_rate_limit_says_when_to_come_back(wire: Wire) -> None:
    wire.script(rate_limit(0.25))
    with pytest.raises(openai.RateLimitError) as limited:
        await chat_openai(wire).ainvoke("hello")
    headers = limited.value.response.headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "250")


async def test_a_stalled_stream_hits_the_timeout(wire: Wire) -> None:
    wire.script(stalled(text("one two three")))
    heard = ""
    with pytest.raises(openai.APITimeoutError):
        async for chunk in chat_openai(wire, timeout=3).astream("hello"):
            heard += chunk.text
    assert heard == "one "


async def test_a_delayed_answer_hits_the_timeout(wire: Wire) -> None:
    wire.script(delayed(text("late"), 0.6))
    with pytest.raises(openai.APITimeoutError):
        await chat_openai(wire, timeout=0.3).ainvoke("hello")


async def test_a_dropped_connection(wire: Wire) -> None:
    wire.script(disconnected(text("one two three")))
    with pytest.raises(openai.APIConnectionError):
        [chunk async for chunk in chat_openai(wire).astream("hello")]


async def test_a_truncated_stream_ends_without_a_reason(wire: Wire) -> None:
    wire.script(truncated(text("one two three")))
    said = merged([chunk async for chunk in chat_openai(wire).astream("hello")])
    assert said.text == "one "
    assert "finish_reason" not in said.response_metadata


async def test_malformed_arguments_are_invalid_streamed_or_not(wire: Wire) -> None:
    wire.script(malformed("refund"), malformed("refund"))
    model = chat_openai(wire)
    streamed = merged([chunk async for chunk in model.astream("hello")])
    for said in (await model.ainvoke("hello"), streamed):
        assert not said.tool_calls
        assert said.invalid_tool_calls[0]["name"] == "refund"


async def test_arguments_cut_off_are_mended_in_a_stream(wire: Wire) -> None:
    wire.script(cut_off("refund", reason="twice"), cut_off("refund", reason="twice"))
    model = chat_openai(wire)
    assert (await model.ainvoke("hello")).invalid_tool_calls
    streamed = merged([chunk async for chunk in model.astream("hello")])
    assert streamed.tool_calls[0]["args"] != {"reason": "twice"}


async def test_a_request_too_many_is_answered_400(wire: Wire) -> None:
    with pytest.raises(openai.BadRequestError, match="no answer left"):
        await chat_openai(wire).ainvoke("hello")
