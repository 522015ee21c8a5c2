"""The history that a model sees: legal for every provider, calls and answers kept together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)

OUTCOME_UNKNOWN = (
    "Outcome unknown: the run was interrupted before this call answered. "
    "It may or may not have had its effect; check before you repeat it."
)

HistoryPolicy = int | Callable[[list[AnyMessage]], list[AnyMessage]] | None
"""None keeps all messages, a number keeps the last ones, a function returns those to keep."""


def repair(messages: Iterable[AnyMessage]) -> list[AnyMessage]:
    """Make a history legal: each call is answered exactly once, directly after its message.

    Calls without an answer get one that says so. Answers without a call and empty assistant
    messages are removed. A repeated call id is renamed, together with its answer. A history that
    would be empty or end with the assistant gets a neutral "Continue." at the end.
    """
    messages = list(messages)
    answers = _answers_by_call(messages)
    call_ids: set[str] = set()
    legal: list[AnyMessage] = []
    for position, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            continue
        if not isinstance(message, AIMessage):
            legal.append(message)
        elif message.tool_calls or message.invalid_tool_calls:
            legal.extend(_with_answers(message, position, answers, call_ids))
        elif message.content:
            legal.append(message)
    if not legal or isinstance(legal[-1], AIMessage):
        legal.append(HumanMessage("Continue."))
    return legal


def calls_of(message: AIMessage) -> list[ToolCall | InvalidToolCall]:
    """Return all calls of a message, malformed ones last: providers want both answered."""
    return [*message.tool_calls, *message.invalid_tool_calls]


def open_calls(messages: Sequence[AnyMessage]) -> list[ToolCall | InvalidToolCall]:
    """Return the calls without an answer."""
    answer_ids = {m.tool_call_id for m in messages if isinstance(m, ToolMessage)}
    return [
        call
        for message in messages
        if isinstance(message, AIMessage)
        for call in calls_of(message)
        if call["id"] not in answer_ids
    ]


def unknown_outcomes(messages: Sequence[AnyMessage]) -> list[ToolMessage]:
    """Answer every open call with "outcome unknown": it may or may not have had its effect."""
    return [_unknown_outcome(call) for call in open_calls(messages)]


def answer_malformed(messages: Iterable[AnyMessage]) -> list[AnyMessage]:
    """Answer the open malformed calls, each after the other answers of its message.

    Foreign graphs leave malformed calls open, and a provider would refuse that history.
    """
    messages = list(messages)
    answer_ids = {m.tool_call_id for m in messages if isinstance(m, ToolMessage)}
    result: list[AnyMessage] = []
    due: list[ToolMessage] = []
    for message in messages:
        if not isinstance(message, ToolMessage):
            result += due
            due = []
        result.append(message)
        if isinstance(message, AIMessage):
            calls = message.invalid_tool_calls
            due = [_malformed_call_answer(c) for c in calls if c["id"] not in answer_ids]
    return [*result, *due]


def apply_policy(messages: list[AnyMessage], policy: HistoryPolicy) -> list[AnyMessage]:
    """Return the messages that an agent's model sees, according to the agent's `history` policy."""
    if policy is None:
        return messages
    if isinstance(policy, int):
        return window(messages, policy)
    return list(policy(list(messages)))


def window(messages: list[AnyMessage], size: int) -> list[AnyMessage]:
    """Return the last `size` messages, or more where that would split a call from its answer."""
    start = max(len(messages) - size, 0)
    while 0 < start < len(messages) and isinstance(messages[start], ToolMessage):
        start -= 1
    return messages[start:]


def split_system(messages: Sequence[AnyMessage]) -> tuple[list[str], list[AnyMessage]]:
    """Separate the system texts: most providers want one system message, as the first message."""
    if not any(isinstance(m, SystemMessage) for m in messages):
        return [], list(messages)
    system = [str(m.text) for m in messages if isinstance(m, SystemMessage)]
    return system, [m for m in messages if not isinstance(m, SystemMessage)]


def as_plain_chat(messages: Iterable[AnyMessage]) -> list[AnyMessage]:
    """Write calls and their answers as text, for a model that cannot bind tools."""
    plain: list[AnyMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            plain.append(HumanMessage(f"[{message.name or 'tool'} returned] {message.text}"))
        elif isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
            names = ", ".join(str(call["name"]) for call in calls_of(message))
            plain.append(AIMessage(f"{message.text}\n[asked for: {names}]".strip()))
        else:
            plain.append(message)
    return plain


def work_done(messages: Iterable[AnyMessage]) -> str:
    """Return a line for each result and each text in messages, as a report for another agent."""
    return "\n".join(
        f"- {m.name}: {m.text}" if isinstance(m, ToolMessage) else f"- said: {m.text}"
        for m in messages
        if isinstance(m, ToolMessage | AIMessage) and m.text
    )


def _answers_by_call(messages: Sequence[AnyMessage]) -> dict[tuple[int, int], ToolMessage]:
    """Match answers with calls, by the positions of message and call.

    An answer belongs to the last call of its id before it, because providers reuse ids.
    """
    unmatched_answers: dict[str, deque[ToolMessage]] = {}
    matches: dict[tuple[int, int], ToolMessage] = {}
    for position in reversed(range(len(messages))):
        message = messages[position]
        if isinstance(message, ToolMessage):
            unmatched_answers.setdefault(message.tool_call_id, deque()).appendleft(message)
        elif isinstance(message, AIMessage):
            for index, call in enumerate(calls_of(message)):
                if answers := unmatched_answers.get(call["id"] or ""):
                    matches[position, index] = answers.popleft()
    return matches


def _with_answers(
    message: AIMessage,
    position: int,
    answers: dict[tuple[int, int], ToolMessage],
    call_ids: set[str],
) -> list[AnyMessage]:
    replies: list[ToolMessage] = []
    new_ids: dict[int, str] = {}
    for index, call in enumerate(calls_of(message)):
        reply = answers.get((position, index)) or _unknown_outcome(call)
        call_id = _unique_id(call["id"] or "call", call_ids)
        call_ids.add(call_id)
        if call_id != call["id"]:
            new_ids[index] = call_id
            reply = reply.model_copy(update={"tool_call_id": call_id})
        replies.append(reply)
    return [_rename(message, new_ids) if new_ids else message, *replies]


def _unique_id(call_id: str, call_ids: set[str]) -> str:
    if call_id not in call_ids:
        return call_id
    count = 2
    while f"{call_id}_{count}" in call_ids:
        count += 1
    return f"{call_id}_{count}"


def _rename(message: AIMessage, new_ids: dict[int, str]) -> AIMessage:
    """Replace the ids of calls, by the positions of the calls, in the content blocks too."""
    calls = calls_of(message)
    new_calls = [{**call, "id": new_ids.get(i, call["id"])} for i, call in enumerate(calls)]
    valid_count = len(message.tool_calls)
    ids_by_old: dict[str, deque[str]] = {}
    for old, new in zip(calls, new_calls, strict=True):
        ids_by_old.setdefault(old["id"] or "", deque()).append(str(new["id"]))
    content = message.content
    if isinstance(content, list):
        content = [_rename_block(block, ids_by_old) for block in content]
    return message.model_copy(
        update={
            "tool_calls": new_calls[:valid_count],
            "invalid_tool_calls": new_calls[valid_count:],
            "content": content,
        }
    )


def _rename_block(block: str | dict[str, Any], new_ids: dict[str, deque[str]]) -> Any:
    # Anthropic repeats the call id in its content blocks, OpenAI's `responses/v1` as `call_id`.
    for key in ("call_id", "id"):
        old = block.get(key) if isinstance(block, dict) else None
        if old and new_ids.get(old):
            return {**block, key: new_ids[old].popleft()}  # type: ignore[dict-item]  # a dict
    return block


def _unknown_outcome(call: ToolCall | InvalidToolCall) -> ToolMessage:
    return ToolMessage(
        OUTCOME_UNKNOWN, tool_call_id=call["id"] or "", name=call["name"], status="error"
    )


def _malformed_call_answer(call: InvalidToolCall) -> ToolMessage:
    text = f"Not executed: the arguments are not valid JSON: {call['args']!r}."
    call_id = call["id"] or ""
    return ToolMessage(
        text, id=f"answer_{call_id}", tool_call_id=call_id, name=call["name"], status="error"
    )
