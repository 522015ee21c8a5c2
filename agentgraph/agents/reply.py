"""What a call of an agent returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from langchain_core.messages import AnyMessage, UsageMetadata

from agentgraph.agents.content import Citation
from agentgraph.models import price_of
from agentgraph.running import Run

__all__ = ["Interrupt", "Reply", "Usage"]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that a human must decide before the run goes on."""

    id: str
    payload: object
    response_schema: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, and what they cost where the price is known; in all and by agent."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: Decimal | None = None
    by_agent: Mapping[str, Usage] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run: Run) -> Usage:
        """Sum up what a run has recorded."""
        parts = {
            agent: cls._of(used, price_of(run.models.get(agent), used))
            for agent, used in run.usage.items()
        }
        costs = [part.cost for part in parts.values()]
        known = [cost for cost in costs if cost is not None]
        return cls(
            sum(part.input_tokens for part in parts.values()),
            sum(part.output_tokens for part in parts.values()),
            sum(part.total_tokens for part in parts.values()),
            sum(known, Decimal(0)) if known and len(known) == len(costs) else None,
            parts,
        )

    @classmethod
    def _of(cls, used: UsageMetadata, cost: Decimal | None) -> Usage:
        return cls(used["input_tokens"], used["output_tokens"], used["total_tokens"], cost)

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON-able values."""
        figures: dict[str, object] = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "total_tokens": self.total_tokens,
            "cost": None if self.cost is None else str(self.cost),
        }
        if self.by_agent:
            figures["by_agent"] = {name: part.to_dict() for name, part in self.by_agent.items()}
        return figures


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's answer, who gave it, and what it took."""

    text: str
    agent: str
    thread_id: str
    output: object | None = None
    messages: tuple[AnyMessage, ...] = ()
    usage: Usage = Usage()
    interrupts: tuple[Interrupt, ...] = ()
    close_reason: str | None = None
    citations: tuple[Citation, ...] = ()
