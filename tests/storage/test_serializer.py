"""Messages are loaded as LangGraph's serializer loads them, whatever they contain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Overwrite, Send
from pydantic import BaseModel

from agentgraph import Agent
from agentgraph.storage import open_saver
from agentgraph.storage.serializer import MessageSerializer, load_messages_faster
from agentgraph.testing import ScriptedModel

LANGGRAPH = JsonPlusSerializer(allowed_msgpack_modules=None)
OURS = MessageSerializer(allowed_msgpack_modules=None)


class Reversed:
    """A cipher."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


class Ticket(BaseModel):
    number: int


class Note(HumanMessage):
    """A message of a class of the user's own."""


@dataclass
class Weather:
    degrees: int


words = st.text(max_size=8)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
data = st.dictionaries(words, json, max_size=2)
blocks = st.lists(words | st.fixed_dictionaries({"type": st.just("text"), "text": words}))
content = words | blocks
shared: dict[str, Any] = {
    "content": content,
    "id": st.none() | words,
    "name": st.none() | words,
    "additional_kwargs": data,
    "response_metadata": data,
}
calls = st.lists(
    st.fixed_dictionaries(
        {"name": words, "args": data, "id": st.none() | words},
        optional={"type": st.just("tool_call")},
    ),
    max_size=2,
)
malformed = st.lists(
    st.fixed_dictionaries({"name": words, "args": words, "id": words, "error": words}), max_size=1
)
usage = st.none() | st.fixed_dictionaries(
    {"input_tokens": st.just(1), "output_tokens": st.just(2), "total_tokens": st.just(3)}
)
FUNCTION = {"name": "look", "arguments": "{}"}
PROVIDER_CALLS = {"tool_calls": [{"id": "1", "type": "function", "function": FUNCTION}]}
artifacts = st.none() | json | st.builds(Ticket, number=st.integers(-9, 9))
message: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(HumanMessage, **shared),
    words.map(lambda text: HumanMessage(text, colour=text)),
    st.builds(SystemMessage, **shared),
    st.builds(AIMessage, **shared, tool_calls=calls, usage_metadata=usage),
    words.map(lambda text: AIMessage(text, additional_kwargs=PROVIDER_CALLS)),
    malformed.map(lambda calls: AIMessage("", invalid_tool_calls=calls)),
    st.builds(
        ToolMessage,
        **shared,
        tool_call_id=words,
        artifact=artifacts,
        status=st.sampled_from(["success", "error"]),
    ),
    words.map(lambda id: RemoveMessage(id=id)),
    words.map(lambda text: AIMessageChunk(content=text)),
    words.map(lambda text: Note(content=text)),
)


def parts(value: Any) -> Any:
    """Return what equality of messages leaves out, too: which fields are set, and the classes."""
    if isinstance(value, BaseMessage):
        return type(value), value.__getstate__()
    if isinstance(value, list | tuple):
        return type(value), [parts(item) for item in value]
    if isinstance(value, dict):
        return {key: parts(item) for key, item in value.items()}
    return value


def snapshot_of(messages: list[Any]) -> Any:
    """Return a snapshot of a channel, as LangGraph stores it."""
    empty: Any = LANGGRAPH._unpack_ext_hook(EXT_DELTA_SNAPSHOT, b"\x90")
    channel = DeltaChannel(lambda _, writes: writes[-1], list).from_checkpoint(empty)
    assert channel.get() == []  # LangGraph reads it as a snapshot
    return empty._replace(value=messages)


@given(st.lists(message, max_size=4))
def test_any_messages_are_loaded_as_by_langgraph(messages: list[AnyMessage]) -> None:
    for value in (messages, snapshot_of(messages), {"messages": messages}, messages[:1]):
        stored = LANGGRAPH.dumps_typed(value)
        assert OURS.dumps_typed(value) == stored
        assert parts(OURS.loads_typed(stored)) == parts(LANGGRAPH.loads_typed(stored))


@given(st.lists(message, max_size=2), content)
def test_so_are_messages_that_were_changed_after_they_were_made(
    messages: list[Any], text: Any
) -> None:
    for one in messages:
        one.content = text
        one.additional_kwargs = PROVIDER_CALLS
    stored = LANGGRAPH.dumps_typed(messages)
    assert parts(OURS.loads_typed(stored)) == parts(LANGGRAPH.loads_typed(stored))


def call_with(**changes: Any) -> list[Any]:
    return [{"name": "look", "args": {}, "id": "1", "type": "tool_call", **changes}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", 5),
        ("id", 1.5),
        ("id", b"x"),
        ("name", b"x"),
        ("additional_kwargs", None),
        ("additional_kwargs", []),
        ("response_metadata", None),
        ("tool_calls", None),
        ("tool_calls", 5),
        ("tool_calls", {"a": 1}),
        ("tool_calls", ["x"]),
        ("tool_calls", call_with(name=b"look")),
        ("tool_calls", call_with(name=5)),
        ("tool_calls", call_with(id=b"1")),
        ("tool_calls", call_with(args=[])),
        ("tool_calls", call_with(args={b"place": 1})),
        ("usage_metadata", {"input_tokens": "1", "output_tokens": 2.0, "total_tokens": True}),
        ("usage_metadata", {"input_tokens": 1}),
        ("usage_metadata", 5),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_so_are_messages_of_which_a_field_was_set_to_any_value(field: str, value: Any) -> None:
    for one in (AIMessage("x"), HumanMessage("x"), ToolMessage("x", tool_call_id="1")):
        vars(one)[field] = value
        stored = LANGGRAPH.dumps_typed(one)
        loaded, expected = OURS.loads_typed(stored), LANGGRAPH.loads_typed(stored)
        assert parts(loaded) == parts(expected)
        assert repr(loaded) == repr(expected)  # 1 equals 1.0 and True


MALFORMED = {"name": "look", "args": "{", "id": "1", "error": "no JSON"}
CALLED = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}])


