"""Which model answers: one that was given, one by its name, or the offline model."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, lru_cache
from logging import getLogger
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from agentgraph.clock import new_id, utc_now
from agentgraph.errors import ConfigurationError

__all__ = ["OfflineModel", "price_of", "resolve_model"]


def resolve_model(model: BaseChatModel | str | None) -> BaseChatModel:
    """Return the model that is meant; None: that of `AGENTGRAPH_MODEL`, else the offline one."""
    if isinstance(model, BaseChatModel):
        return model
    if model is None:
        return _default_model()
    if not isinstance(model, str):
        raise ConfigurationError(f"A model is a chat model or a string, not {model!r}.")
    return _named_model(model)


def price_of(model_name: str | None, usage: UsageMetadata | None) -> Decimal | None:
    """Return the cost in US dollars, or None: unknown, or `agentgraph[cost]` is not installed."""
    if not model_name or not usage:
        return None
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    counted = Usage(**_priced_tokens(usage))
    for name in (model_name, model_name.partition(":")[2]):
        try:
            price = calc_price(counted, name, genai_request_timestamp=utc_now())
        except (LookupError, ValueError):
            continue
        return price.total_price
    return None


class OfflineModel(BaseChatModel):
    """A rule-based stand-in for a model: needs no network, and says what it is.

    It picks a tool by the words of the last human message and answers from the tool's result. For
    one message it calls each tool once at most.
    """

    _tools: tuple[_Tool, ...] = PrivateAttr(default=())
    _forced: bool | str = PrivateAttr(default=False)

    @property
    def _llm_type(self) -> str:
        return "agentgraph-offline"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> OfflineModel:
        """Return a copy with these tools; a provider's native tools are passed over."""
        known = () if tool_choice == "none" else tuple(filter(None, map(_tool, tools)))
        bound = self.model_copy()
        bound._tools, bound._forced = known, _forced(tool_choice)
        return bound

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        message = _answer(messages, self._tools, self._forced)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self._generate(messages)

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(_answer(messages, self._tools, self._forced)):
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            yield chunk


def _default_model() -> BaseChatModel:
    name = os.environ.get("AGENTGRAPH_MODEL")
    if name:
        return _named_model(name)
    _notice()
    return OfflineModel()


@cache
def _notice() -> None:
    """Say once per process that nobody chose a model."""
    getLogger("agentgraph").warning(
        "No model was given, so the offline model answers: a rule-based stand-in. For a real one "
        "pass model=..., or set AGENTGRAPH_MODEL, for instance to 'openai:<model name>'."
    )


def _named_model(model: str) -> BaseChatModel:
    if model == "offline":
        return OfflineModel()
    provider, _, name = model.partition(":")
    if not provider or not name:
        raise ConfigurationError(
            f"{model!r} names no model: write 'provider:name', as in 'openai:<name>', or 'offline'."
        )
    try:
        return _openai_model(name) if provider == "openai" else _langchain_model(model)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"Model {model!r}: {error}") from error


def _openai_model(name: str) -> BaseChatModel:
    from langchain_openai import ChatOpenAI
    from openai import OpenAIError

    try:
        return ChatOpenAI(model=name)
    except OpenAIError as error:
        raise ValueError(str(error)) from error


def _langchain_model(model: str) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise ImportError("it needs pip install 'agentgraph[langchain]'") from error
    return init_chat_model(model)


def _priced_tokens(usage: UsageMetadata) -> dict[str, int]:
    read, written = usage.get("input_token_details", {}), usage.get("output_token_details", {})
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "cache_read_tokens": read.get("cache_read") or 0,
        "cache_write_tokens": read.get("cache_creation") or 0,
        "input_audio_tokens": read.get("audio") or 0,
        "output_audio_tokens": written.get("audio") or 0,
    }


# What the offline model does, from here on: words, then arguments, then answers.

_UNTELLING = """
a about after again agent agents all also always am an and another answer answers any are as ask
asks at be been but by call can case conversation could did do does for from get gets give gives
has have he help helps her him his how i if in into is issue issues it its just know let like list
lists make makes me more my need needs new no not now of on one or other our out over please problem
problems question questions return returns she should show shows so some something talk tell tells
than that the their them then there these they thing things this those to tool tools transfer
transfers up us use used user users uses using want wants was we were what when where which who
whose why will with without would yes you your
"""
_STOP_WORDS = frozenset(_UNTELLING.split())
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
_HUMAN = re.compile(r"\b(human|person|representative|operator|(real|live) agent)\b", re.I)
_SELF = "Offline model: "
_METADATA = {"model_name": "offline"}

