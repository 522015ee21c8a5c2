"""The history that a model sees: legal for every provider, calls and answers kept together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)

from agentgraph.sendable import (
    LEGAL_NAME,
    is_blank_block,
    is_sendable,
    is_thought,
    legal_name,
    with_call_ids,
    with_sendable_text,
    with_whole_calls,
)

OUTCOME_UNKNOWN = (
    "Outcome unknown: the run was interrupted before this call answered. "
    "It may or may not have had its effect; check before you repeat it."
)

HistoryPolicy = int | Callable[[list[AnyMessage]], list[AnyMessage]] | None
"""None keeps all messages, a number at least the last ones, a function returns those to keep."""


class KnownHistory:
    """The last history that was found legal: of one that begins with it, only the rest is checked.

    A run has one, as each of its prompts mostly begins with the one before it.
    """

    __slots__ = ("_call_ids", "_messages")

    def __init__(self) -> None:
        self._messages: Sequence[AnyMessage] = ()
        self._call_ids: set[str | None] = set()

    def is_legal(self, messages: Sequence[AnyMessage]) -> bool:
        """Tell whether `repair` would change nothing; it may say no of a legal history."""
        begin = len(self._messages)
        if messages[:begin] != self._messages:  # quick for the same messages
            begin, self._call_ids = 0, set()
        is_legal = bool(messages) and _is_legal(messages[begin:], self._call_ids)
        if not is_legal:
            self._call_ids = set()
        self._messages = list(messages) if is_legal else []
        return is_legal

    def call_ids_of(self, messages: Sequence[AnyMessage]) -> set[str | None]:
        """Return the ids of the calls in messages, and of the calls that they answer."""
        is_known = bool(messages) and messages == self._messages
        return self._call_ids.copy() if is_known else call_ids_of(messages)


def repair(
    messages: Iterable[AnyMessage], known_history: KnownHistory | None = None
) -> list[AnyMessage]:
    """Make a history legal: each call is answered exactly once, directly after its message.

    Calls without an answer get one that says so, and malformed ones get whole arguments. Answers
    without a call, and empty messages of the human and of the assistant, are left out. A repeated
    call id is renamed, together with its answer. A history that would be empty or end with the
    assistant gets a neutral "Continue." at the end. Texts that no encoding has are replaced.
    It is quick for a history that begins with `known_history`, which is replaced.
    """
    messages = list(messages)
    if (KnownHistory() if known_history is None else known_history).is_legal(messages):
        return messages
    answers = _answers_by_call(messages)
    call_ids: set[str] = set()
    legal: list[AnyMessage] = []
    for position, message in enumerate(messages):
        if isinstance(message, AIMessage):
            legal.extend(_with_answers(message, position, answers, call_ids))
        elif not isinstance(message, ToolMessage) and not is_blank(message):
            legal.append(message)
    if not legal or isinstance(legal[-1], AIMessage):
        legal.append(HumanMessage("Continue."))
    return [message if _is_ascii(message) else with_sendable_text(message) for message in legal]


def is_blank(message: BaseMessage) -> bool:
    """Tell whether a message says nothing; many providers refuse one of a human that is empty."""
    if isinstance(message, ToolMessage | RemoveMessage):
        return False
    if isinstance(message, AIMessage) and calls_of(message):
        return False
    content = message.content
    if isinstance(content, str):
        return not content.strip()
    return all(is_blank_block(block) or is_thought(block) for block in content)


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
    """Answer every open call: its outcome is unknown, or it was malformed and never executed."""
    return [_answer_to_open(call) for call in open_calls(messages)]


def with_known_answers(
    messages: Sequence[AnyMessage], answers: Mapping[str, ToolMessage]
) -> list[AnyMessage]:
    """Return messages with the answers to those of their open calls that have one, by its id."""
    open_ids = [call["id"] or "" for call in open_calls(messages)]
    return [*messages, *(answers[call_id] for call_id in open_ids if call_id in answers)]


def settled_before_input(
    messages: Sequence[AnyMessage], agents: Collection[str]
) -> list[AnyMessage] | None:
    """Return a history with an answer to each call that these agents left open before the input.

    The input are the human messages at the end. Returns None where nothing is open. Only the
    messages between the last two inputs are read: earlier ones were settled by an earlier input.
    """
    end = len(messages)
    while end and isinstance(messages[end - 1], HumanMessage):
        end -= 1
    begin = end
    while begin and not isinstance(messages[begin - 1], HumanMessage):
        begin -= 1
    recent = [m for m in messages[begin:end] if isinstance(m, ToolMessage) or m.name in agents]
    if end == len(messages) or not (answers := unknown_outcomes(recent)):
        return None
    return [*messages[:end], *answers, *messages[end:]]


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
    return convert_to_messages(list(policy(list(messages))))  # type: ignore[return-value]


def window(messages: list[AnyMessage], size: int) -> list[AnyMessage]:
    """Return at least the last `size` messages and all of this turn, from a human message on.

    The window's begin moves by `size` messages at a time, and never within a turn: in between, each
    prompt begins with the one before it, so that a provider finds it in its cache.
    """
    asked = _turn_begin(messages)
    start = _human_at(messages, max(asked + 1 - size, 0) // size * size)
    while (call := _call_before(messages, start)) is not None:
        start = _human_at(messages, call)
    return messages[start:]


def split_system(messages: Sequence[AnyMessage]) -> tuple[list[str], list[AnyMessage]]:
    """Separate the system texts: most providers want one system message, as the first message."""
    if _WITHOUT_SYSTEM.issuperset(map(type, messages)):
        return [], list(messages)
    system = [str(m.text) for m in messages if isinstance(m, SystemMessage)]
    return system, [m for m in messages if not isinstance(m, SystemMessage)]


# By exact types, as `isinstance` is slow for classes of messages.
_WITHOUT_SYSTEM = frozenset((HumanMessage, AIMessage, ToolMessage))


def call_ids_of(messages: Iterable[AnyMessage]) -> set[str | None]:
    """Return the ids of the calls in messages, and of the calls that they answer."""
    ids: set[str | None] = set()
    for message in messages:
        kind = message.__class__
        if kind is HumanMessage:
            continue
        if kind is not ToolMessage and isinstance(message, AIMessage):
            if message.tool_calls or message.invalid_tool_calls:
                ids.update([call["id"] for call in calls_of(message)])
        elif isinstance(message, ToolMessage):
            ids.add(message.tool_call_id)
    return ids


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


def _is_legal(messages: Sequence[AnyMessage], call_ids: set[str | None]) -> bool:
    """Tell in one pass whether `repair` would change nothing, which is so for most histories.

    `call_ids` are those of earlier messages, which are legal; those of these are added. It calls
    few functions, as it runs before each model call.
    """
    texts: list[Any] = [message.content for message in messages]
    if not _TEXT.issuperset(map(type, texts)):
        return False
    text = "".join(texts)
    if not (text.isascii() or is_sendable(text)):
        return False
    due: list[str | None] = []
    for message, text in zip(messages, texts, strict=True):
        kind = message.__class__
        if kind is ToolMessage:
            if not due or message.tool_call_id != due.pop():  # type: ignore[union-attr]
                return False
            continue
        calls = message.tool_calls if kind is AIMessage else ()  # type: ignore[union-attr]
        if due or kind not in _SPEAKERS or not (calls or text.strip()):
            return False
        if kind is AIMessage and message.invalid_tool_calls:  # type: ignore[union-attr]
            return False
        for call in calls and reversed(calls):
            call_id = call["id"]
            if not call_id or call_id in call_ids or not _is_legal_name(call["name"]):
                return False
            call_ids.add(call_id)
            due.append(call_id)
    return not due and not (messages and type(messages[-1]) is AIMessage)


_TEXT = frozenset((str,))
_SPEAKERS = (HumanMessage, AIMessage)


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
    """Return a message of the assistant as it can be sent, with the answers to its calls."""
    replies: list[ToolMessage] = []
    new_ids: dict[int, str] = {}
    for index, call in enumerate(calls_of(message)):
        reply = answers.get((position, index)) or _answer_to_open(call)
        call_id = _unique_id(call["id"] or "call", call_ids)
        call_ids.add(call_id)
        if call_id != call["id"]:
            new_ids[index] = call_id
            reply = reply.model_copy(update={"tool_call_id": call_id})
        replies.append(reply)
    if new_ids:
        message = with_call_ids(message, new_ids)
    if not _is_plain(message):
        message = with_whole_calls(message)
        replies = [
            m if _is_legal_name(m.name) else m.model_copy(update={"name": legal_name(m.name)})
            for m in replies
        ]
    return [] if is_blank(message) else [message, *replies]


def _is_plain(message: AIMessage) -> bool:
    """Tell whether a message can be sent as it is: a text, and calls that can be read."""
    is_text = isinstance(message.content, str) and not message.invalid_tool_calls
    return is_text and all(_is_legal_name(call["name"]) for call in message.tool_calls)


@lru_cache(1_024)
def _is_legal_name(name: str | None) -> bool:
    return name is None or LEGAL_NAME.fullmatch(name) is not None


def _is_ascii(message: AnyMessage) -> bool:
    return isinstance(message.content, str) and message.content.isascii()


def _turn_begin(messages: Sequence[AnyMessage]) -> int:
    """Return the position of the first of the last human messages that stand side by side."""
    begin = len(messages) - 1
    while begin > 0 and not _is_said(messages[begin]):
        begin -= 1
    while begin > 0 and _is_said(messages[begin - 1]):
        begin -= 1
    return begin


def _human_at(messages: Sequence[AnyMessage], start: int) -> int:
    """Return the position of the last human message up to `start`, 0 where there is none."""
    while start > 0 and not _is_said(messages[start]):
        start -= 1
    return start


def _is_said(message: AnyMessage) -> bool:
    return isinstance(message, HumanMessage) and not is_blank(message)


def _call_before(messages: Sequence[AnyMessage], start: int) -> int | None:
    """Return where a call stands that is before `start` but answered after it, None if nowhere."""
    seen: set[str | None] = set()
    for message in messages[start:]:
        if isinstance(message, AIMessage):
            seen.update(call["id"] for call in calls_of(message))
        elif isinstance(message, ToolMessage) and message.tool_call_id not in seen:
            for position in range(start - 1, -1, -1):
                earlier = messages[position]
                if isinstance(earlier, AIMessage) and any(
                    call["id"] == message.tool_call_id for call in calls_of(earlier)
                ):
                    return position
    return None


def _unique_id(call_id: str, call_ids: set[str]) -> str:
    if call_id not in call_ids:
        return call_id
    count = 2
    while f"{call_id}_{count}" in call_ids:
        count += 1
    return f"{call_id}_{count}"


def _answer_to_open(call: ToolCall | InvalidToolCall) -> ToolMessage:
    """Return the answer to a call that has none; a malformed one was never executed."""
    if call.get("type") == "invalid_tool_call":
        return _malformed_call_answer(call)  # type: ignore[arg-type]
    return _unknown_outcome(call)


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
