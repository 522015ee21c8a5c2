"""The state of an agent's graph: its channels and their reducers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langgraph.channels import DeltaChannel, EphemeralValue, Topic
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from typing_extensions import TypedDict

from agentgraph.agents.spec.output import StoredAnswer

NEXT_MOVE = "next_move"
"""The channel by which a node tells the route behind it what the messages do not."""


class Turn(TypedDict, total=False):
    """The current outside input, the same at all levels of the tree."""

    id: str
    agent: str
    """The agent of the turn: agents that share a store see each other's threads."""
    closed: str | None
    """The guard that has ended the turn, None while it goes on."""
    since: str | None
    """The id of the last message before this visit to the root."""
    after: str | None
    """The id of the last message of the input before, None in the first one."""


class CallOutcome(TypedDict, total=False):
    """What a call leads to in addition to its answer; read once, in the next super-step."""

    call_id: str
    goto: list[Any]
    parent: dict[str, Any]
    """The goto and the update of a `Command` to the graph around this one."""
    transfer: dict[str, str]
    finish: dict[str, str]


def merge_turn(old: Turn, new: Turn) -> Turn:
    """Merge two writes: a new turn replaces the old one; writes of the same turn are combined.

    Idempotent, because a turn passes through nested graphs and comes back.
    """
    if old.get("id") != new.get("id"):
        return new
    return {**old, **new, "closed": old.get("closed") or new.get("closed")}


def merge_messages(state: Sequence[Any], writes: Sequence[Any]) -> list[AnyMessage]:
    """Fold batches of messages into a list, by id and with removals.

    LangGraph replays stored writes in larger batches than the original ones, so the result must not
    depend on the sizes of the batches, nor be random.
    """
    earlier = _with_ids(state)
    new_messages = [m for write in writes for m in (write if isinstance(write, list) else [write])]
    if _only_adds(earlier, new_messages):
        return [*earlier, *new_messages]
    messages: dict[str, AnyMessage] = {m.id: m for m in earlier}
    for message in new_messages:
        _fold(messages, message)
    return list(messages.values())


def _only_adds(earlier: Sequence[Any], new_messages: Sequence[Any]) -> bool:
    """Tell whether whole messages with new ids are added, which is mostly so, and quick."""
    if not _WHOLE.issuperset(map(type, new_messages)):
        return False
    ids = {message.id for message in new_messages}
    is_new = len(ids) == len(new_messages) and all(ids)
    return is_new and ids.isdisjoint([message.id for message in earlier])


_WHOLE = frozenset((HumanMessage, AIMessage, ToolMessage))
"""The types of messages that need no conversion."""


def _with_ids(state: Sequence[Any]) -> Sequence[Any]:
    # A list that this reducer returned needs no second pass, which is slow for long histories.
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
    messages[message.id or ""] = message  # a dict keeps the position of an existing key


def _as_message(raw: Any) -> Any:
    if isinstance(raw, BaseMessage):
        message: Any = message_chunk_to_message(raw) if isinstance(raw, BaseMessageChunk) else raw
    else:
        message = convert_to_messages([raw])[0]
    return message


def _derived_id(messages: dict[str, AnyMessage], message: AnyMessage) -> str:
    # From the message before it, and never random: a replay must give the same id.
    before = next(reversed(messages), "")
    text = f"{len(messages)} {before} {message.type} {message.content!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def own_messages(values: Any, later: Sequence[AnyMessage] = ()) -> list[AnyMessage]:
    """Return the messages that a level added itself, also after it rewrote its conversation.

    `later` are messages that the level's stored values do not have yet.
    """
    messages = merge_messages(values.get("messages") or [], [list(later)])
    if not values.get("rewritten"):
        return messages
    whole = merge_messages(values.get("past") or [], [messages])
    return [m for m in whole if isinstance(m, AIMessage | ToolMessage)]


class MessagesChannel(DeltaChannel[list[AnyMessage]]):
    """A message list that is stored as deltas, with whole snapshots in between.

    Snapshots become rarer as the list grows: a turn adds as many bytes at 10,000 messages as at 10,
    and loading a short conversation does not read a hundred deltas to save a small snapshot. If
    possible, a snapshot is made where a turn ends, because the next turn loads from there.
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
    """The state of one level; only `turn` and `output` are shared by all levels."""

    messages: Annotated[list[AnyMessage], MessagesChannel(merge_messages)]
    system_prompt: str
    current_active_agent: str | None
    turn: Annotated[Turn, merge_turn]
    outcomes: Annotated[list[CallOutcome], Topic(CallOutcome)]
    next_move: Annotated[str, EphemeralValue(str, guard=False)]
    """What a node tells the route behind it: "end", "workers 8", or where a hook jumps."""
    to_parent: dict[str, Any] | None
    """The goto and the update for the agent above, with which this level's run has ended."""
    output: StoredAnswer | None
    help_reason: str | None
    errand: str | None
    """The id of the call that this level answers as a delegate; the name is stored, keep it."""
    asked: int
    """How many messages with calls this level has added, also those that a summary removed."""
    forced_tool: str | None
    """The tool that the next model call must call, after an intent that names it."""
    rewritten: bool
    past: list[AnyMessage]
    """The messages of a sub-agent's level from before it rewrote the conversation for itself."""
