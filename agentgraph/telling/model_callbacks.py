"""LangChain callbacks that emit the tokens of a run's models, and the tools of foreign graphs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from pydantic_core import from_json

from agentgraph.interception import current_interceptor
from agentgraph.running import current_run
from agentgraph.stream import (
    AIMessageEvent,
    Event,
    ReasoningEvent,
    TokenEvent,
    ToolArgsEvent,
    ToolResponseEvent,
    ToolUsageEvent,
    media_of,
)
from agentgraph.telling.emitter import EventEmitter

AGENT_TAG = "agentgraph_agent"
"""The metadata key of a model call that names its agent."""
FOREIGN_TAG = "agentgraph_foreign"
"""The metadata key that marks a foreign graph, and everything that it runs."""
MOVES_TAG = "agentgraph_moves"
"""The metadata key of a model call that names the tools by which its agent moves on."""

T = TypeVar("T")

_GENERATED_ID = "lc_run-"
"""The prefix of the ids that LangChain makes for messages that have no id from the provider."""


@dataclass(slots=True)
class _ModelCall:
    """A running model call."""

    agent: str
    is_foreign: bool
    moves: Collection[str] = ()
    """The tools that move the conversation: their calls are told as a move, and not as a call."""
    message_id: str = ""
    calls: dict[object, _Call] = field(default_factory=dict)
    """The calls that are being written, by their index."""

    def read(self, chunk: AIMessageChunk) -> Iterator[Event]:
        """Yield the events of a chunk: its thoughts, its text, and its pieces of arguments."""
        message_id = self.identify(chunk)
        for thought in _thoughts_of(chunk):
            yield ReasoningEvent(agent=self.agent, text=thought, message_id=message_id)
        if text := str(chunk.text):
            yield TokenEvent(agent=self.agent, text=text, message_id=message_id)
        for call in chunk.tool_call_chunks:
            if call["name"] or call["index"] not in self.calls:
                self.calls[call["index"]] = _Call(call["name"] or "", call["id"] or "")
            written = self.calls[call["index"]]
            if written.name not in self.moves and written.is_piece(call["args"] or ""):
                yield ToolArgsEvent(
                    agent=self.agent,
                    tool=written.name,
                    delta=call["args"] or "",
                    call_id=written.id,
                    message_id=message_id,
                )

    def identify(self, message: AIMessageChunk) -> str:
        """Return the message's id, which for some providers only the first chunk has."""
        if not self.message_id or not (message.id or "").startswith(_GENERATED_ID):
            self.message_id = message.id or ""
        return self.message_id


@dataclass(slots=True)
class _Call:
    """A call that a model writes; only its first chunk has the name and the id."""

    name: str
    id: str
    has_pieces: bool = False

    def is_piece(self, args: str) -> bool:
        """Tell whether arguments are a piece, and not all of them at once."""
        self.has_pieces = self.has_pieces or (bool(args) and not _is_object(args))
        return self.has_pieces and bool(args)


class ModelCallbacks(AsyncCallbackHandler):
    """Emits the texts of a run's models, token by token; a full queue slows a model down.

    For foreign graphs it emits tool calls and finished texts too; the nodes of an `Agent` emit
    those themselves.
    """

    run_inline = True
    ignore_chain = True
    """It is told of models and tools only: then nodes are run without callbacks."""

    def __init__(self, emitter: EventEmitter) -> None:
        self._emitter = emitter
        self._model_calls: dict[UUID, _ModelCall] = {}
        self._calls: dict[UUID, ToolUsageEvent] = {}

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Follow a call of an agent's model, unless its text may still be refused."""
        agent = self._agent_of(metadata)
        # LangChain's middleware marks its own model calls, such as those for a summary.
        is_aside = TAG_NOSTREAM in (tags or ()) or "lc_source" in (metadata or {})
        is_foreign = bool((metadata or {}).get(FOREIGN_TAG))
        if agent and not is_aside and (is_foreign or not _is_judged()):
            moves = (metadata or {}).get(MOVES_TAG) or ()
            self._model_calls[run_id] = _ModelCall(agent, is_foreign, moves)

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        """Emit what a chunk says; wait while the reader is slow."""
        model_call = self._model_calls.get(run_id)
        message = getattr(chunk, "message", None)
        if model_call is None or not isinstance(message, AIMessageChunk):
            return
        for event in model_call.read(message):
            await self._emitter.emit(event)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Emit the finished text of a foreign graph's model."""
        model_call = self._model_calls.pop(run_id, None)
        if model_call is None or not model_call.is_foreign:
            return
        message = getattr(response.generations[0][0], "message", None)
        if not isinstance(message, AIMessage):
            return
        text, blocks, message_id = str(message.text), media_of(message), message.id or ""
        if text or blocks:
            agent = model_call.agent
            await self._emitter.emit(
                AIMessageEvent(agent=agent, text=text, message_id=message_id, blocks=blocks)
            )

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._model_calls.pop(run_id, None)

    async def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Emit the tool call of a foreign graph."""
        agent = self._agent_of(metadata)
        if agent and (metadata or {}).get(FOREIGN_TAG):
            name, args = str(serialized.get("name") or ""), inputs or {}
            call = ToolUsageEvent(agent=agent, tool=name, args=args, call_id=tool_call_id or "")
            self._calls[run_id] = call
            await self._emitter.emit(call)

    async def on_tool_end(self, output: object, *, run_id: UUID, **kwargs: Any) -> None:
        if (call := self._calls.pop(run_id, None)) is not None:
            if isinstance(output, ToolMessage):
                await self._answer(call, str(output.text), output.status, media_of(output))
            else:
                await self._answer(call, str(output), "success")

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Emit the error of a foreign graph's tool; an interrupt is no error."""
        call = self._calls.pop(run_id, None)
        if call is not None and not isinstance(error, GraphBubbleUp):
            await self._answer(call, type(error).__name__, "error")

    # LangChain makes a chat model stream if a handler has these two methods, and calls them.

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        return output

    def _agent_of(self, metadata: Mapping[str, Any] | None) -> str | None:
        # A model or an agent that a tool runs is no part of this conversation.
        return (metadata or {}).get(AGENT_TAG) if current_run() is self._emitter.run else None

    async def _answer(
        self,
        call: ToolUsageEvent,
        text: str,
        status: Literal["success", "error"],
        blocks: Sequence[Mapping[str, object]] = (),
    ) -> None:
        await self._emitter.emit(
            ToolResponseEvent(
                agent=call.agent,
                tool=call.tool,
                content=text,
                call_id=call.call_id,
                status=status,
                blocks=blocks,
            )
        )


def _is_object(args: str) -> bool:
    try:
        return isinstance(from_json(args), dict)
    except ValueError:
        return False


def _thoughts_of(chunk: AIMessageChunk) -> Iterator[str]:
    """Yield the thoughts of a chunk, in whatever form its provider sends them."""
    if isinstance(chunk.content, str) and "reasoning_content" not in chunk.additional_kwargs:
        return  # most chunks; reading their blocks would cost more than all the rest
    for block in chunk.content_blocks:
        if block["type"] == "reasoning" and block.get("reasoning"):
            yield str(block["reasoning"])


def _is_judged() -> bool:
    """Tell whether a gate or a critic may refuse the text; then it is emitted later, as a whole."""
    interceptor = current_interceptor()
    return interceptor is not None and interceptor.judges_answers
