"""A tool's arguments, as far as a prompt gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentgraph.models.tool import Tool
from agentgraph.models.words import stems

__all__ = ["arguments_of"]

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
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]")
_PROPER_NAME = re.compile(r"(?<=[a-z,] )[A-Z][\w-]+(?: [A-Z][\w-]+)*")


def arguments_of(tool: Tool, prompt: str) -> dict[str, object] | None:
    """Fill what the prompt gives; None if it leaves a required argument open."""
    numbers = [float(each.replace(",", "")) for each in _NUMBER.findall(prompt)]
    args: dict[str, object] = {}
    for name, schema in tool.properties.items():
        required = name in tool.required
        told = required or _is_told(name, schema, prompt)
        value = _value(name, schema, prompt, numbers) if told else None
        if value is not None:
            args[name] = value
        elif required:
            return None
    return args


def _is_told(name: str, schema: Mapping[str, Any], prompt: str) -> bool:
    """Tell whether the prompt is about an optional parameter."""
    if "enum" in schema:
        return True
    if schema.get("type") in ("integer", "number", "boolean"):
        return bool(stems(name) & stems(prompt))
    return name in _FREE_TEXT


def _value(name: str, schema: Mapping[str, Any], prompt: str, numbers: list[float]) -> object:
    """Return what the prompt gives for a parameter, or None; a number is used up."""
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
    scores = [len(stems(str(option)) & stems(prompt)) for option in options]
    best = max(scores, default=0)
    return options[scores.index(best)] if best else None


def _string(name: str, prompt: str) -> str | None:
    if name in _FREE_TEXT:
        return prompt
    if _IDENTIFIER.search(name):
        return next(iter([*_CODE.findall(prompt), *_DIGITS.findall(prompt)]), None)
    if "email" in name:
        return next(iter(_EMAIL.findall(prompt)), None)
    return next(iter([*_QUOTED.findall(prompt), *_PROPER_NAME.findall(prompt)]), prompt)
