"""Choose the tool that the offline model calls, and fill its arguments, by a prompt's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentgraph.clock import new_id

Bindable: TypeAlias = dict[str, Any] | type | Callable[..., Any] | BaseTool


# Tools that come with every agent are called by these patterns only: the words of their
# descriptions occur in ordinary prompts.
_ASKS_FOR = r"\b(list|show|what|which)\b.*"
ON_REQUEST = {
    name: re.compile(pattern, re.I)
    for name, pattern in {
        "get_time_date": r"\bwhat\b.{0,8} (time|date|day)\b|\b(current|today.?s) (time|date)\b",
        "list_tools_available": rf"{_ASKS_FOR}\btools?\b",
        "list_subagents_available": rf"{_ASKS_FOR}\b(sub-?)?agents?\b",
        "list_intents_available": rf"{_ASKS_FOR}\bintents?\b",
        "get_current_active_agent": r"\b(current|active) agent\b|\bwho am i (talking|speaking)\b",
        "get_supervisor_agent": r"\bwho\b.*\bsupervisor\b",
        "request_help": r"\b(ask|request|call|get)\b.*\b(help|supervisor)\b",
    }.items()
}


def choose_call(prompt: str, tools: Sequence[Tool], *, tool_choice: bool | str) -> ToolCall | None:
    """Return a call of the best tool whose arguments the prompt can fill; of equal ones the first.

    With `tool_choice` True a tool is called even if no word fits, and the last one, the form of an
    agent's answer, even if the prompt cannot fill it; a name forces that tool. Returns None where
    no tool can be called.
    """
    for tool in _candidates(prompt, tools, tool_choice):
        args = arguments_of(tool, prompt)
        if args is not None:
            return _call(tool, args)
    if tool_choice is True and tools:
        return _call(tools[-1], arguments_of(tools[-1], prompt, fills=True) or {})
    return None


def _call(tool: Tool, args: dict[str, object]) -> ToolCall:
    return ToolCall(name=tool.name, args=args, id=f"call_{new_id()[-24:]}", type="tool_call")


def _candidates(prompt: str, tools: Sequence[Tool], tool_choice: bool | str) -> list[Tool]:
    """Return the tools that may be called, the best first."""
    if isinstance(tool_choice, str):
        return [tool for tool in tools if tool.name == tool_choice]
    words = stems(prompt)
    scores = [(tool.score(words), tool) for tool in tools if tool.name not in ON_REQUEST]
    best = sorted(scores, key=lambda pair: -pair[0])
    on_request = [t for t in tools if t.name in ON_REQUEST and ON_REQUEST[t.name].search(prompt)]
    return [*(tool for score, tool in best if score or tool_choice), *on_request]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its schema describes it."""

    name: str
    description: str = ""
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def score(self, words: frozenset[str]) -> int:
        """Return how many of the stems occur in the tool; stems in its name count twice."""
        enums = " ".join(str(v) for p in self.properties.values() for v in p.get("enum", ()))
        return len(words & stems(self.name)) + len(words & stems(f"{self.description} {enums}"))


def label_of(name: str) -> str:
    """Return a tool's name for display: for a handoff tool, the agent that it leads to."""
    return name.removeprefix("transfer_to_")


def tool_of(tool: Bindable) -> Tool | None:
    """Read the schema of a tool; None for a provider's native tool, which has no schema."""
    if isinstance(tool, dict) and tool.get("type", "function") not in ("function", "object"):
        return None
    spec = convert_to_openai_tool(tool)["function"]
    parameters = spec.get("parameters", {})
    return Tool(
        spec["name"],
        spec.get("description", ""),
        {name: _plain(schema) for name, schema in parameters.get("properties", {}).items()},
        frozenset(parameters.get("required", ())),
    )


