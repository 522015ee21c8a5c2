from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    Always,
    ContextEquals,
    ContextIn,
    FromSpeaker,
    HumanTarget,
    InPhase,
    ParallelTarget,
    PhaseTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from tests.routing.document.documents import FLAT, document, faults, part, rule
from tests.routing.samples import REGISTRY, cyclic
from tests.routing.strategies import LOOKS_LIKE_A_CONDITION, graphs, values


@settings(max_examples=300)
@given(graphs())
def test_graph_comes_back_equal_also_through_json(graph: TransitionGraph) -> None:
    data = graph.to_dict()
    text = graph.dumps()

    assert TransitionGraph.from_dict(data, REGISTRY) == graph
    assert TransitionGraph.loads(text, REGISTRY) == graph
    assert TransitionGraph.loads(text.encode(), REGISTRY).dumps() == text
    assert json.dumps(data) == text


@given(values)
def test_value_comes_back_with_its_types(value: Any) -> None:
    graph = TransitionGraph(
        "a", [Transition(ContextEquals("k", value) | ContextIn("k", [value]), "b")]
    )

    back = TransitionGraph.loads(graph.dumps())

    assert repr(back) == repr(graph)


def test_value_that_looks_like_a_condition_stays_a_value() -> None:
    graph = TransitionGraph(
        "a", [Transition(ContextEquals("k", [LOOKS_LIKE_A_CONDITION, {"k": (1, True)}]), "b")]
    )

    when = TransitionGraph.from_dict(graph.to_dict()).transitions[0].when

    assert when == ContextEquals("k", [{"name": "always", "args": {}}, {"k": [1, True]}])


def test_names_that_no_encoding_has_come_back() -> None:
    odd = "\ud800"
    graph = TransitionGraph(
        odd, [Transition(InPhase([odd]) & FromSpeaker(odd), ParallelTarget([odd, "b"], odd))]
    )

    assert TransitionGraph.loads(graph.dumps()) == graph


def test_document_is_the_one_of_the_contract() -> None:
    when = FromSpeaker("a") & ~InPhase(["x"])
    then = PhaseTarget("x", ParallelTarget(["a", "b"], HumanTarget()))
    graph = TransitionGraph("a", [Transition(when, then, 2)], TerminateTarget("r"), 5)

    assert graph.to_dict() == {
        "version": 1,
        "initial_speaker": "a",
        "transitions": [
            {
                "when": part(
                    "all_of",
                    conditions=[
                        part("from_speaker", agent_id="a"),
                        part("not", condition=part("in_phase", phases=["x"])),
                    ],
                ),
                "then": part(
                    "phase",
                    name="x",
                    then=part("parallel", agents=["a", "b"], join=part("human", name=None)),
                ),
                "priority": 2,
            }
        ],
        "default_target": part("terminate", reason="r"),
        "max_turns": 5,
    }


def test_what_may_be_left_out_has_its_default() -> None:
    data = document(rule(then=part("human")), default_target=part("terminate"))
    del data["max_turns"]

    assert TransitionGraph.from_dict(data) == TransitionGraph(
        "a", [Transition(Always(), HumanTarget())]
    )


def test_document_does_not_share_values_with_the_graph() -> None:
    data = document(rule(part("context_equals", key="k", value=[1])))
    graph = TransitionGraph.from_dict(data)
    graph.to_dict()["transitions"][0]["when"]["args"]["value"].append(2)
    data["transitions"][0]["when"]["args"]["value"].append(3)

    assert graph.transitions[0].when == ContextEquals("k", [1])


def test_all_faults_are_told_at_once_each_with_its_place() -> None:
    both = part("any_of", conditions=[FLAT, part("nothing"), part("from_speaker", agent_id=3)])
    found = faults(
        document(
            rule(
                part(
                    "all_of",
                    conditions=[part("from_speaker", agent="a"), part("not", condition=both)],
                )
            ),
            rule(then=part("phase", name="x", then=part("parallel", agents=["a"], join=None))),
            rule(part("in_phase", phases=["x", 3]), then=part("nobody"), priority=True),
            {"when": {"name": "always"}, "than": "b"},
            "rule",
            initial_speaker=["a"],
            default_target=part("agent", agent_id=None),
            max_turns="3",
            color="red",
        )
    )

    assert found == (
        "graph: there is no key 'color': there are version, initial_speaker, transitions, "
        "default_target, max_turns, initial_phase",
        "transitions[0].when.args.conditions[0].args: the key 'agent_id' is missing",
        "transitions[0].when.args.conditions[0].args: there is no key 'agent': there are agent_id",
        "transitions[0].when.args.conditions[1].args.condition.args.conditions[1]: no condition is "
        "registered as 'nothing': register it, or mend the name",
        "transitions[0].when.args.conditions[1].args.condition.args.conditions[2].args.agent_id: "
        "Input should be a valid string",
        "transitions[1].then.args.then.args.join: is null: an object is wanted",
        "transitions[2].when.args.phases[1]: Input should be a valid string",
        "transitions[2].then: no target is registered as 'nobody': register it, or mend the name",
        "transitions[2].priority: is True: a whole number of 64 bits is wanted",
        "transitions[3]: the key 'then' is missing",
        "transitions[3]: there is no key 'than': there are when, then, priority",
        "transitions[3].when: the key 'args' is missing",
        "transitions[4]: is 'rule': an object is wanted",
        "default_target.args.agent_id: Input should be a valid string",
        "initial_speaker: is ['a']: a name is wanted",
        "max_turns: is '3': a whole number of 64 bits is wanted",
    )


