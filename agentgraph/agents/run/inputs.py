"""What a user gives an agent: a text, messages or content blocks, or decisions on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.messages import AnyMessage, HumanMessage, convert_to_messages
from langgraph.types import Command
from typing_extensions import TypedDict

from agentgraph.clock import new_id
from agentgraph.display import shortened
from agentgraph.errors import ConfigurationError, RoutingError
from agentgraph.history import is_blank

Block: TypeAlias = Mapping[str, object]
"""A content block of LangChain's, such as `{"type": "image", "url": "https://…"}`."""


class MessagesInput(TypedDict):
    """Messages in the form of LangGraph's `MessagesState`."""

    messages: Sequence[AnyMessage | str | Block]


MessageInput: TypeAlias = str | AnyMessage | Sequence[AnyMessage | str | Block] | MessagesInput
Input: TypeAlias = MessageInput | Command[Any]


@dataclass(frozen=True, slots=True)
class Decisions:
    """Stands for an input where a run that waits is to go on with decisions."""

    values: Mapping[str, object]
    """The decisions by the ids of their interrupts."""
    sender: str | None = None
    """Who has decided, None where the caller does not say."""

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise RoutingError(
                "decisions are given by the ids of their interrupts: {interrupt.id: decision}",
                code="unknown_interrupt",
            )


class Continuation:
    """Stands for an input where a run that was cut off is to go on."""


def messages_of(input: MessageInput) -> list[AnyMessage]:
    """Return an input as messages with ids.

    Content blocks are one message of the human. Raises `ConfigurationError` for an empty input, and
    for what is no input.
    """
    raw: Any = input
    if isinstance(raw, Mapping) and set(raw) == {"messages"}:
        raw = raw["messages"]
    parts = list(raw) if isinstance(raw, list | tuple) else [raw]
    try:
        if any(map(_is_block, parts)):
            parts = [HumanMessage(parts)]
        messages = convert_to_messages([_as_message_like(part) for part in parts])
    except (ValueError, TypeError, NotImplementedError) as error:
        raise _no_input(input) from error
    if not messages or is_blank(messages[-1]):
        raise ConfigurationError(
            f"the input {shortened(repr(input))} is empty: "
            "give a text, a message or list of messages, or content blocks",
            code="input",
        )
    return [m if m.id else m.model_copy(update={"id": new_id()}) for m in messages]  # type: ignore[misc]


def _is_block(part: object) -> bool:
    """Tell whether a part is a content block: of text, an image, a file or audio."""
    is_message = not isinstance(part, Mapping) or "role" in part or "type" not in part
    return not is_message and part["type"] not in _MESSAGE_TYPES  # type: ignore[index]  # a mapping


_MESSAGE_TYPES = ("human", "user", "ai", "assistant", "system", "developer", "tool", "remove")


def _as_message_like(part: Any) -> Any:
    """Return a text or a message in a form that LangChain reads; raises `TypeError` for others."""
    if isinstance(part, Mapping) and not {"role", "type"} & set(part):
        raise TypeError("a mapping that is no message")
    return dict(part) if isinstance(part, Mapping) else part


def _no_input(input: object) -> ConfigurationError:
    return ConfigurationError(
        f"the input {shortened(repr(input))} is no text, message or list of messages or of "
        "content blocks, nor {'messages': [...]}: a state has no other inputs; what tools and "
        "prompts need goes into `context=`",
        code="input",
    )


def decisions_of(command: Command[Any]) -> Decisions:
    """Return the decisions of a `Command`; raises `ConfigurationError` for any other one."""
    if command.goto or command.update or command.graph:
        raise ConfigurationError(
            "of a Command only `resume` is an input: Command(resume={interrupt.id: decision})",
            code="input",
        )
    values: Any = command.resume
    return Decisions(values)
