"""The state of an agent's graph: its channels, and how writes to them are merged."""

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
    """The outside input that is being answered, the same at all levels of the tree."""

    id: str
    agent: str
    """Whose turn it is: agents that share a store find each other's threads."""
    closed: str | None
    """The guard that has ended the turn, None while it goes on."""


class CallOutcome(TypedDict, total=False):
    """What a call leads to beside its answer; read once, in the next super-step."""

    call_id: str
    goto: list[Any]
    transfer: dict[str, str]
    finish: dict[str, str]


def merge_turn(old: Turn, new: Turn) -> Turn:
    """Merge two writes: a new turn replaces the old one, parallel branches of one agree.

    Idempotent, because a turn passes through nested graphs and comes back.
    """
    if old.get("id") != new.get("id"):
        return new
    return {**old, **new, "closed": old.get("closed") or new.get("closed")}


def merge_messages(state: Sequence[Any], writes: Sequence[Any]) -> list[AnyMessage]:
    """Fold batches of messages into a list, by id and with removals, however they are cut.

    LangGraph replays stored writes in larger batches than they were made in, so nothing here may
    depend on how they are cut, nor be random.
    """
    messages: dict[str, AnyMessage] = {m.id: m for m in _with_ids(state)}
    for write in writes:
        for message in write if isinstance(write, list) else [write]:
            _fold(messages, message)
    return list(messages.values())


def _with_ids(state: Sequence[Any]) -> Sequence[Any]:
    # What this reducer returned needs no second look; with long histories a look is what costs.
    if not state or (isinstance(state[0], BaseMessage) and state[0].id):
        return state
    return merge_messages([], [list(state)])


def _fold(messages: dict[str, AnyMessage], raw: Any) -> None:
    message = _as_message(raw)
    if isinstance(message, RemoveMessage):
        if message.id == REMOVE_ALL_MESSAGES:
            messages.clear()
        else:
            messages.pop(message.id or "", None)
        return
    if not message.id:
        message = message.model_copy(update={"id": _derived_id(messages, message)})
    messages[message.id or ""] = message  # a dict keeps the place of a key it has


def _as_message(raw: Any) -> Any:
    if isinstance(raw, BaseMessage):
        message: Any = message_chunk_to_message(raw) if isinstance(raw, BaseMessageChunk) else raw
    else:
        message = convert_to_messages([raw])[0]
    return message


def _derived_id(messages: dict[str, AnyMessage], message: AnyMessage) -> str:
    # From what was there before, and never random: a replay must give the same id.
    before = next(reversed(messages), "")
    text = f"{len(messages)} {before} {message.type} {message.content!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def own_messages(values: Any, later: Sequence[AnyMessage] = ()) -> list[AnyMessage]:
    """Return what a level has added itself, also where it has rewritten its conversation since.

    `later` are messages that its stored values do not have yet.
    """
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
    """The id of the call that this level answers as a delegate; checkpoints know it so."""
    asked: int
    """How many messages with calls this level has added; a summary may have removed some."""
    rewritten: bool
    past: list[AnyMessage]
    """What a sub-agent's level had before it rewrote the conversation for itself."""
