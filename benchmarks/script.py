"""The model and the tool of all benchmarks: deterministic, and next to free."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count, pairwise
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolCall
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool

__all__ = ["FunctionModel", "WordyModel", "answer", "ask", "look_up", "question", "then_answer"]

Say: TypeAlias = Callable[[Sequence[BaseMessage]], AIMessage]

# About 200 characters each: a short chat, which favours nobody.
_QUESTION = "My order has not arrived, and the page only says that it is on its way. " * 3
_ANSWER = "I have looked it up: it left on Monday and should be with you by Thursday. " * 3

TOKENS = 100

_ids = count()


class FunctionModel(BaseChatModel):
    """A model that is a function of what it sees."""

    say: Say

    @property
    def _llm_type(self) -> str:
        return "function"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.say(messages))])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        return self._generate(messages)


class WordyModel(FunctionModel):
    """A model that, where somebody listens, says its text in 100 tokens."""

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        said = self.say(messages)
        for call in said.tool_calls:
            asked = tool_call_chunk(
                name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=0
            )
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[asked]))
        text = str(said.text)
        ends = [len(text) * number // TOKENS for number in range(TOKENS + 1)]
        for begin, end in pairwise(ends):
            if text:
                yield ChatGenerationChunk(message=AIMessageChunk(content=text[begin:end]))


@tool
async def look_up(order: str) -> str:
    """Look up where an order is."""
    return f"Order {order} has left the depot and is expected on Thursday."


def question(turn: int) -> str:
    """Return what the human says in a turn."""
    return f"{turn}: {_QUESTION}"


def answer() -> AIMessage:
    """Say something."""
    return _message(_ANSWER)


def ask(tool_name: str, **args: str) -> AIMessage:
    """Call a tool."""
    call = ToolCall(name=tool_name, args=args, id=f"call_{next(_ids)}", type="tool_call")
    return _message("", tool_calls=[call])


def then_answer(tool_name: str, **args: str) -> Say:
    """Call a tool when the human has spoken, and answer when it has."""

    def say(messages: Sequence[BaseMessage]) -> AIMessage:
        return ask(tool_name, **args) if isinstance(messages[-1], HumanMessage) else answer()

    return say


def _message(text: str, **fields: Any) -> AIMessage:
    return AIMessage(
        text,
        id=f"run_{next(_ids)}",
        usage_metadata={"input_tokens": 300, "output_tokens": 50, "total_tokens": 350},
        **fields,
    )
