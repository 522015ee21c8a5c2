from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
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
    InPhase,
    IntentIn,
    IsAddressed,
    Not,
    RoutingEnvelope,
    RoutingState,
    ToolCalled,
    Transition,
    TransitionCondition,
    TransitionGraph,
    TurnIs,
)
from tests.routing.samples import Answers, Envelope, Raises, State, Unspeakable, cyclic, packet
from tests.routing.strategies import composed, envelopes, few_leaves, states


def fires(condition: TransitionCondition, envelope: Any = None, **state: Any) -> bool:
    return condition.evaluate(State(**state), envelope or Envelope())


def trace_of(condition: TransitionCondition, **context: Any) -> tuple[str, ...]:
    graph = TransitionGraph("a", [Transition(condition, "b")])
    return graph.resolve(State(context_vars=context), packet()).trace


def test_from_speaker_hears_one_name() -> None:
    assert fires(FromSpeaker("a"), Envelope("a"))
    assert not fires(FromSpeaker("a"), Envelope("b"))


def test_from_human_hears_whoever_opened_the_session() -> None:
    assert fires(FromSpeaker("human"), Envelope("maria"), creator_id="maria")
    assert not fires(FromSpeaker("human"), Envelope("a"), creator_id="maria")


@pytest.mark.parametrize("data", [{}, {"routing": None}, {"routing": "t"}, {"routing": {}}])
def test_tool_called_does_not_fire_without_a_tool(data: Any) -> None:
    assert not fires(ToolCalled("t"), Envelope(event_data=data))


def test_tool_called_reads_the_routing_tool_of_the_turn() -> None:
    assert fires(ToolCalled("t"), packet(kind="handoff", tool="t"))
    assert not fires(ToolCalled("t"), packet(kind="handoff", tool="u"))


@pytest.mark.parametrize(
    ("value", "found", "same"),
    [
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        (0, False, False),
        (1, 1.0, True),
        (10**400, 10**400, True),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
        ([1, True], [1, 1], False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1], False),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {}, False),
        ([], {}, False),
        (0, math.nan, False),
        (None, math.nan, False),
    ],
)
def test_context_equals_compares_as_json_does(value: Any, found: Any, same: bool) -> None:
    assert fires(ContextEquals("k", value), context_vars={"k": found}) is same
    assert fires(ContextIn("k", (value,)), context_vars={"k": found}) is same


def test_missing_context_value_equals_none() -> None:
    assert fires(ContextEquals("k", None))
    assert fires(ContextIn("k", ["x", None]))
    assert not fires(ContextEquals("k", False))


def test_context_in_of_nothing_never_fires() -> None:
    assert not fires(ContextIn("k", []), context_vars={"k": "x"})


@pytest.mark.parametrize(
    ("found", "reached"),
    [(3, True), (3.5, True), (2.9, False), (10**400, True), (math.inf, True)]
    + [(one, False) for one in (math.nan, True, "3", None, [3], -(10**400))],
)
def test_context_threshold_is_reached_by_numbers_alone(found: Any, reached: bool) -> None:
    assert fires(ContextThreshold("k", 3), context_vars={"k": found}) is reached


def test_phase_is_one_of_several() -> None:
    assert fires(InPhase(["intake", "work"]), phase="work")
    assert not fires(InPhase([]), phase="work")


@pytest.mark.parametrize(
    ("condition", "key"),
    [(IntentIn(["x", "y"]), "intent"), (FromChannelType(["x", "y"]), "channel_type")],
)
def test_metadata_says_intent_and_channel_type(condition: TransitionCondition, key: str) -> None:
    assert fires(condition, Envelope(metadata={key: "x"}))
    assert not fires(condition, Envelope(metadata={key: "z"}))
    assert not fires(condition, Envelope(metadata={}))


def test_source_is_the_sender_where_metadata_does_not_say() -> None:
    assert fires(FromSource(["web"]), Envelope(metadata={"source": "web"}))
    assert fires(FromSource(["a"]), Envelope("a"))
    assert not fires(FromSource(["a"]), Envelope("a", metadata={"source": "web"}))


def test_active_agent_must_still_be_there() -> None:
    assert fires(HasActiveAgent(), active_agent="a")
    assert not fires(HasActiveAgent(), active_agent="gone")
    assert not fires(HasActiveAgent())


def test_turn_and_address_are_read() -> None:
    assert fires(TurnIs(2), turn_count=2)
    assert not fires(TurnIs(2), turn_count=3)
    assert fires(IsAddressed(), Envelope(metadata={"addressed_to": []}))
    assert not fires(IsAddressed(), Envelope(metadata={"addressed_to": None}))


def test_operators_build_flat_composites() -> None:
    a, b, c = FromSpeaker("a"), FromSpeaker("b"), FromSpeaker("c")

    assert a & b & c == AllOf((a, b, c))
    assert a | (b | c) == AnyOf((a, b, c))
    assert a & (b | c) == AllOf((a, AnyOf((b, c))))
    assert ~a == Not(a)


