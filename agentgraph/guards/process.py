"""What the process knows of providers: the breakers and retry budgets of the default guards.

All agents on default guards share them, one for each provider and model, so that an outage is met
by one budget of retries however many agents there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from agentgraph.clock import Clock, clock
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.retry import RetryBudget
from agentgraph.guards.mechanisms.spending.prices import attributes_of

_ENDPOINTS = ("azure_endpoint", "openai_api_base")


class ModelKey(NamedTuple):
    """Identifies a model at a provider."""

    name: str
    """The name by which decisions and errors call it."""
    provider: str = ""
    """What tells apart models of one name: the class of the provider's client."""

    @classmethod
    def of(cls, name: str, model: object) -> ModelKey:
        """Return the key of a model at its provider: the model may work at other providers too."""
        provider = f"{type(model).__module__}.{type(model).__qualname__}"
        for endpoint in attributes_of(model, _ENDPOINTS):
            if isinstance(endpoint, str) and endpoint:
                return cls(f"model:{name}@{endpoint}", provider)
        return cls(f"model:{name}", provider)


@dataclass(frozen=True, slots=True)
class _Memory:
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    retry: RetryBudget = field(default_factory=RetryBudget)


_memories: WeakKeyDictionary[Clock, _Memory] = WeakKeyDictionary()
"""By clock: the instants of one clock mean nothing to another."""


def process_breaker(model: ModelKey) -> CircuitBreaker:
    """Return the process's breaker of a model."""
    return _memory().breaker.for_key(*model)


def process_retry(model: ModelKey) -> RetryBudget:
    """Return the process's retry budget of a model."""
    return _memory().retry.for_key(*model)


def _memory() -> _Memory:
    current = clock()
    if (memory := _memories.get(current)) is None:
        memory = _memories.setdefault(current, _Memory())
    return memory
