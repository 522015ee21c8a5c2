"""A text that may still be refused is told to nobody before it has passed, and then as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

from langgraph.types import Command

from agentgraph import Agent, Guards
from agentgraph.guards import Escalation, Gate
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.stream import AIMessageEvent, Event, FinalStateEvent, InterruptEvent, TokenEvent
from agentgraph.testing import ScriptedModel, call

SECRET = "The code is 4711."


def discreet(subject: Subject) -> bool:
    """Refuse what tells the code."""
    return SECRET not in subject.text


GATED = Guards.interactive(gates=[Gate(invariants=[discreet])])


async def read(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def texts(events: list[Event]) -> list[tuple[str, str]]:
    spoken = (TokenEvent, AIMessageEvent, FinalStateEvent)
    return [(event.type, event.text) for event in events if isinstance(event, spoken)]


async def test_a_text_that_a_gate_refuses_is_never_told() -> None:
    agent = Agent("Solo", model=ScriptedModel([SECRET, "I may not say."]), guards=GATED)

    events = await read(agent.astream("hi"))

    assert texts(events) == [("ai_message", "I may not say."), ("message", "I may not say.")]
    assert not any(SECRET in event.to_json().decode() for event in events)


async def test_a_text_in_doubt_is_told_once_a_human_has_approved_it() -> None:
    doubt = Escalation(0.9, critic=lambda subject: 0.1)
    agent = Agent(
        "Solo", model=ScriptedModel([SECRET]), guards=Guards.interactive(escalation=doubt)
    )

    events = await read(agent.astream("hi", thread_id="t"))
    question = next(event for event in events if isinstance(event, InterruptEvent))
    after = await read(agent.astream(Command(resume={question.id: "approve"}), thread_id="t"))

    assert texts(events) == [("message", "")]
    assert texts(after) == [("ai_message", SECRET), ("message", SECRET)]


async def test_others_in_the_tree_are_told_token_by_token() -> None:
    leaf = Agent("Leaf", model=ScriptedModel(["all is well"]))
    said = ScriptedModel([call("transfer_to_Leaf")])
    root = Agent(
        "Root", model=said, agents=[leaf], guards=Guards.interactive(stages={"Root": GATED})
    )

    events = await read(root.astream("hi"))

    assert [text for kind, text in texts(events) if kind == "token"] == ["all", " is", " well"]
