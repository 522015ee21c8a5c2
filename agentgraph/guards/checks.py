"""The checks of a policy against the agents it applies to, before anything runs.

A policy that cannot work as its author means it is refused: these functions yield the faults, and
the builder of the graph raises them all at once. Where a guard merely does less than expected in a
foreign graph, there is a warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from langchain_core.messages import AIMessage

from agentgraph.errors import similar_name
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.mechanisms.breaker import unused_fallback
from agentgraph.guards.mechanisms.effects import Effect, effect_of
from agentgraph.guards.mechanisms.spending.prices import model_name_of, worst_cost
from agentgraph.guards.overrides import guard_classes
from agentgraph.guards.policy import Policy


def stage_faults(policy: Policy, names: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with the stages of a policy for agents of these names."""
    if policy.outermost is not policy:
        return  # it has stages of the outer policy too, which may name agents elsewhere
    for name, stage in policy.stages.items():
        if name not in names:
            agents = ", ".join(names) or "nobody"
            yield f"guards: the stage {name!r} is no agent: there are {agents}"
        overrides = stage.override_names
        if "stages" in overrides:
            yield f"guards: the stage {name!r} has stages: name them beside it"
        for setting, guard in guard_classes().items():
            if not guard.is_input_wide or setting not in overrides:
                continue
            must_be_stated = any(guard.absence_faults("regulated", is_removed=False))
            if must_be_stated and getattr(stage, setting) is None:
                continue  # a regulated stage must say that it has none
            yield (
                f"guards: the stage {name!r} has {setting}=…, which holds for all of an input: "
                "give it to the policy itself"
            )


# Fallbacks.


def unused_fallback_faults(policy: Policy, path: str) -> Iterator[str]:
    """Yield a fault where an agent's breaker has a fallback that could never answer.

    One that is inherited may answer for the agents above.
    """
    level, outermost = policy.at(path), policy.outermost
    is_inherited = level is not outermost and level.breaker is outermost.breaker
    fault = unused_fallback(level.table, level.tier, level.breaker)
    if fault and not is_inherited:
        yield f"guards: {path!r}: {fault}"


# Prices.


def price_faults(policy: Policy, path: str, model: object) -> Iterator[str]:
    """Yield a fault where an agent's spending is limited in dollars and a price is unknown.

    `model` is a model or its name; None is the model of the environment.
    """
    level = policy.at(path)
    limits, prices = _dollar_limits(policy, path), level.prices
    if not limits:
        return
    models = [model]
    if level.breaker is not None and level.breaker.fallback is not None:
        models.append(level.breaker.fallback)
    for candidate in models:
        if isinstance(candidate, AIMessage):
            continue
        names = _price_names(candidate)
        if all(worst_cost(prices, name, 1, 1) is None for name in names):
            yield (
                f"guards: {path!r} has a {limits[0]} in dollars, and the price of its model "
                f"{names[-1]!r} is unknown: give CostBudget(prices={{{names[-1]!r}: "
                "(read, written)}, …) in dollars for a million tokens, or give tokens"
            )


def unseen_price_faults(policy: Policy, path: str) -> Iterator[str]:
    """Yield a fault where dollars are limited in a foreign graph, whose model is unknown."""
    limits = _dollar_limits(policy, path)
    if limits and path not in policy.at(path).prices:
        yield (
            f"guards: {path!r} has a {limits[0]} in dollars, and agentgraph did not build it, "
            f"so its model is not known: give CostBudget(prices={{{path!r}: (read, written)}}, …) "
            "in dollars for a million tokens of that model, or give tokens in the place of "
            "dollars, or build it as an Agent"
        )


def _dollar_limits(policy: Policy, path: str) -> list[str]:
    """Return the names of the guards that limit dollars at a path."""
    limits: list[tuple[str, object]] = [
        ("budget", budget.dollars) for _, budget in policy.at(path).budgets
    ]
    velocity = policy.outermost.velocity
    limits.append(("velocity", None if velocity is None else velocity.usd_per_hour))
    return [guard for guard, limit in limits if limit is not None]


def _price_names(model: object) -> list[str]:
    """Return the names to look up for a model's price; None is the model of the environment."""
    if model is None:
        model = os.environ.get("AGENTGRAPH_MODEL") or "offline"
    name = model_name_of(model)
    provider, _, rest = name.partition(":")
    return [name, rest] if isinstance(model, str) and rest and provider else [name]


