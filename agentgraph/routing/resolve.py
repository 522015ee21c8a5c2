"""From rules to a decision: the first that fires, in ascending priority, then in their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentgraph.routing.composites import AllOf, judge
from agentgraph.routing.conditions import Always, FromSpeaker
from agentgraph.routing.decision import Rule, TransitionDecision
from agentgraph.routing.document.arguments import parts_of
from agentgraph.routing.protocols import (
    HUMAN,
    RoutingEnvelope,
    RoutingState,
    TransitionCondition,
)
from agentgraph.routing.targets import (
    AgentTarget,
    ParallelTarget,
    Target,
    TerminateTarget,
    as_target,
)
from agentgraph.routing.transition import Transition
from agentgraph.routing.values import cause, short


class Compiled(NamedTuple):
    """A rule, ready to be tried on the words of its speaker."""

    place: int
    when: TransitionCondition | None
    then: Target
    fixed: TransitionDecision | None


@dataclass(slots=True)
class Rules:
    """A graph's rules, indexed by speaker where they begin with one."""

    initial_speaker: str
    transitions: Sequence[Transition]
    default: Target
    max_turns: int | None
    initial_phase: str | None
    _fixed_default: TransitionDecision | None
    _general: tuple[Compiled, ...]
    _of: Mapping[str, tuple[Compiled, ...]]

    @classmethod
    def compiled(
        cls,
        initial_speaker: str,
        transitions: Sequence[Transition],
        default: Target,
        max_turns: int | None,
        initial_phase: str | None = None,
    ) -> Rules:
        """Compile rules, once per graph."""
        entries = [_split(index, rule) for index, rule in in_order(transitions)]
        speakers = {speaker for speaker, _ in entries if speaker is not None}
        of: dict[str, list[Compiled]] = defaultdict(list)
        for owner, rule in entries:
            for speaker in speakers if owner is None else (owner,):
                of[speaker].append(rule)
        general = tuple(rule for owner, rule in entries if owner is None)
        by_speaker = {speaker: tuple(rules) for speaker, rules in of.items()}
        fixed = _fixed(default, "default")
        limits = (max_turns, initial_phase)
        return cls(initial_speaker, transitions, default, *limits, fixed, general, by_speaker)

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        """Decide who goes on after a turn, or whom the opening words go to."""
        trace: list[str] = []
        if self._is_opening(state, envelope):
            first, phase = (self.initial_speaker,), self.initial_phase
            opening = TransitionDecision("speak", first, phase, rule="initial")
            if _is_known(opening, "initial", state, trace):
                return opening
            return replace(self._default(state, envelope, trace), trace=tuple(trace))
        decision = self.said(state, envelope, trace) or self._ruled(state, envelope, trace)
        return self._within_turns(decision, state, envelope, trace)

    def join(
        self, decision: TransitionDecision, state: RoutingState, envelope: RoutingEnvelope
    ) -> TransitionDecision:
        """Decide who goes on when all who were to speak at once have spoken.

        The envelope is that of the last of them, or of one who has decided by a `Finish`.
        """
        rule = decision.rule
        target = self.transitions[rule].then if isinstance(rule, int) else self.default
        called = set(decision.speakers)
        joins = (
            part.join
            for part in parts_of(target)
            if isinstance(part, ParallelTarget) and called == set(part.agents)
        )
        then = next(joins, self.default)
        trace: list[str] = []
        joined = self.said(state, envelope, trace)
        joined = joined or self.led(as_target(then), rule, state, envelope, trace)
        joined = joined or self._default(state, envelope, trace)
        return self._within_turns(joined, state, envelope, trace)

    def heard_by(self, speaker: str) -> list[tuple[int, Transition]]:
        """Return the rules that a speaker's words may fire, in the order in which they are tried.

        The human may be anybody, and fire any of them.
        """
        if speaker == HUMAN:
            return in_order(self.transitions)
        heard = self._of.get(speaker, self._general)
        return [(one.place, self.transitions[one.place]) for one in heard]

    def _is_opening(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether the creator speaks, without the floor, before anybody has spoken."""
        return (
            state.last_speaker_id is None
            and envelope.sender_id == state.creator_id
            and self.initial_speaker not in (state.creator_id, HUMAN)
        )

    def said(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> TransitionDecision | None:
        """Return what the turn itself has decided: by a `Finish`, or by a `Handoff`."""
        data: object = envelope.event_data
        routing = data.get("routing") if isinstance(data, Mapping) else None
        if not isinstance(routing, Mapping):
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
        return decision if _is_known(decision, "the handoff", state, trace) else None

    def _ruled(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> TransitionDecision:
        for index, when, then, fixed in self._of.get(envelope.sender_id, self._general):
            if when is not None and not _fires(index, when, state, envelope, trace):
                continue
            if fixed is not None:
                if _is_known(fixed, index, state, trace):
                    return fixed
            elif (led := self.led(then, index, state, envelope, trace)) is not None:
                return led
        return self._default(state, envelope, trace)

    def _default(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> TransitionDecision:
        fixed = self._fixed_default
        if fixed is not None and fixed.action == "close":
            return fixed
        led = self.led(self.default, "default", state, envelope, trace)
        return led or TransitionDecision("close", close_reason="no_speaker", rule="default")

    def _within_turns(
        self,
        decision: TransitionDecision,
        state: RoutingState,
        envelope: RoutingEnvelope,
        trace: list[str],
    ) -> TransitionDecision:
        """Close where a decision needs more turns than are left."""
        turns = state.turn_count + len(decision.speakers)
        if self.max_turns is not None and turns > self.max_turns and decision.action != "close":
            told = [] if decision.rule == "default" else trace  # it has told its faults already
            led = self.led(self.default, "default", state, envelope, told)
            if led is None or led.action != "close":
                led = TransitionDecision("close", close_reason="max_turns", rule="max_turns")
            decision = led
        return replace(decision, trace=tuple(trace)) if trace else decision

    def led(
        self,
        target: Target,
        rule: Rule,
        state: RoutingState,
        envelope: RoutingEnvelope,
        trace: list[str],
    ) -> TransitionDecision | None:
        """Follow a target; None where it leads nowhere, which goes into the trace."""
        try:
            led: object = target.resolve(state, envelope)
            has_decided = _is_decision(led)
        except Exception as error:
            trace.append(f"{_rule(rule)}: its target failed: {cause(error)}")
            return None
        if not has_decided or not isinstance(led, TransitionDecision):
            trace.append(f"{_rule(rule)}: its target answered {short(led)}, which is no decision")
            return None
        return replace(led, rule=rule) if _is_known(led, rule, state, trace) else None


def in_order(transitions: Sequence[Transition]) -> list[tuple[int, Transition]]:
    """Return the rules in the order in which they are tried, each with its place in the graph."""
    return sorted(enumerate(transitions), key=lambda entry: (entry[1].priority, entry[0]))


def _split(index: int, rule: Transition) -> tuple[str | None, Compiled]:
    speaker, rest = _without_speaker(rule.when)
    then = as_target(rule.then)
    return speaker, Compiled(index, rest, then, _fixed(then, index))


def _fixed(target: Target, rule: Rule) -> TransitionDecision | None:
    """Return what a target decides every time, where that is known beforehand."""
    match target:
        case AgentTarget(agent_id) if agent_id != HUMAN:
            return TransitionDecision("speak", (agent_id,), rule=rule)
        case TerminateTarget(reason):
            return TransitionDecision("close", close_reason=reason, rule=rule)
    return None


def _without_speaker(when: TransitionCondition) -> tuple[str | None, TransitionCondition | None]:
    match when:
        case Always():
            return None, None
        case FromSpeaker(agent_id) if agent_id != HUMAN:
            return agent_id, None
        case AllOf(conditions):
            for place, part in enumerate(conditions):
                if isinstance(part, FromSpeaker) and part.agent_id != HUMAN:
                    rest = (*conditions[:place], *conditions[place + 1 :])
                    return part.agent_id, rest[0] if len(rest) == 1 else AllOf(rest)
    return None, when


def _fires(
    index: int,
    when: TransitionCondition,
    state: RoutingState,
    envelope: RoutingEnvelope,
    trace: list[str],
) -> bool:
    failed = len(trace)
    fired = judge(when, state, envelope, trace)
    if len(trace) > failed:
        trace[failed:] = [f"rule {index}: {fault}" for fault in trace[failed:]]
    return fired is True


def _is_known(
    decision: TransitionDecision, rule: Rule | str, state: RoutingState, trace: list[str]
) -> bool:
    """Tell whether all who are to go on are there; a stranger would be waited for for ever."""
    present = state.participant_order
    strangers = [
        name for name in decision.speakers if name not in present and name != state.creator_id
    ]
    if not strangers:
        return True
    named = ", ".join(map(repr, strangers))
    trace.append(f"{_rule(rule)} leads to {named}, who is no participant")
    return False


def _is_decision(led: object) -> bool:
    """Tell whether a target has decided; those of somebody else may answer anything."""
    if not isinstance(led, TransitionDecision) or not isinstance(led.speakers, tuple):
        return False
    names = set(led.speakers)
    counts = {"speak": len(names) > 0, "wait": len(names) == 1, "close": not names}
    return (
        counts.get(led.action, False)
        and len(names) == len(led.speakers)
        and all(isinstance(name, str) for name in led.speakers)
        and isinstance(led.close_reason, str)
        and isinstance(led.phase, str | None)
    )


def _rule(rule: Rule | str) -> str:
    return f"rule {rule}" if isinstance(rule, int) else str(rule)
