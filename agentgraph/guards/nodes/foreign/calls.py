"""The calls of a foreign graph's nodes, as its guards see them.

A foreign graph is one that agentgraph did not build. Guards ask its model by running its node, with
the messages that they want the model to see; they observe its tools by their answers. So no
fallback model can answer in its place, and no saga remembers its actions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeAlias, cast

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from agentgraph.clock import new_id
from agentgraph.errors import ModelError
from agentgraph.guards.records.registry import latest
from agentgraph.interception import Answerer, ModelCall, ToolUse
from agentgraph.patching import with_values

FORM = "structured_response"
"""The channel in which agents of LangChain keep an answer in a form."""

_INPUT_KEY = "llm_input_messages"
"""Where LangGraph's agents keep what a hook lets their model see."""

Call: TypeAlias = Callable[[Any], Awaitable[Any]]
Updates: TypeAlias = Iterable[Mapping[str, Any]]


class Replacement(TypedDict, total=False):
    """The stored values of an answer that replaces the model's."""

    id: str
    """The id of the message that answers."""
    form: Any
    """The model's answer in a form, where a human must decide on it."""


class RunState(TypedDict, total=False):
    """What guards keep in a foreign graph while a run lasts."""

    account: Mapping[str, Any]
    """The account of the input."""
    human: dict[str, Any]
    """The question to a human, or the answer to it."""
    replacement: Replacement


def merge_states(first: RunState, second: RunState) -> RunState:
    """Merge what two nodes keep: the reducer of the channel."""
    accounts = [part["account"] for part in (first, second) if "account" in part]
    return {**first, **second, "account": reduce(latest, accounts)}


@dataclass(slots=True)
class _ForeignModel:
    """Stands for a foreign graph's model, of which only the graph's name is known."""

    model_name: str


@dataclass(slots=True)
class ModelNode:
    """One run of a foreign graph's model node, as a model that guards can ask."""

    state: Any
    call: Call
    """Runs the node."""
    updates: Callable[[Any], Updates]
    """Reads the updates in the result of the node."""
    message_of: Callable[[], AIMessage | None]
    """Returns the last message of a model that the node has asked."""
    answers_in_texts: bool = False
    """Whether a text in any channel is an answer, and not only a message."""
    result: Any = None
    message: AIMessage | None = None
    form: Any = None
    """The model's answer in a form; the node has answered that call itself."""
    messages: Sequence[BaseMessage] = ()
    is_text: bool = False
    """Whether the node's result has no message of a model."""
    replacement_id: str = ""
    """The id of the message that has replaced the model's answer, "" where none has."""

    def model_call(self, model_name: str) -> ModelCall:
        """Return the call that guards decide on."""
        self.messages = convert_to_messages(messages_of(self.state, self._key))
        return ModelCall(_ForeignModel(model_name), self.messages, (), self._ask, is_foreign=True)

    @property
    def _key(self) -> str:
        """The key of what the model is sent, which a hook may have prepared."""
        return _INPUT_KEY if value_in(self.state, _INPUT_KEY) is not None else "messages"

    async def _ask(self, answerer: Answerer | None, messages: Sequence[BaseMessage]) -> AIMessage:
        if answerer is not None:
            raise ModelError("a graph of others takes no other model: give an AIMessage")
        is_changed = list(map(id, messages)) != list(map(id, self.messages))
        is_told = is_changed and value_in(self.state, self._key) is not None
        state = with_messages(self.state, messages, self._key) if is_told else self.state
        self.result = await self.call(state)
        updates = [*self.updates(self.result)]
        self.message = self._message_in(updates)
        forms = (update[FORM] for update in updates if update.get(FORM) is not None)
        self.form = next(forms, None)
        return self.message

    def _message_in(self, updates: Sequence[Mapping[str, Any]]) -> AIMessage:
        """Return the node's answer; where it is no message, one with the text and the usage."""
        answers = [m for m in (_messages(updates) or all_messages(updates)) if _is_answer(m)]
        self.is_text = not answers
        if answers:
            return cast(AIMessage, answers[-1])
        message = self.message_of() or AIMessage("")
        text = str(message.text)
        is_shown = self.answers_in_texts and bool(text) and has_text(updates, text)
        return message.model_copy(
            update={"content": text if is_shown else "", "tool_calls": [], "invalid_tool_calls": []}
        )

    def text_of(self, message: AIMessage) -> str | None:
        """Return a message's answer, in a form as JSON; None where it contains no answer yet."""
        is_own = message is self.message
        if is_own and self.form is not None:
            return as_text(self.form)
        if message.tool_calls or message.invalid_tool_calls or (is_own and self.is_text):
            return str(message.text) or None if is_own and self.is_text else None
        return str(message.text)

    def answered_ids(self) -> set[str]:
        """Return the ids of the calls that the node has answered itself."""
        updates = self.updates(self.result)
        return {m.tool_call_id for m in all_messages(updates) if isinstance(m, ToolMessage)}

    def result_for(self, message: AIMessage, withheld: Any) -> Any:
        """Return the node's result: its own, unless `message` replaces the model's answer.

        `withheld` is the answer in a form that a human decided on; its replacement may have the
        same form.
        """
        if message is self.message:
            return self.result
        own = self.message
        if own is not None and own.tool_calls and own.tool_calls == message.tool_calls:
            return swap_message(self.result, own, message)  # only its text is another
        if own is not None and self.is_text and own.text:
            return swap_text(self.result, str(own.text), str(message.text))
        if value_in(self.state, "messages") is None:
            return None
        message = message if message.id else message.model_copy(update={"id": new_id()})
        self.replacement_id = str(message.id)
        update: dict[str, Any] = {"messages": [message]}
        form = None if withheld is None else _read(withheld, str(message.text))
        if form is not None or value_in(self.state, FORM) is not None:  # an earlier input's form
            update[FORM] = form
        return update


