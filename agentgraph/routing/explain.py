"""Which rule fired, and why each one before it did not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentgraph.routing.composites import judge
from agentgraph.routing.decision import Rule, TransitionDecision
from agentgraph.routing.protocols import RoutingEnvelope, RoutingState
from agentgraph.routing.resolve import Rules, in_order
from agentgraph.routing.targets import as_target
from agentgraph.routing.words import describe, describe_target, why_not


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one rule."""

    rule: Rule
    text: str
    fired: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision, and what became of the rules that were tried for it."""

    decision: TransitionDecision
    verdicts: tuple[Verdict, ...]

    def __str__(self) -> str:
        lines = [
            f"{'→' if one.fired else ' '} {one.rule}: {one.text}{f': {one.why}' if one.why else ''}"
            for one in self.verdicts
        ]
        return "\n".join([*lines, _outcome(self.decision), *self.decision.trace])


def explain(rules: Rules, state: RoutingState, envelope: RoutingEnvelope) -> Explanation:
    """Decide, and say how it came about."""
    decision = rules.resolve(state, envelope)
    if decision.rule == "initial":
        return Explanation(decision, (Verdict("initial", _SAID["initial"], True),))
    return Explanation(decision, tuple(_verdicts(rules, decision, state, envelope)))


def _verdicts(
    rules: Rules, decision: TransitionDecision, state: RoutingState, envelope: RoutingEnvelope
) -> Iterator[Verdict]:
    for one in _tried(rules, state, envelope):
        if one.fired and one.rule != decision.rule:
            yield replace(one, fired=False, why="it fires, but the turns are used up")
            break
        yield one
        if one.fired:
            return
    told = f"otherwise {describe_target(rules.default)}"
    if decision.rule == "default":
        yield Verdict("default", told, True)
    else:
        yield Verdict("default", told, False, "it does not end the session")
        yield Verdict("max_turns", f"{rules.max_turns} turns are used up", True)


def _tried(rules: Rules, state: RoutingState, envelope: RoutingEnvelope) -> Iterator[Verdict]:
    """Yield what is tried, up to what decides, before the turns are counted."""
    said = rules.said(state, envelope, [])
    if said is not None:
        yield Verdict(said.rule, _SAID[str(said.rule)], True)
        return
    for index, rule in in_order(rules.transitions):
        text = f"if {describe(rule.when)} then {describe_target(rule.then)}"
        if judge(rule.when, state, envelope, []) is not True:
            yield Verdict(index, text, False, why_not(rule.when, state, envelope))
            continue
        trace: list[str] = []
        if rules.led(as_target(rule.then), index, state, envelope, trace) is not None:
            yield Verdict(index, text, True)
            return
        yield Verdict(index, text, False, f"it fires, but {'; '.join(trace)}")


_SAID = {
    "initial": "the opening words go to the initial speaker",
    "handoff": "the turn handed the floor over itself, which outranks the rules",
    "finish": "the turn ended the session itself, which outranks the rules",
}


def _outcome(decision: TransitionDecision) -> str:
    match decision.action:
        case "speak":
            told = f"{', '.join(decision.speakers)} speak{'s' if decision.next_speaker else ''}"
        case "wait":
            told = f"waits for {', '.join(decision.speakers)}"
        case "close":
            told = f"closes: {decision.close_reason}"
    return f"= {told}{f', in phase {decision.phase!r}' if decision.phase else ''}"
