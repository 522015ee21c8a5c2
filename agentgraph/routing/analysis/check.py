"""Finds the faults of a graph before it runs: `TransitionGraph.check`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentgraph.routing.analysis.contradictions import never_holds, unknown_tools
from agentgraph.routing.analysis.cycles import endless_cycles
from agentgraph.routing.analysis.floor_graph import FloorGraph, floor_graph, reachable_from
from agentgraph.routing.analysis.partial_evaluation import (
    BY_CONTEXT,
    NO_SOURCES,
    Sources,
    fires_for,
    sources_of,
)
from agentgraph.routing.analysis.shadowed_rules import EarlierRules, shadowed_rules
from agentgraph.routing.analysis.unanswered_humans import UnansweredHuman, unanswered_humans
from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import FromSpeaker
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.questions import ModelChoice
from agentgraph.routing.rules import Rules, in_order
from agentgraph.routing.targets import (
    AgentTarget,
    HumanTarget,
    ParallelTarget,
    RoundRobinTarget,
    as_target,
)

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a graph, with a hint how to fix it, and the rules concerned.

    With an error no team can be built. `code` is one of `max_turns`, `unknown_name`,
    `endless_cycle` (errors), `context_exit`, `model_exit`, `unreached`, `unanswered`,
    `conditional_answer`, `never_holds`, `unknown_tool`, `shadowed`, `sticky_context` (warnings). An
    endless cycle is a warning where something else ends the session.
    """

    code: str
    severity: Severity
    message: str
    rules: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f" (rules {', '.join(map(str, self.rules))})" if self.rules else ""
        return f"{self.severity} {self.code}: {self.message}{where}"


def check(
    rules: Rules,
    participants: Sequence[str],
    *,
    people: Collection[str] | None = None,
    tools: Collection[str] | None = None,
    deciders: Collection[str] = (),
    starts: Collection[str] = (),
    is_limited: bool = False,
) -> tuple[Finding, ...]:
    """Return all findings: errors, with which no team can be built, then warnings."""
    findings = [*_limits(rules), *_strangers(rules, participants)]
    if not findings:  # a graph with unknown names cannot be followed
        graph = floor_graph(rules, participants, people, tools, deciders)
        reachable = reachable_from([rules.initial_speaker, *starts], graph)
        findings += [
            *_endless_cycles(rules, graph, reachable, "warning" if is_limited else "error"),
            *_unreachable_agents(graph, reachable, participants, people or ()),
            *map(
                _unanswered_finding,
                unanswered_humans(rules.initial_speaker, graph, reachable, people),
            ),
        ]
    findings += [*_dead_conditions(rules, people, tools)]
    findings += [*_shadowed_findings(rules), *_sticky_context(rules, deciders)]
    return tuple(sorted(findings, key=lambda finding: finding.severity))


def _limits(rules: Rules) -> Iterator[Finding]:
    """Find limits that allow no turn."""
    if rules.max_turns is not None and rules.max_turns < 1:
        message = f"max_turns={rules.max_turns} lets nobody speak: write at least 1, or None"
        yield Finding("max_turns", "error", message)


def _strangers(rules: Rules, participants: Sequence[str]) -> Iterator[Finding]:
    """Find names that no participant has."""
    there = f"there are {', '.join(participants)}" if participants else "there is nobody"

    def finding(subject: str, name: str, indices: tuple[int, ...] = ()) -> Finding:
        message = f"{subject} {name!r}, who is no participant: {there}"
        if name == HUMAN:
            message = (
                f"{subject} {name!r}, who cannot speak in turn with others: use their own name"
            )
        return Finding("unknown_name", "error", message, indices)

    if rules.initial_speaker not in (*participants, HUMAN):
        yield finding("the initial speaker is", rules.initial_speaker)
    present = frozenset(participants)
    for name in _strangers_of(rules.default, present):
        yield finding("default_target names", name)
    for index, rule in enumerate(rules.transitions):
        parts = (rule.when, as_target(rule.then))
        strangers = (name for part in parts for name in _strangers_of(part, present))
        for name in dict.fromkeys(strangers):
            yield finding(f"rule {index} names", name, (index,))


def _strangers_of(whole: object, present: Collection[str]) -> Iterator[str]:
    """Yield the names in a condition or a target that no participant has."""
    for part in parts_of(whole):
        match part:
            case AgentTarget(name) | FromSpeaker(name) | HumanTarget(str(name)):
                if name not in present and name != HUMAN:
                    yield name
            case RoundRobinTarget(agents) | ParallelTarget(agents) | ModelChoice(agents=agents):
                yield from (name for name in agents if name not in present)


def _endless_cycles(
    rules: Rules, graph: FloorGraph, reachable: Collection[str], severity: Severity
) -> Iterator[Finding]:
    """Find cycles that the floor never leaves, or leaves only by what need not come (a warning)."""
    if rules.max_turns is not None:
        return
    for cycle in endless_cycles(graph):
        if not cycle.names & set(reachable):
            continue
        edges = [edge for name in cycle.names for edge in graph[name]]
        indices = tuple(sorted({edge.rule for edge in edges if edge.rule is not None}))
        names = ", ".join(sorted(cycle.names))
        if cycle.exits:
            yield _uncertain_exit(names, NO_SOURCES.union(*cycle.exits), indices)
        else:
            message = f"the floor never leaves {names}: add a rule that ends it, or set max_turns"
            yield Finding("endless_cycle", severity, message, indices)


