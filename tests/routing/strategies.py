"""Strategies for conditions, targets, graphs, states, envelopes and scripts; also hostile ones."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing import (
    ActiveAgentTarget,
    AddressedTarget,
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromChannelType,
    FromSource,
    FromSpeaker,
    HasActiveAgent,
    HumanTarget,
    InPhase,
    IntentIn,
    IsAddressed,
    Not,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    SimulatedTurn,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionCondition,
    TransitionGraph,
    TurnIs,
)
from tests.routing.samples import (
    NAMES,
    ODD,
    Answers,
    AtLeast,
    ByPhase,
    Decides,
    Envelope,
    Hostile,
    Raises,
    State,
    cyclic,
)

KEYS = ("x", "y")
TOOLS = ("t", "u")
PHASES = ("intake", "work")


LOOKS_LIKE_A_CONDITION = {"name": "always", "args": {}}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(),
    st.sampled_from([0.0, -0.0, 1.0, 1e300, 10**400]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
)
values = st.recursive(
    scalars | st.just(LOOKS_LIKE_A_CONDITION),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)
few_values = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, "on"])
hostile = st.one_of(
    values,
    st.sampled_from([math.nan, math.inf, 10**5000, b"bytes", object(), ("t",), {1: 2}]),
    st.builds(Hostile),
    st.builds(cyclic),
)

names = st.sampled_from(NAMES)
some_names = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
some_phases = st.lists(st.sampled_from(PHASES), max_size=2).map(tuple)

few_leaves = st.one_of(
    st.just(Always()),
    st.builds(FromSpeaker, names),
    st.builds(ToolCalled, st.sampled_from(TOOLS)),
    st.builds(ContextEquals, st.sampled_from(KEYS), few_values),
)
leaves = st.one_of(
    few_leaves,
    st.builds(FromSpeaker, names | st.just("human")),
    st.builds(ContextEquals, st.sampled_from(KEYS), values),
    st.builds(ContextIn, st.sampled_from(KEYS), st.lists(values, max_size=3)),
    st.builds(ContextThreshold, st.sampled_from(KEYS), st.integers(-3, 3) | st.just(0.5)),
    st.builds(InPhase, some_phases),
    st.builds(IntentIn, st.lists(st.sampled_from(["buy", "sell"]), max_size=2)),
    st.builds(FromSource, st.lists(st.sampled_from(["web", "a"]), max_size=2)),
    st.builds(FromChannelType, st.lists(st.sampled_from(["sms", "email"]), max_size=2)),
    st.builds(TurnIs, st.integers(0, 4)),
    st.sampled_from([HasActiveAgent(), IsAddressed()]),
)
broken = st.builds(Raises) | st.builds(Answers, st.sampled_from([None, 1, 0, "yes", [True]]))


def composed(
    basis: st.SearchStrategy[Any], *, own: bool = True, size: int = 5
) -> st.SearchStrategy[TransitionCondition]:
    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        many = st.lists(inner, max_size=3).map(tuple)
        kinds: list[st.SearchStrategy[Any]] = [
            st.builds(AllOf, many),
            st.builds(AnyOf, many),
            st.builds(Not, inner),
        ]
        if own:
            kinds.append(st.builds(AtLeast, st.integers(0, 2), many, st.none() | inner))
        return st.one_of(*kinds)

    return st.recursive(basis, extend, max_leaves=size)


conditions = composed(leaves | broken)

simple_targets = st.one_of(
    st.builds(AgentTarget, names | st.just("human")),
    st.builds(RoundRobinTarget, some_names | st.just(())),
    st.builds(TerminateTarget, st.sampled_from(["done", "enough"])),
    st.builds(HumanTarget, st.none() | names),
    st.sampled_from([StayTarget(), RevertToInitiatorTarget(), ActiveAgentTarget()]),
    st.just(AddressedTarget()),
)
own_targets = st.builds(Decides, st.sampled_from(["raises", *ODD]))
targets = st.recursive(
    simple_targets | own_targets,
    lambda inner: (
        st.builds(PhaseTarget, st.sampled_from(PHASES), inner)
        | st.builds(ByPhase, st.sampled_from(PHASES), inner, st.none() | inner)
        | st.builds(ParallelTarget, some_names, simple_targets)
    ),
    max_leaves=3,
)


def graphs(
    when: st.SearchStrategy[Any] = conditions,
    then: st.SearchStrategy[Any] = targets,
    *,
    initial: st.SearchStrategy[str] = names | st.just("human"),  # noqa: B008
    turns: st.SearchStrategy[int | None] = st.none() | st.integers(1, 6),  # noqa: B008
    size: int = 5,
) -> st.SearchStrategy[TransitionGraph]:
    rules = st.builds(Transition, when, then, st.integers(-1, 1))
    return st.builds(TransitionGraph, initial, st.lists(rules, max_size=size), then, turns)


states = st.builds(
    State,
    participant_order=st.permutations(NAMES).map(tuple),
    last_speaker_id=st.none() | names | st.just("user"),
    turn_count=st.integers(0, 7),
    creator_id=st.sampled_from(["user", "a"]),
    context_vars=st.dictionaries(st.sampled_from(KEYS), few_values | values, max_size=2),
    phase=st.sampled_from([*PHASES, "elsewhere"]),
    active_agent=st.none() | names | st.just("gone"),
)
routings = st.fixed_dictionaries(
    {"kind": st.sampled_from(["text", "handoff", "finish"])},
    optional={
        "tool": st.sampled_from([*TOOLS, None]),
        "target": st.sampled_from([*NAMES, "human", "nobody", None]),
        "reason": st.sampled_from(["enough", "", None]),
        "next_phase": st.sampled_from(["work", None]),
    },
)
metadata = st.fixed_dictionaries(
    {},
    optional={
        "addressed_to": st.one_of(names, st.lists(names, max_size=2), st.none()),
        "intent": st.sampled_from(["buy", "sell", "beg"]),
        "source": st.sampled_from(["web", "a"]),
        "channel_type": st.sampled_from(["sms", "fax"]),
    },
)
envelopes = st.builds(
    Envelope,
    st.sampled_from([*NAMES, "user"]),
    st.fixed_dictionaries({}, optional={"routing": routings}),
    metadata,
)
hostile_routings = st.fixed_dictionaries(
    {"kind": st.sampled_from(["text", "handoff", "finish"]) | hostile},
    optional=dict.fromkeys(("tool", "target", "reason", "next_phase"), hostile),
)
hostile_states = st.builds(
    State,
    participant_order=st.just(NAMES),
    turn_count=st.integers(0, 7),
    context_vars=st.dictionaries(st.sampled_from(KEYS), hostile, max_size=2),
    phase=st.sampled_from(PHASES),
    active_agent=st.none() | names,
)
hostile_envelopes = st.builds(
    Envelope,
    st.sampled_from([*NAMES, "user", "nobody"]),
    hostile | st.fixed_dictionaries({"routing": hostile | hostile_routings}),
    hostile
    | st.dictionaries(
        st.sampled_from(["addressed_to", "intent", "source", "channel_type"]), hostile
    ),
)

plain_turns = st.builds(
    SimulatedTurn,
    tool=st.none() | st.sampled_from(TOOLS),
    set=st.dictionaries(st.sampled_from(KEYS), few_values, max_size=1),
    delete=st.lists(st.sampled_from(KEYS), max_size=1),
)
turns = st.one_of(
    plain_turns,
    st.text(max_size=3),
    st.builds(Handoff, st.sampled_from([*NAMES, "human", "nobody"])),
    st.builds(Finish, st.just("that is all")),
)


def scripts(of: st.SearchStrategy[Any] = turns) -> st.SearchStrategy[Any]:
    lines = st.lists(of, max_size=6)
    return lines | st.dictionaries(st.sampled_from([*NAMES, "user"]), lines)
