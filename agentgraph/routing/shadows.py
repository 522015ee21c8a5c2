"""Which rules never fire, because an earlier one always does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentgraph.errors import ConfigurationError
from agentgraph.routing.codec import encode
from agentgraph.routing.composites import AllOf, AnyOf
from agentgraph.routing.conditions import Always
from agentgraph.routing.protocols import TransitionCondition
from agentgraph.routing.resolve import Rules, in_order
from agentgraph.routing.targets import (
    AddressedTarget,
    AgentTarget,
    HumanTarget,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    Target,
    TerminateTarget,
    as_target,
)

__all__ = ["implies", "shadowed"]


def shadowed(rules: Rules) -> Iterator[tuple[int, int]]:
    """Yield each rule that never fires, with an earlier one that does whenever it would."""
    ordered = in_order(rules.transitions)
    known = _Implications()
    for place, (index, rule) in enumerate(ordered):
        for earlier, before in ordered[:place]:
            if _leads(before.then) and known.holds(rule.when, before.when):
                yield index, earlier
                break


def implies(one: TransitionCondition, other: TransitionCondition) -> bool:
    """Tell, from how they are written, whether the other fires whenever the one does."""
    return _Implications().holds(one, other)


def _leads(target: Target | str) -> bool:
    """Tell whether a rule decides wherever it fires: one that may not is there to be followed."""
    match as_target(target):
        case PhaseTarget(then=then):
            return _leads(then)
        case other:
            return type(other) in _SURE


_SURE = (
    AgentTarget,
    AddressedTarget,
    HumanTarget,
    ParallelTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
)


@dataclass(slots=True)
class _Implications:
    """Which condition implies which, from how they are written; each pair is looked at once."""

    _keys: dict[int, str] = field(default_factory=dict)
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def holds(self, one: TransitionCondition, other: TransitionCondition) -> bool:
        """Tell whether the other fires whenever the one does."""
        pair = self._key(one), self._key(other)
        if pair not in self._known:
            same = pair[0] == pair[1] or isinstance(other, Always)
            self._known[pair] = same or self._by_parts(one, other)
        return self._known[pair]

    def _by_parts(self, one: TransitionCondition, other: TransitionCondition) -> bool:
        match other:
            case AllOf(conditions):
                if all(self.holds(one, part) for part in conditions):
                    return True
            case AnyOf(conditions):
                if any(self.holds(one, part) for part in conditions):
                    return True
        match one:
            case AllOf(conditions):
                return any(self.holds(part, other) for part in conditions)
            case AnyOf(conditions):
                return bool(conditions) and all(self.holds(part, other) for part in conditions)
        return False

    def _key(self, condition: TransitionCondition) -> str:
        """Return what is the same for the same condition; JSON tells `True` from 1."""
        key = self._keys.get(id(condition))
        if key is None:
            try:
                key = json.dumps(encode(condition), sort_keys=True)
            except ConfigurationError:  # it cannot be stored: it is like itself alone
                key = str(id(condition))
            self._keys[id(condition)] = key
        return key
