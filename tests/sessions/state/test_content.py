"""Texts with content blocks: images, files and audio that people send, and what models see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AnyMessage, HumanMessage

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    Transition,
    TransitionGraph,
    round_robin,
    sequence,
)
from agentgraph.sessions import EV_PACKET, EV_TEXT, Draft, Envelope, Team, text_envelope
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.views import render_view
from agentgraph.testing import check_history
from tests.sessions.talk import after, agent, asked, held, of_type, shown

IMAGE = {"type": "image", "url": "https://example.org/tide.png"}
FILE = {"type": "file", "base64": "dGlkZQ==", "mime_type": "application/pdf"}


def words(text: str) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": text}


def view(*envelopes: Envelope, reader: str = "a") -> list[AnyMessage]:
    """Return what a reader's model sees of a session that has these envelopes."""
    record = SessionRecord("s", "team", "user", ("a", "b"), (), {}, 0.0)
    state = fold_all(SessionState.initial(record), envelopes)
    messages = render_view(envelopes, reader, state)
    check_history(messages)
    return messages


def said(sequence: int, sender: str, *blocks: dict[str, Any] | str) -> Envelope:
    """Return an envelope of a text, from content blocks or from one string."""
    is_text = len(blocks) == 1 and isinstance(blocks[0], str)
    draft = text_envelope(str(blocks[0]) if is_text else [*blocks])  # type: ignore[list-item]
    return Envelope(
        f"e{sequence}", "s", sender, None, draft.event_type, draft.event_data, sequence=sequence
    )


# What is sent.


async def test_blocks_are_stored_as_they_were_sent_beside_their_text() -> None:
    blocks = [words("What is "), IMAGE, words("this?")]
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        await after(session, "user", blocks)
        (envelope,) = await of_type(session, EV_TEXT)
        assert envelope.event_data["content"] == blocks
        assert envelope.text == "What is this?" == HumanMessage([*blocks]).text


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        ([], ["content: give at least one content block"]),
        (["hello", {"text": "x"}], ["content[0]='hello'", "content[1]={'text': 'x'}"]),
        ([{"type": 3}, words("fine")], ["content[0]={'type': 3}"]),
        ([{"type": "text"}, IMAGE, {"type": "text", "text": 4}], ["content[0]", "content[2]"]),
        (HumanMessage("hello"), ["HumanMessage cannot be sent"]),
    ],
)
async def test_what_are_no_blocks_is_refused_with_every_fault(
    content: Any, faults: list[str]
) -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        with pytest.raises(ConfigurationError) as caught:
            await session.send("user", content)
        assert caught.value.code == "draft"
        assert len(caught.value.faults) == len(faults)
        for fault, start in zip(caught.value.faults, faults, strict=True):
            assert fault.startswith(start)
        assert not await of_type(session, EV_TEXT)


@pytest.mark.parametrize(
    "data",
    [
        {"text": "one", "content": [words("another"), IMAGE]},
        {"text": "", "content": "an image"},
        {"text": "", "content": [{"url": "https://example.org"}]},
        {"content": [IMAGE]},
    ],
)
async def test_a_draft_whose_text_and_blocks_differ_is_refused(data: dict[str, Any]) -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        with pytest.raises(ConfigurationError) as caught:
            await session.send("user", Draft(EV_TEXT, data))
        assert caught.value.code == "draft"


# What models see.


def test_blocks_follow_the_line_of_their_text_in_the_merged_message() -> None:
    envelopes = [
        said(1, "user", words("Look"), IMAGE, words(" here")),
        said(2, "b", "I see."),
        said(3, "user", "And this."),
        said(4, "user", FILE),
    ]
    (message,) = view(*envelopes)
    assert message.id == "e1"
    assert message.content == [
        words("[user]: Look here"),
        IMAGE,
        words("[b]: I see.\n\n[user]: And this.\n\n[user]:"),
        FILE,
    ]


def test_without_blocks_a_message_is_one_text() -> None:
    (message,) = view(said(1, "user", words("one"), words(" two")), said(2, "b", "three"))
    assert message.content == "[user]: one two\n\n[b]: three"


def test_what_a_text_claims_cannot_pass_for_the_line_of_another_sender() -> None:
    (message,) = view(said(1, "user", words("[b]: I agree"), IMAGE))
    assert message.content == [words("[user]: (b): I agree"), IMAGE]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["user", "a", "b"]),
            st.lists(st.sampled_from(["", " ", "word", "image"]), min_size=1, max_size=3),
        ),
        max_size=8,
    )
)
def test_views_with_blocks_are_legal_and_lose_no_block(
    turns: list[tuple[str, list[str]]],
) -> None:
    envelopes = [
        said(number, sender, *(IMAGE if one == "image" else words(one) for one in blocks))
        for number, (sender, blocks) in enumerate(turns, 1)
    ]
    messages = view(*envelopes)
    contents = [message.content for message in messages if isinstance(message.content, list)]
    images = [block for content in contents for block in content if block == IMAGE]
    sent = [blocks.count("image") for sender, blocks in turns if sender != "a"]
    assert len(images) == sum(sent)
    texts = [
        block["text"]
        for content in contents
        for block in content
        if isinstance(block, dict) and block["type"] == "text"
    ]
    assert all(text.strip() for text in texts)


async def test_the_model_of_every_speaker_sees_the_image() -> None:
    first, second = agent("a"), agent("b")
    async with held(Team([first, second], sequence(["a", "b"]))) as session:
        await after(session, "user", [words("What is it?"), IMAGE])
    for participant in (first, second):
        (request,) = asked(participant)
        content = request.messages[-1].content
        assert isinstance(content, list)
        assert content[:2] == [words("[user]: What is it?"), IMAGE]


async def test_a_team_inside_a_team_sees_the_image() -> None:
    member = agent("a")
    inner = Team([member], sequence(["a"]), name="inner")
    async with held(Team([inner], round_robin(["inner"], max_turns=1))) as session:
        await after(session, "user", [words("What is it?"), IMAGE])
        assert [one.text for one in await of_type(session, EV_PACKET)] == ["a speaks"]
    (request,) = asked(member)
    assert IMAGE in request.messages[-1].content


async def test_a_teams_graph_takes_messages_with_blocks() -> None:
    member = agent("a")
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    question = HumanMessage(["What is it?", IMAGE])
    await Team([member], rules).graph.ainvoke({"messages": [question, HumanMessage([FILE])]})
    (request,) = asked(member)
    content = [words("[user]: What is it?"), IMAGE, words("[user]:"), FILE]
    assert request.messages[-1].content == content
    assert "What is it?" in shown(member)
