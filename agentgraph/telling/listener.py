"""What the models of a run say while they say it, heard by LangChain's callbacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp

from agentgraph.interception import current_interceptor
from agentgraph.running import current_run
from agentgraph.stream import AIMessageEvent, TokenEvent, ToolResponseEvent, ToolUsageEvent
from agentgraph.telling.teller import Teller

AGENT_TAG = "agentgraph_agent"
"""The metadata key under which a model call says whose it is."""
FOREIGN_TAG = "agentgraph_foreign"
"""The one under which a graph that is not ours says so, of itself and all that it runs."""

T = TypeVar("T")

_MADE_UP = "lc_run-"
"""How an id begins that LangChain gives to what a provider sends without one."""


@dataclass(slots=True)
class _Voice:
    """A model call, as it is heard."""

    agent: str
    is_foreign: bool
    message_id: str = ""

    def identify(self, message: AIMessageChunk) -> str:
        """Return the message's id: where only a provider's first chunk has one, it is that."""
        if not self.message_id or not (message.id or "").startswith(_MADE_UP):
            self.message_id = message.id or ""
        return self.message_id


class Listener(AsyncCallbackHandler):
    """Tell what the models of a run write, as they write it; a full queue holds a model back.

    Of graphs that are not ours it tells the tools and the finished texts too: nobody else does.
    """

    run_inline = True

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._voices: dict[UUID, _Voice] = {}
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
        agent = self._agent_of(metadata)
        # A middleware of LangChain's marks what it asks a model for itself, a summary for instance.
        is_aside = TAG_NOSTREAM in (tags or ()) or "lc_source" in (metadata or {})
        is_foreign = bool((metadata or {}).get(FOREIGN_TAG))
        if agent and not is_aside and (is_foreign or not _is_judged()):
            self._voices[run_id] = _Voice(agent, is_foreign)

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        voice = self._voices.get(run_id)
        message = getattr(chunk, "message", None)
        if voice is None or not isinstance(message, AIMessageChunk):
            return
        message_id, text = voice.identify(message), str(message.text)
        if text:
            said = TokenEvent(agent=voice.agent, text=text, message_id=message_id)
            await self._teller.tell(said)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        voice = self._voices.pop(run_id, None)
        if voice is None or not voice.is_foreign:
            return
        message = getattr(response.generations[0][0], "message", None)
        if isinstance(message, AIMessage) and message.text:
            text, message_id = str(message.text), message.id or ""
            await self._teller.tell(
                AIMessageEvent(agent=voice.agent, text=text, message_id=message_id)
            )

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._voices.pop(run_id, None)

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
        agent = self._agent_of(metadata)
        if agent and (metadata or {}).get(FOREIGN_TAG):
            name, args = str(serialized.get("name") or ""), inputs or {}
            call = ToolUsageEvent(agent=agent, tool=name, args=args, call_id=tool_call_id or "")
            self._calls[run_id] = call
            await self._teller.tell(call)

    async def on_tool_end(self, output: object, *, run_id: UUID, **kwargs: Any) -> None:
        if (call := self._calls.pop(run_id, None)) is not None:
            text = str(output.text) if isinstance(output, ToolMessage) else str(output)
            status = output.status if isinstance(output, ToolMessage) else "success"
            await self._answer(call, text, status)

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None and not isinstance(error, GraphBubbleUp):
            await self._answer(call, type(error).__name__, "error")

    # A chat model streams for a handler that has these two, as LangChain's own streams do.

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        return output

    def _agent_of(self, metadata: Mapping[str, Any] | None) -> str | None:
        # What a tool runs for itself, a model or an agent, is no voice in this conversation.
        return (metadata or {}).get(AGENT_TAG) if current_run() is self._teller.run else None

    async def _answer(
        self, call: ToolUsageEvent, text: str, status: Literal["success", "error"]
    ) -> None:
        await self._teller.tell(
            ToolResponseEvent(
                agent=call.agent,
                tool=call.tool,
                content=text,
                call_id=call.call_id,
                status=status,
            )
        )


def _is_judged() -> bool:
    """Tell whether a text may still be refused: it is told once it has passed, and is whole."""
    interceptor = current_interceptor()
    return interceptor is not None and interceptor.judges_answers