def stored_with(message: BaseMessage, **changes: Any) -> tuple[str, bytes]:
    """Return a stored message some fields of which another version has written in its own way."""
    fields = {**message.model_dump(), **changes}
    fields = {name: value for name, value in fields.items() if value is not ...}
    kind = type(message)
    array = (kind.__module__, kind.__name__, fields, "model_validate_json")
    ext = ormsgpack.packb(ormsgpack.Ext(5, ormsgpack.packb(array)))
    return "msgpack", ext


@pytest.mark.parametrize(
    ("written", "changes"),
    [
        (AIMessage("x"), {"usage_metadata": ...}),
        (AIMessage("x"), {"invalid_tool_calls": ...}),
        (HumanMessage("x"), {"example": False}),
        (ToolMessage("x", tool_call_id="1"), {"status": ...}),
        (ToolMessage("x", tool_call_id="1"), {"tool_call_id": 5}),
        (ToolMessage("x", tool_call_id="1"), {"content": 5}),
        (ToolMessage("x", tool_call_id="1"), {"content": ["a", 5]}),
        (AIMessage("x"), {"invalid_tool_calls": [MALFORMED]}),
        (CALLED, {"tool_calls": [{"name": "look", "args": {}, "id": "1"}]}),
        (CALLED, {"tool_calls": [{**CALLED.tool_calls[0], "extras": {"a": 1}}]}),
        (CALLED, {"tool_calls": [{**CALLED.tool_calls[0], "type": "other"}]}),
    ],
)
def test_what_another_version_of_langchain_has_stored_is_loaded_as_by_langgraph(
    written: BaseMessage, changes: dict[str, Any]
) -> None:
    stored = stored_with(written, **changes)
    loaded = LANGGRAPH.loads_typed(stored)
    assert isinstance(loaded, type(written))
    assert parts(OURS.loads_typed(stored)) == parts(loaded)


OTHERS: list[Any] = [None, b"x", bytearray(b"x"), Send("n", HumanMessage("x")), Overwrite([]), {}]


@pytest.mark.parametrize("value", OTHERS)
def test_other_values_are_loaded_as_by_langgraph(value: Any) -> None:
    stored = LANGGRAPH.dumps_typed(value)
    assert OURS.loads_typed(stored) == LANGGRAPH.loads_typed(stored)


def test_messages_are_not_validated_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [HumanMessage("a"), CALLED, ToolMessage("b", tool_call_id="1"), AIMessage("c")]
    stored = LANGGRAPH.dumps_typed(snapshot_of(messages))

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a message is validated")

    for kind in (HumanMessage, AIMessage, ToolMessage):
        monkeypatch.setattr(kind, "__init__", refused)
    assert OURS.loads_typed(stored).value == messages


def test_types_that_are_not_allowed_are_not_loaded() -> None:
    stored = LANGGRAPH.dumps_typed([HumanMessage("x"), Weather(20)])
    assert OURS.loads_typed(stored) == [HumanMessage("x"), {"degrees": 20}]
    saver = InMemorySaver(serde=OURS)
    allowing = saver.with_allowlist([(Weather.__module__, Weather.__name__)])
    assert type(allowing.serde) is MessageSerializer
    assert allowing.serde.loads_typed(stored)[1] == Weather(20)


def test_a_saver_may_load_the_same_types_as_before() -> None:
    stored = LANGGRAPH.dumps_typed([Weather(20)])
    saver = InMemorySaver(serde=LANGGRAPH.with_msgpack_allowlist([Weather]))
    load_messages_faster(saver)
    assert type(saver.serde) is MessageSerializer
    assert saver.serde.loads_typed(stored) == [Weather(20)]


@pytest.mark.parametrize(
    "serde",
    [
        MessageSerializer(),
        JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: data),
        EncryptedSerializer(Reversed()),
    ],
)
def test_a_serializer_of_the_user_s_own_is_left_as_it_is(serde: Any) -> None:
    saver = InMemorySaver(serde=serde)
    load_messages_faster(saver)
    assert saver.serde is serde


@pytest.fixture(params=["memory", "LangGraph's memory", "sqlite", "LangGraph's sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    file = f"{tmp_path}/threads.db"
    match request.param:
        case "memory":
            yield open_saver("memory")
        case "LangGraph's memory":
            yield InMemorySaver()
        case "sqlite":
            yield open_saver(f"sqlite:///{file}")
        case "LangGraph's sqlite":
            async with AsyncSqliteSaver.from_conn_string(file) as opened:
                yield opened
        case "postgres":
            yield open_saver(request.getfixturevalue("postgres_url"))


async def test_threads_of_each_saver_are_loaded_with_it(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("a", model=ScriptedModel(["One.", "Two."]), checkpointer=saver)
    await agent.ainvoke("first", thread_id="t")
    loaded: list[str] = []

    def noted(self: MessageSerializer, code: int, data: bytes) -> Any:
        loaded.append("message")
        return load(self, code, data)

    load = MessageSerializer._load_extension
    monkeypatch.setattr(MessageSerializer, "_load_extension", noted)
    await agent.ainvoke("second", thread_id="t")
    assert loaded
    assert [m.text for m in await agent.ahistory("t")] == ["first", "One.", "second", "Two."]
