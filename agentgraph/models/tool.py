"""A tool as the offline model reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentgraph.models.words import stems

__all__ = ["Bindable", "Tool", "label_of", "tool_of"]

Bindable: TypeAlias = dict[str, Any] | type | Callable[..., Any] | BaseTool


@dataclass(frozen=True, slots=True)
class Tool:
    """What a tool is for, and what it takes."""

    name: str
    description: str = ""
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def score(self, words: frozenset[str]) -> int:
        enums = " ".join(str(v) for p in self.properties.values() for v in p.get("enum", ()))
        return len(words & stems(self.name)) + len(words & stems(f"{self.description} {enums}"))


def label_of(name: str) -> str:
    """Return a tool's name as a reader wants it."""
    return name.removeprefix("transfer_to_")


def tool_of(tool: Bindable) -> Tool | None:
    """Read a tool; None is a provider's native one, which has no schema to fill."""
    if isinstance(tool, dict) and tool.get("type", "function") not in ("function", "object"):
        return None
    spec = convert_to_openai_tool(tool)["function"]
    schema = spec.get("parameters", {})
    return Tool(
        spec["name"],
        spec.get("description", ""),
        {name: _plain(each) for name, each in schema.get("properties", {}).items()},
        frozenset(schema.get("required", ())),
    )


def _plain(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take the first real type of a union."""
    types = schema.get("type")
    if isinstance(types, list):
        return {**schema, "type": next((one for one in types if one != "null"), "null")}
    return next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), schema)
