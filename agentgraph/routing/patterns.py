"""Ready-made graphs: `round_robin`, `sequence`, `star` and `feedback`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise

from agentgraph.errors import ConfigurationError
from agentgraph.routing.conditions import (
    Always,
    ContextEquals,
    FromSpeaker,
    ToolCalled,
    TurnIs,
)
from agentgraph.routing.graph import TransitionGraph
from agentgraph.routing.protocols import TransitionCondition
from agentgraph.routing.rules import Transition
from agentgraph.routing.targets import AgentTarget, RoundRobinTarget, TerminateTarget
from agentgraph.routing.values import short


def round_robin(names: Sequence[str], *, max_turns: int | None = None) -> TransitionGraph:
    """Let agents speak in turn, until `max_turns` is reached or a `Finish` ends the session.

    round_robin(["optimist", "sceptic"], max_turns=6)
    """
    ring = _names("round_robin", names)
    rule = Transition(Always(), RoundRobinTarget(ring))
    done = TerminateTarget("round_robin_complete")
    return TransitionGraph(ring[0], (rule,), done, max_turns)


def sequence(names: Sequence[str]) -> TransitionGraph:
    """Let agents speak one after another, then close; a name may occur more than once.

    The number of the turn distinguishes repeated names, so that interjections, which are no turns,
    do not shift the sequence.

        sequence(["drafter", "reviewer", "drafter"])
    """
    steps = _names("sequence", names)
    counts = Counter(steps)
    rules = []
    for turn, (name, successor) in enumerate(pairwise(steps), start=1):
        speaker: TransitionCondition = FromSpeaker(name)
        when = speaker if counts[name] == 1 else FromSpeaker(name) & TurnIs(turn)
        rules.append(Transition(when, AgentTarget(successor)))
    return TransitionGraph(steps[0], tuple(rules), TerminateTarget("sequence_complete"))


def star(hub: str, spokes: Sequence[str]) -> TransitionGraph:
    """Let a hub ask its spokes, by a tool `ask_<spoke>` or a `Handoff`; a spoke answers to the hub.

    A hub's turn without such a call closes the session. Give these tools to the hub's agent.

        star("editor", ["researcher", "illustrator"])
    """
    names = _names("star", spokes)
    questions = [
        Transition(FromSpeaker(hub) & ToolCalled(f"ask_{name}"), AgentTarget(name))
        for name in names
    ]
    answers = [Transition(FromSpeaker(name), AgentTarget(hub)) for name in names]
    return TransitionGraph(hub, (*questions, *answers), TerminateTarget("star_complete"))


def feedback(
    drafter: str,
    reviewer: str,
    *,
    done: TransitionCondition | str,
    max_turns: int | None = 20,
) -> TransitionGraph:
    """Alternate draft and review, until a condition holds or a context variable is true.

    feedback("writer", "editor", done="approved")
    """
    end = ContextEquals(done, True) if isinstance(done, str) else done
    rules = (
        Transition(end, TerminateTarget("feedback_complete")),
        Transition(FromSpeaker(drafter), AgentTarget(reviewer)),
        Transition(FromSpeaker(reviewer), AgentTarget(drafter)),
    )
    return TransitionGraph(drafter, rules, TerminateTarget("feedback_complete"), max_turns)


def _names(label: str, value: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; raise `ConfigurationError` for a set, as it has no defined order."""
    is_ordered = isinstance(value, Iterable) and not isinstance(value, str | Mapping | Set)
    names = tuple(value) if is_ordered else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{label}({short(value)}): give a list of names, at least one")
    return names
