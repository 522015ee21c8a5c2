"""The examples of sessions: each says what it says, envelope by envelope."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Envelope
from agentgraph.stream import TokenEvent

ROOT = Path(__file__).parents[3]
EXAMPLES = ("quick_start", "analysis", "human_in_the_loop", "parallel_reviewers")


def example(name: str) -> Any:
    return importlib.import_module(f"examples.sessions.{name}")


def line(envelope: Envelope) -> str:
    """Write an envelope: its type, its sender, and its words or what it notes."""
    data = envelope.event_data
    match envelope.event_type:
        case "ag.phase":
            told = f"{data['from']} → {data['to']}"
        case "ag.handoff":
            told = f"{data['from']} → {data['target']}: {data['summary']}"
        case "ag.session.closed":
            told = data["reason"]
        case _:
            told = envelope.text
    return f"{envelope.event_type} {envelope.sender_id}: {told}".rstrip()


def transcript(envelopes: Sequence[Envelope], first: int = 1) -> list[str]:
    numbers = [one.sequence for one in envelopes]
    assert numbers == list(range(first, first + len(numbers)))
    return [line(one) for one in envelopes]


QUICK_START = """\
ag.session.opened ag.hub:
ag.msg.text user: I was charged twice, 20 each.
ag.packet agent-triage: A billing request.
ag.phase ag.hub: intake → handling
ag.packet agent-handler: The second charge is refunded.
ag.phase ag.hub: handling → review
ag.packet agent-reviewer:
ag.handoff ag.hub: agent-reviewer → agent-handler: The customer does not know of the refund yet.
ag.phase ag.hub: review → handling
ag.packet agent-handler: The second charge is refunded, and the customer is told.
ag.phase ag.hub: handling → review
ag.packet agent-reviewer: Complete: refunded, and the customer knows.
ag.phase ag.hub: review → resolution
ag.packet agent-resolver: You have 20 back.
ag.session.closed ag.hub: pipeline_complete
"""
ANALYSIS = """\
ag.session.opened ag.hub:
ag.msg.text user: We need a median.
ag.packet agent-discuss: It has to hold for no numbers, too.
ag.phase ag.hub: analysis → coding
ag.packet agent-coder: median is written: median([]) raises ZeroDivisionError.
ag.phase ag.hub: coding → review
ag.packet agent-reviewer:
ag.handoff ag.hub: agent-reviewer → agent-coder: median([]) must be None.
ag.phase ag.hub: review → coding
ag.packet agent-coder: median is written: all pass.
ag.phase ag.hub: coding → review
ag.packet agent-reviewer: Approved.
ag.phase ag.hub: review → report
ag.packet agent-writer: median is done.
ag.session.closed ag.hub: pipeline_complete
"""
PHASES = {
    "quick_start": ["handling", "review", "handling", "review", "resolution"],
    "analysis": ["coding", "review", "coding", "review", "report"],
}


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("quick_start", "I was charged twice, 20 each.", QUICK_START),
        ("analysis", "We need a median.", ANALYSIS),
    ],
)
async def test_pipeline_with_a_return_always_gives_the_same_transcript(
    name: str, said: str, expected: str
) -> None:
    team = example(name).team

    for _ in range(3):
        result = await team.arun(said)

        assert transcript(result.envelopes) == expected.splitlines()
        history = result.state.conversation.phase_history
        assert [one.to_phase for one in history] == PHASES[name]
        assert result.close_reason == "pipeline_complete"


async def test_supervisor_of_the_quick_start_sees_what_is_said_and_stays_silent() -> None:
    team = example("quick_start").team
    watcher = next(one for one in team.agents if one.name == "agent-supervisor")
    before = len(watcher.model.requests)

    await team.arun("I was charged twice, 20 each.")

    seen = [str(request.messages[-1].text) for request in watcher.model.requests[before:]]
    assert any("[agent-triage]: A billing request." in shown for shown in seen)


async def test_return_of_the_quick_start_brings_its_summary_to_the_handler_once() -> None:
    team = example("quick_start").team
    handler = next(one for one in team.agents if one.name == "agent-handler")
    before = len(handler.model.requests)

    await team.arun("I was charged twice, 20 each.")

    first, second = handler.model.requests[before:]
    summary = "[Context from agent-reviewer]: The customer does not know"
    assert not any(summary in str(message.text) for message in first.messages)
    assert [str(m.text).count(summary) for m in second.messages if m.type == "human"] == [0, 1]


async def test_analysis_keeps_what_its_tools_noted_and_writes_it_with_the_round() -> None:
    result = await example("analysis").team.arun("We need a median.")

    written = [
        (one.sender_id, one.event_data["context_updates"]["set"])
        for one in result.envelopes
        if one.event_data.get("context_updates", {}).get("set")
    ]
    assert written == [
        ("agent-discuss", {"requirement": "median of any list, None of an empty one"}),
        ("agent-coder", {"version": 1}),
        ("agent-coder", {"version": 2}),
    ]
    assert result.state.context_vars["version"] == 2


async def test_human_is_waited_for_until_they_speak_or_release() -> None:
    envelopes = await example("human_in_the_loop").hold()

    assert transcript(envelopes) == [
        "ag.session.opened ag.hub:",
        "ag.msg.text user: Write an apology for a late parcel.",
        "ag.packet writer:",
        "ag.handoff ag.hub: writer → human: Is 'It is late.' fine?",
        "ag.msg.text user: Friendlier, please.",
        "ag.packet writer:",
        "ag.handoff ag.hub: writer → human: May I send 'Sorry for the wait!'?",
        "ag.session.released ag.hub:",
        "ag.packet sender: It is sent.",
        "ag.session.closed ag.hub: sent",
    ]


async def test_parallel_reviewers_both_speak_before_the_editor_and_one_after_the_other() -> None:
    result = await example("parallel_reviewers").team.arun("A page on tidal power, please.")

    lines = transcript(result.envelopes)
    assert lines[:3] == [
        "ag.session.opened ag.hub:",
        "ag.msg.text user: A page on tidal power, please.",
        "ag.packet author: A draft.",
    ]
    assert sorted(lines[3:5]) == [
        "ag.packet lawyer: Nobody can sue.",
        "ag.packet stylist: Too many commas.",
    ]
    assert lines[5:] == [
        "ag.packet editor: Both have read it: printed.",
        "ag.session.closed ag.hub: edited",
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_alone(name: str) -> None:
    command = [sys.executable, "-m", f"examples.sessions.{name}"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= 6


def test_every_example_is_tested() -> None:
    modules = {path.stem for path in (ROOT / "examples" / "sessions").glob("[!_]*.py")}

    assert modules == set(EXAMPLES)


async def test_quick_start_streams_the_tokens_of_each_round_between_its_envelopes() -> None:
    envelopes: list[Envelope] = []
    spoken: dict[tuple[int, str], str] = {}

    async for one in example("quick_start").team.astream("I was charged twice, 20 each."):
        if isinstance(one, Envelope):
            envelopes.append(one)
        elif isinstance(one, TokenEvent):
            key = one.round, one.agent
            spoken[key] = spoken.get(key, "") + one.text

    assert transcript(envelopes, first=2) == QUICK_START.splitlines()[1:]
    said = {(one.event_data["round"], one.sender_id): one.text for one in envelopes[1:] if one.text}
    assert spoken == said
