"""What a call of an agent returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AnyMessage, UsageMetadata
from langgraph.types import Interrupt as RawInterrupt

from agentgraph.agents.content import Citation, citations_of
from agentgraph.agents.output import OutputFormat
from agentgraph.models import price_of
from agentgraph.running import Run

if TYPE_CHECKING:
    from agentgraph.agents.agent import Agent

__all__ = ["Interrupt", "Outcome", "Reply", "Usage", "reply_to"]


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind."""

    values: Mapping[str, Any]
    interrupts: Sequence[RawInterrupt]


def reply_to(agent: Agent, run: Run, outcome: Outcome, known: Collection[str | None]) -> Reply:
    """Read an agent's answer; `known` are the ids of the messages that are not the run's own."""
    values = outcome.values
    fresh = _fresh(values.get("messages") or [], known)
    spoken = [m for m in fresh if isinstance(m, AIMessage) and m.text]
    path = values.get("current_active_agent")
    interrupts = tuple(
        Interrupt(i.id, i.value, getattr(i, "response_schema", None)) for i in outcome.interrupts
    )
    return Reply(
        text=str(spoken[-1].text) if spoken and not interrupts else "",
        agent=f"{agent.name}/{path}" if path else agent.name,
        thread_id=run.thread_id,
        output=_output(agent, values.get("output"), path),
        messages=tuple(fresh),
        usage=Usage.of_run(run),
        interrupts=interrupts,
        close_reason=(values.get("turn") or {}).get("closed"),
        citations=tuple(citations_of(spoken[-1])) if spoken else (),
    )


def _fresh(messages: Sequence[AnyMessage], known: Collection[str | None]) -> list[AnyMessage]:
    """Return what came after the last message that was there before."""
    start = 0
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].id in known:
            start = position + 1
            break
    return [message for message in messages[start:] if message.id not in known]


def _output(agent: Any, stored: object, path: str | None) -> object | None:
    """Return the answer's object, in the form of whoever gave it."""
    if stored is None:
        return None
    for name in path.split("/") if path else ():
        agent = next(p for p in agent.sub_agents if p.name == name)
    form = getattr(agent, "response_format", None)
    return stored if form is None else OutputFormat(form).load(stored)
