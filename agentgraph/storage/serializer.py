"""LangGraph's serializer, with a shorter way to load the messages of LangChain.

A long thread spends most of a turn's time on loading its messages: LangGraph validates each one,
though it was validated before it was stored. The stored bytes and the loaded messages are the same
with both serializers.
"""

from __future__ import annotations

from typing import Any, Final

import ormsgpack
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import (
    EXT_DELTA_SNAPSHOT,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)

from agentgraph.storage.store import Saver


class MessageSerializer(JsonPlusSerializer):
    """Loads whole messages without validating them; does all else as LangGraph's serializer does.

    saver = AsyncSqliteSaver(connection, serde=MessageSerializer())
    """

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, content = data
        if kind != "msgpack":
            return super().loads_typed(data)
        if len(content) > 1 and _is_whole_value(content[0]):  # ormsgpack would ignore the rest
            raise ValueError("there are more bytes than those of the value")
        return self._load(content)

    def _load(self, data: bytes) -> Any:
        return ormsgpack.unpackb(
            data, ext_hook=self._load_extension, option=ormsgpack.OPT_NON_STR_KEYS
        )

    def _load_extension(self, code: int, data: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            empty = self._unpack_ext_hook(code, _EMPTY_LIST)
            return empty._replace(value=self._load(data))
        if code == EXT_PYDANTIC_V2:
            for beginning, kind in _KINDS:
                if data.startswith(beginning):
                    fields = self._load(data)[2]
                    if _is_whole(kind, fields):
                        return _new_message(kind, fields)
        return self._unpack_ext_hook(code, data)


def load_messages_faster(saver: Saver) -> None:
    """Let a saver load its messages faster, unless its serializer is not LangGraph's own."""
    serde: Any = saver.serde
    if type(serde) is JsonPlusSerializer and not serde._custom_unpack_ext_hook:
        saver.serde = object.__new__(MessageSerializer)
        vars(saver.serde).update(vars(serde))  # the types that it may load, among others


def _beginning(kind: type[BaseMessage]) -> bytes:
    """Return how the bytes of a stored message begin: an array of four, its module, its name."""
    return b"\x94" + ormsgpack.packb(kind.__module__) + ormsgpack.packb(kind.__name__)


def _is_whole_value(first: int) -> bool:
    """Tell whether a byte is a whole value in msgpack: a small number, None, True or False."""
    return first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3)


_CLASSES: Final[list[type[BaseMessage]]] = [HumanMessage, AIMessage, ToolMessage, SystemMessage]
_KINDS: Final = [(_beginning(kind), kind) for kind in _CLASSES]
_FIELDS: Final = {kind: frozenset(kind.model_fields) for kind in _CLASSES}
_EMPTY_LIST: Final = ormsgpack.packb([])
_CALL: Final = frozenset({"name", "args", "id", "type"})


def _is_whole(kind: type[BaseMessage], fields: Any) -> bool:
    """Tell whether validation would change nothing: the message is of this version of LangChain."""
    if type(fields) is not dict or fields.keys() != _FIELDS[kind]:
        return False
    if not _has_whole_shared_fields(fields):
        return False
    if kind is ToolMessage:
        return type(fields["tool_call_id"]) is str
    return kind is not AIMessage or (_has_whole_calls(fields) and _has_whole_usage(fields))


# A message may have been changed after it was made, and so have values of any type.
def _has_whole_shared_fields(fields: dict[str, Any]) -> bool:
    is_named = _is_text_or_none(fields["id"]) and _is_text_or_none(fields["name"])
    content = fields["content"]
    return is_named and (type(content) is str or _are_blocks(content))


def _is_text_or_none(value: Any) -> bool:
    return value is None or type(value) is str


def _are_blocks(content: Any) -> bool:
    return type(content) is list and all(type(block) in (str, dict) for block in content)


def _has_whole_calls(fields: dict[str, Any]) -> bool:
    calls, more = fields["tool_calls"], fields["additional_kwargs"]
    if fields["invalid_tool_calls"] or type(calls) is not list or type(more) is not dict:
        return False
    if not calls:  # then they are made of what the provider has sent
        return not more.get("tool_calls")
    return all(map(_is_whole_call, calls))


def _is_whole_call(call: Any) -> bool:
    if type(call) is not dict or call.keys() != _CALL or call["type"] != "tool_call":
        return False
    is_named = type(call["name"]) is str and _is_text_or_none(call["id"])
    return is_named and type(call["args"]) is dict and all(type(key) is str for key in call["args"])


def _has_whole_usage(fields: dict[str, Any]) -> bool:
    usage = fields["usage_metadata"]
    return usage is None or _are_counts(usage)


def _are_counts(value: Any) -> bool:
    return type(value) is int or (type(value) is dict and all(map(_are_counts, value.values())))


def _new_message(kind: type[BaseMessage], fields: dict[str, Any]) -> BaseMessage:
    """Return a message with these fields, made as one is made of a pickle."""
    message = kind.__new__(kind)
    message.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_extra__": {},
            "__pydantic_fields_set__": set(fields),
            "__pydantic_private__": None,
        }
    )
    return message
