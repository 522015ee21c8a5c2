"""What a model's tokens cost, and how many it may write."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from decimal import Decimal
from functools import lru_cache

from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel

from agentgraph.usage import price_of

_MILLION = 1_000_000
_COST_NOTHING = ("offline", "OfflineModel")
_FREE = (Decimal(0), Decimal(0))
_PYDANTIC = getattr(BaseModel, "__getattr__", None)
_NAMES = ("model_name", "model")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

Prices = Mapping[str, tuple[Decimal, Decimal]]
"""US dollars for a million tokens, read and written, by the names of models."""


def model_name_of(model: object) -> str:
    """Return the name by which a model is known and priced."""
    if isinstance(model, str):
        return model
    for name in attributes_of(model, _NAMES):
        if isinstance(name, str) and name:
            return name
    return type(model).__name__


def most_output_of(model: object, settings: Mapping[str, object]) -> int | None:
    """Return how many tokens a model may write in one answer, None where nothing says so."""
    given = [settings[name] for name in _OUTPUT_LIMITS if name in settings] if settings else []
    for limit in [*given, *attributes_of(model, _OUTPUT_LIMITS)]:
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    return None


def attributes_of(model: object, names: tuple[str, ...]) -> list[object]:
    """Return those attributes that there are: a pydantic model is slow to say that it has none."""
    own, kind = getattr(model, "__dict__", {}), type(model)
    shared = _shared(kind, names)  # type: ignore[arg-type]  # a class is hashable
    if not shared and own.keys().isdisjoint(names):
        return []
    return [
        own[name] if name in own else getattr(model, name, None)
        for name in names
        if name in own or name in shared
    ]


@lru_cache(maxsize=256)
def _shared(kind: Hashable, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those that its instances may have of their class."""
    if getattr(kind, "__getattr__", None) not in (None, _PYDANTIC):
        return names
    return tuple(name for name in names if hasattr(kind, name))


def worst_cost(prices: Prices, name: str, read: int, written: int) -> Decimal | None:
    """Return what so many tokens cost at most, None where the price is unknown."""
    known = prices.get(name) or (_FREE if name in _COST_NOTHING else _book(name))
    if known is None:
        return None
    return (known[0] * read + known[1] * written) / _MILLION


def cost_of(prices: Prices, name: str, usage: UsageMetadata) -> Decimal | None:
    """Return what a call has cost, None where the price is unknown."""
    if name in prices or name in _COST_NOTHING:
        return worst_cost(prices, name, usage["input_tokens"], usage["output_tokens"])
    return price_of(name, usage)


# The price book takes up to milliseconds for a name; this is asked before each call.
@lru_cache(maxsize=256)
def _book(name: str) -> tuple[Decimal, Decimal] | None:
    read, written = (
        price_of(name, UsageMetadata(input_tokens=a, output_tokens=b, total_tokens=_MILLION))
        for a, b in ((_MILLION, 0), (0, _MILLION))
    )
    return None if read is None or written is None else (read, written)
