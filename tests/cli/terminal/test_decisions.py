"""The decisions that a run asks for: what a typed line means, and how they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware

from agentgraph.agents import Interrupt
from agentgraph.cli.terminal.decisions import decision_of
from agentgraph.testing import call
from tests.cli.conversations import chat, lookup, solo, talk
from tests.cli.pseudo_terminal import CTRL_D


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        ("yes", "yes"),
        ("yes, by all means", "yes, by all means"),
        ('{"ok": true}', {"ok": True}),
        ("7", 7),
        ('"7"', "7"),
        ("NaN", "NaN"),
        ("[" * 100_000, "[" * 100_000),
        ("approve", "approve"),
    ],
)
def test_decision_is_json_where_it_is_json_and_text_else(typed: str, decision: object) -> None:
    assert decision_of(typed, Interrupt("i", {"question": "?"})) == decision


def test_decision_stays_text_where_text_is_asked_for() -> None:
    assert decision_of("7", Interrupt("i", "name?", {"type": "string"})) == "7"


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        ("approve", {"type": "approve"}),
        ("Reject", {"type": "reject"}),
        ("reject  too much ", {"type": "reject", "message": "too much"}),
    ],
)
def test_approvals_have_a_short_form(typed: str, decision: object) -> None:
    batch = Interrupt("i", {"action_requests": [{"name": "pay"}, {"name": "pay"}]})
    single = Interrupt("i", {"type": "tool_approval", "name": "pay"})

    assert decision_of(typed, batch) == {"decisions": [decision, decision]}
    assert decision_of(typed, single) == decision


def test_approval_of_the_middleware_is_asked_and_given() -> None:
    human: Any = HumanInTheLoopMiddleware(interrupt_on={"lookup": True})
    agent = solo(call("lookup", order="A7"), "done", tools=[lookup], middleware=[human])

    told = talk(agent, "hi", "approve")

    assert "Type approve, reject [reason], or JSON" in told
    assert "lookup: A7 is lost\nsolo> done\n" in told


def test_decisions_are_asked_one_by_one_and_go_on_with_the_run(folder: Path) -> None:
    with chat(folder) as screen:
        screen.expect("you> ")
        screen.say("pay twice")
        screen.expect("A decision is needed (1 of 2):")
        screen.expect('  {\n    "pay": 1\n  }\n')
        screen.expect("decision> ")
        screen.say("yes")
        screen.expect("A decision is needed (2 of 2):")
        screen.expect('"pay": 2')
        screen.expect("decision> ")
        screen.say('{"at": 5}')
        answers = screen.expect("clerk> it said")
        assert "pay: decided 'yes'" in answers
        assert "pay: decided {'at': 5}" in answers


def test_decision_left_open_is_gone_on_without(folder: Path) -> None:
    with chat(folder) as screen:
        screen.expect("you> ")
        screen.say("pay")
        screen.expect("decision> ")
        screen.interrupt("Left open: a message goes on without the decision.")
        screen.expect("you> ")
        screen.say("hello")
        screen.expect("clerk> answer 2 to hello")
        screen.expect("you> ")


def test_another_process_shows_the_history_and_asks_again(folder: Path) -> None:
    with chat(folder, "--thread", "t") as screen:
        screen.expect("you> ")
        screen.say("hello")
        screen.expect("answer 1 to hello")
        screen.expect("you> ")
        screen.say("pay")
        screen.expect("decision> ")
        screen.send(CTRL_D)
        assert screen.status() == 0

    with chat(folder, "--thread", "t") as screen:
        screen.expect("you> hello\nclerk> answer 1 to hello\n")
        assert "unknown" not in screen.expect("A decision is needed:")
        screen.expect("decision> ")
        screen.say("yes")
        screen.expect("clerk> it said decided 'yes'")
