"""Which rules never fire, because an earlier one always does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentgraph.errors import ConfigurationError
from agentgraph.routing.composites import AllOf, AnyOf
from agentgraph.routing.conditions import Always
from agentgraph.routing.document.codec import encode
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


def shadowed(rules: Rules) -> Iterator[tuple[int, int]]:
    """Yield each rule that never fires, with an earlier one that does whenever it would."""
    earlier = Earlier()
    for index, rule in in_order(rules.transitions):
        before = earlier.first_implied_by(rule.when)
        if before is not None:
            yield index, before
        if _leads(rule.then):
            earlier.add(index, rule.when)


class Earlier:
    """The rules that are tried before one, to be asked which of them fires whenever it does."""

    def __init__(self) -> None:
        self._known = _Implications()
        self._needing: dict[str | None, list[tuple[int, int, TransitionCondition]]] = {}
        self._size = 0

    def add(self, index: int, when: TransitionCondition) -> None:
        """Add the next rule, where those are found that ask the rarest of what it asks."""
        needs: list[str | None] = [*sorted(self._known.needs(when))]
        rarest = min(needs or [None], key=lambda need: len(self._needing.get(need, ())))
        self._needing.setdefault(rarest, []).append((self._size, index, when))
        self._size += 1

    def first_implied_by(self, when: TransitionCondition) -> int | None:
        """Return the first rule whose condition holds, as it is written, whenever this does."""
        found: tuple[int, int] | None = None
        for need in (None, *self._known.needs(when)):
            for place, index, other in self._needing.get(need, ()):
                if found is not None and found[0] < place:
                    break
                if self._known.holds(when, other):
                    found = place, index
                    break
        return None if found is None else found[1]


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

    _keys: dict[int, tuple[TransitionCondition, str]] = field(default_factory=dict)
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def holds(self, one: TransitionCondition, other: TransitionCondition) -> bool:
        """Tell whether the other fires whenever the one does."""
        pair = self._key(one), self._key(other)
        if pair not in self._known:
            same = pair[0] == pair[1] or isinstance(other, Always)
            self._known[pair] = same or self._by_parts(one, other)
        return self._known[pair]

    def needs(self, condition: TransitionCondition) -> frozenset[str]:
        """Return what is true whenever a condition is: all that another needs that it implies."""
        match condition:
            case Always():
                return frozenset()
            case AllOf(conditions):
                return frozenset().union(*map(self.needs, conditions))
            case AnyOf(conditions) if conditions:
                return frozenset.intersection(*map(self.needs, conditions))
        return frozenset([self._key(condition)])

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
        known = self._keys.get(id(condition))
        if known is not None:
            return known[1]
        try:
            key = json.dumps(encode(condition), sort_keys=True)
        except ConfigurationError:  # it cannot be stored: it is like itself alone
            key = str(id(condition))
        self._keys[id(condition)] = condition, key  # as long as it is there, so is its id
        return key
