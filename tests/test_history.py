from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)

from agentgraph.history import (
    OUTCOME_UNKNOWN,
    apply_policy,
    as_plain_chat,
    calls_of,
    open_calls,
    repair,
    split_system,
    unknown_outcomes,
    window,
)
from agentgraph.testing import check_history


def good(call_id: str | None) -> ToolCall:
    return ToolCall(name="look", args={}, id=call_id, type="tool_call")


def bad(call_id: str | None) -> InvalidToolCall:
    return InvalidToolCall(
        name="look", args="{oops", id=call_id, error=None, type="invalid_tool_call"
    )


def asking(*ids: str | None, text: str = "") -> AIMessage:
    return AIMessage(text, tool_calls=[good(one) for one in ids])


def told(call_id: str, text: str = "seen") -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, name="look")


call_ids = st.sampled_from(["a", "b", "c", "a_2", "call", "", None])
numbers = st.integers(0, 10**9)
messages = st.one_of(
    st.builds(HumanMessage, st.text(max_size=5)),
    st.builds(
        lambda content, calls, malformed: AIMessage(
            content, tool_calls=calls, invalid_tool_calls=malformed
        ),
        st.sampled_from(["", "words", [], [{"type": "text", "text": "a block"}]]),
        st.lists(st.builds(good, call_ids), max_size=3),
        st.lists(st.builds(bad, call_ids), max_size=2),
    ),
    st.builds(lambda call_id, number: told(call_id or "", f"answer {number}"), call_ids, numbers),
)
histories = st.lists(messages, max_size=12)


def dumped(history: list[AnyMessage]) -> list[dict[str, Any]]:
    return [message.model_dump() for message in history]


def answers_in(history: list[AnyMessage]) -> list[str]:
    return [
        str(m.text) for m in history if isinstance(m, ToolMessage) and m.text != OUTCOME_UNKNOWN
    ]


def answers_that_follow_their_call(history: list[AnyMessage]) -> int:
    waiting: Counter[str] = Counter()
    count = 0
    for message in history:
        if isinstance(message, AIMessage):
            waiting.update(one["id"] or "" for one in calls_of(message))
        elif isinstance(message, ToolMessage) and waiting[message.tool_call_id]:
            waiting[message.tool_call_id] -= 1
            count += 1
    return count


# -- repair


@given(histories)
def test_a_repaired_history_is_legal(history: list[AnyMessage]) -> None:
    check_history(repair(history))


@given(histories)
def test_repair_is_idempotent(history: list[AnyMessage]) -> None:
    once = repair(history)
    assert dumped(repair(once)) == dumped(once)


@given(histories)
def test_repair_keeps_every_answer_that_has_a_call(history: list[AnyMessage]) -> None:
    kept = answers_in(repair(history))
    assert len(kept) == answers_that_follow_their_call(history)
    assert not Counter(kept) - Counter(answers_in(history))


@given(histories)
def test_repair_keeps_every_call_and_what_the_human_said(history: list[AnyMessage]) -> None:
    repaired = repair(history)
    spoken = [m for m in history if isinstance(m, AIMessage)]
    kept = [m for m in repaired if isinstance(m, AIMessage)]
    assert sum(len(calls_of(m)) for m in kept) == sum(len(calls_of(m)) for m in spoken)
    said = [m.text for m in history if isinstance(m, HumanMessage)]
    assert [m.text for m in repaired if isinstance(m, HumanMessage)][: len(said)] == said


@given(histories)
def test_repair_leaves_a_legal_history_as_it_is(history: list[AnyMessage]) -> None:
    legal = repair(history)
    assert all(one is other for one, other in zip(repair(legal), legal, strict=True))


@given(histories)
def test_repair_changes_none_of_the_given_messages(history: list[AnyMessage]) -> None:
    before = dumped(history)
    repair(history)
    assert dumped(history) == before


def test_an_answer_that_came_late_moves_behind_its_call() -> None:
    repaired = repair([asking("a"), HumanMessage("hurry"), told("a")])
    assert [m.type for m in repaired] == ["ai", "tool", "human"]


def test_an_answer_stays_with_the_call_before_it_when_an_id_is_used_again() -> None:
    repaired = repair(
        [HumanMessage("one"), asking("a"), HumanMessage("two"), asking("a"), told("a", "second")]
    )
    assert [m.text for m in repaired if isinstance(m, ToolMessage)] == [OUTCOME_UNKNOWN, "second"]


