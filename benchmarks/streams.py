"""The texts that both servers stream: as many tokens, as fast, from the same generator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

__all__ = ["STREAMS", "StreamModel", "TokenStream"]

FOREVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class TokenStream:
    """What is streamed. A paced one stamps each token: the clock is the same in all processes."""

    tokens: int
    text: str = "word "
    pause_s: float = 0.0
    never_ends: bool = False

    async def texts(self) -> AsyncIterator[str]:
        for _ in range(self.tokens):
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
                yield f"{perf_counter_ns()} "
            else:
                yield self.text
        if self.never_ends:
            await asyncio.sleep(FOREVER_S)


STREAMS = {
    "long": TokenStream(2_000),
    "short": TokenStream(100),
    "paced": TokenStream(200, pause_s=0.002),
    "held": TokenStream(50, never_ends=True),
    "flood": TokenStream(1_000_000, text="x" * 1_000),
}


class StreamModel(BaseChatModel):
    """A model that writes a stream, and nothing else."""

    source: TokenStream

    @property
    def _llm_type(self) -> str:
        return "stream"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self  # it never calls any

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("this model only streams")

    async def _astream(
        self, messages: Sequence[BaseMessage], *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for text in self.source.texts():
            yield ChatGenerationChunk(message=AIMessageChunk(content=text))
