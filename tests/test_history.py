from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
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

import agentgraph.history as history_module
from agentgraph.history import (
    OUTCOME_UNKNOWN,
    KnownHistory,
    apply_policy,
    as_plain_chat,
    call_ids_of,
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
    st.builds(HumanMessage, st.sampled_from([[], [{"type": "text", "text": " "}]])),
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
    """Return the answers of tools: those that `repair` gives to open calls begin in two ways."""
    texts = [str(m.text) for m in history if isinstance(m, ToolMessage)]
    return [text for text in texts if not text.startswith((OUTCOME_UNKNOWN, "Not executed: "))]


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
    said = [m.text for m in history if isinstance(m, HumanMessage) and m.text.strip()]
    assert [m.text for m in repaired if isinstance(m, HumanMessage)][: len(said)] == said


@given(histories)
def test_repair_leaves_a_legal_history_as_it_is(history: list[AnyMessage]) -> None:
    legal = repair(history)
    assert all(one is other for one, other in zip(repair(legal), legal, strict=True))


ROUNDS: list[list[AnyMessage]] = [
    [HumanMessage("go on")],
    [AIMessage("words"), HumanMessage("and then?")],
    [asking("a"), told("a")],
    [asking("b", "c"), told("b"), told("c")],
    [asking("b"), told("c")],
    [asking("d")],
]
rounds = st.lists(st.sampled_from(ROUNDS), max_size=6).map(lambda some: [*chain(*some)])


@given(st.lists(st.one_of(histories, rounds), max_size=5))
def test_a_history_is_repaired_alike_whatever_was_checked_before(
    parts: list[list[AnyMessage]],
) -> None:
    known_history = KnownHistory()
    grown: list[AnyMessage] = [HumanMessage("hi")]
    for part in parts:
        for history in (part, grown := [*grown, *part]):
            expected = dumped(repair(history))
            assert dumped(repair(history, known_history)) == expected
            assert known_history.call_ids_of(history) == call_ids_of(history)


def test_of_a_longer_history_only_what_is_new_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    check = history_module._is_legal

    def measured(messages: Sequence[AnyMessage], call_ids: set[str | None]) -> bool:
        sizes.append(len(messages))
        return check(messages, call_ids)

    monkeypatch.setattr(history_module, "_is_legal", measured)
    known_history, history = KnownHistory(), legal_start()
    for number in range(3):
        history = [*history, asking(f"call {number}"), told(f"call {number}")]
        assert repair(history, known_history) == history
    assert sizes == [4, 2, 2]


def legal_start() -> list[AnyMessage]:
    return [HumanMessage("hi"), HumanMessage("there")]


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
    whole = {**block, "input": {}}
    # A block of no call would stay without an answer.
    assert renamed.content == [text, {**whole, key: ids[0]}, {**whole, key: ids[1]}]


def test_a_block_without_an_id_gets_none_when_a_call_without_one_does() -> None:
    text = {"type": "text", "text": "looking"}
    (asked, _) = repair([AIMessage([text], tool_calls=[good(None)])])
    assert asked.content == [text]


@pytest.mark.parametrize("content", ["", "  \n", [], [{"type": "text", "text": ""}]])
def test_an_empty_message_of_the_human_goes(content: Any) -> None:
    history: list[AnyMessage] = [HumanMessage(content), AIMessage("Yes?"), HumanMessage("hi")]
    assert repair(history) == history[1:]


def test_an_image_without_a_text_is_no_empty_message() -> None:
    image = {"type": "image", "url": "https://pictures.example/cat.png"}
    history: list[AnyMessage] = [HumanMessage([image])]
    assert repair(history) == history


def test_blocks_of_empty_text_go_and_the_others_stay() -> None:
    image = {"type": "image", "url": "https://pictures.example/cat.png"}
    (kept,) = repair([HumanMessage([{"type": "text", "text": ""}, image])])
    assert kept.content == [image]


@pytest.mark.parametrize(
    ("said", "sent"),
    [("caf\udce9.txt", "caf�.txt"), ("\ud83d\ude00", "😀"), ("caf\u00e9", "café")],
    ids=["half a pair", "a pair in two halves", "whole"],
)
def test_half_a_character_is_replaced_as_it_cannot_be_sent(said: str, sent: str) -> None:
    block = {"type": "text", "text": said}
    history: list[AnyMessage] = [HumanMessage(said), asking("a"), told("a", said)]
    repaired = repair([*history, HumanMessage([block])])
    assert [m.text for m in repaired] == [sent, "", sent, sent]
    assert all(m.text.encode() for m in repaired if m.text)


@pytest.mark.parametrize("kind", ["reasoning", "thinking"])
def test_thoughts_alone_are_no_answer(kind: str) -> None:
    thought = AIMessage([{"type": kind, kind: "hm"}])
    assert [m.text for m in repair([HumanMessage("hi"), thought])] == ["hi"]


# -- windows


@given(histories, st.integers(1, 15))
def test_a_window_of_a_legal_history_is_legal(history: list[AnyMessage], size: int) -> None:
    check_history(window(repair(history), size))


@given(histories, st.integers(1, 15))
def test_a_window_is_the_end_of_the_history_and_begins_with_a_human(
    history: list[AnyMessage], size: int
) -> None:
    legal = repair(history)
    seen = window(legal, size)
    assert seen == legal[len(legal) - len(seen) :]
    assert len(seen) >= min(size, len(legal))
    assert isinstance(seen[0], HumanMessage) or len(seen) == len(legal)


@given(histories, st.integers(1, 15))
def test_a_window_keeps_the_last_question(history: list[AnyMessage], size: int) -> None:
    legal = repair(history)
    asked = [m for m in legal if isinstance(m, HumanMessage)]
    assert not asked or asked[-1] in window(legal, size)


def conversation(turns: int, rounds: int = 0) -> list[AnyMessage]:
    """Return a conversation of turns with some tool rounds each, the last one just asked."""
    messages: list[AnyMessage] = []
    for turn in range(turns):
        messages.append(HumanMessage(f"question {turn}"))
        if turn < turns - 1:
            for step in range(rounds):
                messages += [asking(f"{turn}_{step}"), told(f"{turn}_{step}")]
            messages.append(AIMessage(f"answer {turn}"))
    return messages


@given(st.integers(1, 60), st.integers(1, 25), st.integers(0, 3))
def test_a_window_holds_less_than_two_blocks_and_a_turn(turns: int, size: int, rounds: int) -> None:
    seen = window(conversation(turns, rounds), size)
    assert len(seen) < 2 * size + 2 * (rounds + 1)


@given(st.integers(1, 60), st.integers(1, 25), st.integers(0, 3))
def test_a_window_does_not_move_within_a_turn(turns: int, size: int, rounds: int) -> None:
    history = conversation(turns)
    begin = window(history, size)[0]
    for step in range(rounds):
        history += [asking(f"now_{step}"), told(f"now_{step}")]
        assert window(history, size)[0] is begin


@given(st.integers(2, 25), st.integers(0, 3))
def test_a_window_begins_as_before_in_most_turns(size: int, rounds: int) -> None:
    begins = [window(conversation(turns, rounds), size)[0].text for turns in range(1, 51)]
    moves = sum(one != other for one, other in pairwise(begins))
    # One move for each block that the conversation has grown by.
    assert moves <= 50 * 2 * (rounds + 1) // size


@pytest.mark.parametrize("size", [1, 6])
def test_a_window_after_many_tool_rounds_still_has_the_question(size: int) -> None:
    rounds = [m for step in range(9) for m in (asking(f"{step}"), told(f"{step}"))]
    history = [*conversation(5), *rounds]
    seen = window(history, size)
    assert isinstance(seen[0], HumanMessage)
    assert "question 4" in [m.text for m in seen]


def test_a_window_keeps_all_messages_of_one_question() -> None:
    history: list[AnyMessage] = [
        HumanMessage("before"),
        AIMessage("yes"),
        HumanMessage("look at this"),
        HumanMessage("what is it?"),
    ]
    assert window(history, 1) == history[2:]


def test_a_window_goes_back_to_a_call_that_was_answered_late() -> None:
    history: list[AnyMessage] = [HumanMessage("go"), asking("a"), HumanMessage("so?"), told("a")]
    assert window(history, 1) == history


def test_a_policy_is_everything_a_number_or_a_function() -> None:
    history: list[AnyMessage] = [HumanMessage("one"), AIMessage("1"), HumanMessage("two")]
    assert apply_policy(history, None) == history
    assert apply_policy(history, 1) == history[2:]
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


# -- malformed calls


def malformed(arguments: str, content: Any = "", name: str = "look") -> AIMessage:
    broken = InvalidToolCall(
        name=name, args=arguments, id="a", error=None, type="invalid_tool_call"
    )
    return AIMessage(content, invalid_tool_calls=[broken])


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ('{"order": "A7", "reas', {"order": "A7"}),
        ('{"order": oops}', {}),
        ('["no", "object"]', {}),
        ("", {}),
    ],
)
def test_a_malformed_call_gets_the_arguments_that_can_be_read(
    arguments: str, whole: dict[str, Any]
) -> None:
    stored = malformed(arguments)
    asked, answered = repair([stored, told("a")])
    assert isinstance(asked, AIMessage)
    assert asked.invalid_tool_calls == []
    assert [(c["name"], c["args"], c["id"]) for c in asked.tool_calls] == [("look", whole, "a")]
    assert answered.text == "seen"
    assert stored.invalid_tool_calls[0]["args"] == arguments


