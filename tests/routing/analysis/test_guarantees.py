from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.routing import (
    ActiveAgentTarget,
    AgentTarget,
    AnyOf,
    FromSpeaker,
    HumanTarget,
    ModelChoice,
    ModelCondition,
    Not,
    ParallelTarget,
    PhaseTarget,
    RoundRobinTarget,
    SimulatedTurn,
    Simulation,
    StayTarget,
    TransitionGraph,
)
from agentgraph.routing.arguments import parts_of
from tests.routing.samples import NAMES, Envelope, State
from tests.routing.strategies import (
    KEYS,
    TOOLS,
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


QUESTIONS = ("Is it done?", "Is the customer angry?")
AGENT_SETS = [("c",), ("a", "b"), ("b", "c"), NAMES]
HUMANS = ("user", "ann", "bob")
TURNS = 400
some_humans = st.sampled_from([None, "ann", "bob"])
asking_leaves = st.one_of(
    few_leaves,
    st.builds(FromSpeaker, st.sampled_from(["human", "ann", "bob"])),
    st.builds(ModelCondition, st.just("openai:gpt-5-mini"), st.sampled_from(QUESTIONS)),
)
asking_conditions = st.one_of(
    asking_leaves,
    st.builds(
        lambda name, leaf: FromSpeaker(name) & leaf,
        names | st.sampled_from(["human", "human", "ann", "bob"]),
        asking_leaves,
    ),
    composed(asking_leaves, own=False, size=3),
)
asking_targets = st.one_of(
    # Only a handoff of a model makes an agent active.
    simple_targets.filter(lambda target: not isinstance(target, ActiveAgentTarget | HumanTarget)),
    st.builds(HumanTarget, some_humans),
    st.builds(PhaseTarget, st.just("work"), st.builds(HumanTarget, some_humans)),
    st.builds(ParallelTarget, st.just(("b", "c")), st.builds(HumanTarget, some_humans)),
    # A ring of all, and these, may pass the floor from one human to another.
    st.builds(AgentTarget, st.sampled_from(HUMANS[1:])),
    st.builds(RoundRobinTarget, st.sampled_from([(), HUMANS[1:], ("ann", "a", "bob")])),
    st.sampled_from(AGENT_SETS).map(
        lambda agents: ModelChoice("openai:gpt-5-mini", agents, "Who of " + ", ".join(agents))
    ),
)


def any_turns(chance: Any, addressees: Sequence[str | None]) -> list[SimulatedTurn]:
    """Return turns with any tool, value, address and answers of models: no exit stays unused."""
    values = [None, True, False, 0, 1, 1.0, 2.5, "on"]
    turns = [
        SimulatedTurn(
            tool=chance.choice([None, *TOOLS]),
            set={chance.choice(KEYS): chance.choice(values)},
            metadata={"addressed_to": chance.choice(addressees)},
            answers={
                **{text: chance.choice([True, False]) for text in QUESTIONS},
                **{"Who of " + ", ".join(agents): chance.choice(agents) for agents in AGENT_SETS},
            },
        )
        for _ in range(60)
    ]
    return [*chance.choices(turns, k=TURNS)]


def unanswered_words(played: Simulation) -> set[str]:
    """Return the humans after whose words no agent spoke: they closed it by default, or came back.

    A human is whoever the session waits for, once at least, and the creator.
    """
    waits = [step.decision for step in played.steps if step.decision.action == "wait"]
    people = {"user"}.union(*(decision.speakers for decision in waits))
    humans = set[str]()
    for step in played.steps:
        decision = step.decision
        humans = {*humans, step.speaker} if step.speaker in people else set()
        closes = decision.action == "close" and decision.rule == "default"
        if humans and (closes or not humans.isdisjoint(decision.speakers)):
            return humans
    return set()


@settings(max_examples=2_000, deadline=None)
@given(
    graphs(asking_conditions, asking_targets, turns=st.none(), size=4),
    st.randoms(use_true_random=True),
)
def test_no_graph_runs_on_and_no_human_goes_unanswered_without_a_finding(
    checked: TransitionGraph, chance: Any
) -> None:
    found = checked.check((*NAMES, *HUMANS[1:]), people=["user"], tools=TOOLS)
    codes = {finding.code for finding in found}
    # A message that addresses nobody gets no answer from an `AddressedTarget`, as that says.
    script = {name: any_turns(chance, NAMES) for name in HUMANS}
    script |= {name: any_turns(chance, [None, *NAMES]) for name in NAMES}
    played = checked.simulate(script, participants=(*NAMES, *HUMANS[1:]), turns=TURNS)
    if codes.isdisjoint({"unanswered", "conditional_answer"}):
        assert not unanswered_words(played), f"nobody answers: {checked!r}"
    cycles = {"endless_cycle", "context_exit", "model_exit", "sticky_context"}
    parts = (part for rule in checked.transitions for part in parts_of(rule.when))
    # Which rules shadow an exit is read from how they are written: `t` and `~t` are no pair there.
    is_plain = not any(isinstance(part, Not | AnyOf) for part in parts)
    if is_plain and played.close_reason is None and codes.isdisjoint(cycles):
        later_steps = played.steps[len(played.steps) // 8 :]
        by_human = played.waiting_for or any(step.speaker in HUMANS for step in later_steps)
        assert by_human, f"the agents run on by themselves: {checked!r}"
