from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings

from agentgraph.routing import (
    ActiveAgentTarget,
    AddressedTarget,
    AllOf,
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    IsAddressed,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from tests.routing.samples import Answers, Decides, Envelope, Raises, State
from tests.routing.strategies import graphs

A, B, C = (FromSpeaker(name) for name in "abc")


def graph(*rules: tuple[Any, Any], **options: Any) -> TransitionGraph:
    return TransitionGraph("a", [Transition(*rule) for rule in rules], **options)


drawn = graph(
    (A & ToolCalled("t"), "b"),
    (B | C, ParallelTarget(["a", "b"], "c")),
    (ContextEquals("k", 'a"|b'), PhaseTarget("x", StayTarget())),
    (C, HumanTarget()),
    (C, RoundRobinTarget(["a", "b"])),
    (C, RevertToInitiatorTarget()),
    (AllOf((A,)), PhaseTarget("x", TerminateTarget("done"))),
    default_target=ActiveAgentTarget(),
)


def test_mermaid_draws_every_rule() -> None:
    assert drawn.mermaid().splitlines() == [
        "flowchart TD",
        '    n0(["start"])',
        '    n1["a"]',
        '    n2["b"]',
        '    n3["c"]',
        '    n4(["anyone"])',
        '    n5["human"]',
        '    n6["revert_to_initiator()"]',
        '    n7["active_agent()"]',
        '    n8(["end"])',
        "    n0 --> n1",
        "    n1 -->|\"tool_called('t')\"| n2",
        "    n2 -->|\"at once, then agent('c')\"| n1",
        "    n2 -->|\"at once, then agent('c')\"| n2",
        "    n3 -->|\"at once, then agent('c')\"| n1",
        "    n3 -->|\"at once, then agent('c')\"| n2",
        "    n4 -->|\"context_equals('k', 'a#34;#124;b'): phase x, stay\"| n4",
        '    n3 -->|"wait"| n5',
        '    n3 -->|"in turn"| n1',
        '    n3 -->|"in turn"| n2',
        "    n3 --> n6",
        '    n1 -->|"phase x, done"| n8',
        '    n4 -->|"otherwise"| n7',
    ]


def test_decided_rules_stand_out() -> None:
    decided = drawn.resolve(State(), Envelope("c"))

    styles = re.findall(r"linkStyle (\d+)", drawn.mermaid([decided, "default", "initial", 0]))

    assert decided.rule == 1
    assert styles == ["0", "1", "2", "3", "4", "5", "12"]
    assert drawn.svg([decided]) != drawn.svg()
    assert drawn.svg([99]) == drawn.svg()


HOSTILE = "<img src=x onerror='alert(1)'>\"]\n-->|& end"


def test_hostile_names_stay_text_in_a_drawing() -> None:
    hostile = TransitionGraph(HOSTILE, [Transition(FromSpeaker(HOSTILE), HOSTILE)], HOSTILE)

    text = hostile.mermaid()

    assert all(mark not in text.replace("-->", "") for mark in ("<", '>"', "&", "\n\n"))
    assert len(text.splitlines()) == 7
    (root,) = [ElementTree.fromstring(hostile.svg())]
    assert not [one for one in root.iter() if one.tag.endswith(("img", "script"))]


def test_agent_called_like_a_part_of_the_drawing_is_another_node() -> None:
    same = TransitionGraph("start", [Transition(FromSpeaker("start"), "end")])

    assert [
        line for line in same.mermaid().splitlines() if '"start"' in line or '"end"' in line
    ] == [
        '    n0(["start"])',
        '    n1["start"]',
        '    n2["end"]',
        '    n4(["end"])',
    ]


@settings(max_examples=60)
@given(graphs())
def test_any_graph_can_be_drawn(any_graph: TransitionGraph) -> None:
    ElementTree.fromstring(any_graph.svg([0]))
    assert any_graph.mermaid([0]).startswith("flowchart TD")


def test_notebook_shows_the_drawing() -> None:
    shown = drawn._repr_mimebundle_(include=None, exclude=None)

    assert shown == {
        "text/plain": repr(drawn),
        "text/vnd.mermaid": drawn.mermaid(),
        "image/svg+xml": drawn.svg(),
    }


def test_targets_of_one_s_own_are_told_by_their_names() -> None:
    own = graph((Answers(1) | Raises(), Decides("two")), (IsAddressed(), AddressedTarget()))

    assert "answers(1) or raises('broken')" in own.mermaid()
    assert "decides('two')" in own.mermaid()
