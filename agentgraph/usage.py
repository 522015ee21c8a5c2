"""The usage of models: tokens, and what they cost where prices are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from langchain_core.messages.ai import UsageMetadata, add_usage

from agentgraph.clock import utc_now
from agentgraph.display import escaped, panel, row
from agentgraph.running import Run


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, and what they cost where the price is known; in all and by agent.

    `cost` is in US dollars, None as soon as the price of one part is unknown.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: Decimal | None = None
    by_agent: Mapping[str, Usage] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run: Run) -> Usage:
        """Sum up what a run has recorded."""
        return cls.of(run.usage, run.models)

    @classmethod
    def of(cls, by_agent: Mapping[str, UsageMetadata], models: Mapping[str, str]) -> Usage:
        """Sum up the figures of agents, at the prices of their models."""
        return cls.of_parts(
            {
                agent: cls._of(figures, price_of(models.get(agent), figures))
                for agent, figures in by_agent.items()
            }
        )

    @classmethod
    def of_parts(cls, parts: Mapping[str, Usage]) -> Usage:
        """Sum up parts, by their names."""
        costs = [part.cost for part in parts.values()]
        prices = [cost for cost in costs if cost is not None]
        return cls(
            sum(part.input_tokens for part in parts.values()),
            sum(part.output_tokens for part in parts.values()),
            sum(part.total_tokens for part in parts.values()),
            # Where the price of one part is unknown, so is the price of the whole.
            sum(prices, Decimal(0)) if prices and len(prices) == len(costs) else None,
            parts,
        )

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Mapping[str, Any]]]) -> Usage:
        """Sum up records by agent, as packets carry them."""
        by_agent: dict[str, UsageMetadata] = {}
        models: dict[str, str] = {}
        for record in records:
            for agent, figures in record.items():
                usage = UsageMetadata(
                    input_tokens=figures.get("input_tokens", 0),
                    output_tokens=figures.get("output_tokens", 0),
                    total_tokens=figures.get("total_tokens", 0),
                )
                by_agent[agent] = add_usage(by_agent.get(agent), usage)
                models[agent] = str(figures.get("model") or "")
        return cls.of(by_agent, models)

    @classmethod
    def sum(cls, usages: Iterable[Usage]) -> Usage:
        """Sum up usages, agent by agent."""
        parts: dict[str, Usage] = {}
        for usage in usages:
            for agent, part in usage.by_agent.items():
                parts[agent] = parts[agent]._plus(part) if agent in parts else part
        whole = cls()
        for number, part in enumerate(parts.values()):
            whole = whole._plus(part) if number else part
        return replace(whole, by_agent=parts)

    def _plus(self, other: Usage) -> Usage:
        is_priced = self.cost is not None and other.cost is not None
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.total_tokens + other.total_tokens,
            self.cost + other.cost if is_priced else None,  # type: ignore[operator]
        )

    def under(self, prefix: str) -> Usage:
        """Return the same usage with a prefix before the paths of its agents."""
        by_agent = {f"{prefix}{agent}": part for agent, part in self.by_agent.items()}
        return replace(self, by_agent=by_agent)

    @classmethod
    def _of(cls, usage: UsageMetadata, cost: Decimal | None) -> Usage:
        return cls(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], cost)

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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Usage:
        """Read what `to_dict` returned."""
        cost = values.get("cost")
        return cls(
            values.get("input_tokens", 0),
            values.get("output_tokens", 0),
            values.get("total_tokens", 0),
            None if cost is None else Decimal(cost),
            {name: cls.from_dict(part) for name, part in values.get("by_agent", {}).items()},
        )

    def summary(self) -> str:
        """Return the sum in words, for a notebook."""
        cost = "" if self.cost is None else f", ${self.cost}"
        return f"{self.input_tokens} tokens in, {self.output_tokens} out{cost}"

    def _repr_html_(self) -> str:
        parts = [row(name, escaped(part.summary())) for name, part in self.by_agent.items()]
        return panel(self.summary(), *parts)


def price_of(model_name: str | None, usage: UsageMetadata | None) -> Decimal | None:
    """Return the cost in US dollars; None where it is unknown or genai-prices is missing."""
    if not model_name or not usage:
        return None
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    try:
        tokens = Usage(**_priced_tokens(usage))
    except ValueError:  # a provider has reported a figure below 0
        return None
    for name in (model_name, model_name.partition(":")[2]):
        try:
            return calc_price(tokens, name, genai_request_timestamp=utc_now()).total_price
        except (LookupError, ValueError):
            continue
    return None


def _priced_tokens(usage: UsageMetadata) -> dict[str, int]:
    read, write = usage.get("input_token_details", {}), usage.get("output_token_details", {})
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "cache_read_tokens": read.get("cache_read") or 0,
        "cache_write_tokens": read.get("cache_creation") or 0,
        "input_audio_tokens": read.get("audio") or 0,
        "output_audio_tokens": write.get("audio") or 0,
    }
