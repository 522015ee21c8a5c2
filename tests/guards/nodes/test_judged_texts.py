"""A text that may still be refused is told to nobody before it has passed, and then as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langgraph.types import Command

from agentgraph import Agent, Guards, Hub, Team
from agentgraph.guards import Escalation, Gate
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.routing import (
    FromSpeaker,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.stream import AIMessageEvent, Event, FinalStateEvent, InterruptEvent, TokenEvent
from agentgraph.testing import ScriptedModel, Turn, call

SECRET = "The code is PIN4711."


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


class Passing(AgentMiddleware[Any, Any]):
    """Middleware around the model, which asks it once."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


def ledger(account: str) -> str:
    """Read an account."""
    return "nothing"


def talker(**fields: Any) -> Agent:
    """Return an agent that tells the code beside a call, in an answer, and then never again."""
    turns: list[Any] = [Turn(SECRET, [call("ledger", account="a")]), SECRET, "I may not say."]
    model = ScriptedModel(turns)
    return Agent("Solo", model=model, tools=[ledger], **{"guards": GATED, **fields})


MIDDLEWARE = pytest.mark.parametrize("middleware", [[], [Passing()]], ids=["plain", "middleware"])


@MIDDLEWARE
async def test_a_text_beside_a_call_is_judged_and_the_tool_runs_without_it(middleware: Any) -> None:
    agent = talker(middleware=middleware)

    events = await read(agent.astream("hi", thread_id="t"))

    assert texts(events) == [("ai_message", "I may not say."), ("message", "I may not say.")]
    assert not any(SECRET in event.to_json().decode() for event in events)
    history = await agent.ahistory("t")
    assert [m.text for m in history] == ["hi", "", "nothing", "I may not say."]


async def test_a_text_beside_a_call_that_passes_is_told() -> None:
    model = ScriptedModel([Turn("One moment.", [call("ledger", account="a")]), "All is well."])
    agent = Agent("Solo", model=model, tools=[ledger], guards=GATED)

    told = texts(await read(agent.astream("hi")))

    assert [text for kind, text in told if kind == "ai_message"] == ["One moment.", "All is well."]


@MIDDLEWARE
async def test_no_stream_of_langgraph_shows_what_a_gate_refuses(middleware: Any) -> None:
    modes: Any = ["messages", "values", "updates", "custom", "debug"]
    value = {"messages": [("user", "hi")]}

    parts = talker(middleware=middleware).graph.astream(value, stream_mode=modes, subgraphs=True)
    assert SECRET not in repr([part async for part in parts])
    told = talker(middleware=middleware).graph.astream_events(value, version="v2")
    assert SECRET not in repr([event async for event in told])


async def test_a_critic_is_asked_about_a_text_beside_a_call() -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1 if SECRET in subject.text else 0.9)
    model = ScriptedModel([Turn(SECRET, [call("ledger", account="a")]), "All is well."])
    agent = Agent("Solo", model=model, tools=[ledger], guards=Guards.interactive(escalation=critic))

    events = await read(agent.astream("hi"))

    assert texts(events) == [("ai_message", "All is well."), ("message", "All is well.")]
    assert not any(SECRET in event.to_json().decode() for event in events)


async def test_a_session_s_stream_shows_no_text_that_a_gate_refuses() -> None:
    agent = talker()
    async with await Hub.open("memory", serve=[agent]) as hub:
        session = await hub.session(agent, id="s", ttl=None)
        await session.send("user", "hi")
        await session.settled()
        assert SECRET not in repr(await session.history())
        assert "I may not say." in repr(await session.history())


def boss(member: Any) -> Agent:
    """Return a supervisor that hands over to a member."""
    model = ScriptedModel([call(f"transfer_to_{member.name}")])
    return Agent("Boss", model=model, agents=[member], guards=GATED)


def foreign() -> Any:
    turns: list[Any] = [Turn(SECRET, [call("ledger", account="a")]), SECRET, "I may not say."]
    return create_agent(ScriptedModel(turns), [ledger], name="Solo")


def side_by_side() -> Team:
    agents = [talker(guards=None).replace(name=name) for name in ("Start", "Left", "Right", "Last")]
    rules = [
        Transition(FromSpeaker("Start"), ParallelTarget(("Left", "Right"), join="Last")),
        Transition(FromSpeaker("Last"), TerminateTarget("all_said")),
    ]
    return Team(agents, TransitionGraph("Start", rules), name="Crew", guards=GATED)


SERVED: dict[str, Callable[[], Any]] = {
    "an agent": talker,
    "a sub-agent": lambda: boss(talker(guards=None)),
    "a foreign sub-agent": lambda: boss(foreign()),
    "a team": lambda: Team([talker(guards=None)], sequence(["Solo"]), name="Crew", guards=GATED),
    "a team with a foreign graph": lambda: Team(
        [foreign()], sequence(["Solo"]), name="Crew", guards=GATED
    ),
    "a team with speakers side by side": side_by_side,
}


@pytest.mark.parametrize("kind", SERVED)
async def test_a_reader_of_a_session_meanwhile_sees_no_text_that_a_gate_refuses(kind: str) -> None:
    served = SERVED[kind]()
    async with await Hub.open("memory", serve=[served]) as hub:
        session = await hub.session(served, id="s", ttl=None)
        seen: list[str] = []

        async def watch() -> None:
            seen.extend([repr(part) async for part in session.stream()])

        reader = asyncio.ensure_future(watch())
        await session.send("user", "hi")
        await session.settled()
        await session.close()
        await reader
    assert any("I may not say." in part for part in seen)
    assert not any("PIN4711" in part for part in seen)
