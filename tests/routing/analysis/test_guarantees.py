from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.routing import (
    AgentTarget,
    ParallelTarget,
    RoundRobinTarget,
    StayTarget,
    TransitionGraph,
)
from tests.routing.samples import NAMES, Envelope, State
from tests.routing.strategies import (
    composed,
    envelopes,
    few_leaves,
    graphs,
    leaves,
    names,
    plain_turns,
    scripts,
    simple_targets,
    states,
)

few_conditions = composed(few_leaves, own=False, size=3)


@settings(max_examples=300)
@given(
    graphs(few_conditions | leaves, simple_targets),
    st.lists(st.tuples(states, envelopes), min_size=5),
)
def test_shadowed_rule_never_decides(checked: TransitionGraph, turns: Any) -> None:
    found = checked.check(NAMES)
    never = {f.rules[0] for f in found if f.code == "shadowed"}

    if not any(f.severity == "error" for f in found):
        # Rules are consulted for those who take part.
        own = [(s, e) for s, e in turns if e.sender_id in (*s.participant_order, s.creator_id)]
        decided = {checked.resolve(state, envelope).rule for state, envelope in own}
        assert not never & decided


@given(graphs(few_conditions), states, envelopes)
def test_implication_that_is_claimed_holds(
    checked: TransitionGraph, state: State, envelope: Envelope
) -> None:
    for finding in checked.check(NAMES):
        if finding.code == "shadowed":
            later, earlier = (checked.transitions[index].when for index in finding.rules)
            assert not later.evaluate(state, envelope) or earlier.evaluate(state, envelope)


unending = graphs(
    few_leaves | st.builds(lambda one: ~one, few_leaves),
    st.one_of(
        st.builds(AgentTarget, names),
        st.builds(RoundRobinTarget, st.just(NAMES)),
        st.just(StayTarget()),
        st.builds(ParallelTarget, st.just(("b", "c")), st.builds(AgentTarget, names)),
        simple_targets,
    ),
    turns=st.none(),
    size=3,
)


@settings(max_examples=400)
@given(unending, scripts(plain_turns), st.sampled_from(["user", "a"]))
def test_circle_called_endless_never_ends(
    checked: TransitionGraph, script: Any, creator: str
) -> None:
    found = [f for f in checked.check(NAMES) if f.code == "endless_cycle"]
    played = checked.simulate(script, participants=NAMES, turns=30, creator=creator)
    made = [step.decision for step in played.steps if step.decision.action == "speak"]
    floors = [checked.initial_speaker, *(decision.next_speaker for decision in made)]

    for finding in found:
        named = re.search(r"never leaves (.*):", finding.message)
        assert named is not None
        if set(named[1].split(", ")) & set(floors):
            assert played.close_reason is None
            assert played.waiting_for is None


@settings(max_examples=300)
@given(graphs(turns=st.integers(1, 6)), scripts(), st.sampled_from(["user", "a"]))
def test_checked_graph_ends_within_its_turns(
    checked: TransitionGraph, script: Any, creator: str
) -> None:
    if any(finding.severity == "error" for finding in checked.check(NAMES)):
        return
    assert checked.max_turns is not None

    played = checked.simulate(script, participants=NAMES, turns=50, creator=creator)

    assert len(played.steps) <= checked.max_turns
    assert (played.close_reason is None) != (played.waiting_for is None)
    known = {*NAMES, creator}
    assert {name for step in played.steps for name in step.decision.speakers} <= known
