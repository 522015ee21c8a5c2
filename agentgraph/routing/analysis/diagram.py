"""A graph as a diagram, in Mermaid or SVG: each rule is an arrow from a speaker to its target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from agentgraph.drawing import Edge, Node, draw
from agentgraph.drawing.graph import NodeKind
from agentgraph.routing.composites import AllOf, AnyOf
from agentgraph.routing.conditions import FromSpeaker
from agentgraph.routing.decision import Rule, TransitionDecision
from agentgraph.routing.describe import describe, describe_target
from agentgraph.routing.protocols import TransitionCondition
from agentgraph.routing.questions import ModelChoice
from agentgraph.routing.rules import Rules, in_order
from agentgraph.routing.targets import (
    AgentTarget,
    HumanTarget,
    ParallelTarget,
    PhaseTarget,
    RoundRobinTarget,
    StayTarget,
    Target,
    TerminateTarget,
    as_target,
)

_START, _ANYONE, _END = "start", "anyone", "end"


@dataclass(frozen=True, slots=True)
class Arrow:
    """One arrow of a rule; a rule may have several arrows."""

    source: str
    target: str
    label: str
    rule: Rule


def rules_of(decisions: Sequence[TransitionDecision | Rule]) -> frozenset[Rule]:
    """Return the rules that made the decisions."""
    return frozenset(d.rule if isinstance(d, TransitionDecision) else d for d in decisions)


def mermaid(rules: Rules, highlights: Collection[Rule]) -> str:
    """Draw rules as Mermaid text."""
    arrows = list(_arrows(rules))
    names = {name: f"n{number}" for number, name in enumerate(_names(arrows))}
    lines = ["flowchart TD", *(f"    {ref}{_shape(name)}" for name, ref in names.items())]
    for number, arrow in enumerate(arrows):
        label = f'|"{_escape(arrow.label)}"|' if arrow.label else ""
        lines.append(f"    {names[arrow.source]} -->{label} {names[arrow.target]}")
        if arrow.rule in highlights:
            lines.append(f"    linkStyle {number} stroke:#1d64d8,stroke-width:3px")
    return "\n".join(lines) + "\n"


def svg(rules: Rules, highlights: Collection[Rule]) -> str:
    """Draw rules as an SVG image."""
    return draw(*parts_of(rules, highlights))


def parts_of(rules: Rules, highlights: Collection[Rule] = ()) -> tuple[list[Node], list[Edge]]:
    """Return rules as nodes and edges; the id of a participant's node is its name after a `:`."""
    arrows = list(_arrows(rules))
    nodes = [Node(name, _label_of(name), _kind(name)) for name in _names(arrows)]
    edges = [
        Edge(
            arrow.source,
            arrow.target,
            arrow.label,
            dashed=arrow.rule == "default",
            highlighted=arrow.rule in highlights,
        )
        for arrow in arrows
    ]
    return nodes, edges


def _arrows(rules: Rules) -> Iterator[Arrow]:
    """Yield the arrows in the order in which rules are tried, the default target last."""
    yield Arrow(_START, f":{rules.initial_speaker}", "", "initial")
    for index, rule in in_order(rules.transitions):
        for source, when in _sources(rule.when):
            for target, how in _destinations(as_target(rule.then), source):
                yield Arrow(source, target, _label(when, how), index)
    for target, how in _destinations(rules.default, _ANYONE):
        yield Arrow(_ANYONE, target, _label("otherwise", how), "default")


def _sources(when: TransitionCondition) -> list[tuple[str, str]]:
    """Return the speakers whose turns may fire a rule, with the rest of the condition in words."""
    match when:
        case FromSpeaker(agent_id):
            return [(f":{agent_id}", "")]
        case AnyOf(conditions) if all(isinstance(part, FromSpeaker) for part in conditions):
            return [
                (f":{part.agent_id}", "") for part in conditions if isinstance(part, FromSpeaker)
            ]
        case AllOf(conditions):
            for position, part in enumerate(conditions):
                if isinstance(part, FromSpeaker):
                    rest = AllOf((*conditions[:position], *conditions[position + 1 :]))
                    return [(f":{part.agent_id}", describe(rest) if rest.conditions else "")]
    return [(_ANYONE, describe(when))]


def _destinations(target: Target, source: str) -> list[tuple[str, str]]:
    """Return the nodes that a target leads to, with the label of each arrow."""
    match target:
        case AgentTarget(agent_id):
            return [(f":{agent_id}", "")]
        case TerminateTarget(reason):
            return [(_END, reason)]
        case StayTarget():
            return [(source, "stay")]
        case HumanTarget(name):
            return [(f":{name or 'human'}", "wait")]
        case PhaseTarget(name, then):
            destinations = _destinations(as_target(then), source)
            return [
                (place, f"phase {name}{f', {how}' if how else ''}") for place, how in destinations
            ]
        case ParallelTarget(agents, join):
            return [(f":{name}", f"at once, then {describe_target(join)}") for name in agents]
        case ModelChoice(agents=agents) if agents:
            return [(f":{name}", "a model chooses") for name in agents]
        case RoundRobinTarget(agents) if agents:
            return [(f":{name}", "in turn") for name in agents]
        case _:
            return [(describe_target(target), "")]


def _label(*parts: str) -> str:
    text = ": ".join(part for part in parts if part)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _names(arrows: Sequence[Arrow]) -> list[str]:
    names = dict.fromkeys(name for arrow in arrows for name in (arrow.source, arrow.target))
    return [name for name in names if name != _END] + [name for name in names if name == _END]


def _label_of(name: str) -> str:
    return name.removeprefix(":")


def _kind(name: str) -> NodeKind:
    kinds: dict[str, NodeKind] = {_START: "start", _END: "end", _ANYONE: "any"}
    return kinds.get(name, "agent" if name.startswith(":") else "box")


def _shape(name: str) -> str:
    text = f'"{_escape(_label_of(name))}"'
    return f"([{text}])" if name in (_START, _END, _ANYONE) else f"[{text}]"


def _escape(text: str) -> str:
    """Return a label for Mermaid, with the characters of its syntax as entities."""
    return "".join(c if c.isalnum() or c in " _-.,:()='…" else f"#{ord(c)};" for c in text)
