"""What an agent's graph remembers, and how writes to it are merged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    BaseMessageChunk,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langgraph.channels import DeltaChannel, Topic
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from typing_extensions import TypedDict

Json: TypeAlias = Any
"""JSON values, whose type Python cannot say without a recursive alias that LangGraph rejects."""


class Turn(TypedDict, total=False):
    """The accounts of one outside input, the same at all levels of the tree."""

    id: str
    agent: str
    """Whose turn it is: agents that share a store find each other's threads."""
    steps: int
    closed: str | None


class CallOutcome(TypedDict, total=False):
    """What a call has led to beside its answer; read once, in the next super-step."""

    call_id: str
    goto: list[Any]
    transfer: dict[str, str]
    finish: dict[str, str]


def merge_turn(left: Turn, right: Turn) -> Turn:
    """Merge accounts: a new turn replaces the old one, parallel branches of one agree.

    Idempotent, because the accounts pass through nested graphs and come back.
    """
    if left.get("id") != right.get("id"):
        return right
    return {
        **left,
        **right,
        "steps": max(left.get("steps", 0), right.get("steps", 0)),
        "closed": left.get("closed") or right.get("closed"),
    }


def merge_messages(state: Sequence[Any], writes: Sequence[Any]) -> list[AnyMessage]:
    """Fold batches of messages into a list, by id and with removals, however they are cut.

    LangGraph replays stored writes in larger batches than they were made in, so nothing here may
    depend on how they are cut, nor be random.
    """
    merged: dict[str, AnyMessage] = {m.id: m for m in _folded(state)}
    for write in writes:
        for message in write if isinstance(write, list) else [write]:
            _fold(merged, message)
    return list(merged.values())


def _folded(state: Sequence[Any]) -> Sequence[Any]:
    # What this reducer returned needs no second look; with long histories a look is what costs.
    if not state or (isinstance(state[0], BaseMessage) and state[0].id):
        return state
    return merge_messages([], [list(state)])


def _fold(merged: dict[str, AnyMessage], raw: Any) -> None:
    message = _as_message(raw)
    if isinstance(message, RemoveMessage):
        if message.id == REMOVE_ALL_MESSAGES:
            merged.clear()
        else:
            merged.pop(message.id or "", None)
        return
    if not message.id:
        message = message.model_copy(update={"id": _derived_id(merged, message)})
    merged[message.id or ""] = message  # a dict keeps the place of a key it has


def _as_message(raw: Any) -> Any:
    if isinstance(raw, BaseMessage):
        message: Any = message_chunk_to_message(raw) if isinstance(raw, BaseMessageChunk) else raw
    else:
        message = convert_to_messages([raw])[0]
    return message


def _derived_id(merged: dict[str, AnyMessage], message: AnyMessage) -> str:
    before = next(reversed(merged), "")
    text = f"{len(merged)} {before} {message.type} {message.content!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def made(values: Any, later: Sequence[AnyMessage] = ()) -> list[AnyMessage]:
    """Return what a level has said and done, also what it has rewritten for itself since."""
    messages = merge_messages(values.get("messages") or [], [list(later)])
    if not values.get("rewritten"):
        return messages
    whole = merge_messages(values.get("past") or [], [messages])
    return [m for m in whole if isinstance(m, AIMessage | ToolMessage)]


class MessagesChannel(DeltaChannel[list[AnyMessage]]):
    """A message list that is stored by what is added to it, with whole copies in between.

    The copies become rarer as the list grows: then a turn adds as many bytes at 10,000 messages as
    at 10, and loading a short conversation does not read a hundred steps to save a small copy. They
    are made where a turn ends, if they can be: that is where the next one loads.
    """

    __slots__ = ()

    @property
    def snapshot_frequency(self) -> int:
        messages = self.value if isinstance(self.value, list) else []
        if messages and isinstance(messages[-1], AIMessage) and not messages[-1].tool_calls:
            return max(1, len(messages) // 10)
        return max(8, len(messages) // 5)

    @snapshot_frequency.setter
    def snapshot_frequency(self, frequency: int) -> None: ...


class AgentState(TypedDict, total=False):
    """The state of one level; of these keys only `turn` and `output` are the same at all levels."""

    messages: Annotated[list[AnyMessage], MessagesChannel(merge_messages)]
    system_prompt: str
    current_active_agent: str | None
    turn: Annotated[Turn, merge_turn]
    outcomes: Annotated[list[CallOutcome], Topic(CallOutcome)]
    output: Json
    help_reason: str | None
    errand: str | None
    asked: int
    """How many messages with calls this level has made; a summary may have taken some away."""
    rewritten: bool
    past: list[AnyMessage]
    """What a sub-agent's level held before it rewrote the conversation for itself."""
