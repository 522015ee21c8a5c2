from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)

from agentgraph.testing import (
    IllegalHistory,
    ScriptedModel,
    bad_call,
    call,
    check_history,
)

ASK: list[BaseMessage] = [HumanMessage("hello")]


def said(*ids: str | None, bad: str | None = None) -> AIMessage:
    good: list[ToolCall] = [{**call("a"), "id": one} for one in ids]
    return AIMessage(
        "", tool_calls=good, invalid_tool_calls=[{**bad_call("b"), "id": bad}] if bad else []
    )


def answer(call_id: str) -> ToolMessage:
    return ToolMessage("done", tool_call_id=call_id)


USER, SYSTEM = HumanMessage("hello"), SystemMessage("be kind")


@pytest.mark.parametrize(
    "history",
    [
        [USER],
        [SYSTEM, USER],
        [USER, USER, AIMessage("hi"), AIMessage("there"), USER],
        [SYSTEM, USER, said("1", "2"), answer("2"), answer("1")],
        [USER, said("1", bad="2"), answer("1"), answer("2"), said("3"), answer("3"), USER],
    ],
)
def test_legal_histories(history: list[BaseMessage]) -> None:
    check_history(history)


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([], "is empty"),
        ([USER, AIMessage("hi")], "ends with the assistant"),
        ([USER, said("1")], r"ends before the answer to \['1'\]"),
        ([USER, said("1", bad="2"), answer("1")], r"ends before the answer to \['2'\]"),
        ([answer("1"), USER], "Message 0 .tool. answers no open call"),
        ([USER, said("1"), answer("1"), answer("1")], "Message 3 .tool. answers no open call"),
        ([USER, said("1"), answer("2")], "answers no open call"),
        ([USER, said("1"), USER, answer("1")], "comes before the answer"),
        ([USER, said("1"), said("2"), answer("1"), answer("2")], "comes before the answer"),
        ([USER, said("1"), answer("1"), said("1"), answer("1")], "uses the call id 1 again"),
        ([USER, said("1", "1"), answer("1")], "uses the call id 1 again"),
        ([USER, said("1", bad="1"), answer("1")], "uses the call id 1 again"),
        ([USER, said(None), answer("")], "without an id"),
        ([USER, SYSTEM], "only be the first"),
        ([SYSTEM, SYSTEM, USER], "only be the first"),
        ([USER, RemoveMessage(id="1"), USER], "instruction to a reducer"),
    ],
)
def test_illegal_histories(history: list[BaseMessage], why: str) -> None:
    with pytest.raises(IllegalHistory, match=why):
        check_history(history)
    with pytest.raises(IllegalHistory):
        ScriptedModel(["never said"]).invoke(history or ASK[:0])


def is_legal(history: list[BaseMessage]) -> bool:
    """Say the same from another side: each speaker with the run of answers behind it."""
    speakers = [i for i, m in enumerate(history) if not isinstance(m, ToolMessage)]
    made: list[str] = []
    for start, end in pairwise([*speakers, len(history)]):
        first, answers = history[start], history[start + 1 : end]
        own = [*first.tool_calls, *first.invalid_tool_calls] if isinstance(first, AIMessage) else []
        made += [str(one["id"]) for one in own]
        answered = [m.tool_call_id for m in answers if isinstance(m, ToolMessage)]
        if sorted(answered) != sorted(str(one["id"]) for one in own):
            return False
    return (
        speakers[:1] == [0]
        and len(made) == len(set(made))
        and not any(isinstance(m, SystemMessage) for m in history[1:])
        and not isinstance(history[-1], AIMessage)
    )


ids = st.sampled_from("123")
speech: st.SearchStrategy[BaseMessage] = st.one_of(
    st.just(USER),
    st.just(SYSTEM),
    st.builds(lambda good: said(*good), st.lists(ids, max_size=2)),
    st.builds(lambda bad: said(bad=bad), ids),
    st.builds(answer, ids),
)


@st.composite
def nearly_legal(draw: st.DrawFn) -> list[BaseMessage]:
    history: list[BaseMessage] = [SYSTEM] if draw(st.booleans()) else []
    names = iter("abcdefghijklmnop")
    for size in draw(st.lists(st.integers(0, 2), max_size=4)):
        made = [next(names) for _ in range(size)]
        history += [USER, said(*made), *map(answer, draw(st.permutations(made)))]
    history.append(USER)
    for index in draw(st.lists(st.integers(0, len(history) - 1), max_size=1)):
        history[index : index + 1] = draw(st.lists(speech, max_size=1))
    return history


@given(nearly_legal() | st.lists(speech, max_size=5))
def test_exactly_the_legal_histories_pass(history: list[BaseMessage]) -> None:
    try:
        check_history(history)
    except IllegalHistory:
        assert not is_legal(history)
    else:
        assert is_legal(history)


def test_a_lenient_model_takes_any_history() -> None:
    assert ScriptedModel(["hi"], strict=False).invoke([AIMessage("I was first")]).text == "hi"


def test_an_illegal_history_is_on_the_record_and_costs_no_turn() -> None:
    model = ScriptedModel(["hi"])
    with pytest.raises(IllegalHistory):
        model.invoke([AIMessage("I was first")])
    assert model.invoke(ASK).text == "hi"
    assert len(model.requests) == 2