def test_composite_of_nothing_is_always_or_never() -> None:
    assert fires(AllOf(()))
    assert not fires(AnyOf(()))


@given(composed(few_leaves, own=False), composed(few_leaves, own=False), states, envelopes)
def test_operators_compute_what_they_say(
    one: Any, other: Any, state: State, envelope: Envelope
) -> None:
    left, right = one.evaluate(state, envelope), other.evaluate(state, envelope)

    assert (one & other).evaluate(state, envelope) is (left and right)
    assert (one | other).evaluate(state, envelope) is (left or right)
    assert (~one).evaluate(state, envelope) is (not left)


failing = st.sampled_from([Raises(), Answers(1), Answers(None)])


@given(failing, st.lists(st.sampled_from([Always(), ~Always()])))
def test_failing_condition_decides_nothing_that_others_do_not(
    broken: TransitionCondition, others: list[Any]
) -> None:
    known = [part.evaluate(State(), Envelope()) for part in others]
    every, either = AllOf((broken, *others)), AnyOf((*others, broken))

    assert not every.evaluate(State(), Envelope())
    assert (~every).evaluate(State(), Envelope()) is (False in known)
    assert either.evaluate(State(), Envelope()) is (True in known)
    assert not (~either).evaluate(State(), Envelope())
    assert not (~~every).evaluate(State(), Envelope())


def test_failing_condition_is_named_in_the_trace() -> None:
    assert trace_of(Raises("no") | Always()) == ("rule 0: raises failed: LookupError: no",)
    assert trace_of(~Answers("yes")) == ("rule 0: answers answered 'yes', which is no bool",)


HUGE = pytest.param(10**5000, id="huge")  # it has no text


@pytest.mark.parametrize("answer", [HUGE, math.nan, cyclic(), Unspeakable(), "x" * 10_000])
def test_answer_that_is_no_bool_is_told_in_few_words(answer: Any) -> None:
    (told,) = trace_of(Answers(answer))

    assert told.endswith("which is no bool")
    assert len(told) < 120


def test_error_that_cannot_say_what_it_is_is_named() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Quiet(Raises):
        def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
            raise Silent

    assert trace_of(Quiet()) == ("rule 0: raises failed: Silent",)


@pytest.mark.parametrize("found", [cyclic(), Unspeakable(), HUGE, object()])
def test_context_may_hold_anything(found: Any) -> None:
    asked = AllOf((ContextEquals("k", [[[1]]]), ContextIn("k", [1]), ContextThreshold("k", 1)))

    assert not fires(asked, context_vars={"k": found})


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, HUGE, cyclic(), {1: 2}, b"b", object(), [{"a": {2}}]]
)
def test_value_that_json_lacks_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="'k'"):
        ContextEquals("k", value)
    with pytest.raises(ConfigurationError, match="'k'"):
        ContextIn("k", [value])


def test_value_is_copied_so_that_nobody_changes_it_later() -> None:
    given_value = {"a": (1,)}
    condition = ContextEquals("k", given_value)
    given_value["a"] = (2,)

    assert condition.value == {"a": [1]}


@pytest.mark.parametrize("threshold", [True, "3", None, math.nan, math.inf, -math.inf, HUGE])
def test_threshold_that_is_no_number_is_refused(threshold: Any) -> None:
    with pytest.raises(ConfigurationError, match="the threshold of 'k'"):
        ContextThreshold("k", threshold)


def test_threshold_may_be_larger_than_any_float() -> None:
    assert fires(ContextThreshold("k", 10**400), context_vars={"k": 10**400})


@pytest.mark.parametrize("kind", [InPhase, IntentIn, FromSource, FromChannelType])
def test_list_of_names_is_no_string_and_holds_strings_alone(kind: Any) -> None:
    for wrong in ("intake", 3, ["x", 3], {"x": 1}):
        with pytest.raises(ConfigurationError):
            kind(wrong)


def test_set_of_names_has_one_order_in_every_process() -> None:
    names: Any = {"c", "a", "b"}

    assert InPhase(names).phases == ("a", "b", "c")


@dataclass(frozen=True)
class Nameless:
    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return True


@dataclass(frozen=True)
class Named:
    name: ClassVar[str] = "named"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return True


@pytest.mark.parametrize("wrong", ["a", Always, True, None, Nameless(), lambda s, e: True])
def test_what_is_no_condition_is_refused(wrong: Any) -> None:
    for build in (AllOf, AnyOf):
        with pytest.raises(ConfigurationError, match="is no condition"):
            build((wrong,))
    with pytest.raises(ConfigurationError, match="is no condition"):
        Not(wrong)
    with pytest.raises(ConfigurationError, match="is no condition"):
        Transition(wrong, "a")


def test_condition_of_one_s_own_needs_no_base_class() -> None:
    graph = TransitionGraph("a", [Transition(Named(), "b")])

    assert isinstance(Named(), TransitionCondition)
    assert graph.resolve(State(), packet()).next_speaker == "b"
