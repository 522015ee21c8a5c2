"""What a script is made of: turns, and turns gone wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from agentgraph.testing.calls import Call
from agentgraph.testing.provider_errors import connection_error, status_error

__all__ = ["Fault", "Scripted", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says at once; words are counted where no usage is given."""

    text: str = ""
    calls: Sequence[Call] = ()
    usage: UsageMetadata | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """A turn gone wrong: waits, then says it; with an error it streams half of it and raises."""

    turn: Scripted = ""
    delay_s: float = 0.0
    error: Exception | None = None

    @classmethod
    def delay(cls, seconds: float, turn: Scripted) -> Self:
        """Wait on the clock before the turn."""
        return cls(turn, delay_s=seconds)

    @classmethod
    def cut(cls, turn: Scripted, error: Exception | None = None) -> Self:
        """Lose the connection in mid-stream."""
        return cls(turn, error=error or connection_error())

    @classmethod
    def rate_limit(cls, retry_after_s: float | None = None) -> Self:
        """Answer 429, as `openai.RateLimitError`."""
        return cls(error=status_error(429, retry_after_s))

    @classmethod
    def server_error(cls, status: int = 500) -> Self:
        """Answer 5xx, as `openai.InternalServerError`."""
        return cls(error=status_error(status))


Scripted: TypeAlias = str | AIMessage | Call | Sequence[Call] | Turn | Fault | Exception
