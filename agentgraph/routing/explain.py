"""Explain a decision: which rule fired, and why each one before it did not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentgraph.routing.composites import judge
from agentgraph.routing.decision import Rule, TransitionDecision
from agentgraph.routing.describe import describe, describe_target, why_not
from agentgraph.routing.protocols import RoutingEnvelope, RoutingState
from agentgraph.routing.rules import Rules, in_order
from agentgraph.routing.targets import as_target


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one rule: its text, whether it fired, and if not, why."""

    rule: Rule
    text: str
    fired: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision, with the results of the rules that were tried; `str` formats it as lines."""

    decision: TransitionDecision
    verdicts: tuple[Verdict, ...]

    def __str__(self) -> str:
        lines = [
            f"{'→' if v.fired else ' '} {v.rule}: {v.text}{f': {v.why}' if v.why else ''}"
            for v in self.verdicts
        ]
        return "\n".join([*lines, _outcome(self.decision), *self.decision.trace])


def explain(rules: Rules, state: RoutingState, envelope: RoutingEnvelope) -> Explanation:
    """Decide as `Rules.resolve` does, and explain the decision."""
    decision = rules.resolve(state, envelope)
    if decision.rule == "initial":
        return Explanation(decision, (Verdict("initial", _WITHOUT_RULES["initial"], True),))
    return Explanation(decision, tuple(_verdicts(rules, decision, state, envelope)))


def _verdicts(
    rules: Rules, decision: TransitionDecision, state: RoutingState, envelope: RoutingEnvelope
) -> Iterator[Verdict]:
    """Yield the results in the order of evaluation, including the turn limit."""
    for verdict in _attempts(rules, state, envelope):
        if verdict.fired and verdict.rule != decision.rule:
            yield replace(verdict, fired=False, why="it fires, but the turns are used up")
            break
        yield verdict
        if verdict.fired:
            return
    text = f"otherwise {describe_target(rules.default)}"
    if decision.rule == "default":
        yield Verdict("default", text, True)
    else:
        yield Verdict("default", text, False, "it does not end the session")
        yield Verdict("max_turns", f"{rules.max_turns} turns are used up", True)


def _attempts(rules: Rules, state: RoutingState, envelope: RoutingEnvelope) -> Iterator[Verdict]:
    """Yield the results up to the decisive one, before the turn limit is applied."""
    own = rules.packet_decision(state, envelope, [])
    if own is not None:
        yield Verdict(own.rule, _WITHOUT_RULES[str(own.rule)], True)
        return
    for index, rule in in_order(rules.transitions):
        text = f"if {describe(rule.when)} then {describe_target(rule.then)}"
        if judge(rule.when, state, envelope, []) is not True:
            yield Verdict(index, text, False, why_not(rule.when, state, envelope))
            continue
        trace: list[str] = []
        target = as_target(rule.then)
        if rules.target_decision(target, index, state, envelope, trace) is not None:
            yield Verdict(index, text, True)
            return
        yield Verdict(index, text, False, f"it fires, but {'; '.join(trace)}")


_WITHOUT_RULES = {
    "initial": "the opening words go to the initial speaker",
    "handoff": "the turn handed the floor over itself, which outranks the rules",
    "finish": "the turn ended the session itself, which outranks the rules",
}


def _outcome(decision: TransitionDecision) -> str:
    """Return a decision in words."""
    match decision.action:
        case "speak":
            text = f"{', '.join(decision.speakers)} speak{'s' if decision.next_speaker else ''}"
        case "wait":
            text = f"waits for {', '.join(decision.speakers)}"
        case "close":
            text = f"closes: {decision.close_reason}"
    return f"= {text}{f', in phase {decision.phase!r}' if decision.phase else ''}"
