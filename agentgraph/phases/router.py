"""Routers: they decide which agent answers a message from outside; they compile to a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    ActiveAgentTarget,
    AddressedTarget,
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    FromActiveAgent,
    FromChannelType,
    FromSource,
    FromSpeaker,
    HasActiveAgent,
    HumanTarget,
    InPhase,
    IntentIn,
    IsAddressed,
    RoutingEnvelope,
    RoutingState,
    Transition,
    TransitionCondition,
    TransitionGraph,
)
from agentgraph.routing.composites import judge
from agentgraph.routing.protocols import HUMAN, is_condition
from agentgraph.routing.targets import addressed_to
from agentgraph.routing.values import is_whole, plain, short

Predicate: TypeAlias = Callable[[RoutingState, RoutingEnvelope], bool]


@dataclass(frozen=True, slots=True)
class RoutingConditions:
    """The conditions of a rule: each field that is not None must hold; of a set, one element.

        RoutingConditions(phases={"intake"}, intents={"refund", "complaint"})

    `custom` is a condition, or a function of state and envelope; only a registered condition can
    be stored with a graph.
    """

    phases: Collection[str] | None = None
    channel_types: Collection[str] | None = None
    intents: Collection[str] | None = None
    source_channel_ids: Collection[str] | None = None
    custom: TransitionCondition | Predicate | None = None

    def __post_init__(self) -> None:
        faults: list[str] = []
        for name in ("phases", "channel_types", "intents", "source_channel_ids"):
            names = getattr(self, name)
            if not _are_names(names):
                faults.append(f"{name}={short(names)}: give a set of strings")
        if self.custom is not None and not (is_condition(self.custom) or callable(self.custom)):
            faults.append(f"custom={short(self.custom)} is no condition, and cannot be called")
        if faults:
            raise ConfigurationError(faults)

    def hold(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether all conditions hold; a `custom` condition that raises does not hold."""
        custom = self.custom
        if judge(AllOf(tuple(self._set_conditions())), state, envelope, []) is not True:
            return False
        if custom is None:
            return True
        if is_condition(custom):
            return judge(custom, state, envelope, []) is True
        try:
            return custom(state, envelope) is True
        except Exception:
            return False

    def to_condition(self) -> TransitionCondition:
        """Return all as one graph condition; `ConfigurationError` if `custom` is a function."""
        if self.custom is not None and not is_condition(self.custom):
            raise ConfigurationError(
                f"custom={short(self.custom)} cannot be stored with a graph: make it a condition, "
                "a class with `name` and `evaluate`, and register it with register_condition"
            )
        custom = [self.custom] if self.custom is not None else []
        conditions = [*self._set_conditions(), *custom]
        if len(conditions) == 1:
            return conditions[0]
        return AllOf(tuple(conditions)) if conditions else Always()

    def _set_conditions(self) -> Iterator[TransitionCondition]:
        if self.phases is not None:
            yield InPhase(_in_order(self.phases))
        if self.channel_types is not None:
            yield FromChannelType(_in_order(self.channel_types))
        if self.intents is not None:
            yield IntentIn(_in_order(self.intents))
        if self.source_channel_ids is not None:
            yield FromSource(_in_order(self.source_channel_ids))


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """The agent that answers a message for which the conditions hold.

        RoutingRule("billing", RoutingConditions(intents={"refund"}), priority=1)

    The rule with the lowest priority is tried first; of equal priorities, the first in the list.
    """

    agent_id: str
    conditions: RoutingConditions = field(default_factory=RoutingConditions)
    priority: int = 0

    def __post_init__(self) -> None:
        faults = []
        if not isinstance(self.agent_id, str):
            faults.append(f"agent_id={short(self.agent_id)}: give a string")
        if not isinstance(self.conditions, RoutingConditions):
            faults.append(f"conditions={short(self.conditions)}: give RoutingConditions")
        if not is_whole(self.priority):
            faults.append(f"priority={short(self.priority)} is no whole number of 64 bits")
        if faults:
            raise ConfigurationError(faults)


