"""What the nodes of others' graphs are given and return, as their guards see it.

Their model is asked by running the node, with the messages that the guards would have it see; their
tools are seen by what they answered. So no other model can be put in the place of theirs, and an
action of theirs is not remembered under a key.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from agentgraph.clock import new_id
from agentgraph.errors import ModelError
from agentgraph.guards.records.channel import GuardedState
from agentgraph.interception import Answerer, ModelCall, ToolUse

FORM = "structured_response"
"""Where agents of LangChain's keep an answer that is given in a form."""

Call: TypeAlias = Callable[[Any], Awaitable[Any]]
Updates: TypeAlias = Iterable[Mapping[str, Any]]


def _last(left: Any, right: Any) -> Any:
    return right


class ForeignState(GuardedState, total=False):
    """What a graph of others keeps for its guards."""

    stopped_by: Annotated[str | None, _last]
    """The guard that has ended this input, or waits for a human."""
    guard_holds: Annotated[bool, _last]
    """Whether no edge out of the node of the model is followed."""
    guard_said: Annotated[Instead, _last]


class Instead(TypedDict, total=False):
    """What is known of an answer that is given in the place of the model's."""

    id: str
    """The message that was said."""
    form: Any
    """What the model gave in a form, where a human is to decide on it."""


@dataclass(slots=True)
class _Unknown:
    """A model of which nothing is known but whose it is."""

    model_name: str


@dataclass(slots=True)
class Asked:
    """A node that asks a model, as its guards ask it."""

    state: Mapping[str, Any]
    call: Call
    updates: Callable[[Any], Updates]
    """Reads what a node returns."""
    result: Any = None
    message: AIMessage | None = None
    form: Any = None
    """The answer that it has given in a form, by a call which it has answered itself."""

    def of(self, model_name: str) -> ModelCall:
        """Return the call, for whoever decides on it."""
        messages = convert_to_messages(self.state.get("messages") or [])
        return ModelCall(_Unknown(model_name), messages, (), self._ask, is_foreign=True)

    async def _ask(self, answerer: Answerer | None, messages: Sequence[BaseMessage]) -> AIMessage:
        if answerer is not None:
            raise ModelError("a graph of others takes no other model: give an AIMessage")
        self.result = await self.call({**self.state, "messages": list(messages)})
        updates = [*self.updates(self.result)]
        said = [m for m in _messages(updates) if isinstance(m, AIMessage)]
        self.message = said[-1] if said else AIMessage("")
        self.form = next((one[FORM] for one in updates if one.get(FORM) is not None), None)
        return self.message

    def text_of(self, message: AIMessage) -> str | None:
        """Return as JSON what a message answers in a form, None where it answers nothing yet."""
        return as_text(self.form) if message is self.message and self.form is not None else None

    def result_for(self, message: AIMessage, held: Any) -> Any:
        """Return what the node is to return: its own, unless something else is to be said.

        What is said in the place of an answer that was held may be one in its form too.
        """
        if message is self.message:
            return self.result
        message = message if message.id else message.model_copy(update={"id": new_id()})
        update: dict[str, Any] = {"messages": [message], "guard_said": {"id": message.id}}
        form = None if held is None else _read(held, str(message.text))
        if form is not None or self.state.get(FORM) is not None:  # that of an input before
            update[FORM] = form
        return update


@dataclass(slots=True)
class Uses:
    """The tool calls that a node was given, and what came of them."""

    given: Any
    messages: Sequence[AnyMessage]
    refused: list[ToolMessage] = field(default_factory=list)

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The calls; a node is given them by a `Send`, or finds them in the last message."""
        if isinstance(self.given, list):
            return [one for one in self.given if isinstance(one, Mapping) and "args" in one]
        if isinstance(self.given, Mapping) and "tool_call" in self.given:
            return [self.given["tool_call"]]
        answered = {m.tool_call_id for m in self.messages if isinstance(m, ToolMessage)}
        asked = self._asked()
        calls = asked.tool_calls if asked is not None else ()
        return [dict(one) for one in calls if one["id"] not in answered]

    def use(self, call: Mapping[str, Any], tools: Mapping[str, Any]) -> ToolUse:
        """Return a call, for whoever decides on it."""
        asked, name = self._asked(), str(call["name"])
        message_id = str(asked.id) if asked is not None else ""
        return ToolUse(tools.get(name), name, call["args"], "", message_id, _never_run)

    def refuse(self, call: Mapping[str, Any], told: ToolMessage) -> None:
        """Answer a call in the node's place."""
        self.refused.append(told.model_copy(update={"tool_call_id": call["id"]}))

    def left(self) -> Any:
        """Return what the node is given then, None where nothing is left to do."""
        if not self.refused:
            return self.given
        gone = {told.tool_call_id for told in self.refused}
        left = [one for one in self.calls if one["id"] not in gone]
        if not left or isinstance(self.given, list):
            return left or None
        asked, cut = self._asked(), {"tool_calls": left}
        shown = [
            m.model_copy(update=cut) if asked is not None and m.id == asked.id else m
            for m in self.given["messages"]
        ]
        return {**self.given, "messages": shown}

    def answered(self, updates: Updates) -> Iterator[tuple[Mapping[str, Any], ToolMessage]]:
        """Yield each call with its answer, among what the node has returned."""
        by_id = {m.tool_call_id: m for m in _messages(updates) if isinstance(m, ToolMessage)}
        yield from ((one, by_id[one["id"]]) for one in self.calls if one["id"] in by_id)

    def _asked(self) -> AIMessage | None:
        said = (m for m in reversed(self.messages) if isinstance(m, AIMessage) and m.tool_calls)
        return next(said, None)


def as_text(form: object) -> str:
    """Return an answer in a form as JSON."""
    return json.dumps(to_jsonable_python(form, fallback=str), ensure_ascii=False)


def _read(held: Any, text: str) -> Any:
    """Return what a text says in the form of what was held, None where it has another."""
    if text == as_text(held):
        return held
    try:
        return TypeAdapter(type(held)).validate_json(text)
    except ValueError:
        return None


def last_said(messages: Sequence[AnyMessage]) -> str:
    """Return the id of the message that began an input."""
    humans = [m for m in messages if isinstance(m, HumanMessage)]
    return str(humans[-1].id) if humans else "input"


def _messages(updates: Updates) -> list[BaseMessage]:
    written = (update.get("messages") or [] for update in updates)
    return [
        message
        for messages in written
        for message in convert_to_messages(messages if isinstance(messages, list) else [messages])
    ]


async def _never_run() -> object:
    raise AssertionError("the node of another graph runs its tools itself")
