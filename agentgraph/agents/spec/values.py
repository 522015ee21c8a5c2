"""The values of a specification: which are legal, and the advice for those that are not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from pydantic import PydanticUserError

from agentgraph.agents.spec.intents import Intent
from agentgraph.agents.spec.output import OutputFormat
from agentgraph.agents.spec.tools import AgentTool, as_base_tool
from agentgraph.display import shortened
from agentgraph.errors import ConfigurationError
from agentgraph.guards import Default, Guards
from agentgraph.models import name_fault
from agentgraph.participant import as_participant
from agentgraph.storage import open_saver

PromptText: TypeAlias = str | SystemMessage | Sequence[str | SystemMessage]
SystemPrompt: TypeAlias = (
    str | SystemMessage | Callable[[list[AnyMessage]], PromptText | Awaitable[PromptText]]
)
HandoffMode: TypeAlias = Literal["sticky", "delegate"]
Durability: TypeAlias = Literal["sync", "async", "exit"]

_FORM_ADVICE = "give a pydantic model, a dataclass, a TypedDict or a JSON Schema"


def value_faults(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield the faults of a specification's fields, except for the lists of members.

    Each fault names the field, its value and what to give in its place.
    """
    for name, (fits, advice) in _VALUES.items():
        if name in fields and not fits(fields[name]):
            yield f"{name}={_display(fields[name])}: {advice}"
    model = fields.get("model")
    if isinstance(model, str) and (fault := name_fault(model)) is not None:
        yield fault


def _display(value: object) -> str:
    """Show a value; of a URL show only the scheme, as it may contain a password."""
    scheme, separator, _ = value.partition("://") if isinstance(value, str) else ("", "", "")
    return f"'{scheme}://…'" if separator else repr(value)


def member_fault(name: str, member: object) -> str | None:
    """Return what is wrong with a member of the list of this name, None if it fits."""
    return _MEMBER_FAULTS[name](member)


def form_fault(value: Any) -> str | None:
    """Return what is wrong with a `response_format`, None if it fits."""
    try:
        OutputFormat(value)
    except (ValueError, TypeError, PydanticUserError) as error:
        reason = str(error).partition("\n")[0]
        return f"response_format={shortened(repr(value))}: {_FORM_ADVICE} ({reason})"
    return None


def _is_saver(value: object) -> bool:
    # `open_saver` is lazy: it parses the URL and does not connect.
    try:
        return value is None or isinstance(value, BaseCheckpointSaver) or bool(open_saver(value))  # type: ignore[arg-type]
    except (ConfigurationError, AttributeError, TypeError):
        return False


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: value is None or isinstance(value, kinds)


def _is_policy(value: object) -> bool:
    is_size = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value is None or is_size or callable(value)


# By field: whether a value fits, and the advice where it does not.
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_is(BaseChatModel, str), "give a chat model, a string such as 'openai:…', or None"),
    "system_prompt": (
        lambda value: isinstance(value, str | SystemMessage) or callable(value),
        "give a text, or a function of the messages",
    ),
    "handoff": (lambda value: value in get_args(HandoffMode), "use 'sticky' or 'delegate'"),
    "durability": (
        lambda value: value in get_args(Durability),
        "use 'async', 'sync' or 'exit'",
    ),
    "history": (_is_policy, "give a number of messages, at least one, a function, or None for all"),
    "guards": (_is(Guards, Default), "give Guards, or None for none"),
    "checkpointer": (
        _is_saver,
        "give a saver, or a URL: memory, sqlite:///file.db or postgresql://…",
    ),
    "store": (_is(BaseStore), "give a LangGraph store"),
    "context_schema": (_is(type), "give a class"),
}


def _agent_fault(member: Any) -> str | None:
    if isinstance(member, AgentTool) or as_participant(member) is not None:
        return None
    return f"agents holds {member!r}, which is neither an Agent nor a compiled graph"


def _tool_fault(tool: Any) -> str | None:
    # Converted here as a test: a function without annotations fails only when it becomes a tool.
    if isinstance(tool, Mapping | BaseTool) or as_participant(tool) is not None:
        return None
    if not callable(tool):
        return f"tools holds {tool!r}, which is not a tool, a function, a dict or an Agent"
    try:
        as_base_tool(tool)
    except (ValueError, TypeError) as error:
        name = getattr(tool, "__name__", type(tool).__name__)
        if not getattr(tool, "__doc__", None):
            return (
                f"the function {name!r} in tools cannot become a tool: it has no docstring. Add "
                "one that tells the model what the function does"
            )
        return f"the function {name!r} in tools cannot become a tool: {error}"
    return None


def _intent_fault(intent: Any) -> str | None:
    return (
        None if isinstance(intent, Intent) else f"intents holds {intent!r}, which is not an Intent"
    )


def _patch_fault(patch: Any) -> str | None:
    return (
        None if callable(patch) else f"patcher holds {patch!r}, which is not a function of a graph"
    )


def _middleware_fault(middleware: Any) -> str | None:
    # Recognized by its attributes: `langchain` is an extra, and may not be installed.
    if hasattr(middleware, "state_schema") and hasattr(middleware, "wrap_model_call"):
        return None
    return f"middleware holds {middleware!r}, which is not an AgentMiddleware of LangChain"


_MEMBER_FAULTS: Mapping[str, Callable[[Any], str | None]] = {
    "agents": _agent_fault,
    "tools": _tool_fault,
    "intents": _intent_fault,
    "patcher": _patch_fault,
    "middleware": _middleware_fault,
}
