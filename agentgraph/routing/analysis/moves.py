"""Where the floor can go from a speaker, as far as the rules alone say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import (
    Always,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
)
from agentgraph.routing.document.arguments import parts_of
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.resolve import Rules
from agentgraph.routing.targets import (
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
from agentgraph.routing.transition import Transition


@dataclass(frozen=True, slots=True)
class Move:
    """What may follow a turn: who speaks, who has the floor then, and whether it may end."""

    speakers: frozenset[str]
    floor: frozenset[str]
    ends: bool
    rule: int | None
    by_context: bool
    """Whether nothing but context values decides if it is made."""
    is_open: bool = False
    """Whether the rules do not say where it leads."""

    def stays_in(self, circle: frozenset[str]) -> bool:
        """Tell whether the floor stays among these."""
        return not self.ends and not self.is_open and self.floor <= circle


def moves_of(rules: Rules, participants: Sequence[str]) -> dict[str, list[Move]]:
    """Return the moves that can follow a turn of each; the last is made if no other is."""
    same = {
        index: _move(rule, HUMAN, participants, index)
        for index, rule in enumerate(rules.transitions)
        if not _asks_who(rule)
    }
    last = Transition(Always(), rules.default)
    moves: dict[str, list[Move]] = {}
    for speaker in (*participants, HUMAN):
        found = moves[speaker] = []
        for index, rule in [*rules.heard_by(speaker), (None, last)]:
            fires = heard(rule.when, speaker)
            if fires is not False:
                move = None if index is None else same.get(index)
                found.append(move or _move(rule, speaker, participants, index))
            if fires is True:
                break
    return moves


def _asks_who(rule: Transition) -> bool:
    """Tell whether the move that a rule makes may depend on who speaks."""
    parts = (*parts_of(rule.when), *parts_of(rule.then))
    return any(isinstance(one, FromSpeaker | StayTarget | RoundRobinTarget) for one in parts)


def heard(condition: TransitionCondition, speaker: str) -> bool | None:
    """Evaluate a condition knowing only who speaks; None where that does not decide it."""
    match condition:
        case Always():
            return True
        case FromSpeaker(agent_id):
            if agent_id == speaker:
                return True
            return None if HUMAN in (agent_id, speaker) else False  # anybody may have opened it
        case AllOf(conditions):
            found = {heard(part, speaker) for part in conditions}
            return False if False in found else None if None in found else True
        case AnyOf(conditions):
            found = {heard(part, speaker) for part in conditions}
            return True if True in found else None if None in found else False
        case Not(part):
            inner = heard(part, speaker)
            return None if inner is None else not inner
        case _:
            return None


def _move(rule: Transition, speaker: str, participants: Sequence[str], index: int | None) -> Move:
    by_context = is_by_context(rule.when, speaker)
    speakers, floor, ends, is_open = _reach(as_target(rule.then), speaker, participants)
    return Move(frozenset(speakers), frozenset(floor), ends, index, by_context, is_open)


def _reach(
    target: Target, speaker: str, participants: Sequence[str]
) -> tuple[Sequence[str], Sequence[str], bool, bool]:
    """Return who speaks, who has the floor then, whether it may end, whether it is open."""
    match target:
        case AgentTarget(agent_id) if agent_id != HUMAN:
            return [agent_id], [agent_id], False, False
        case StayTarget():
            return [speaker], [speaker], False, False
        case RoundRobinTarget(agents):
            ring = agents or tuple(participants)
            if not ring:
                return [], [], True, False
            following = ring.index(speaker) + 1 if speaker in ring else 0
            name = ring[following % len(ring)]
            return [name], [name], False, False
        case PhaseTarget(then=then):
            return _reach(as_target(then), speaker, participants)
        case ParallelTarget(agents, join):
            # Whoever of them is the last to speak may decide where a join leads.
            led = [_reach(as_target(join), agent, participants) for agent in agents]
            floor = [name for _, names, _, _ in led for name in names]
            ends, is_open = any(one[2] for one in led), any(one[3] for one in led)
            return agents, floor, ends, is_open
        case TerminateTarget():
            return [], [], True, False
        case HumanTarget(str(name)) if name in participants:
            return [name], [name], True, False
        case HumanTarget() | AgentTarget() | RevertToInitiatorTarget():
            return [], [HUMAN], True, False
        case _:  # decided by the state, or by somebody else's code
            return participants, participants, False, True


def is_by_context(when: TransitionCondition, speaker: str) -> bool:
    """Tell whether, for this speaker, nothing but context values decides."""
    leaves = [p for p in parts_of(when) if not isinstance(p, AllOf | AnyOf | Not)]
    undecided = [leaf for leaf in leaves if heard(leaf, speaker) is None]
    context = (ContextEquals, ContextIn, ContextThreshold)
    return bool(undecided) and all(isinstance(leaf, context) for leaf in undecided)
