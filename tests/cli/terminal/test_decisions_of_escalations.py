"""A guard's question to a human, answered in the terminal in plain words."""

from __future__ import annotations

import pytest

from agentgraph import Agent, Guards
from agentgraph.agents import Interrupt
from agentgraph.cli.terminal.decisions import decision_of
from agentgraph.guards import Escalation
from agentgraph.testing import ScriptedModel
from tests.cli.conversations import solo, talk


def doubted(*turns: str) -> Agent:
    """Make an agent whose first answer no critic is sure of."""
    sure = Escalation(0.9, critic=lambda subject: 0.1 if subject.text == turns[0] else 1.0)
    return solo(*turns, guards=Guards.interactive(escalation=sure))


def test_an_answer_in_doubt_is_rejected_with_a_reason() -> None:
    told = talk(doubted("It costs 3.", "So be it."), "hi", "reject too cheap", "on we go")

    assert told.count("A decision is needed") == 1
    assert "The turn was ended: escalation" in told
    assert "So be it." in told


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("approve", "solo> It costs 3."),
        ("edit It costs 4.", "solo> It costs 4."),
        ("respond Ask in the shop.", "solo> Ask in the shop."),
    ],
)
def test_an_answer_in_doubt_is_decided_on_in_a_word(typed: str, told: str) -> None:
    agent = doubted("It costs 3.")

    shown = talk(agent, "hi", typed)

    after = shown.partition(f"decision> {typed}\n")[2]
    assert told in after
    assert "A decision is needed" not in after
    assert isinstance(agent.model, ScriptedModel)
    assert len(agent.model.requests) == 1


def test_what_can_be_typed_is_told_in_words_and_not_as_a_schema() -> None:
    told = talk(doubted("It costs 3."), "hi", "approve")

    words = " ".join(told.split())
    assert "Type approve, reject [reason], edit TEXT, respond TEXT, or JSON" in words
    assert "$defs" not in told


@pytest.mark.parametrize("typed", ["edit", "respond", "edit it", "respond now"])
def test_others_may_ask_for_such_words(typed: str) -> None:
    question = Interrupt("i", {"type": "escalation", "question": "?"})

    assert decision_of(typed, question) == typed