# These come with every agent, so that their words must not draw ordinary prompts.
_ASKS_FOR = r"\b(list|show|what|which)\b.*"
_ON_REQUEST = {
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


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    description: str = ""
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return self.name.removeprefix("transfer_to_")

    def score(self, words: frozenset[str]) -> int:
        enums = " ".join(str(v) for p in self.properties.values() for v in p.get("enum", ()))
        return len(words & _stems(self.name)) + len(words & _stems(f"{self.description} {enums}"))


def _tool(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> _Tool | None:
    """Read a tool; None is a provider's native one, which has no schema to fill."""
    if isinstance(tool, dict) and tool.get("type", "function") not in ("function", "object"):
        return None
    spec = convert_to_openai_tool(tool)["function"]
    schema = spec.get("parameters", {})
    return _Tool(
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


def _forced(tool_choice: object) -> bool | str:
    match tool_choice:
        case True | "any" | "required":
            return True
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
        case str(name) if name not in ("auto", "none"):
            return name
        case _:
            return False


@lru_cache(maxsize=512)
def _stems(text: str) -> frozenset[str]:
    """Return the telling words of a text or name, cut to about their stems."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    words = re.findall(r"[^\W_]+", spaced.lower())
    return frozenset(_stem(word) for word in words if word not in _STOP_WORDS)


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) > len(ending) + 2 and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    if word.endswith("y"):
        return f"{word[:-1]}i"
    doubled = len(word) > 2 and word[-1] == word[-2] and word[-1].isalpha()
    return word[:-1] if doubled else word


def _answer(
    messages: Sequence[BaseMessage], tools: Sequence[_Tool], forced: bool | str
) -> AIMessage:
    """Call a tool, tell its result, or own up."""
    start = max((i for i, m in enumerate(messages) if isinstance(m, HumanMessage)), default=None)
    if start is None:
        return _text("there is no message to answer.")
    prompt, since = messages[start].text, messages[start + 1 :]
    asked = [call for m in since if isinstance(m, AIMessage) for call in m.tool_calls]
    calls = {call["id"]: call["name"] for call in asked}
    results = [m for m in since if isinstance(m, ToolMessage) and _is_result(m, calls)]
    if results:
        return _text(" ".join(_told(m, calls) for m in results))
    left = [tool for tool in tools if tool.name not in calls.values()]
    call = _choose(prompt, left, forced)
    if call:
        return AIMessage("", tool_calls=[call], response_metadata=_METADATA)
    return _text(_excuse(prompt, tools))


def _text(text: str) -> AIMessage:
    return AIMessage(_SELF + text, response_metadata=_METADATA)


def _is_result(message: ToolMessage, calls: Mapping[str | None, str]) -> bool:
    moved = message.text.startswith(("Conversation transferred to ", "Not executed"))
    return not moved and calls.get(message.tool_call_id) != "request_help"


def _told(message: ToolMessage, calls: Mapping[str | None, str]) -> str:
    name = calls.get(message.tool_call_id) or message.name or "a tool"
    verb = "failed" if message.status == "error" else "says"
    said = message.text.removeprefix(_SELF)
    return f"{name.removeprefix('transfer_to_')} {verb}: {said}"


def _excuse(prompt: str, tools: Sequence[_Tool]) -> str:
    if _HUMAN.search(prompt):
        return "I would pass this conversation to a human now."
    names = ", ".join(tool.label for tool in tools if tool.name not in _ON_REQUEST)
    have = f"I have: {names}." if names else "I have none."
    return (
        "I am a rule-based stand-in that picks tools by the words of a message, and found none for "
        f"{textwrap.shorten(prompt, 80, placeholder='…')!r}. {have}"
    )


def _choose(prompt: str, tools: Sequence[_Tool], forced: bool | str) -> ToolCall | None:
    """Call the best tool whose arguments can be filled; of equals, the first."""
    for tool in _ranked(prompt, tools, forced):
        args = _arguments(tool, prompt)
        if args is not None:
            call_id = f"call_{new_id()[-24:]}"
            return ToolCall(name=tool.name, args=args, id=call_id, type="tool_call")
    return None


def _ranked(prompt: str, tools: Sequence[_Tool], forced: bool | str) -> list[_Tool]:
    if isinstance(forced, str):
        return [tool for tool in tools if tool.name == forced]
    words = _stems(prompt)
    scored = [(tool.score(words), tool) for tool in tools if tool.name not in _ON_REQUEST]
    best = sorted(scored, key=lambda pair: -pair[0])
    asked = [t for t in tools if t.name in _ON_REQUEST and _ON_REQUEST[t.name].search(prompt)]
    return [*(tool for score, tool in best if score or forced), *asked]


def _arguments(tool: _Tool, prompt: str) -> dict[str, object] | None:
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
        return bool(_stems(name) & _stems(prompt))
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
            return True if _stems(name) & _stems(prompt) else None
        case "array":
            item = _value(name, schema.get("items", {}), prompt, numbers)
            return None if item is None else [item]
        case _:
            return None


def _option(options: Sequence[object], prompt: str) -> object:
    scores = [len(_stems(str(option)) & _stems(prompt)) for option in options]
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


def _chunks(message: AIMessage) -> Iterator[AIMessageChunk]:
    for word in re.findall(r"\s*\S+|\s+", message.text):
        yield AIMessageChunk(content=word)
    for index, call in enumerate(message.tool_calls):
        args = json.dumps(call["args"])
        yield AIMessageChunk(
            content="",
            tool_call_chunks=[
                ToolCallChunk(
                    name=call["name"],
                    args=args,
                    id=call["id"],
                    index=index,
                    type="tool_call_chunk",
                )
            ],
        )
    yield AIMessageChunk(
        content="", response_metadata=message.response_metadata, chunk_position="last"
    )
