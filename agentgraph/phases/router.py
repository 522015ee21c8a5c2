"""Who answers what comes from outside: whom it addresses, who has the conversation, the rules."""

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
    """What must hold for a rule; all that is given must, of each set one is enough."""

    phases: Collection[str] | None = None
    channel_types: Collection[str] | None = None
    intents: Collection[str] | None = None
    source_channel_ids: Collection[str] | None = None
    custom: TransitionCondition | Predicate | None = None

    def __post_init__(self) -> None:
        faults: list[str] = []
        for name in ("phases", "channel_types", "intents", "source_channel_ids"):
            given = getattr(self, name)
            if not _are_names(given):
                faults.append(f"{name}={short(given)}: give a set of strings")
        if self.custom is not None and not (is_condition(self.custom) or callable(self.custom)):
            faults.append(f"custom={short(self.custom)} is no condition, and cannot be called")
        if faults:
            raise ConfigurationError(faults)

    def hold(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether they hold; a custom one that fails does not."""
        custom = self.custom
        if judge(AllOf(tuple(self._given())), state, envelope, []) is not True:
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
        """Return them as one condition of a graph."""
        if self.custom is not None and not is_condition(self.custom):
            raise ConfigurationError(
                f"custom={short(self.custom)} cannot be stored with a graph: make it a condition, "
                "a class with `name` and `evaluate`, and register it with register_condition"
            )
        given = [*self._given(), *([self.custom] if self.custom is not None else [])]
        if len(given) == 1:
            return given[0]
        return AllOf(tuple(given)) if given else Always()

    def _given(self) -> Iterator[TransitionCondition]:
        if self.phases is not None:
            yield InPhase(_sorted(self.phases))
        if self.channel_types is not None:
            yield FromChannelType(_sorted(self.channel_types))
        if self.intents is not None:
            yield IntentIn(_sorted(self.intents))
        if self.source_channel_ids is not None:
            yield FromSource(_sorted(self.source_channel_ids))


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """Who answers where conditions hold; the lower the priority, the earlier it is tried."""

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
    """Pick an agent for what comes from outside; what an agent said is never routed.

    In this order: whom it addresses, who has the conversation, the rules, the default. Who has it
    keeps it in all phases, or in `affinity_phases` only.
    """

    rules: Sequence[RoutingRule] = ()
    default_agent_id: str | None = None
    supervisor_id: str | None = None
    _: KW_ONLY
    affinity_phases: Collection[str] | None = None

    def __post_init__(self) -> None:
        faults = [f"rules: {short(rule)} is no RoutingRule" for rule in _strangers(self.rules)]
        faults += [
            f"{name}={short(given)}: give a name, or None"
            for name in ("default_agent_id", "supervisor_id")
            if not isinstance(given := getattr(self, name), str | None)
        ]
        if not _are_names(self.affinity_phases):
            faults.append(f"affinity_phases={short(self.affinity_phases)}: give a set of strings")
        if faults:
            raise ConfigurationError(faults)
        object.__setattr__(self, "rules", tuple(self.rules))

    def select_agent(self, state: RoutingState, envelope: RoutingEnvelope) -> str | None:
        """Return who answers, None where nobody is to."""
        present = state.participant_order
        if envelope.sender_id in (*self.agents, self.supervisor_id, state.active_agent):
            return None
        if judge(IsAddressed(), state, envelope, []):
            return next((name for name in addressed_to(envelope) if name in present), None)
        if judge(self._affinity(), state, envelope, []):
            return state.active_agent
        for rule in self._ordered:
            if rule.agent_id in present and rule.conditions.hold(state, envelope):
                return rule.agent_id
        return self.default_agent_id if self.default_agent_id in present else None

    def to_graph(self, agents: Collection[str] = ()) -> TransitionGraph:
        """Return the graph that decides the same; after an agent it waits for the human.

        `agents` are those whom no rule names, who may be addressed all the same.
        """
        after = self._after_agents({*self.agents, *agents})
        return TransitionGraph(HUMAN, (after, *self.outside()), HumanTarget())

    def outside(self) -> Iterator[Transition]:
        """Yield the rules for what comes from outside, in their order."""
        yield Transition(IsAddressed(), AddressedTarget())
        yield Transition(self._affinity(), ActiveAgentTarget())
        faults = []
        for rule in self._ordered:
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
        """The agents who may answer: what they say is not routed."""
        named = (*(rule.agent_id for rule in self.rules), self.default_agent_id)
        return frozenset(name for name in named if name is not None)

    @cached_property
    def _ordered(self) -> list[RoutingRule]:
        return sorted(self.rules, key=lambda rule: rule.priority)

    def _after_agents(self, agents: Collection[str]) -> Transition:
        named = (FromSpeaker(name) for name in sorted(agents))
        return Transition(AnyOf((FromActiveAgent(), *named)), HumanTarget())

    def _affinity(self) -> TransitionCondition:
        if self.affinity_phases is None:
            return HasActiveAgent()
        return HasActiveAgent() & InPhase(_sorted(self.affinity_phases))


def _are_names(given: object) -> bool:
    if given is None:
        return True
    is_many = isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping)
    return is_many and all(isinstance(name, str) for name in given)  # type: ignore[attr-defined]


def _sorted(given: Collection[str]) -> tuple[str, ...]:
    """Return names in an order that does not change from one process to the next."""
    return tuple(sorted(map(plain, given)))


def _strangers(rules: object) -> list[object]:
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        return [rules]
    return [rule for rule in rules if not isinstance(rule, RoutingRule)]