def _plain(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take the first real type of a union."""
    types = schema.get("type")
    if isinstance(types, list):
        return {**schema, "type": next((kind for kind in types if kind != "null"), "null")}
    return next((kind for kind in schema.get("anyOf", ()) if kind.get("type") != "null"), schema)


_TAKES_PROMPT = """
brief content description input instruction instructions message note notes prompt query question
reason request search subject task text topic
"""
_FREE_TEXT = frozenset(_TAKES_PROMPT.split())
_IDENTIFIER = re.compile(r"(^|_)(id|number|no|code|key|ref|reference)$")
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w-])")
_CODE = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]+")
_DIGITS = re.compile(r"\d+")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
_QUOTATION = re.compile(r"[\"“]([^\"”]+)[\"”]")
_PROPER_NAME = re.compile(r"(?<=[a-z,] )[A-Z][\w-]+(?: [A-Z][\w-]+)*")


_EMPTY: Mapping[str, object] = {
    "integer": 0,
    "number": 0,
    "boolean": False,
    "array": [],
    "object": {},
}
"""The values for what a prompt says nothing about."""


def arguments_of(tool: Tool, prompt: str, *, fills: bool = False) -> dict[str, object] | None:
    """Return the arguments found in the prompt; None if a required one is missing.

    Each number of the prompt is used for one argument only. With `fills` what is required and
    missing is filled in.
    """
    numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(prompt)]
    args: dict[str, object] = {}
    for name, schema in tool.properties.items():
        required = name in tool.required
        is_wanted = required or _is_mentioned(name, schema, prompt)
        value = _value(name, schema, prompt, numbers) if is_wanted else None
        if value is None and required and fills:
            value = schema.get("enum", [_EMPTY.get(schema.get("type", ""), prompt)])[0]
        if value is not None:
            args[name] = value
        elif required:
            return None
    return args


def _is_mentioned(name: str, schema: Mapping[str, Any], prompt: str) -> bool:
    """Tell whether the prompt is about an optional parameter."""
    if "enum" in schema:
        return True
    if schema.get("type") in ("integer", "number", "boolean"):
        return bool(stems(name) & stems(prompt))
    return name in _FREE_TEXT


def _value(name: str, schema: Mapping[str, Any], prompt: str, numbers: list[float]) -> object:
    """Return the prompt's value for a parameter, or None; a used number leaves `numbers`."""
    if "enum" in schema:
        return _option(schema["enum"], prompt)
    match schema.get("type", "string"):
        case "string":
            return _string(name, prompt)
        case "number":
            return numbers.pop(0) if numbers else None
        case "integer":
            whole = next((n for n in numbers if n.is_integer()), None)
            return None if whole is None else int(numbers.pop(numbers.index(whole)))
        case "boolean":
            return True if stems(name) & stems(prompt) else None
        case "array":
            item = _value(name, schema.get("items", {}), prompt, numbers)
            return None if item is None else [item]
        case _:
            return None


def _option(options: Sequence[object], prompt: str) -> object:
    """Return the option that most words of the prompt fit, None where none fits."""
    scores = [len(stems(str(option)) & stems(prompt)) for option in options]
    best = max(scores, default=0)
    return options[scores.index(best)] if best else None


def _string(name: str, prompt: str) -> str | None:
    """Return the part of the prompt for a text parameter of this name, None without one."""
    if name in _FREE_TEXT:
        return prompt
    if _IDENTIFIER.search(name):
        return next(iter([*_CODE.findall(prompt), *_DIGITS.findall(prompt)]), None)
    if "email" in name:
        return next(iter(_EMAIL.findall(prompt)), None)
    return next(iter([*_QUOTATION.findall(prompt), *_PROPER_NAME.findall(prompt)]), prompt)


_COMMON_WORDS = """
a about after again agent agents all also always am an and another answer answers any are as ask
asks at be been but by call can case conversation could did do does for from get gets give gives
has have he help helps her him his how i if in into is issue issues it its just know let like list
lists make makes me more my need needs new no not now of on one or other our out over please problem
problems question questions return returns she should show shows so some something talk tell tells
than that the their them then there these they thing things this those to tool tools transfer
transfers up us use used user users uses using want wants was we were what when where which who
whose why will with without would yes you your
"""
_STOP_WORDS = frozenset(_COMMON_WORDS.split())


@lru_cache(maxsize=512)
def stems(text: str) -> frozenset[str]:
    """Return the approximate stems of the words in a text or a name, without common words."""
    words_apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    words = re.findall(r"[^\W_]+", words_apart.lower())
    return frozenset(_stem(word) for word in words if word not in _STOP_WORDS)


def _stem(word: str) -> str:
    """Cut the ending off a word, so that "charges" and "charged" are the same."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) > len(ending) + 2 and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    if word.endswith("y"):
        return f"{word[:-1]}i"
    has_double_end = len(word) > 2 and word[-1] == word[-2] and word[-1].isalpha()
    return word[:-1] if has_double_end else word
