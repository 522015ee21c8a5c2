"""What is streamed of a session beside its envelopes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState, StateGraph

from agentgraph import (
    Envelope,
    FromSpeaker,
    ParallelTarget,
    Team,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.stream import (
    AIMessageEvent,
    Event,
    ResetEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from agentgraph.testing import Fault, ScriptedModel, call
from tests.sessions.talk import PATIENCE_S, agent, held, untried


def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def called(at: str) -> AIMessage:
    """A call whose id the provider gives again and again."""
    made: Any = {"name": "look", "args": {"at": at}, "id": "call_0", "type": "tool_call"}
    return AIMessage("", tool_calls=[made])


async def streamed(team: Team, *said: str) -> list[Envelope | Event]:
    async with held(team) as session, asyncio.timeout(PATIENCE_S):
        stream = session.stream()
        told: list[Envelope | Event] = [await anext(stream)]
        for one in said:
            await session.send("user", one)
        return told + [one async for one in stream]


def calls_of(told: Sequence[Envelope | Event]) -> list[tuple[str, str, int, int]]:
    found: list[tuple[str, str, int, int]] = []
    for one in told:
        if isinstance(one, ToolUsageEvent):
            found.append((one.type, str(one.args["at"]), one.round, one.attempt))
        elif isinstance(one, ToolResponseEvent):
            found.append((one.type, one.content, one.round, one.attempt))
    return found


async def test_calls_of_every_round_are_told_where_a_provider_repeats_its_ids() -> None:
    a = agent("a", called("x"), "A.", tools=[look])
    b = agent("b", called("y"), "B.", tools=[look])

    told = await streamed(Team([a, b], sequence(["a", "b"])), "go")

    assert calls_of(told) == [
        ("tool_usage", "x", 1, 1),
        ("tool_response", "saw x", 1, 1),
        ("tool_usage", "y", 2, 1),
        ("tool_response", "saw y", 2, 1),
    ]


async def test_calls_of_every_attempt_are_told_where_a_provider_repeats_its_ids() -> None:
    a = agent("a", called("x"), Fault.server_error(), called("x"), "A.", tools=[look])

    told = await streamed(Team([a], sequence(["a"]), guards=untried()), "go")

    assert [(kind, attempt) for kind, _, _, attempt in calls_of(told)] == [
        ("tool_usage", 1),
        ("tool_response", 1),
        ("tool_usage", 2),
        ("tool_response", 2),
    ]


async def test_calls_of_all_who_speak_at_once_are_told_where_a_provider_repeats_its_ids() -> None:
    team = Team(
        [
            agent("a", "Go."),
            agent("b", called("x"), "B.", tools=[look]),
            agent("c", called("y"), "C.", tools=[look]),
            agent("d", "Done."),
        ],
        TransitionGraph(
            "a", [Transition(FromSpeaker("a"), ParallelTarget(("b", "c"), join="d"))], max_turns=4
        ),
    )

    told = await streamed(team, "go")

    assert sorted(at for kind, at, _, _ in calls_of(told) if kind == "tool_usage") == ["x", "y"]


async def test_stream_that_begins_while_a_round_runs_hears_what_follows() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        begun.set()
        await go_on.wait()
        return "waited"

    a, b = agent("a", call("wait"), "A speaks.", tools=[wait]), agent("b", "B speaks.")
    async with (
        held(Team([a, b], sequence(["a", "b"]))) as session,
        asyncio.timeout(PATIENCE_S),
    ):
        await session.send("user", "go")
        await begun.wait()
        stream = session.stream()
        await anext(stream)
        go_on.set()
        told = [one async for one in stream]

    responses = [one for one in told if isinstance(one, ToolResponseEvent)]
    assert [(one.content, one.round) for one in responses] == [("waited", 1)]
    assert [one.text for one in told if isinstance(one, AIMessageEvent)] == [
        "A speaks.",
        "B speaks.",
    ]
    assert tokens_of(told, 2) == "B speaks."


async def test_stream_that_is_left_ends_for_its_reader_alone() -> None:
    model = agent("a", "A speaks.")
    async with held(Team([model], sequence(["a"]))) as session, asyncio.timeout(PATIENCE_S):
        left, stays = session.stream(), session.stream()
        await anext(left)
        told = [await anext(stays)]
        await left.aclose()
        await session.send("user", "go")
        told += [one async for one in stays]

    assert tokens_of(told, 1) == "A speaks."


async def test_tokens_of_a_team_within_a_team_are_told() -> None:
    inner = Team([agent("b", "B speaks.")], sequence(["b"]), name="inner")

    told = await streamed(Team([agent("a", "A speaks."), inner], sequence(["a", "inner"])), "go")

    said = "".join(one.text for one in told if isinstance(one, TokenEvent))
    assert said == "A speaks.B speaks."


async def test_tokens_of_a_graph_that_is_not_ours_are_told_with_their_round() -> None:
    async def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    model = ScriptedModel(["F speaks."])
    graph = StateGraph(MessagesState).add_node("speak", speak).set_entry_point("speak")
    foreign = graph.compile(name="f")

    told = await streamed(Team([agent("a", "A speaks."), foreign], sequence(["a", "f"])), "go")

    assert (tokens_of(told, 1), tokens_of(told, 2)) == ("A speaks.", "F speaks.")


async def test_reader_who_does_not_read_holds_nobody_back_and_gets_every_envelope() -> None:
    many = " ".join(map(str, range(5_000)))
    async with held(Team([agent("a", many)], sequence(["a"]))) as session:
        async with asyncio.timeout(PATIENCE_S):
            stream = session.stream()
            first = await anext(stream)
            await session.send("user", "go")
            await session.settled()
            told = [first] + [one async for one in stream]

    assert [one.sequence for one in told if isinstance(one, Envelope)] == [1, 2, 3, 4]
    assert len([one for one in told if isinstance(one, TokenEvent)]) < 600
    (reset,) = [one for one in told if isinstance(one, ResetEvent)]
    assert reset.text + tokens_of(told, 1) == many


def tokens_of(told: Sequence[Envelope | Event], round: int) -> str:
    return "".join(o.text for o in told if isinstance(o, TokenEvent) and o.round == round)
