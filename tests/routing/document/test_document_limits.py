from __future__ import annotations

from typing import Any

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    AgentTarget,
    AllOf,
    Always,
    ContextEquals,
    Not,
    PhaseTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.routing.document.codec import MAX_DEPTH, MAX_FAULTS, MAX_NODES, MAX_TEXT
from tests.routing.document.documents import FLAT, document, faults, part, rule


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nul", "[" * 100_000, b"\xff", "1" * 5000])
def test_text_that_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="the text is no JSON"):
        TransitionGraph.loads(text)


def nested(depth: int) -> dict[str, Any]:
    data = FLAT
    for _ in range(depth - 1):
        data = part("not", condition=data)
    return data


def deep(depth: int) -> Any:
    condition: Any = Always()
    for _ in range(depth - 1):
        condition = Not(condition)
    return condition


def test_depth_is_limited() -> None:
    graph = TransitionGraph("a", [Transition(deep(MAX_DEPTH), "b")])

    assert (
        TransitionGraph.from_dict(document(rule(nested(MAX_DEPTH)))).transitions
        == graph.transitions
    )
    (told,) = faults(document(rule(nested(MAX_DEPTH + 1))))
    assert told.endswith(f"is nested deeper than {MAX_DEPTH}")
    for depth in (MAX_DEPTH + 1, 5000):
        with pytest.raises(ConfigurationError, match="nested deeper"):
            TransitionGraph("a", [Transition(deep(depth), "b")])


def test_depth_of_targets_is_limited() -> None:
    target: Any = AgentTarget("b")
    for _ in range(MAX_DEPTH - 1):
        target = PhaseTarget("x", target)

    assert TransitionGraph("a", [], target).to_dict()
    with pytest.raises(ConfigurationError, match="nested deeper"):
        TransitionGraph("a", [], PhaseTarget("x", target))


def test_size_is_limited() -> None:
    most = part("all_of", conditions=[FLAT] * (MAX_NODES - 3))
    more = part("all_of", conditions=[FLAT] * (MAX_NODES + 5))

    graph = TransitionGraph.from_dict(document(rule(most)))
    assert TransitionGraph.from_dict(document(rule(most))) == graph
    (told,) = faults(document(rule(more)))
    assert told.endswith(f"is one too many: a graph may have {MAX_NODES:,} parts")


def test_size_of_a_graph_in_code_is_limited_however_it_is_shared() -> None:
    many: Any = Always()
    for _ in range(MAX_DEPTH - 2):
        many = AllOf((many,) * 9)

    with pytest.raises(ConfigurationError, match="more than 10,000 parts"):
        TransitionGraph("a", [Transition(many, "b")])
    with pytest.raises(ConfigurationError, match="more than 10,000 parts"):
        TransitionGraph("a", [Transition(Always(), "b")] * (MAX_NODES // 2))


def test_length_of_a_text_is_limited() -> None:
    text = TransitionGraph("a").dumps()

    assert TransitionGraph.loads(text.ljust(MAX_TEXT)) == TransitionGraph("a")
    with pytest.raises(ConfigurationError, match="4,000,001 characters"):
        TransitionGraph.loads(text.ljust(MAX_TEXT + 1))


def test_value_is_limited_however_it_is_shared() -> None:
    value: Any = []
    for _ in range(60):
        value = [value, value]

    with pytest.raises(ConfigurationError, match="holds more than 1,000,000 values"):
        ContextEquals("k", value)


def test_number_of_rules_is_limited_before_they_are_read() -> None:
    assert faults(document(*[0] * (MAX_NODES + 1))) == (
        "transitions: has 10,001 rules: a graph may have 10,000 parts",
    )


def test_of_very_many_faults_the_first_are_told_and_their_number() -> None:
    most = faults(document(*[0] * MAX_FAULTS))
    more = faults(document(*[0] * (MAX_FAULTS + 7)))

    assert len(most) == MAX_FAULTS
    assert more == (*most, "graph: 7 more faults")


def test_document_that_holds_itself_many_times_is_refused_in_few_words() -> None:
    own = part("all_of", conditions=[])
    own["args"]["conditions"] += [own] * 3

    told = faults(document(rule(own)))

    assert len(told) == MAX_FAULTS + 1
    assert told[0].endswith(f"is nested deeper than {MAX_DEPTH}")
