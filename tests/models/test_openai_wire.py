from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from langchain_core.messages import (
    AIMessageChunk,
    HumanMessage,
)
from langchain_core.tools import tool
from llmock.scenarios import Plan, ToolCall

from tests.models.chunks import merged
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


@tool
def refund(reason: str) -> str:
    """Refund a customer who was charged twice or wrongly."""
    return f"refunded because {reason}"


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