@pytest.mark.parametrize("data", [None, 3, "{}", [], True])
def test_what_is_no_object_is_no_graph(data: Any) -> None:
    assert faults(data)[0].startswith("graph: is ")


def test_every_missing_key_of_a_graph_is_told() -> None:
    assert [fault.split("'")[1] for fault in faults({})] == [
        "version",
        "initial_speaker",
        "transitions",
        "default_target",
    ]


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("always", "transitions[0].when: is 'always': an object is wanted"),
        ({"name": 3, "args": {}}, "transitions[0].when: no condition is registered as 3"),
        ({"name": ["x"], "args": {}}, "transitions[0].when: no condition is registered as ['x']"),
        (part("agent", agent_id="b"), "transitions[0].when: no condition is registered as 'agent'"),
        ({"name": "always", "args": []}, "transitions[0].when.args: is []: an object is wanted"),
        ({"name": "always", "args": None}, "transitions[0].when.args: is null: an object"),
        (part("all_of", conditions=FLAT), "transitions[0].when.args.conditions: is {"),
        (part("all_of", conditions="ab"), "transitions[0].when.args.conditions: is 'ab': a list"),
        (part("not", condition=[FLAT]), "transitions[0].when.args.condition: is ["),
        (part("turn_is", turn=True), "transitions[0].when.args.turn: Input should be a valid int"),
        (part("turn_is", turn=1.5), "transitions[0].when.args.turn: Input should be a valid int"),
        (part("turn_is", turn="1"), "transitions[0].when.args.turn: Input should be a valid int"),
        (part("in_phase", phases="work"), "transitions[0].when.args.phases: Input should be a"),
        (
            part("context_threshold", key="k", threshold=True),
            "transitions[0].when.args.threshold: Input should be a valid integer, or: Input should",
        ),
        (
            part("context_equals", key="k", value=float("nan")),
            "transitions[0].when.args: the value of 'k' holds nan",
        ),
        (
            part("context_equals", key="k", value=cyclic()),
            "transitions[0].when.args: the value of 'k' is nested deeper than 128, or holds itself",
        ),
        (part("from_speaker", agent_id=cyclic()), "transitions[0].when.args.agent_id: is no JSON"),
        (part("from_speaker", agent_id=b"a"), "transitions[0].when.args.agent_id: is no JSON"),
        (part("from_speaker", agent_id=10**5000), "transitions[0].when.args.agent_id: is no JSON"),
    ],
    ids=lambda one: one[:40] if isinstance(one, str) else "",
)
def test_wrong_condition_is_told_with_its_place(when: Any, told: str) -> None:
    (found,) = faults(document(rule(when)))

    assert found.startswith(told)


def test_constructor_s_fault_is_told_with_its_place() -> None:
    twice = part("round_robin", agents=["a", "a"])

    assert faults(document(rule(then=twice))) == (
        "transitions[0].then.args: agents: 'a' stands there twice",
    )


def test_newer_version_asks_for_an_update() -> None:
    assert faults(document(version=2)) == (
        "version: is 2, newer than 1, which this code reads: update it",
    )


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None])
def test_version_is_a_number_that_there_was(version: Any) -> None:
    assert faults(document(version=version)) == (f"version: is {version!r}: this code writes 1",)


@settings(max_examples=200)
@given(st.data())
def test_any_document_is_read_or_refused(data: st.DataObject) -> None:
    graph = data.draw(graphs(size=3)).to_dict()
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(graph)
    holder, key = data.draw(st.sampled_from(spots))
    holder[key] = data.draw(values | st.just(FLAT))

    try:
        TransitionGraph.from_dict(graph, REGISTRY)
    except ConfigurationError as error:
        assert error.faults
