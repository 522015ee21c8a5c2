"""What a policy asks for that cannot be done in a graph of others: told where it is built."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage

from agentgraph.guards.effects import Effect, effect_of

if TYPE_CHECKING:
    from agentgraph.guards.policy import Guards

__all__ = ["warn_of_no_guards", "warn_of_unheard"]


def warn_of_unheard(policy: Guards, path: str, tools: Mapping[str, Any]) -> None:
    """Warn of what does not hold in a graph that has these tools; the rest does."""
    for told in (*_fallback_told(policy, path), *_actions_told(policy, path, tools)):
        warnings.warn(f"guards: {told}", UserWarning, stacklevel=2)


def warn_of_no_guards(path: str) -> None:
    """Warn of a graph that runs without guards, as it has no place for what they keep."""
    told = f"{path!r} runs without guards: declare its state as a TypedDict, in which they keep it"
    warnings.warn(f"guards: {told}", UserWarning, stacklevel=2)


def _fallback_told(policy: Guards, path: str) -> Iterator[str]:
    breaker = policy.at(path).breaker
    fallback = breaker.fallback if breaker is not None else None
    if fallback is not None and not isinstance(fallback, AIMessage):
        yield (
            f"the breaker's fallback is a model, and none can stand in for that of {path!r}: "
            "agentgraph did not build it and knows neither its prompt nor its tools. "
            "Give CircuitBreaker(fallback=AIMessage(…)), else it fails when its provider does"
        )


def _actions_told(policy: Guards, path: str, tools: Mapping[str, Any]) -> Iterator[str]:
    if policy.whole.saga is None:
        return
    marks = ((name, effect_of(tool)) for name, tool in tools.items())
    names = [name for name, mark in marks if mark is not None and _is_action(mark)]
    if names:
        yield (
            f"what {', '.join(names)} does in {path!r} is not registered, as agentgraph did not "
            "build that graph: it is neither undone nor looked up, and may be done twice. "
            "Build it as an Agent where that matters"
        )


def _is_action(mark: Effect) -> bool:
    """Tell whether more is asked for than that loops are told from work."""
    says_how = mark.compensate is not None or mark.lookup is not None
    return says_how or not (mark.poll or mark.volatile)