@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "look up", "", None])
def test_a_call_gets_a_name_that_providers_accept_as_does_its_answer(name: str | None) -> None:
    call = InvalidToolCall(name=name, args="{", id="a", error=None, type="invalid_tool_call")
    answer = ToolMessage("no such tool", tool_call_id="a", name=name)
    asked, answered = repair([AIMessage("", invalid_tool_calls=[call]), answer])
    assert isinstance(asked, AIMessage)
    sent = asked.tool_calls[0]["name"]
    assert sent
    assert sent.replace("_", "").isalnum()
    assert answered.name in (sent, None, "")


BROKEN = '{"order": "A7", "reas'
WHOLE = {"order": "A7"}


@pytest.mark.parametrize(
    ("block", "sent"),
    [
        (  # Anthropic's, not streamed and streamed
            {"type": "tool_use", "id": "a", "name": "look", "input": BROKEN},
            {"type": "tool_use", "id": "a", "name": "look", "input": WHOLE},
        ),
        (
            {"type": "tool_use", "id": "a", "name": "look", "input": {}, "partial_json": BROKEN},
            {"type": "tool_use", "id": "a", "name": "look", "input": WHOLE},
        ),
        (  # OpenAI's `responses/v1`
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": BROKEN},
            {
                "type": "function_call",
                "call_id": "a",
                "name": "look",
                "arguments": '{"order": "A7"}',
            },
        ),
        (  # LangChain's `v1`
            {"type": "invalid_tool_call", "id": "a", "name": "look", "args": BROKEN, "error": "?"},
            {"type": "tool_call", "id": "a", "name": "look", "args": WHOLE},
        ),
        (
            {"type": "tool_call_chunk", "id": "a", "name": "look", "args": BROKEN, "index": 1},
            {"type": "tool_call", "id": "a", "name": "look", "args": WHOLE},
        ),
    ],
    ids=lambda block: block["type"],
)
def test_the_content_block_of_a_malformed_call_is_made_whole(
    block: dict[str, Any], sent: dict[str, Any]
) -> None:
    text = {"type": "text", "text": "Let me look."}
    asked, _ = repair([malformed(BROKEN, [text, block]), told("a")])
    assert asked.content == [text, sent]


