"""Rules, and how they decide: the first one that fires, by ascending priority, then list order.

`Transition` is one rule as a user writes it. `Rules` are a graph's rules, compiled for `resolve`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentgraph.errors import ConfigurationError
from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf, judge
from agentgraph.routing.conditions import Always, FromSpeaker
from agentgraph.routing.decision import Rule, TransitionDecision
from agentgraph.routing.protocols import (
    HUMAN,
    RoutingEnvelope,
    RoutingState,
    TransitionCondition,
    is_condition,
)
from agentgraph.routing.targets import (
    AgentTarget,
    ParallelTarget,
    Target,
    TerminateTarget,
    as_target,
)
from agentgraph.routing.values import cause, is_whole, short


@dataclass(frozen=True, slots=True)
class Transition:
    """A rule: if `when` fires, the target `then` decides; a string is an agent's name.

    Rules with a lower priority are tried earlier.

        Transition(FromSpeaker("writer") & ContextEquals("done", True), TerminateTarget("done"))
        Transition(FromSpeaker("writer"), "editor")
    """

    when: TransitionCondition
    then: Target | str
    priority: int = 0

    def __post_init__(self) -> None:
        faults = []
        if not is_condition(self.when):
            faults.append(
                f"when={short(self.when)} is no condition: give one, Always() for instance"
            )
        if not is_whole(self.priority):
            faults.append(f"priority={short(self.priority)} is no whole number of 64 bits")
        try:
            object.__setattr__(self, "then", as_target(self.then))
        except ConfigurationError as error:
            faults += error.faults
        if faults:
            raise ConfigurationError(faults)


_OBJECTS = (dict, Mapping)  # to ask for `dict` first is much faster


class CompiledRule(NamedTuple):
    """A rule, ready to be evaluated for an envelope of its speaker."""

    position: int
    """The index of the rule in the graph."""
    when: TransitionCondition | None
    """The rest of the condition once the speaker matches; None if nothing is left."""
    then: Target
    constant: TransitionDecision | None
    """The decision of a target that always decides the same, else None."""


@dataclass(slots=True)
class Rules:
    """A graph's rules, indexed by speaker; `compile_rules` makes them.

    They decide without I/O and never raise: an error in a condition or a target is written into the
    decision's trace, and the next rule is tried.
    """

    initial_speaker: str
    transitions: Sequence[Transition]
    default: Target
    max_turns: int | None
    initial_phase: str | None
    _constant_default: TransitionDecision | None
    _general: tuple[CompiledRule, ...]
    """The rules without a speaker: the only ones for a speaker without rules of its own."""
    _by_speaker: Mapping[str, tuple[CompiledRule, ...]]

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        """Decide who speaks after a turn, or after the session's opening message."""
        trace: list[str] = []
        if self.is_opening(state, envelope):
            first, phase = (self.initial_speaker,), self.initial_phase
            first_decision = TransitionDecision("speak", first, phase, rule="initial")
            if _has_known_speakers(first_decision, "initial", state, trace):
                return first_decision
            return replace(self._default(state, envelope, trace), trace=tuple(trace))
        decision = self.packet_decision(state, envelope, trace)
        decision = decision or self._first_to_fire(state, envelope, trace)
        return self._within_turns(decision, state, envelope, trace)

    def join(
        self, decision: TransitionDecision, state: RoutingState, envelope: RoutingEnvelope
    ) -> TransitionDecision:
        """Decide who speaks when all speakers of a parallel decision have spoken.

        The envelope is that of the last one of them, or of the one whose `Finish` decides.
        """
        rule = decision.rule
        target = self.transitions[rule].then if isinstance(rule, int) else self.default
        speakers = set(decision.speakers)
        joins = (
            part.join
            for part in parts_of(target)
            if isinstance(part, ParallelTarget) and speakers == set(part.agents)
        )
        then = next(joins, self.default)
        trace: list[str] = []
        next_decision = self.packet_decision(state, envelope, trace)
        next_decision = next_decision or self.target_decision(
            as_target(then), rule, state, envelope, trace
        )
        next_decision = next_decision or self._default(state, envelope, trace)
        return self._within_turns(next_decision, state, envelope, trace)

    def rules_for(self, speaker: str) -> list[tuple[int, Transition]]:
        """Return the rules that a speaker's turn may fire, in the order in which they are tried.

        The human may have any name, so any rule may fire for it.
        """
        if speaker == HUMAN:
            return in_order(self.transitions)
        rules = self._by_speaker.get(speaker, self._general)
        return [(rule.position, self.transitions[rule.position]) for rule in rules]

    def packet_decision(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> TransitionDecision | None:
        """Return the decision that the turn's packet carries itself: a `Finish` or a `Handoff`.

        It outranks the rules. None if the packet has no decision, or one that cannot be followed.
        """
        # The packet may hold anything: it is read from a log, and models and tools have written it.
        data: object = envelope.event_data
        routing = data.get("routing") if isinstance(data, _OBJECTS) else None
        if not isinstance(routing, _OBJECTS):
            return None
        kind, target = routing.get("kind"), routing.get("target")
        if not isinstance(kind, str):
            return None
        if kind == "finish":
            reason = routing.get("reason")
            reason = reason if isinstance(reason, str) and reason else "finished"
            return TransitionDecision("close", close_reason=reason, rule="finish")
        if kind != "handoff" or not isinstance(target, str):
            return None
        phase = routing.get("next_phase")
        phase = phase if isinstance(phase, str) else None
        if target == HUMAN:
            return TransitionDecision("wait", (state.creator_id,), phase, rule="handoff")
        if target == envelope.sender_id:
            trace.append(f"the handoff leads to {target!r}, who has the floor already")
            return None
        decision = TransitionDecision("speak", (target,), phase, rule="handoff")
        return decision if _has_known_speakers(decision, "the handoff", state, trace) else None

    def target_decision(
        self,
        target: Target,
        rule: Rule,
        state: RoutingState,
        envelope: RoutingEnvelope,
        trace: list[str],
    ) -> TransitionDecision | None:
        """Ask a target; None, with a line in the trace, if it fails or names strangers."""
        try:
            answer: object = target.resolve(state, envelope)
            is_valid = _is_decision(answer)
        except Exception as error:
            trace.append(f"{_rule(rule)}: its target failed: {cause(error)}")
            return None
        if not is_valid or not isinstance(answer, TransitionDecision):
            trace.append(
                f"{_rule(rule)}: its target answered {short(answer)}, which is no decision"
            )
            return None
        return (
            replace(answer, rule=rule) if _has_known_speakers(answer, rule, state, trace) else None
        )

    def is_opening(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether the creator speaks, without the floor, before any turn."""
        return (
            state.last_speaker_id is None
            and envelope.sender_id == state.creator_id
            and self.initial_speaker not in (state.creator_id, HUMAN)
        )

    def is_beyond_turns(self, decision: TransitionDecision, state: RoutingState) -> bool:
        """Tell whether a decision needs more turns than are left."""
        turns = state.turn_count + len(decision.speakers)
        has_limit = self.max_turns is not None and decision.action != "close"
        return has_limit and turns > (self.max_turns or 0)

    def _first_to_fire(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> TransitionDecision:
        """Ask the targets of the rules that fire, in order, until one decides."""
        for index, when, then, constant in self._by_speaker.get(envelope.sender_id, self._general):
            if when is not None and not _fires(index, when, state, envelope, trace):
                continue
            if constant is not None:
                if _has_known_speakers(constant, index, state, trace):
                    return constant
                continue
            decision = self.target_decision(then, index, state, envelope, trace)
            if decision is not None:
                return decision
        return self._default(state, envelope, trace)

    def _default(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> TransitionDecision:
        """Ask the default target; close the session if it has no valid decision."""
        constant = self._constant_default
        if constant is not None and constant.action == "close":
            return constant
        decision = self.target_decision(self.default, "default", state, envelope, trace)
        return decision or TransitionDecision("close", close_reason="no_speaker", rule="default")

    def _within_turns(
        self,
        decision: TransitionDecision,
        state: RoutingState,
        envelope: RoutingEnvelope,
        trace: list[str],
    ) -> TransitionDecision:
        """Close the session if a decision needs more turns than are left."""
        if self.is_beyond_turns(decision, state):
            # If the default target has decided already, its faults are in the trace already.
            faults = [] if decision.rule == "default" else trace
            end = self.target_decision(self.default, "default", state, envelope, faults)
            if end is None or end.action != "close":
                end = TransitionDecision("close", close_reason="max_turns", rule="max_turns")
            decision = end
        return replace(decision, trace=tuple(trace)) if trace else decision


def compile_rules(
    initial_speaker: str,
    transitions: Sequence[Transition],
    default: Target,
    max_turns: int | None,
    initial_phase: str | None = None,
) -> Rules:
    """Compile the rules of a graph, once per graph: a session may have 1,000 turns."""
    entries = [_compile(index, rule) for index, rule in in_order(transitions)]
    speakers = {speaker for speaker, _ in entries if speaker is not None}
    lists: dict[str, list[CompiledRule]] = defaultdict(list)
    for owner, rule in entries:
        for speaker in speakers if owner is None else (owner,):
            lists[speaker].append(rule)
    return Rules(
        initial_speaker,
        transitions,
        default,
        max_turns,
        initial_phase,
        _constant_default=_constant(default, "default"),
        _general=tuple(rule for owner, rule in entries if owner is None),
        _by_speaker={speaker: tuple(rules) for speaker, rules in lists.items()},
    )


def in_order(transitions: Sequence[Transition]) -> list[tuple[int, Transition]]:
    """Return the rules in the order in which they are tried, each with its index in the graph."""
    return sorted(enumerate(transitions), key=lambda entry: (entry[1].priority, entry[0]))


def _compile(index: int, rule: Transition) -> tuple[str | None, CompiledRule]:
    """Return the speaker that a rule requires, None for any speaker, and the compiled rule."""
    speaker, rest = _split_speaker(rule.when)
    then = as_target(rule.then)
    return speaker, CompiledRule(index, rest, then, _constant(then, index))


def _constant(target: Target, rule: Rule) -> TransitionDecision | None:
    """Return the decision of a target that always decides the same, else None."""
    match target:
        case AgentTarget(agent_id) if agent_id != HUMAN:
            return TransitionDecision("speak", (agent_id,), rule=rule)
        case TerminateTarget(reason):
            return TransitionDecision("close", close_reason=reason, rule=rule)
    return None


def _split_speaker(when: TransitionCondition) -> tuple[str | None, TransitionCondition | None]:
    """Split a condition into the speaker that it requires and the rest to evaluate."""
    match when:
        case Always():
            return None, None
        case FromSpeaker(agent_id) if agent_id != HUMAN:
            return agent_id, None
        case AllOf(conditions):
            for position, part in enumerate(conditions):
                if isinstance(part, FromSpeaker) and part.agent_id != HUMAN:
                    rest = (*conditions[:position], *conditions[position + 1 :])
                    return part.agent_id, rest[0] if len(rest) == 1 else AllOf(rest)
    return None, when


def _fires(
    index: int,
    when: TransitionCondition,
    state: RoutingState,
    envelope: RoutingEnvelope,
    trace: list[str],
) -> bool:
    """Evaluate a condition; its errors go into the trace, under the rule's index."""
    start = len(trace)
    fires = judge(when, state, envelope, trace)
    if len(trace) > start:
        trace[start:] = [f"rule {index}: {fault}" for fault in trace[start:]]
    return fires is True


def _has_known_speakers(
    decision: TransitionDecision, rule: Rule | str, state: RoutingState, trace: list[str]
) -> bool:
    """Tell whether all next speakers take part: for an unknown one the session would wait for ever.

    Unknown names are written into the trace.
    """
    present = state.participant_order
    strangers = [
        name for name in decision.speakers if name not in present and name != state.creator_id
    ]
    if not strangers:
        return True
    names = ", ".join(map(repr, strangers))
    trace.append(f"{_rule(rule)} leads to {names}, who is no participant")
    return False


def _is_decision(answer: object) -> bool:
    """Tell whether a target has returned a valid decision.

    A registered class may return anything.
    """
    if not isinstance(answer, TransitionDecision) or not isinstance(answer.speakers, tuple):
        return False
    names = set(answer.speakers)
    counts = {"speak": len(names) > 0, "wait": len(names) == 1, "close": not names}
    return (
        counts.get(answer.action, False)
        and len(names) == len(answer.speakers)
        and all(isinstance(name, str) for name in answer.speakers)
        and isinstance(answer.close_reason, str)
        and isinstance(answer.phase, str | None)
    )


def _rule(rule: Rule | str) -> str:
    return f"rule {rule}" if isinstance(rule, int) else str(rule)