def test_answers_to_one_id_go_to_its_calls_in_their_order() -> None:
    repaired = repair([asking("a", "a"), told("a", "first"), told("a", "second")])
    assert [m.text for m in repaired[1:]] == ["first", "second"]


def test_an_open_call_is_answered_with_outcome_unknown_as_an_error() -> None:
    (_, reply) = repair([asking("a")])
    assert isinstance(reply, ToolMessage)
    assert (reply.text, reply.tool_call_id, reply.status) == (OUTCOME_UNKNOWN, "a", "error")


def test_an_answer_without_a_call_goes() -> None:
    assert [m.text for m in repair([told("a"), HumanMessage("hi")])] == ["hi"]


def test_an_empty_assistant_message_goes() -> None:
    assert [m.text for m in repair([AIMessage(""), HumanMessage("hi")])] == ["hi"]


@pytest.mark.parametrize("history", [[], [AIMessage("bye")], [told("a")]])
def test_a_history_that_no_human_or_tool_ends_is_continued(history: list[AnyMessage]) -> None:
    assert repair(history)[-1] == HumanMessage("Continue.")


@pytest.mark.parametrize("key", ["id", "call_id"])
def test_a_renamed_call_is_renamed_in_its_content_block_too(key: str) -> None:
    block = {"type": "tool_use", key: "a", "name": "look"}
    text = {"type": "text", "text": "looking"}
    again = AIMessage([text, block, block, block], tool_calls=[good("a"), good("a")])
    repaired = repair([asking("a"), told("a"), again, told("a"), told("a")])
    renamed = repaired[2]
    assert isinstance(renamed, AIMessage)
    ids = [one["id"] for one in renamed.tool_calls]
    assert ids == [m.tool_call_id for m in repaired[3:] if isinstance(m, ToolMessage)]
    assert renamed.content == [text, {**block, key: ids[0]}, {**block, key: ids[1]}, block]


def test_a_block_without_an_id_gets_none_when_a_call_without_one_does() -> None:
    text = {"type": "text", "text": "looking"}
    (asked, _) = repair([AIMessage([text], tool_calls=[good(None)])])
    assert asked.content == [text]


# -- windows


@given(histories, st.integers(1, 15))
def test_a_window_of_a_legal_history_is_legal(history: list[AnyMessage], size: int) -> None:
    check_history(window(repair(history), size))


@given(histories, st.integers(1, 15))
def test_a_window_is_the_end_and_no_longer_than_its_pairs_need(
    history: list[AnyMessage], size: int
) -> None:
    legal = repair(history)
    seen = window(legal, size)
    assert seen == legal[len(legal) - len(seen) :]
    assert len(seen) >= min(size, len(legal))
    surplus = seen[: max(len(seen) - size, 0)]
    assert all(isinstance(m, AIMessage | ToolMessage) for m in surplus)
    assert sum(isinstance(m, AIMessage) for m in surplus) <= 1


def test_a_window_that_would_begin_with_an_answer_begins_with_its_call() -> None:
    history: list[AnyMessage] = [
        HumanMessage("go"),
        asking("a", "b"),
        told("a"),
        told("b"),
        HumanMessage("so?"),
    ]
    assert window(history, 2) == history[1:]


def test_a_policy_is_everything_a_number_or_a_function() -> None:
    history: list[AnyMessage] = [HumanMessage("one"), HumanMessage("two")]
    assert apply_policy(history, None) == history
    assert apply_policy(history, 1) == history[1:]
    assert apply_policy(history, lambda given: given[:1]) == history[:1]


# -- open calls, system messages, plain chat


@given(histories)
def test_no_call_stays_open_beside_its_unknown_outcome(history: list[AnyMessage]) -> None:
    still_open = open_calls([*history, *unknown_outcomes(history)])
    assert not [one for one in still_open if one["id"] is not None]


def test_system_messages_are_taken_out_in_their_order() -> None:
    history: list[AnyMessage] = [SystemMessage("a"), HumanMessage("hi"), SystemMessage("b")]
    assert split_system(history) == (["a", "b"], [history[1]])


@given(histories)
def test_plain_chat_has_neither_calls_nor_answers_and_loses_no_text(
    history: list[AnyMessage],
) -> None:
    legal = repair(history)
    plain = as_plain_chat(legal)
    check_history(plain)
    assert not any(isinstance(m, ToolMessage) for m in plain)
    assert not any(calls_of(m) for m in plain if isinstance(m, AIMessage))
    assert all(one.text in other.text for one, other in zip(legal, plain, strict=True))
