"""Relay what a remote graph does to the callbacks of a run, as if it had been done here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from langchain_core.callbacks.manager import (
    AsyncCallbackManagerForLLMRun,
    AsyncCallbackManagerForToolRun,
)
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_async_callback_manager_for_config

from agentgraph.history import calls_of
from agentgraph.remote.thread import read_messages


class RemoteRelay:
    """Relays tokens, texts and tool calls of a remote graph: to events, tracers, and streams.

    Each is told once, though a server repeats the messages of nested graphs at each level.
    `earlier` are the messages from before: a tool that was interrupted may answer now.
    """

    def __init__(self, config: RunnableConfig, earlier: Sequence[AnyMessage]) -> None:
        self._callbacks = get_async_callback_manager_for_config(config)
        self._told_ids = {message.id for message in earlier}
        ours = [message for message in earlier if isinstance(message, AIMessage)]
        self._calls = {call["id"]: call for message in ours for call in calls_of(message)}
        self._models: dict[str | None, AsyncCallbackManagerForLLMRun] = {}
        self._tools: dict[str | None, AsyncCallbackManagerForToolRun] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        cause = error or RuntimeError("the remote graph has not told the end")
        for model in self._models.values():
            await model.on_llm_error(cause)
        for tool in self._tools.values():
            await tool.on_tool_error(cause)

    async def tell(self, mode: str, data: Any) -> None:
        """Relay one part of the server's stream, of the mode `messages` or `updates`."""
        if mode == "messages":
            (chunk,) = read_messages([data[0]])
            if isinstance(chunk, AIMessageChunk):
                await self._tell_chunk(chunk)
            return
        for message in read_messages(_messages_in(data)):
            if message.id in self._told_ids:
                continue
            self._told_ids.add(message.id)
            if isinstance(message, AIMessage):
                await self._tell_message(message)
            elif isinstance(message, ToolMessage):
                await self._tell_answer(message)

    async def _tell_chunk(self, chunk: AIMessageChunk) -> None:
        if chunk.id not in self._told_ids:
            model = await self._model(chunk.id)
            generation = ChatGenerationChunk(message=chunk)
            await model.on_llm_new_token(str(chunk.text), chunk=generation)

    async def _tell_message(self, message: AIMessage) -> None:
        model = await self._model(message.id)
        del self._models[message.id]
        await model.on_llm_end(LLMResult(generations=[[ChatGeneration(message=message)]]))
        for call in message.tool_calls:
            self._calls[call["id"]] = call
            await self._start_tool(call["id"])

    async def _tell_answer(self, message: ToolMessage) -> None:
        if message.tool_call_id not in self._tools:
            await self._start_tool(message.tool_call_id)
        if (tool := self._tools.pop(message.tool_call_id, None)) is not None:
            await tool.on_tool_end(message)

    async def _model(self, message_id: str | None) -> AsyncCallbackManagerForLLMRun:
        if message_id not in self._models:
            (model,) = await self._callbacks.on_chat_model_start({"name": "remote"}, [[]])
            self._models[message_id] = model
        return self._models[message_id]

    async def _start_tool(self, call_id: str | None) -> None:
        call = self._calls.get(call_id)
        if call is not None:
            args: Any = call["args"]
            self._tools[call_id] = await self._callbacks.on_tool_start(
                {"name": call["name"]}, str(args), inputs=args, tool_call_id=call_id
            )


def _messages_in(update: Any) -> Iterator[Any]:
    """Yield the messages in the updates of nodes."""
    for change in update.values() if isinstance(update, Mapping) else ():
        for part in change if isinstance(change, list) else [change]:
            messages = part.get("messages") if isinstance(part, Mapping) else None
            yield from messages if isinstance(messages, list) else [messages] if messages else ()