# Guards that name tools.


@runtime_checkable
class NamesTools(Protocol):
    """A gate, or another guard, that is for the tools of some names."""

    @property
    def tools(self) -> Collection[str] | None:
        """Return the names, None where it names none."""


GateAt: TypeAlias = tuple[NamesTools, Collection[str] | None]
"""A guard that names tools, and the names of an agent's tools; None where they are unknown."""


def gated_at(
    policy: Policy, path: str, tools: Callable[[], Collection[str] | None]
) -> list[GateAt]:
    """Return the guards at an agent that name tools, each with the agent's tools.

    `tools` is called only where there is such a guard.
    """
    level = policy.at(path)
    guards = (*level.gates, *(getattr(level, setting) for setting in guard_classes()))
    with_names = [
        guard for guard in guards if isinstance(guard, NamesTools) and guard.tools is not None
    ]
    names = tools() if with_names else ()
    return [(guard, names) for guard in with_names]


def schema_faults(gates_with_tools: Iterable[GateAt]) -> Iterator[str]:
    """Yield the misspelt tool names in guards: the calls of such a tool would not be guarded.

    A name without a similar one may be the tool of another agent with the same policy.
    """
    gates: dict[int, NamesTools] = {}
    tools_by_gate: dict[int, set[str] | None] = {}
    for gate, names in gates_with_tools:
        gates[id(gate)] = gate
        tools = tools_by_gate.get(id(gate), set())
        is_unknown = names is None or tools is None
        tools_by_gate[id(gate)] = None if is_unknown else {*(tools or ()), *(names or ())}
    for key, gate in gates.items():
        tools = tools_by_gate[key]
        if tools is None or (forms := gate.tools) is None:
            continue
        for name in (name for name in forms if name not in tools):
            match = similar_name(name, tools)
            if match is not None and match not in forms:
                yield (
                    f"guards: {_setting(gate)}{{{name!r}: …}}): nobody under it has such a tool: "
                    f"there is {match!r}"
                )


def _setting(guard: NamesTools) -> str:
    """Return how a user writes the setting in which a guard names tools."""
    return f"Guards({guard.setting}=" if isinstance(guard, BuiltInGuard) else "Gate(schema="


# Warnings.


def warn_of_ineffective_guards(policy: Policy, path: str, tools: Mapping[str, Any]) -> None:
    """Warn of the guards that have no effect in a foreign graph with these tools."""
    for warning in (*_fallback_warnings(policy, path), *_action_warnings(policy, path, tools)):
        warnings.warn(f"guards: {warning}", UserWarning, stacklevel=2)


def warn_of_unseen_calls(path: str) -> None:
    """Warn of a foreign graph that asks a model in a node which guards do not know."""
    text = (
        f"{path!r} asks a model in a node that guards cannot find, and so it runs without guards "
        "that try again, correct or find loops: its calls are only counted, limited and judged. "
        "Name the node, patched(graph, Guards(…), model='<node>')"
    )
    warnings.warn(f"guards: {text}", UserWarning, stacklevel=2)


def _fallback_warnings(policy: Policy, path: str) -> Iterator[str]:
    breaker = policy.at(path).breaker
    fallback = breaker.fallback if breaker is not None else None
    if fallback is not None and not isinstance(fallback, AIMessage):
        yield (
            f"the breaker's fallback is a model, and none can stand in for that of {path!r}: "
            "agentgraph did not build it and knows neither its prompt nor its tools. "
            "Give CircuitBreaker(fallback=AIMessage(…)), else it fails when its provider does"
        )


def _action_warnings(policy: Policy, path: str, tools: Mapping[str, Any]) -> Iterator[str]:
    if policy.outermost.saga is None:
        return
    effects = ((name, effect_of(tool)) for name, tool in tools.items())
    names = [name for name, effect in effects if effect is not None and _is_action(effect)]
    if names:
        yield (
            f"what {', '.join(names)} does in {path!r} is not registered, as agentgraph did not "
            "build that graph: it is neither undone nor looked up, and may be done twice. "
            "Build it as an Agent where that matters"
        )


def _is_action(effect: Effect) -> bool:
    """Tell whether a tool is an action: its mark does more than inform the loop detector."""
    can_be_settled = effect.compensate is not None or effect.lookup is not None
    return can_be_settled or not (effect.poll or effect.volatile)
