"""What is wrong with a policy where it is to hold: refused, or warned of, before anything runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage

from agentgraph.guards.mechanisms.effects import Effect, effect_of
from agentgraph.guards.mechanisms.gates.gate import Gate
from agentgraph.guards.mechanisms.spending.prices import model_name_of, worst_cost
from agentgraph.guards.policy import Policy

GateAt: TypeAlias = tuple[Gate, Collection[str] | None]
"""A gate that has schemas by tool, and the tools of somebody under it, None where any may come."""

_ALIKE = 0.8
"""How like one name has to be to another, of 1, to be that one misspelt."""

_OF_THE_WHOLE = ("deadlock", "velocity", "saga", "audit")


def stage_faults(policy: Policy, names: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with the stages of a policy where these are the agents."""
    if policy.whole is not policy:
        return  # it has those of the policy around it too
    for name, stage in policy.stages.items():
        if name not in names:
            known = ", ".join(names) or "nobody"
            yield f"guards: the stage {name!r} is no agent: there are {known}"
        given = stage.given
        if "stages" in given:
            yield f"guards: the stage {name!r} has stages: name them beside it"
        for what in (one for one in _OF_THE_WHOLE if one in given):
            yield (
                f"guards: the stage {name!r} has {what}=…, which holds for all of an input: "
                "give it to the policy itself"
            )


def price_faults(policy: Policy, path: str, model: object) -> Iterator[str]:
    """Yield whose price is unknown at an agent, where what it spends is counted in dollars."""
    level = policy.at(path)
    in_dollars, prices = _in_dollars(policy, path), level.prices
    if not in_dollars:
        return
    fallback = level.breaker.fallback if level.breaker is not None else None
    for asked in (model, fallback):
        if isinstance(asked, AIMessage) or (asked is None and asked is not model):
            continue
        names = _names_of(asked)
        if all(worst_cost(prices, name, 1, 1) is None for name in names):
            yield (
                f"guards: {path!r} has a {in_dollars[0]} in dollars, and the price of its model "
                f"{names[-1]!r} is unknown: give CostBudget(prices={{{names[-1]!r}: "
                "(read, written)}, …) in dollars for a million tokens, or give tokens"
            )


def unseen_price_faults(policy: Policy, path: str) -> Iterator[str]:
    """Yield what is wrong where dollars are counted in a graph whose model cannot be seen."""
    in_dollars = _in_dollars(policy, path)
    if in_dollars and path not in policy.at(path).prices:
        yield (
            f"guards: {path!r} has a {in_dollars[0]} in dollars, and agentgraph did not build it, "
            f"so its model is not known: give CostBudget(prices={{{path!r}: (read, written)}}, …) "
            "in dollars for a million tokens of that model, or give tokens in the place of "
            "dollars, or build it as an Agent"
        )


def gated_at(
    policy: Policy, path: str, tools: Callable[[], Collection[str] | None]
) -> list[GateAt]:
    """Return the gates at an agent that look at tools by their names, with the tools it has."""
    gates = [one for one in policy.at(path).gates if isinstance(one.schema, Mapping)]
    names = tools() if gates else ()
    return [(gate, names) for gate in gates]


def schema_faults(gated: Iterable[GateAt]) -> Iterator[str]:
    """Yield which names of tools in a gate's schema are misspelt: their calls would pass unseen.

    One that is like no other may be the tool of somebody else who has the same policy.
    """
    gates: dict[int, Gate] = {}
    known: dict[int, set[str] | None] = {}
    for gate, names in gated:
        gates[id(gate)] = gate
        others = known.get(id(gate), set())
        known[id(gate)] = None if names is None or others is None else {*others, *names}
    for key, gate in gates.items():
        there = known[key]
        if there is None or not isinstance(gate.schema, Mapping):
            continue
        for name in (name for name in gate.schema if name not in there):
            meant = _like(name, there)
            if meant is not None and meant not in gate.schema:
                yield (
                    f"guards: Gate(schema={{{name!r}: …}}): nobody under it has such a tool: "
                    f"there is {meant!r}"
                )


def _like(name: str, there: Collection[str]) -> str | None:
    spelt = {one.casefold(): one for one in there}
    found = get_close_matches(name.casefold(), spelt, n=1, cutoff=_ALIKE)
    return spelt[found[0]] if found else None


def _in_dollars(policy: Policy, path: str) -> list[str]:
    """Return what is limited in dollars at a path."""
    limits: list[tuple[str, object]] = [
        ("budget", one.dollars) for _, one in policy.at(path).budgets
    ]
    velocity = policy.whole.velocity
    limits.append(("velocity", None if velocity is None else velocity.usd_per_hour))
    return [what for what, limit in limits if limit is not None]


def _names_of(model: object) -> list[str]:
    """Return by what names a model may be priced; None is the environment's."""
    if model is None:
        model = os.environ.get("AGENTGRAPH_MODEL") or "offline"
    name = model_name_of(model)
    provider, _, rest = name.partition(":")
    return [name, rest] if isinstance(model, str) and rest and provider else [name]


def warn_of_unheard(policy: Policy, path: str, tools: Mapping[str, Any]) -> None:
    """Warn of what does not hold in a graph that has these tools; the rest does."""
    for told in (*_fallback_told(policy, path), *_actions_told(policy, path, tools)):
        warnings.warn(f"guards: {told}", UserWarning, stacklevel=2)


def warn_of_no_guards(path: str) -> None:
    """Warn of a graph that runs without guards, as it has no place for what they keep."""
    told = f"{path!r} runs without guards: declare its state as a TypedDict, in which they keep it"
    warnings.warn(f"guards: {told}", UserWarning, stacklevel=2)


def _fallback_told(policy: Policy, path: str) -> Iterator[str]:
    breaker = policy.at(path).breaker
    fallback = breaker.fallback if breaker is not None else None
    if fallback is not None and not isinstance(fallback, AIMessage):
        yield (
            f"the breaker's fallback is a model, and none can stand in for that of {path!r}: "
            "agentgraph did not build it and knows neither its prompt nor its tools. "
            "Give CircuitBreaker(fallback=AIMessage(…)), else it fails when its provider does"
        )


def _actions_told(policy: Policy, path: str, tools: Mapping[str, Any]) -> Iterator[str]:
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
