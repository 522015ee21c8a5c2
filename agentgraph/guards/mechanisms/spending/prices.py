"""What a model's tokens cost, and how many it may write."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from decimal import Decimal
from functools import lru_cache

from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel

from agentgraph.usage import price_of

_MILLION = 1_000_000
_FREE_MODELS = ("offline", "OfflineModel")
_FREE_PRICE = (Decimal(0), Decimal(0))
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
    """Return how many tokens a model may write in one answer, None where no setting says so."""
    limits = [settings[name] for name in _OUTPUT_LIMITS if name in settings] if settings else []
    for limit in [*limits, *attributes_of(model, _OUTPUT_LIMITS)]:
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    return None


def attributes_of(model: object, names: tuple[str, ...]) -> list[object]:
    """Return the values of those attributes that exist.

    Faster than `getattr` with a default, which is slow for a missing attribute of a pydantic model.
    """
    own, kind = getattr(model, "__dict__", {}), type(model)
    class_names = _class_attributes(kind, names)  # type: ignore[arg-type]  # a class is hashable
    if not class_names and own.keys().isdisjoint(names):
        return []
    return [
        own[name] if name in own else getattr(model, name, None)
        for name in names
        if name in own or name in class_names
    ]


@lru_cache(maxsize=256)
def _class_attributes(kind: Hashable, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that instances may have from their class; all, if it has `__getattr__`."""
    if getattr(kind, "__getattr__", None) not in (None, _PYDANTIC):
        return names
    return tuple(name for name in names if hasattr(kind, name))


def worst_cost(prices: Prices, name: str, read_tokens: int, written_tokens: int) -> Decimal | None:
    """Return what these tokens cost in dollars at most, None where the price is unknown."""
    price = prices.get(name) or (_FREE_PRICE if name in _FREE_MODELS else _book_price(name))
    if price is None:
        return None
    return (price[0] * read_tokens + price[1] * written_tokens) / _MILLION


def cost_of(prices: Prices, name: str, usage: UsageMetadata) -> Decimal | None:
    """Return what a call has cost in dollars, None where the price is unknown.

    The price book has separate prices for cached tokens; the user's own `prices` do not.
    """
    if name in prices or name in _FREE_MODELS:
        return worst_cost(prices, name, usage["input_tokens"], usage["output_tokens"])
    return price_of(name, usage)


# Cached, as the price book takes up to milliseconds for a name, and each call asks.
@lru_cache(maxsize=256)
def _book_price(name: str) -> tuple[Decimal, Decimal] | None:
    read_price, written_price = (
        price_of(name, UsageMetadata(input_tokens=a, output_tokens=b, total_tokens=_MILLION))
        for a, b in ((_MILLION, 0), (0, _MILLION))
    )
    return None if read_price is None or written_price is None else (read_price, written_price)
