"""What a model was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

__all__ = ["Bindable", "Request", "request_of", "spec_of"]

Bindable: TypeAlias = dict[str, Any] | type | Callable[..., Any] | BaseTool


@dataclass(frozen=True, slots=True)
class Request:
    """What the model received in one call."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...] = ()
    tool_choice: object = None
    specs: tuple[Mapping[str, object], ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def system(self) -> str:
        """Return the system prompt, or an empty string."""
        first = self.messages[0] if self.messages else None
        return first.text if isinstance(first, SystemMessage) else ""


def request_of(messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Request:
    """Return the record of a call of the model."""
    options = dict(options)
    specs = tuple(options.pop("tools", None) or ())
    names = tuple(name for spec in specs if (name := spec.get("function", spec).get("name")))
    return Request(tuple(messages), names, options.pop("tool_choice", None), specs, options)


def spec_of(tool: Bindable) -> dict[str, Any]:
    """Return the tool as it is sent: a dict as it is, unless it is a titled JSON schema."""
    if isinstance(tool, dict) and "title" not in tool:
        return tool
    return convert_to_openai_tool(tool)
