"""Questions that rules put to a model: which are needed, and how their answers decide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    Always,
    AnyOf,
    ContextBelow,
    ContextEquals,
    ContextThreshold,
    FromSpeaker,
    HumanTarget,
    ModelChoice,
    ModelCondition,
    ParallelTarget,
    PhaseTarget,
    Registry,
    SimulatedTurn,
    TerminateTarget,
    Transition,
    TransitionGraph,
    default_registry,
    register_model,
)
from agentgraph.routing.simulate import SimulatedEnvelope, SimulatedState
from agentgraph.testing import ScriptedModel

MODEL = "openai:gpt-5-mini"
ANGRY = ModelCondition(MODEL, "Is the customer angry?")
DONE = ModelCondition(MODEL, "Is it done?")
WHO = "Who knows this?"
CHOICE = ModelChoice(MODEL, ["b", "c"], WHO)


def state(**fields: Any) -> SimulatedState:
    return SimulatedState(("a", "b", "c"), "user", last_speaker_id="a", turn_count=1, **fields)


def decided(graph: TransitionGraph, answers: dict[str, Any], **fields: Any) -> tuple[Any, Any]:
    """Ask what is needed; return the questions, and the decision with their answers."""
    envelope = SimulatedEnvelope("a", {"asked": []})
    questions = []
    while question := graph.question(state(**fields), envelope):
        questions.append(question.text)
        answer = answers.get(question.text)
        failure = "" if answer is not None else "the provider is down"
        envelope.event_data["asked"].append(question.entry(answer, failure))
    return questions, graph.resolve(state(**fields), envelope)


def graph(*rules: tuple[Any, Any], **fields: Any) -> TransitionGraph:
    return TransitionGraph("a", [Transition(*rule) for rule in rules], **fields)


def test_a_condition_fires_on_a_yes_and_the_next_rule_is_tried_on_a_no() -> None:
    rules = graph((ANGRY, "b"), (Always(), "c"))
    assert decided(rules, {ANGRY.question: True})[1].speakers == ("b",)
    assert decided(rules, {ANGRY.question: False})[1].speakers == ("c",)


@pytest.mark.parametrize(
    "condition", [ANGRY, ~ANGRY, ANGRY & Always(), ANGRY | ContextEquals("k", 1)]
)
def test_where_the_model_fails_neither_a_condition_nor_its_negation_fires(condition: Any) -> None:
    _, decision = decided(graph((condition, "b"), (Always(), "c")), {})
    assert decision.speakers == ("c",)
    assert "the provider is down" in decision.trace[0]


def test_a_choice_speaks_and_one_outside_of_the_agents_counts_as_none() -> None:
    rules = graph((FromSpeaker("a"), CHOICE), (Always(), TerminateTarget("nobody")))
    assert decided(rules, {WHO: "c"})[1].speakers == ("c",)
    for answer in ("zed", "a", True, None):
        _, decision = decided(rules, {WHO: answer})
        assert (decision.close_reason, decision.rule) == ("nobody", 1)
    assert "the model has answered 'zed'" in decided(rules, {WHO: "zed"})[1].trace[0]


def test_without_agents_a_model_chooses_among_all_others() -> None:
    rules = graph((Always(), ModelChoice(MODEL)))
    question = rules.question(state(), SimulatedEnvelope("a", {}))
    assert question is not None
    assert (question.agents, question.text) == (("b", "c"), "Who speaks next?")


def test_only_what_a_decision_needs_is_asked_in_the_order_of_the_rules() -> None:
    rules = graph(
        (FromSpeaker("b") & DONE, "b"),  # of another speaker
        (ContextEquals("k", 1) & ANGRY, "b"),  # `k` decides it
        (AnyOf((FromSpeaker("a"), DONE)) & ContextEquals("k", None) & ANGRY, CHOICE),
        (DONE, "c"),
        default_target=ModelChoice(MODEL, ["c"], "last"),
    )
    both, decision = decided(rules, {ANGRY.question: True, WHO: "b"})
    assert (both, decision.speakers) == ([ANGRY.question, WHO], ("b",))
    rest, decision = decided(rules, {ANGRY.question: False, "last": "c"})
    assert rest == [ANGRY.question, DONE.question, "last"]
    assert (decision.speakers, decision.rule) == (("c",), "default")


def test_the_same_question_is_asked_once_a_turn() -> None:
    rules = graph((ANGRY & ContextEquals("k", 1), "b"), (ANGRY, "b"), (~ANGRY, "c"))
    questions, decision = decided(rules, {ANGRY.question: False}, context_vars={"k": 1})
    assert (questions, decision.speakers) == ([ANGRY.question], ("c",))


def test_what_outranks_the_rules_asks_nothing() -> None:
    rules = graph((ANGRY, "b"), default_target=CHOICE)
    handoff = SimulatedEnvelope("a", {"routing": {"kind": "handoff", "target": "b"}})
    finish = SimulatedEnvelope("a", {"routing": {"kind": "finish"}})
    opening = SimulatedState(("a", "b", "c"), "user")
    assert rules.question(state(), handoff) is None
    assert rules.question(state(), finish) is None
    assert rules.question(opening, SimulatedEnvelope("user", {})) is None


def test_a_choice_enters_a_phase() -> None:
    rules = graph((Always(), PhaseTarget("handling", CHOICE)))
    _, decision = decided(rules, {WHO: "b"})
    assert (decision.speakers, decision.phase) == (("b",), "handling")


def test_at_the_cap_the_default_may_ask_and_cannot_go_on() -> None:
    rules = graph((Always(), "b"), default_target=CHOICE, max_turns=1)
    questions, decision = decided(rules, {WHO: "c"})
    assert (questions, decision.close_reason) == ([WHO], "max_turns")


def test_what_was_not_asked_counts_as_failing_and_is_named() -> None:
    decision = graph((ANGRY, "b"), (Always(), "c")).resolve(state(), SimulatedEnvelope("a", {}))
    assert decision.speakers == ("c",)
    assert f"{MODEL!r} was not asked {ANGRY.question!r}" in decision.trace[0]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["model", "question", "agents", "answer"]), inner)
        ),
    )
)
def test_whatever_stands_in_a_log_is_no_error(asked: Any) -> None:
    rules = graph((ANGRY, "b"), (Always(), CHOICE), default_target=TerminateTarget("end"))
    envelope = SimulatedEnvelope("a", {"asked": asked})
    assert rules.question(state(), envelope) is not None
    assert rules.resolve(state(), envelope).close_reason == "end"


def test_rules_that_ask_are_stored_and_explained() -> None:
    rules = graph((FromSpeaker("a") & ANGRY, "b"), (FromSpeaker("a"), CHOICE))
    assert TransitionGraph.loads(rules.dumps()) == rules
    assert rules.to_dict()["transitions"][1]["then"] == {
        "name": "model_choice",
        "args": {"model": MODEL, "agents": ["b", "c"], "prompt": "Who knows this?"},
    }
    asked = [rules.question(state(), SimulatedEnvelope("a", {}))]
    assert asked[0] is not None
    envelope = SimulatedEnvelope("a", {"asked": [asked[0].entry(False)]})
    told = str(rules.explain(state(), envelope))
    assert "the model said no" in told and "was not asked 'Who knows this?'" in told


def test_a_diagram_shows_whom_a_model_may_choose() -> None:
    drawn = graph((FromSpeaker("a"), CHOICE), (ANGRY, "b")).mermaid()
    assert drawn.count("a model chooses") == 2
    assert "Is the customer angry" in drawn


def test_a_simulation_takes_the_answers_of_its_script() -> None:
    rules = graph((FromSpeaker("a"), CHOICE), (ANGRY, TerminateTarget("calmed")))
    script = {
        "a": [SimulatedTurn(answers={WHO: "c"})],
        "c": [SimulatedTurn(answers={ANGRY.question: True})],
    }
    played = rules.simulate(script, participants=["a", "b", "c"])
    assert (played.speakers, played.close_reason) == (("a", "c"), "calmed")
    assert rules.simulate([], participants=["a", "b", "c"]).speakers == ("a",)


def test_check_follows_whom_a_model_may_choose() -> None:
    choosing = graph((FromSpeaker("a"), CHOICE), max_turns=9)
    assert choosing.check(["a", "b", "c"]) == ()
    assert [item.code for item in choosing.check(["a", "b", "c", "d"])] == ["unreached"]
    assert "names 'c'" in choosing.check(["a", "b"])[0].message
    circle = graph((Always(), ModelChoice(MODEL, ["a", "b"])), default_target="a")
    assert [item.code for item in circle.check(["a", "b"])] == ["endless_cycle"]
    # Only where the model has no answer the default ends it.
    fallback = graph((Always(), ModelChoice(MODEL, ["a", "b"])))
    assert [item.code for item in fallback.check(["a", "b"])] == ["model_exit"]
    chat = graph((FromSpeaker("human"), CHOICE), default_target=HumanTarget())
    assert chat.check(["a", "b", "c", "user"], people=["user"]) == ()


def test_a_model_cannot_choose_who_joins_parallel_speakers() -> None:
    with pytest.raises(ConfigurationError, match="join is chosen by a model"):
        graph((Always(), ParallelTarget(["b", "c"], PhaseTarget("x", CHOICE))))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelCondition("", "?"),
        lambda: ModelCondition(7, "?"),
        lambda: ModelCondition(MODEL, 7),  # type: ignore[arg-type]
        lambda: ModelChoice(None),
        lambda: ModelChoice(MODEL, ["b", "b"]),
        lambda: ModelChoice(MODEL, [], 7),  # type: ignore[arg-type]
        lambda: register_model("openai:x", ScriptedModel(["x"])),
        lambda: register_model("judge", "no model"),
    ],
)
def test_values_that_cannot_be_asked_are_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_a_model_object_is_stored_by_its_class_and_its_own_graph_has_it() -> None:
    model = ScriptedModel(["yes"])
    rules = graph((ModelCondition(model, "?"), "b"))
    assert rules.models == {"object:ScriptedModel": model}
    restored = TransitionGraph.loads(rules.dumps())
    assert restored == rules
    assert restored.models == {"object:ScriptedModel": None}


def test_a_registry_has_models_by_name() -> None:
    registry, model = Registry(), ScriptedModel(["yes"])
    assert registry.register_model("judge", model) is model
    assert registry.models == {"judge": model}
    assert "judge" not in default_registry().models


# Expressions.


@pytest.mark.parametrize(
    ("value", "fires"),
    [(1, True), (1.9, True), (2, False), (3, False), (True, False), ("1", False)],
)
def test_below_is_for_numbers_below(value: Any, fires: bool) -> None:
    below, reaches = ContextBelow("k", 2), ContextThreshold("k", 2)
    at = state(context_vars={"k": value})
    assert below.evaluate(at, SimulatedEnvelope("a", {})) is fires
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    assert reaches.evaluate(at, SimulatedEnvelope("a", {})) is (is_number and not fires)


def test_a_missing_key_is_not_below() -> None:
    assert not ContextBelow("k", 2).evaluate(state(), SimulatedEnvelope("a", {}))


def test_below_is_stored_explained_and_checked() -> None:
    rules = graph((ContextBelow("score", 0.5), "b"), (Always(), "c"), max_turns=5)
    assert TransitionGraph.loads(rules.dumps()) == rules
    assert rules.to_dict()["transitions"][0]["when"]["name"] == "context_below"
    told = rules.explain(state(context_vars={"score": 0.7}), SimulatedEnvelope("a", {}))
    assert "'score' is 0.7" in str(told)
    never = graph((ContextBelow("k", 1) & ContextThreshold("k", 1), "b"), (Always(), "c"))
    assert "never_holds" in [item.code for item in never.check(["a", "b", "c"])]
    given = graph((ContextBelow("k", 1) & ContextEquals("k", 3), "b"), (Always(), "c"))
    assert "never_holds" in [item.code for item in given.check(["a", "b", "c"])]
    with pytest.raises(ConfigurationError, match="not a number"):
        ContextBelow("k", "1")  # type: ignore[arg-type]