@dataclass(slots=True)
class ToolsNode:
    """One run of a foreign graph's tools node: its calls, and their answers."""

    node_input: Any
    messages: Sequence[AnyMessage]
    refusals: list[ToolMessage] = field(default_factory=list)
    edits: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The calls whose arguments a human has changed, by id."""

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The calls, which a `Send` passes to the node, or else the last message contains."""
        return [self.edits.get(call["id"], call) for call in self._given_calls()]

    def _given_calls(self) -> list[Mapping[str, Any]]:
        node_input = self.node_input
        if isinstance(node_input, list):
            return [call for call in node_input if isinstance(call, Mapping) and "args" in call]
        if isinstance(node_input, Mapping) and "tool_call" in node_input:
            return [node_input["tool_call"]]
        answered_ids = {m.tool_call_id for m in self.messages if isinstance(m, ToolMessage)}
        message = self._calling_message()
        calls = message.tool_calls if message is not None else ()
        return [dict(call) for call in calls if call["id"] not in answered_ids]

    @property
    def open_calls(self) -> list[Mapping[str, Any]]:
        """The calls that were not refused."""
        refused_ids = {answer.tool_call_id for answer in self.refusals}
        return [call for call in self.calls if call["id"] not in refused_ids]

    def use(self, call: Mapping[str, Any], tools: Mapping[str, Any]) -> ToolUse:
        """Return the use of a tool that guards decide on."""
        message, name = self._calling_message(), str(call["name"])
        message_id = str(message.id) if message is not None else ""
        key = f"{message_id}/{call['id']}"
        return ToolUse(tools.get(name), name, call["args"], key, message_id, _never_run)

    def refuse(self, call: Mapping[str, Any], answer: ToolMessage) -> None:
        """Answer a call that the node must not run."""
        self.refusals.append(answer.model_copy(update={"tool_call_id": call["id"]}))

    def edit(self, call: Mapping[str, Any], args: Mapping[str, object]) -> None:
        """Let the node run a call with other arguments."""
        self.edits[call["id"]] = {**call, "args": {**args}}

    def stop(self, cause: str) -> list[Any]:
        """Answer all calls of a node that was broken off; return its result, which is empty."""
        for call in self.calls:
            text = f"Not executed: {cause}."
            self.refuse(call, ToolMessage(text, tool_call_id="", name=call["name"], status="error"))
        return []

    def remaining_input(self) -> Any:
        """Return the node's input without the refused calls, None where no call remains."""
        if not self.refusals and not self.edits:
            return self.node_input
        calls = self.open_calls
        if not calls or isinstance(self.node_input, list):
            return calls or None
        if isinstance(self.node_input, Mapping) and "tool_call" in self.node_input:
            return {**self.node_input, "tool_call": calls[0]}
        calling_message, cut = self._calling_message(), {"tool_calls": calls}
        messages = [
            m.model_copy(update=cut)
            if calling_message is not None and m.id == calling_message.id
            else m
            for m in messages_of(self.node_input)
        ]
        return with_messages(self.node_input, messages)

    def answers(self, updates: Updates) -> Iterator[tuple[Mapping[str, Any], ToolMessage]]:
        """Yield each call that has an answer in the node's updates, with that answer."""
        by_id = {m.tool_call_id: m for m in _messages(updates) if isinstance(m, ToolMessage)}
        yield from ((call, by_id[call["id"]]) for call in self.calls if call["id"] in by_id)

    def _calling_message(self) -> AIMessage | None:
        messages = (m for m in reversed(self.messages) if isinstance(m, AIMessage))
        return next((m for m in messages if m.tool_calls), None)


