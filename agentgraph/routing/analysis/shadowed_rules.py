"""Rules that never fire, because an earlier rule fires whenever they would.

Implications are derived from how conditions are written (`Always`, the same condition, a
conjunction that contains it); conditions are never evaluated, so that every finding is certain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentgraph.errors import ConfigurationError
from agentgraph.routing.composites import AllOf, AnyOf
from agentgraph.routing.conditions import Always
from agentgraph.routing.document.codec import encode
from agentgraph.routing.protocols import TransitionCondition
from agentgraph.routing.rules import Rules, in_order
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


def shadowed_rules(rules: Rules) -> Iterator[tuple[int, int]]:
    """Yield the index of each rule that never fires, with the index of the rule that shadows it."""
    earlier = EarlierRules()
    for index, rule in in_order(rules.transitions):
        shadow = earlier.first_implied_by(rule.when)
        if shadow is not None:
            yield index, shadow
        if always_decides(rule.then):
            earlier.add(index, rule.when)


class EarlierRules:
    """The rules before a given rule; finds one that fires whenever the given rule would.

    Rules are indexed by the leaf condition that they need and that the fewest others need:
    comparing every pair of rules would take minutes for thousands of rules.
    """

    def __init__(self) -> None:
        self._implications = _Implications()
        self._by_need: dict[str | None, list[tuple[int, int, TransitionCondition]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, index: int, when: TransitionCondition) -> None:
        """Add the next rule, in the order of evaluation."""
        needs: list[str | None] = [*sorted(self._implications.needs(when))]
        rarest = min(needs or [None], key=lambda need: len(self._by_need.get(need, ())))
        self._by_need.setdefault(rarest, []).append((self._size, index, when))
        self._size += 1

    def first_implied_by(self, when: TransitionCondition) -> int | None:
        """Return the first rule whose condition, as written, holds whenever `when` holds."""
        first: tuple[int, int] | None = None
        for need in (None, *self._implications.needs(when)):
            for position, index, condition in self._by_need.get(need, ()):
                if first is not None and first[0] < position:
                    break
                if self._implications.holds(when, condition):
                    first = position, index
                    break
        return None if first is None else first[1]


def always_decides(target: Target | str) -> bool:
    """Tell whether a target always decides; if it may fail, later rules are tried."""
    match as_target(target):
        case PhaseTarget(then=then):
            return always_decides(then)
        case plain:
            return type(plain) in _NEVER_FAIL


_NEVER_FAIL = (
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
    """Implications between conditions, derived from how they are written; each pair is cached."""

    _keys: dict[int, tuple[TransitionCondition, str]] = field(default_factory=dict)
    _results: dict[tuple[str, str], bool] = field(default_factory=dict)

    def holds(self, premise: TransitionCondition, conclusion: TransitionCondition) -> bool:
        """Tell whether the conclusion fires whenever the premise does."""
        pair = self._key(premise), self._key(conclusion)
        if pair not in self._results:
            same = pair[0] == pair[1] or isinstance(conclusion, Always)
            self._results[pair] = same or self._by_parts(premise, conclusion)
        return self._results[pair]

    def needs(self, condition: TransitionCondition) -> frozenset[str]:
        """Return the keys of the leaf conditions that are true whenever a condition is true.

        A condition that it implies can need only these leaves, so candidates are looked up by leaf.
        """
        match condition:
            case Always():
                return frozenset()
            case AllOf(conditions):
                return frozenset().union(*map(self.needs, conditions))
            case AnyOf(conditions) if conditions:
                return frozenset.intersection(*map(self.needs, conditions))
        return frozenset([self._key(condition)])

    def _by_parts(self, premise: TransitionCondition, conclusion: TransitionCondition) -> bool:
        """Compare composites: first by the conclusion's parts, then by those of the premise."""
        match conclusion:
            case AllOf(conditions):
                if all(self.holds(premise, part) for part in conditions):
                    return True
            case AnyOf(conditions):
                if any(self.holds(premise, part) for part in conditions):
                    return True
        match premise:
            case AllOf(conditions):
                return any(self.holds(part, conclusion) for part in conditions)
            case AnyOf(conditions):
                return bool(conditions) and all(self.holds(part, conclusion) for part in conditions)
        return False

    def _key(self, condition: TransitionCondition) -> str:
        """Return a key that equal conditions share; as it is JSON, `True` differs from 1."""
        entry = self._keys.get(id(condition))
        if entry is not None:
            return entry[1]
        try:
            key = json.dumps(encode(condition), sort_keys=True)
        except ConfigurationError:  # not storable: it equals only itself
            key = str(id(condition))
        # The cache keeps a reference to the condition, so that its id is not reused.
        self._keys[id(condition)] = condition, key
        return key
