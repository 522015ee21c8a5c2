"""Messages as JSON in a log: whole, with their ids, content blocks and removals.

A message that JSON does not hold exactly, such as one with a tool's artifact, is stored in
LangGraph's serialisation. What is large goes to the blobs of its session, by its digest.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentgraph.graphs.memory import StoredValue
from agentgraph.routing.frozen_json import thaw
from agentgraph.sessions.log.blobs import NewBlobs

Change: TypeAlias = AnyMessage | RemoveMessage
"""A message that is added to a conversation or replaces one, or the removal of one."""

_KINDS: Mapping[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "tool": ToolMessage,
    "system": SystemMessage,
    "remove": RemoveMessage,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_SERIAL_KEY = "serialised"
_SERDE = JsonPlusSerializer()


def encode_message(message: BaseMessage) -> dict[str, Any]:
    """Return a message as JSON."""
    name = _NAMES.get(type(message))
    if name is not None:
        values = message.model_dump(exclude_defaults=True, exclude={"type"})
        # The id and the text stand there in any case, for those who read the log.
        values = {"type": name, "id": message.id, "content": message.content, **values}
        if _is_json(values):
            return values
    return {
        "type": message.type,
        "id": message.id,
        _SERIAL_KEY: encode_value(_SERDE.dumps_typed(message)),
    }


def decode_message(data: Mapping[str, Any]) -> Change:
    """Return the message that `encode_message` has written."""
    if _SERIAL_KEY in data:
        message: Any = _SERDE.loads_typed(decode_value(data[_SERIAL_KEY]))
        return message  # type: ignore[no-any-return]
    values = thaw(data)
    return _KINDS[values.pop("type")](**values)  # type: ignore[return-value]


def encode_value(value: StoredValue) -> list[str]:
    """Return a serialised value as JSON."""
    kind, data = value
    return [kind, b64encode(data).decode("ascii")]


def decode_value(data: Sequence[str]) -> StoredValue:
    """Return the serialised value that `encode_value` has written."""
    kind, text = data
    return kind, b64decode(text)


def stored_messages(blobs: NewBlobs, messages: Sequence[Change]) -> dict[str, Any]:
    """Return messages for the data of an envelope, nothing if there are none."""
    if not messages:
        return {}
    parts = [encode_message(message) for message in messages]
    return {"messages": blobs.take_out(parts, "messages")}


def stored_channels(blobs: NewBlobs, channels: Mapping[str, StoredValue]) -> dict[str, Any]:
    """Return serialised channels for the data of an envelope, nothing if there are none."""
    if not channels:
        return {}
    values = [encode_value(value) for value in channels.values()]
    parts = blobs.take_out(values, "channels")
    return {"channels": dict(zip(channels, parts, strict=True))}


def conversation_of(batches: Iterable[Sequence[Change]]) -> list[AnyMessage]:
    """Return the conversation that batches of messages make, by id and with removals."""
    messages: dict[str | None, AnyMessage] = {}
    for batch in batches:
        for message in batch:
            if not isinstance(message, RemoveMessage):
                messages[message.id] = message  # a known id keeps its place
            elif message.id == REMOVE_ALL_MESSAGES:
                messages.clear()
            else:
                messages.pop(message.id, None)
    return list(messages.values())


def changes_between(before: Sequence[AnyMessage], after: Sequence[AnyMessage]) -> list[Change]:
    """Return the messages and removals that make the conversation `after` of `before`.

    Where messages were put in front of earlier ones, or nothing is left of `before`, all are
    removed first: `before` may be the end of a longer conversation, all of which was rewritten.
    """
    earlier = {message.id: message for message in before}
    later_ids = [message.id for message in after]
    staying_ids = [key for key in later_ids if key in earlier]
    if before and _is_rewritten([*earlier], staying_ids, later_ids):
        return [RemoveMessage(REMOVE_ALL_MESSAGES), *after]
    is_later = set(later_ids)
    removals: list[Change] = [RemoveMessage(str(key)) for key in earlier if key not in is_later]
    return [*removals, *(m for m in after if not _is_same(earlier.get(m.id), m))]


def _is_rewritten(
    earlier_ids: Sequence[str | None],
    staying_ids: Sequence[str | None],
    later_ids: Sequence[str | None],
) -> bool:
    if not staying_ids:
        return True
    is_staying = set(staying_ids)
    has_moved = [key for key in earlier_ids if key in is_staying] != [*staying_ids]
    return has_moved or [*later_ids[: len(staying_ids)]] != [*staying_ids]


def _is_same(earlier: AnyMessage | None, message: AnyMessage) -> bool:
    return earlier is message or earlier == message


def _is_json(value: object) -> bool:
    """Tell whether reading a value back from JSON returns exactly this value."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if kind is list:
        return all(map(_is_json, value))  # type: ignore[call-overload]
    if kind is dict:
        items: Iterable[tuple[object, object]] = value.items()  # type: ignore[attr-defined]
        return all(type(key) is str and _is_json(item) for key, item in items)
    return False