# A state is a mapping, a dataclass, or a model of pydantic.


def value_in(state: Any, key: str) -> Any:
    """Return a value of a state, None where it has none."""
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)


def messages_of(state: Any, key: str = "messages") -> list[Any]:
    """Return the messages in a state."""
    return [*(value_in(state, key) or ())]


def with_messages(state: Any, messages: Sequence[BaseMessage], key: str = "messages") -> Any:
    """Return a copy of a state with other messages."""
    changes = {key: list(messages)}
    if isinstance(state, Mapping):
        return {**state, **changes}
    if isinstance(state, BaseModel):
        return state.model_copy(update=changes)
    return replace(state, **changes)


def as_text(form: object) -> str:
    """Return an answer in a form as JSON."""
    return json.dumps(to_jsonable_python(form, fallback=str), ensure_ascii=False)


def _read(withheld: Any, text: str) -> Any:
    """Return a text read in the form of the withheld answer, None where it does not fit."""
    if text == as_text(withheld):
        return withheld
    try:
        return TypeAdapter(type(withheld)).validate_json(text)
    except ValueError:
        return None


def input_message_id(messages: Sequence[AnyMessage]) -> str:
    """Return the id of the message that began an input."""
    humans = [m for m in messages if isinstance(m, HumanMessage)]
    return str(humans[-1].id) if humans else "input"


def has_tool_answers(updates: Updates) -> bool:
    """Tell whether updates have answers to calls of tools."""
    return any(isinstance(message, ToolMessage) for message in all_messages(updates))


def last_message_id(updates: Updates) -> str | None:
    """Return the id of the last message in a node's updates, None without messages."""
    return next((message.id for message in reversed(_messages(updates))), None)


def all_messages(updates: Updates) -> list[BaseMessage]:
    """Return the messages in all channels."""
    values = (value for update in updates for value in update.values())
    parts = (value if isinstance(value, list) else [value] for value in values)
    return [message for part in parts for message in part if isinstance(message, BaseMessage)]


def _is_answer(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage)


def swap_message(result: Any, old: AIMessage, new: AIMessage) -> Any:
    """Return a node's result with another message in the place of one."""
    return with_values(result, lambda value: new if _is_same(value, old) else value)


def _is_same(value: object, message: AIMessage) -> bool:
    is_same_id = isinstance(value, AIMessage) and value.id is not None and value.id == message.id
    return value is message or is_same_id


def swap_text(result: Any, old: str, new: str) -> Any:
    """Return a node's result with another text in the place of one, in all of its channels."""
    return with_values(result, lambda value: new if value == old else value)


def has_text(updates: Updates, text: str) -> bool:
    """Tell whether a text stands in a channel."""
    values = (value for update in updates for value in update.values())
    return any(text in value if isinstance(value, list) else text == value for value in values)


def _messages(updates: Updates) -> list[BaseMessage]:
    parts = (update.get("messages") or [] for update in updates)
    return [
        message
        for messages in parts
        for message in convert_to_messages(messages if isinstance(messages, list) else [messages])
    ]


async def _never_run(args: Mapping[str, object] | None = None) -> object:
    raise AssertionError("the node of another graph runs its tools itself")
