"""The offline model: a rule-based stand-in that answers where no other model is configured."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from agentgraph.models.tool_choice import ON_REQUEST, Bindable, Tool, choose_call, label_of, tool_of

_HUMAN = re.compile(r"\b(human|person|representative|operator|(real|live) agent)\b", re.I)
_SELF = "Offline model: "
_METADATA = {"model_name": "offline"}


class OfflineModel(BaseChatModel):
    """A rule-based stand-in for a model: it needs no network, and its answers say what it is.

    It picks a tool by the words of the last human message and answers from the tool's result. For
    one message it calls each tool at most once. The same messages get the same answer, except for
    the ids of tool calls.

        Agent("support", model="offline", tools=[refund]).invoke("I was charged twice")
    """

    _tools: tuple[Tool, ...] = PrivateAttr(default=())
    _tool_choice: bool | str = PrivateAttr(default=False)

    @property
    def _llm_type(self) -> str:
        return "agentgraph-offline"

    def bind_tools(
        self,
        tools: Sequence[Bindable],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> OfflineModel:
        """Return a copy with these tools; a provider's native tools are ignored."""
        readable = () if tool_choice == "none" else tuple(filter(None, map(tool_of, tools)))
        copy = self.model_copy()
        copy._tools, copy._tool_choice = readable, _forced_tool(tool_choice)
        return copy

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        message = _answer(messages, self._tools, self._tool_choice)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self._generate(messages)

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(_answer(messages, self._tools, self._tool_choice)):
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            yield chunk


def _forced_tool(tool_choice: object) -> bool | str:
    """Read any provider's `tool_choice`: the tool that must be called, or whether any must."""
    match tool_choice:
        case True | "any" | "required":
            return True
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
        case str(name) if name not in ("auto", "none"):
            return name
        case _:
            return False


def _answer(
    messages: Sequence[BaseMessage], tools: Sequence[Tool], tool_choice: bool | str
) -> AIMessage:
    """Return a call of a tool, else the results of earlier calls, else that no tool fits."""
    start = max((i for i, m in enumerate(messages) if _is_prompt(m)), default=None)
    if start is None:
        return _text("there is no message to answer.")
    prompt, since = messages[start].text, messages[start + 1 :]
    tool_calls = [call for m in since if isinstance(m, AIMessage) for call in m.tool_calls]
    calls = {call["id"]: call["name"] for call in tool_calls}
    results = [m for m in since if isinstance(m, ToolMessage) and _is_result(m, calls)]
    if results and tool_choice is not True:
        return _text(" ".join(_result_text(m, calls) for m in results))
    unused_tools = [tool for tool in tools if tool.name not in calls.values()]
    call = choose_call(prompt, unused_tools, tool_choice=tool_choice)
    if call:
        return AIMessage("", tool_calls=[call], response_metadata=_METADATA)
    return _text(_excuse(prompt, tools))


def _text(text: str) -> AIMessage:
    return AIMessage(_SELF + text, response_metadata=_METADATA)


def _is_prompt(message: BaseMessage) -> bool:
    """Tell whether a human's message is one, and not what corrects an answer."""
    is_correction = message.text.startswith("Your answer does not fit")
    return isinstance(message, HumanMessage) and not is_correction


def _is_result(message: ToolMessage, calls: Mapping[str | None, str]) -> bool:
    """Tell whether a message is a tool's result, and not a notice of agentgraph's own."""
    # The beginnings of the answers of `agentgraph.agents` to a handoff, or to a call not run.
    is_notice = message.text.startswith(("Conversation transferred to ", "Not executed"))
    return not is_notice and calls.get(message.tool_call_id) != "request_help"


def _result_text(message: ToolMessage, calls: Mapping[str | None, str]) -> str:
    """Return a result in words, without the prefix of another offline model."""
    name = calls.get(message.tool_call_id) or message.name or "a tool"
    verb = "failed" if message.status == "error" else "says"
    text = message.text.removeprefix(_SELF)
    return f"{label_of(name)} {verb}: {text}"


def _excuse(prompt: str, tools: Sequence[Tool]) -> str:
    """Return a text that says that no tool fits, and lists the tools."""
    if _HUMAN.search(prompt):
        return "I would pass this conversation to a human now."
    names = ", ".join(label_of(tool.name) for tool in tools if tool.name not in ON_REQUEST)
    have = f"I have: {names}." if names else "I have none."
    return (
        "I am a rule-based stand-in that picks tools by the words of a message, and found none for "
        f"{textwrap.shorten(prompt, 80, placeholder='…')!r}. {have}"
    )


def _chunks(message: AIMessage) -> Iterator[AIMessageChunk]:
    """Yield a message word by word, then its calls, as a provider streams it."""
    for word in re.findall(r"\s*\S+|\s+", message.text):
        yield AIMessageChunk(content=word)
    for index, call in enumerate(message.tool_calls):
        args = json.dumps(call["args"])
        chunk = tool_call_chunk(name=call["name"], args=args, id=call["id"], index=index)
        yield AIMessageChunk(content="", tool_call_chunks=[chunk])
    yield AIMessageChunk(
        content="", response_metadata=message.response_metadata, chunk_position="last"
    )