def _uncertain_exit(names: str, sources: Sources, indices: tuple[int, ...]) -> Finding:
    """Return the finding of a cycle that only these sources let the floor leave."""
    hint = "set max_turns, or add a rule that leaves otherwise"
    if sources == BY_CONTEXT:
        message = f"the floor leaves {names} only by a context value: if no tool sets it, never"
        return Finding("context_exit", "warning", f"{message}; {hint}", indices)
    needs = "a model's answer" + (" or a context value" if sources >= BY_CONTEXT else "")
    message = f"the floor leaves {names} only by {needs}: if it never comes, never"
    return Finding("model_exit", "warning", f"{message}; {hint}", indices)


def _unreachable_agents(
    graph: FloorGraph,
    reachable: Collection[str],
    participants: Sequence[str],
    people: Collection[str],
) -> Iterator[Finding]:
    """Find participants that no rule ever lets speak; people may speak without the floor.

    If a rule may lead to anyone, no participant is unreachable.
    """
    edges = [edge for name in reachable for edge in graph.get(name, ())]
    if any(edge.is_open for edge in edges):
        return
    speakers = {name for edge in edges for name in edge.speakers}
    for name in participants:
        if name not in reachable and name not in speakers and name not in people:
            message = (
                f"no rule ever gives {name!r} the floor, only a Handoff could: add one, or leave "
                "the participant out"
            )
            yield Finding("unreached", "warning", message)


def _unanswered_finding(human: UnansweredHuman) -> Finding:
    """Return the finding of a human who has the floor, and whom possibly nobody answers."""
    who = "the creator of the session" if human.name == HUMAN else repr(human.name)
    ends = [
        *(["the session waits again"] if human.waits_again else []),
        *(["default_target closes the session"] if human.closes else []),
    ]
    then, rule = " or ".join(ends), f"add a rule from {human.name!r} to an agent"
    to_close = ", or to TerminateTarget if that is meant" if human.closes else ""
    if human.may_be_answered:
        message = (
            f"an agent answers {who}, for whom the session waits, only under conditions: where "
            f"none of them holds, {then}; {rule} without a condition{to_close}"
        )
        return Finding("conditional_answer", "warning", message, human.rules)
    message = (
        f"nobody answers {who}, for whom the session waits: after their words {then}; "
        f"{rule}{to_close}"
    )
    return Finding("unanswered", "warning", message, human.rules)


def _dead_conditions(
    rules: Rules, people: Collection[str] | None, tools: Collection[str] | None
) -> Iterator[Finding]:
    """Find rules whose condition can never hold, and those for tools that nobody has."""
    for index, rule in enumerate(rules.transitions):
        unknown_names = unknown_tools(rule.when, people, tools)
        # The hub of a star may ask with a `Handoff` in the place of these tools.
        asked = f"ask_{rule.then.agent_id}" if isinstance(rule.then, AgentTarget) else None
        for name in (name for name in unknown_names if name != asked):
            message = (
                f"rule {index} waits for a call of {name!r}, and nobody has such a tool: give it "
                "to an agent, or correct the name"
            )
            yield Finding("unknown_tool", "warning", message, (index,))
        if never_holds(rule.when):
            message = f"rule {index} never fires: its condition contradicts itself; correct it"
            yield Finding("never_holds", "warning", message, (index,))


def _shadowed_findings(rules: Rules) -> Iterator[Finding]:
    """Find rules that never fire, because an earlier rule fires whenever they would."""
    for index, earlier in shadowed_rules(rules):
        message = (
            f"rule {index} never fires: whenever it would, rule {earlier} does before it; "
            "put it first, with a lower priority, or drop it"
        )
        yield Finding("shadowed", "warning", message, (index, earlier))


def _sticky_context(rules: Rules, deciders: Collection[str]) -> Iterator[Finding]:
    """Find context values that give the floor back to the same speaker, turn after turn."""
    earlier = EarlierRules()
    for index, rule in in_order(rules.transitions):
        *_, target = parts_of(as_target(rule.then))
        is_sticky = isinstance(target, AgentTarget) and any(
            _is_context_alone(part, target.agent_id)
            and earlier.first_implied_by(AllOf((FromSpeaker(target.agent_id), part))) is None
            for part in _alternatives(rule.when)
        )
        earlier.add(index, rule.when)
        if not is_sticky or target.agent_id in deciders:
            continue
        message = (
            f"rule {index} also fires on {target.agent_id!r}'s own turns while the value stays as "
            "it is, and keeps the floor there: put a rule from that speaker before it, or let a "
            "tool delete the value"
        )
        yield Finding("sticky_context", "warning", message, (index,))


def _alternatives(when: TransitionCondition) -> Iterator[TransitionCondition]:
    """Yield the alternatives of a condition: each alone makes the rule fire."""
    if isinstance(when, AnyOf):
        for part in when.conditions:
            yield from _alternatives(part)
    else:
        yield when


def _is_context_alone(when: TransitionCondition, speaker: str) -> bool:
    is_undecided = fires_for(when, speaker) is None and not isinstance(when, Not)
    return is_undecided and sources_of(when, speaker) == BY_CONTEXT