def test_the_block_of_a_call_that_langchain_has_mended_is_made_whole_too() -> None:
    block = {"type": "function_call", "call_id": "a", "name": "look", "arguments": BROKEN}
    mended = ToolCall(name="look", args=WHOLE, id="a", type="tool_call")
    asked, _ = repair([AIMessage([block], tool_calls=[mended]), told("a")])
    assert asked.content == [{**block, "arguments": '{"order": "A7"}'}]


def test_a_block_of_a_call_that_was_never_read_goes() -> None:
    piece = {"type": "input_json_delta", "partial_json": "{", "index": 1}
    block = {"type": "tool_use", "id": "b", "name": "look", "input": {}}
    said = AIMessage([{"type": "text", "text": "Hm."}, block, piece])
    assert repair([said, HumanMessage("so?")])[0].content == [{"type": "text", "text": "Hm."}]


def test_raw_calls_beside_a_message_are_not_sent() -> None:
    stored = malformed(BROKEN)
    stored.additional_kwargs["tool_calls"] = [{"function": {"arguments": BROKEN}}]
    asked, _ = repair([stored, told("a")])
    assert asked.additional_kwargs == {}


def test_an_open_malformed_call_was_not_executed() -> None:
    asked = AIMessage("", tool_calls=[good("a")], invalid_tool_calls=[bad("b")])
    unknown, malformed = (m.text for m in repair([HumanMessage("go"), asked])[2:])
    assert unknown == OUTCOME_UNKNOWN
    assert malformed.startswith("Not executed: the arguments are not valid JSON")
    assert [m.text for m in unknown_outcomes([asked])] == [unknown, malformed]
