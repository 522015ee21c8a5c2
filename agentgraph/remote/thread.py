"""A thread on the server of a remote graph, and the messages in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from langchain_core.messages import AnyMessage, convert_to_messages
from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class RemoteThread:
    """A thread on the server before a visit; without an id the server keeps nothing."""

    id: str | None
    messages: Sequence[AnyMessage] = ()
    questions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_idle: bool = True
    """Whether nothing is left to run."""

    @classmethod
    def read(cls, thread_id: str, state: Mapping[str, Any]) -> RemoteThread:
        """Read the state of a thread, as the server sends it."""
        values, tasks = state.get("values"), state.get("tasks") or ()
        questions = [question for task in tasks for question in task.get("interrupts") or ()]
        return cls(
            thread_id,
            read_messages(values.get("messages") or () if isinstance(values, Mapping) else ()),
            {question["id"]: question for question in questions},
            not state.get("next"),
        )


def read_messages(raw: Iterable[object]) -> list[AnyMessage]:
    """Return messages that were sent as JSON, or are kept as dicts, as messages."""
    messages: list[AnyMessage] = []
    for part in raw:
        if isinstance(part, Mapping) and "type" in part:
            messages.append(_adapter().validate_python(part))
        else:
            messages += convert_to_messages([part])  # type: ignore[list-item, arg-type]
    return messages


@cache
def _adapter() -> TypeAdapter[AnyMessage]:
    # `convert_to_messages` loses the usage, the malformed calls and the class of a chunk.
    return TypeAdapter(AnyMessage)


def unseen_messages(
    messages: Sequence[AnyMessage], earlier: Sequence[AnyMessage]
) -> Sequence[AnyMessage]:
    """Return what comes after the last message that is known, by its id."""
    known_ids = {message.id for message in earlier}
    ends = (at for at in range(len(messages), 0, -1) if messages[at - 1].id in known_ids)
    return messages[next(ends, 0) :]


def with_ids(messages: Iterable[AnyMessage]) -> list[AnyMessage]:
    """Give ids to messages that have none, so that they do not count as new when they come back.

    They follow from the ids before them, so that a resumed graph with a memory knows them again.
    """
    result: list[AnyMessage] = []
    for message in messages:
        before = result[-1].id if result else ""
        result.append(message if message.id else message.model_copy(update={"id": f"{before}+"}))
    return result
