"""A team on `ChatOpenAI`, over TCP, against a server that speaks the OpenAI API and its faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from agentgraph import (
    Agent,
    Envelope,
    FromSpeaker,
    Guards,
    Hub,
    HumanTarget,
    ParallelTarget,
    Session,
    Team,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.guards import Backoff
from agentgraph.phases import ConversationPipeline, PipelineStage
from agentgraph.sessions import EV_PACKET, EV_ROUND_FAILED, SessionState, set_context
from agentgraph.sessions.state.fold import fold
from agentgraph.stream import ErrorEvent, Event, TokenEvent, ToolResponseEvent, ToolUsageEvent
from tests.sessions.talk import PATIENCE_S, after, held, of_type, settled, talk, untried
from tests.wire import (
    Wire,
    call,
    chat_openai,
    disconnected,
    fail,
    malformed,
    rate_limit,
    serve,
    stalled,
    text,
)

LONG = text("one two three four five six")
FAULTS = {
    "429": (rate_limit(), "RateLimitError 429"),
    "500": (fail(500), "APIError 500"),
    "stalled": (stalled(LONG), "Timeout"),
    "disconnected": (disconnected(LONG), "Error"),
}


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serve() as served:
        yield served


def note(text: str) -> str:
    """Note something."""
    set_context("noted", text)
    return f"noted: {text}"


def team(wire: Wire, **fields: Any) -> Team:
    """Two who speak one after the other; the first can note something."""
    model = chat_openai(wire, timeout=2, streaming=True)
    return Team(
        [Agent("a", "does a", model=model, tools=[note]), Agent("b", "does b", model=model)],
        sequence(["a", "b"]),
        **fields,
    )


def check_wire(messages: Sequence[Mapping[str, Any]]) -> None:
    """Hold that OpenAI would take these messages."""
    asked: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            asked.remove(message["tool_call_id"])
            continue
        assert not asked, "a call without an answer"
        asked = [made["id"] for made in message.get("tool_calls") or ()]
        assert message.get("content") or asked, "an empty message"
    assert not asked
    assert messages[0]["role"] == "system"
    assert messages[-1]["role"] in ("user", "tool")


def check_all(wire: Wire) -> None:
    """Hold that all that was sent is legal, and that the script is used up."""
    for body in wire.requests:
        check_wire(body["messages"])
    assert wire.left == 0


async def check_replay(session: Session) -> None:
    """Hold that the log folds to the state."""
    state = SessionState.initial(session.record)
    for envelope in await session.history():
        state = fold(state, envelope)
    assert state == session.state


@pytest.mark.parametrize("name", FAULTS)
async def test_fault_of_the_provider_is_a_failed_round_that_is_tried_again(
    wire: Wire, name: str
) -> None:
    fault, told = FAULTS[name]
    wire.script(call("note", text="x"), fault, call("note", text="y"), text("A."), text("B."))

    async with held(team(wire, guards=untried())) as session:
        state = await after(session, "user", "go")

        assert await talk(session) == [("user", "go"), ("a", "A."), ("b", "B.")]
        [failed] = await of_type(session, EV_ROUND_FAILED)
        expected = {"speaker": "a", "round": 1, "attempt": 1, "code": "model", "final": False}
        assert {key: failed.event_data[key] for key in expected} == expected
        assert told in failed.event_data["message"]
        assert "127.0.0.1" not in failed.event_data["message"]
        [first, _] = await of_type(session, EV_PACKET)
        assert first.event_data["attempt"] == 2
        assert state.context_vars == {"noted": "y"}, "the writes of the attempt that died are void"
        assert state.pending_close_reason == "sequence_complete"
        await check_replay(session)
    check_all(wire)


async def test_faults_that_pass_are_mended_within_the_round(wire: Wire) -> None:
    faults = [rate_limit(0), fail(500)]
    wire.script(call("note", text="x"), *faults, text("A."), text("B."))
    guards = Guards.interactive(backoff=Backoff(base_s=0))

    async with held(team(wire, guards=guards)) as session:
        state = await after(session, "user", "go")

        assert await talk(session) == [("user", "go"), ("a", "A."), ("b", "B.")]
        assert await of_type(session, EV_ROUND_FAILED) == []
        assert state.context_vars == {"noted": "x"}
        await check_replay(session)
    check_all(wire)


@pytest.mark.parametrize("name", FAULTS)
async def test_second_fault_closes_the_session(wire: Wire, name: str) -> None:
    fault, _ = FAULTS[name]
    wire.script(text("A."), fault, fault)

    async with held(team(wire, guards=untried())) as session:
        state = await after(session, "user", "go")

        assert (state.status, state.pending_close_reason) == ("closed", "round_failed")
        failed = await of_type(session, EV_ROUND_FAILED)
        told = [(one.event_data["attempt"], one.event_data["final"]) for one in failed]
        assert told == [(1, False), (2, True)]
        assert await talk(session) == [("user", "go"), ("a", "A.")]
        await check_replay(session)
    check_all(wire)


async def test_second_fault_leads_to_whoever_is_there_for_failures(wire: Wire) -> None:
    wire.script(fail(500), rate_limit(), text("B stands in."))

    async with held(team(wire, failure_target="b", guards=untried())) as session:
        await after(session, "user", "go")

        assert await talk(session) == [("user", "go"), ("b", "B stands in.")]
        [_, last] = await of_type(session, EV_ROUND_FAILED)
        assert last.event_data["decision"]["speakers"] == ["b"]
    check_all(wire)


async def test_malformed_arguments_are_answered_within_the_round(wire: Wire) -> None:
    wire.script(malformed("note"), call("note", text="x"), text("A."), text("B."))

    async with held(team(wire)) as session:
        await after(session, "user", "go")

        [first, _] = await of_type(session, EV_PACKET)
        calls = [made for step in first.event_data["steps"] for made in step["calls"]]
        assert [made["status"] for made in calls][-1] == "success"
        assert first.event_data["attempt"] == 1
        assert await of_type(session, EV_ROUND_FAILED) == []
        assert session.state.context_vars == {"noted": "x"}
    check_all(wire)


async def test_round_whose_arguments_were_malformed_is_shown_legally_in_the_next(
    wire: Wire,
) -> None:
    model = chat_openai(wire)
    rules = TransitionGraph("a", [Transition(FromSpeaker("a"), HumanTarget())], "a")
    alone = Team([Agent("a", model=model, tools=[note])], rules)
    wire.script(malformed("note"), call("note", text="x"), text("A."), text("Again."))

    async with held(alone) as session:
        await after(session, "user", "go")
        await after(session, "user", "and now?")

        assert [said for _, said in await talk(session)] == ["go", "A.", "and now?", "Again."]
    roles = [message["role"] for message in wire.requests[-1]["messages"]]
    assert roles[:2] == ["system", "user"] and roles.count("tool") == roles.count("assistant") - 1
    check_all(wire)


async def test_handoff_goes_over_the_wire_with_an_enum_and_back_as_a_tool_pair(wire: Wire) -> None:
    model = chat_openai(wire)
    desk = Team(
        [Agent("writer", "Writes", model=model), Agent("reviewer", "Reviews", model=model)],
        ConversationPipeline(
            [
                PipelineStage("writing", "writer", next="review"),
                PipelineStage("review", "reviewer", can_return_to={"writing"}),
            ]
        ),
    )
    back = call("handoff_conversation", target="writer", reason="long", summary="Shorter!")
    wire.script(text("Two pages."), back, text("Half a page."), text("Good."))

    result = await desk.arun("write")

    assert [one.text for one in result.envelopes if one.event_type == EV_PACKET] == [
        *("Two pages.", "", "Half a page.", "Good.")
    ]
    sent = wire.requests
    [tool] = [
        one["function"]
        for one in sent[1]["tools"]
        if one["function"]["name"] == "handoff_conversation"
    ]
    assert tool["parameters"]["properties"]["target"]["enum"] == ["writer", "human"]
    assert "[Context from reviewer]: Shorter!" in sent[2]["messages"][-1]["content"]
    roles = [message["role"] for message in sent[3]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    check_all(wire)


async def streamed(session: Session, *said: str) -> list[Envelope | Event]:
    """Say something, and return what is streamed until the session ends."""
    stream = session.stream()
    told: list[Envelope | Event] = [await anext(stream)]
    async with asyncio.timeout(PATIENCE_S):
        for one in said:
            await session.send("user", one)
        told += [one async for one in stream]
    return told


def tokens_of(told: Sequence[Envelope | Event], speaker: str, round: int, attempt: int) -> str:
    return "".join(
        one.text
        for one in told
        if isinstance(one, TokenEvent)
        and (one.agent, one.round, one.attempt) == (speaker, round, attempt)
    )


async def test_tokens_are_streamed_with_their_round_and_attempt(wire: Wire) -> None:
    wire.script(
        *(disconnected(text("It was lost half way through"), after_chunks=4),),
        *(call("note", text="x"), text("A says this."), text("B says that.")),
    )

    async with held(team(wire)) as session:
        told = await streamed(session, "go")

    lost = tokens_of(told, "a", 1, 1)
    assert lost and "It was lost half way through".startswith(lost)
    assert tokens_of(told, "a", 1, 2) == "A says this."
    assert tokens_of(told, "b", 2, 1) == "B says that."
    assert {(one.round, one.attempt) for one in told if isinstance(one, Event)} == {
        *((1, 1), (1, 2), (2, 1))
    }
    calls = [one for one in told if isinstance(one, ToolUsageEvent | ToolResponseEvent)]
    assert [(one.type, one.tool, one.attempt) for one in calls] == [
        ("tool_usage", "note", 2),
        ("tool_response", "note", 2),
    ]
    [error] = [one for one in told if isinstance(one, ErrorEvent)]
    assert (error.code, error.agent, error.attempt) == ("model", "a", 1)
    envelopes = [one for one in told if isinstance(one, Envelope)]
    assert [one.sequence for one in envelopes] == list(range(1, len(envelopes) + 1))
    check_all(wire)


async def test_tokens_of_a_round_come_before_its_packet(wire: Wire) -> None:
    wire.script(text("A says this."), text("B says that."))

    async with held(team(wire)) as session:
        told = await streamed(session, "go")

    packets = [told.index(one) for one in told if getattr(one, "event_type", "") == EV_PACKET]
    tokens = [told.index(one) for one in told if isinstance(one, TokenEvent) and one.agent == "a"]
    assert tokens and tokens[0] < packets[0]


async def test_parallel_speakers_fail_and_are_tried_again_each_by_itself(wire: Wire) -> None:
    own, other = serve(), serve()
    with own as steady, other as shaky:
        both = Team(
            [
                Agent("author", model=chat_openai(wire)),
                Agent("left", model=chat_openai(steady)),
                Agent("right", model=chat_openai(shaky)),
                Agent("editor", model=chat_openai(wire)),
            ],
            TransitionGraph(
                "author",
                [
                    Transition(
                        FromSpeaker("author"), ParallelTarget(("left", "right"), join="editor")
                    ),
                    Transition(FromSpeaker("editor"), TerminateTarget("edited")),
                ],
            ),
            guards=untried(),
        )
        wire.script(text("A draft."), text("Printed."))
        steady.script(text("Left."))
        shaky.script(fail(500), text("Right."))

        result = await both.arun("write")

        said = [(one.sender_id, one.text) for one in result.envelopes if one.is_substantive]
        assert said[0:2] == [("user", "write"), ("author", "A draft.")]
        assert sorted(said[2:4]) == [("left", "Left."), ("right", "Right.")]
        assert said[4:] == [("editor", "Printed.")]
        assert result.close_reason == "edited"
        assert (steady.left, shaky.left, len(steady.requests)) == (0, 0, 1)
    check_all(wire)


async def test_usage_of_the_provider_is_summed_up_by_agent(wire: Wire) -> None:
    wire.script(call("note", text="x"), text("A."), text("B."))

    result = await team(wire).arun("go")

    assert set(result.usage.by_agent) == {"a", "b"}
    assert all(part.input_tokens and part.output_tokens for part in result.usage.by_agent.values())


async def test_hub_that_is_closed_while_the_provider_stalls_goes_on_in_the_next(
    wire: Wire, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    one = Team([Agent("a", model=chat_openai(wire, timeout=30))], sequence(["a"]))
    wire.script(stalled(text("never to be read"), seconds=2), text("A."))

    hub = await Hub.open(url, serve=[one])
    session = await hub.session(one, id="s")
    stream = session.stream()
    await anext(stream)
    await session.send("user", "go")
    async for told in stream:
        if isinstance(told, TokenEvent):
            break  # the provider has begun, and will not end
    await hub.aclose()

    async with await Hub.open(url, serve=[one]) as hub:
        session = await hub.get("s")
        await settled(session)

        assert await talk(session) == [("user", "go"), ("a", "A.")]
        assert await of_type(session, EV_ROUND_FAILED) == []
    check_all(wire)
