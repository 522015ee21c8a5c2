"""Estimates of what a model call uses: never too low by the text, and quick in a long run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import BaseTool, StructuredTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentgraph.guards.mechanisms.spending.estimates import Estimates, estimate


@tool
def look_up(name: str) -> str:
    """Find somebody by name."""
    return name


@tool
def cancel(order: str, reason: str) -> str:
    """Cancel an order, and say why."""
    return f"{order}: {reason}"


@given(st.text(max_size=200), st.text(max_size=200))
@settings(max_examples=50, deadline=None)
def test_more_text_is_never_estimated_as_less(text: str, more: str) -> None:
    assert estimate([HumanMessage(text + more)]) >= estimate([HumanMessage(text)]) >= 1_024


def test_an_estimate_counts_the_output_the_tools_and_the_calls() -> None:
    asked = [HumanMessage("x" * 300)]
    assert estimate(asked, max_output=0) == 108
    assert estimate(asked, max_output=500) == 608
    assert estimate(asked, [look_up]) == estimate(asked, [{**_spec()}]) > estimate(asked) + 20
    call = {"name": "f", "args": {"text": "y" * 900}, "id": "1"}
    called: list[BaseMessage] = [AIMessage("", tool_calls=[call])]
    assert estimate(called, max_output=0) > 300


def _spec() -> dict[str, object]:
    return convert_to_openai_tool(look_up)


def test_a_picture_is_not_counted_by_its_bytes() -> None:
    picture = {"type": "image", "base64": "A" * 1_000_000, "mime_type": "image/png"}
    assert estimate([HumanMessage([picture])], max_output=0) < 3_000


def test_text_that_is_no_unicode_is_estimated() -> None:
    assert estimate([HumanMessage([{"type": "text", "text": "\ud800"}])], [object()]) > 1_024


def test_calls_that_no_encoding_has_are_estimated() -> None:
    call = {"name": "f", "args": {"text": "\ud800" * 300, "when": object()}, "id": "1"}
    assert estimate([AIMessage("", tool_calls=[call])], max_output=0) > 300


def test_a_message_that_was_rewritten_is_estimated_anew() -> None:
    message = HumanMessage("x" * 300)
    assert estimate([message], max_output=0) == 108
    message.content = "x" * 30
    assert estimate([message], max_output=0) == 18


_KNOWN: list[BaseMessage] = [
    HumanMessage("x" * 300),
    AIMessage("z" * 90, tool_calls=[{"name": "look_up", "args": {"order": "A" * 90}, "id": "1"}]),
    ToolMessage("w" * 60, tool_call_id="1"),
]
_PROMPTS: list[BaseMessage] = [SystemMessage("y" * length) for length in (30, 60)]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(_PROMPTS), max_size=1),
            st.lists(st.sampled_from(_KNOWN), max_size=5),
            st.lists(st.sampled_from([look_up, cancel]), max_size=2),
        ),
        max_size=6,
    )
)
def test_the_calls_of_a_run_are_estimated_as_if_each_were_the_only_one(
    calls: list[tuple[list[BaseMessage], list[BaseMessage], list[BaseTool]]],
) -> None:
    run = Estimates()
    for prompt, said, tools in calls:
        asked = [*prompt, *said]
        assert run.of(asked, tools, 500) == estimate(asked, tools, 500)


def test_tools_that_are_added_to_the_same_list_count() -> None:
    run, tools = Estimates(), [look_up]
    before = run.of(_KNOWN, tools, 500)
    tools.append(cancel)
    assert run.of(_KNOWN, tools, 500) == estimate(_KNOWN, tools, 500) > before


def test_of_a_conversation_that_goes_on_only_what_is_new_is_measured() -> None:
    class Metered:
        def __str__(self) -> str:
            read.append(self)
            return ""

    read: list[Metered] = []
    run = Estimates()
    said = [HumanMessage([{"type": "data", "data": Metered()}]) for _ in range(3)]
    for length in (1, 2, 3):
        run.of([SystemMessage("You know orders."), *said[:length]], [], 0)
    assert len(read) == 3


def test_the_schema_of_a_tool_is_written_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def spied(one: Any) -> dict[str, Any]:
        written.append(one)
        return convert_to_openai_tool(one)

    monkeypatch.setattr(
        "agentgraph.guards.mechanisms.spending.estimates.convert_to_openai_tool", spied
    )

    def say(name: str) -> str:
        """Say a name."""
        return name

    used = StructuredTool.from_function(say)

    assert estimate([], [used]) == estimate([], [used]) > 1_024
    assert written == [used]