@dataclass(frozen=True)
class ConversationRouter:
    """Pick an agent for a message from outside; an agent's own messages are never routed.

        router = ConversationRouter([RoutingRule("billing", conditions)], default_agent_id="desk")
        team = Team([desk, billing], router)

    The order is: the agent that the message addresses, the agent that has the conversation, the
    rules, the default. An agent keeps the conversation in all phases, or in `affinity_phases` only.
    """

    rules: Sequence[RoutingRule] = ()
    default_agent_id: str | None = None
    supervisor_id: str | None = None
    _: KW_ONLY
    affinity_phases: Collection[str] | None = None

    def __post_init__(self) -> None:
        faults = [f"rules: {short(rule)} is no RoutingRule" for rule in _not_rules(self.rules)]
        faults += [
            f"{name}={short(value)}: give a name, or None"
            for name in ("default_agent_id", "supervisor_id")
            if not isinstance(value := getattr(self, name), str | None)
        ]
        if not _are_names(self.affinity_phases):
            faults.append(f"affinity_phases={short(self.affinity_phases)}: give a set of strings")
        if faults:
            raise ConfigurationError(faults)
        object.__setattr__(self, "rules", tuple(self.rules))

    def select_agent(self, state: RoutingState, envelope: RoutingEnvelope) -> str | None:
        """Return the agent that answers; None for an agent's message, and if no agent matches."""
        present = state.participant_order
        if envelope.sender_id in (*self.agents, self.supervisor_id, state.active_agent):
            return None
        if judge(IsAddressed(), state, envelope, []):
            return next((name for name in addressed_to(envelope) if name in present), None)
        if judge(self._affinity(), state, envelope, []):
            return state.active_agent
        for rule in self._rules_by_priority:
            if rule.agent_id in present and rule.conditions.hold(state, envelope):
                return rule.agent_id
        return self.default_agent_id if self.default_agent_id in present else None

    def to_graph(self, agents: Collection[str] = ()) -> TransitionGraph:
        """Return a graph that decides the same; after an agent it waits for the human.

        `agents` are further agents, which no rule names, but which messages may address.
        """
        after = self._after_agents({*self.agents, *agents})
        return TransitionGraph(HUMAN, (after, *self.outside()), HumanTarget())

    def outside(self) -> Iterator[Transition]:
        """Yield the transitions for messages from outside, in their order."""
        yield Transition(IsAddressed(), AddressedTarget())
        yield Transition(self._affinity(), ActiveAgentTarget())
        faults = []
        for rule in self._rules_by_priority:
            try:
                yield Transition(rule.conditions.to_condition(), AgentTarget(rule.agent_id))
            except ConfigurationError as error:
                faults += [f"the rule for {rule.agent_id!r}: {fault}" for fault in error.faults]
        if faults:
            raise ConfigurationError(faults)
        if self.default_agent_id is not None:
            yield Transition(Always(), AgentTarget(self.default_agent_id))

    @cached_property
    def agents(self) -> frozenset[str]:
        """The agents that rules name: their own messages are not routed."""
        names = (*(rule.agent_id for rule in self.rules), self.default_agent_id)
        return frozenset(name for name in names if name is not None)

    @cached_property
    def _rules_by_priority(self) -> list[RoutingRule]:
        return sorted(self.rules, key=lambda rule: rule.priority)

    def _after_agents(self, agents: Collection[str]) -> Transition:
        speakers = (FromSpeaker(name) for name in sorted(agents))
        return Transition(AnyOf((FromActiveAgent(), *speakers)), HumanTarget())

    def _affinity(self) -> TransitionCondition:
        if self.affinity_phases is None:
            return HasActiveAgent()
        return HasActiveAgent() & InPhase(_in_order(self.affinity_phases))


def _are_names(value: object) -> bool:
    if value is None:
        return True
    is_set = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return is_set and all(isinstance(name, str) for name in value)  # type: ignore[attr-defined]


def _in_order(names: Collection[str]) -> tuple[str, ...]:
    """Return names in an order that does not change from one process to the next."""
    return tuple(sorted(map(plain, names)))


def _not_rules(rules: object) -> list[object]:
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        return [rules]
    return [rule for rule in rules if not isinstance(rule, RoutingRule)]
