"""A window shows the last messages that its reader may see, and counts no others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import Agent
from agentgraph.outcomes import Handoff
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph
from agentgraph.sessions import EV_TEXT, Envelope, FullTranscript, Team, WindowedSummary, visible_to
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.rounds.recent import RecentEnvelopes
from agentgraph.sessions.state.fold import fold, fold_all
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import visible_counts
from agentgraph.sessions.team.window import read_window
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import after, agent, heard, held, shown

AGENTS = ("a", "b", "c")
RECORD = SessionRecord("s", "team", "user", AGENTS, (), {}, 0.0)

audiences = st.none() | st.lists(st.sampled_from([*AGENTS, "user"]), max_size=3, unique=True)
messages = st.lists(st.tuples(st.sampled_from([*AGENTS, "user"]), audiences), max_size=300)


class CountingLog(MemoryLog):
    """A log that counts what is read of it."""

    read_count = 0

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        found = await super().tail(session_id, count, before)
        self.read_count += len(found)
        return found


def log_of(said: list[tuple[str, list[str] | None]]) -> list[Envelope]:
    return [
        Envelope(
            f"{number}",
            "s",
            sender,
            None if audience is None else tuple(audience),
            EV_TEXT if number % 5 else "my.event",
            {"text": f"word {number}"},
            sequence=number,
        )
        for number, (sender, audience) in enumerate(said, 1)
    ]


@settings(max_examples=60)
@given(said=messages, count=st.integers(1, 9), forgotten=st.integers(0, 300))
async def test_a_window_and_its_counts_are_those_of_what_the_reader_may_see(
    said: list[tuple[str, list[str] | None]], count: int, forgotten: int
) -> None:
    envelopes, log = log_of(said), CountingLog()
    state = fold_all(SessionState.initial(RECORD), envelopes)
    await log.create(RECORD, envelopes, state)
    state = SessionState.from_dict({**state.to_dict(), "round_began": len(envelopes)})
    recent = RecentEnvelopes()
    recent.add(envelopes[forgotten:])
    for reader in AGENTS:
        seen = [one for one in envelopes if one.is_substantive and visible_to(one, reader)]
        assert await read_window(log, state, reader, count) == seen[-count:]
        assert await read_window(log, state, reader, count, recent=recent) == seen[-count:]
        assert visible_counts(state, reader) == Counter(one.sender_id for one in seen)


@given(said=messages, at=st.integers(0, 300))
def test_going_on_from_a_stored_state_counts_the_same(
    said: list[tuple[str, list[str] | None]], at: int
) -> None:
    envelopes = log_of(said)
    stored = fold_all(SessionState.initial(RECORD), envelopes[:at]).to_dict()
    state = SessionState.from_dict(stored)
    for envelope in envelopes[at:]:
        state = fold(state, envelope)
    assert state == fold_all(SessionState.initial(RECORD), envelopes)


async def read_in(said: list[tuple[str, list[str] | None]], reader: str) -> int:
    """Return how many messages are read for a window of four."""
    envelopes, log = log_of(said), CountingLog()
    state = fold_all(SessionState.initial(RECORD), envelopes)
    await log.create(RECORD, envelopes, state)
    state = SessionState.from_dict({**state.to_dict(), "round_began": len(envelopes)})
    assert len(await read_window(log, state, reader, 4)) == 4
    return log.read_count


@pytest.mark.parametrize("hidden", [0, 10, 1_000])
async def test_what_a_reader_may_not_see_is_not_read(hidden: int) -> None:
    public: list[tuple[str, list[str] | None]] = [("user", None)] * 6
    private: list[tuple[str, list[str] | None]] = [("user", ["a"])] * hidden
    assert await read_in([*public, *private], "b") == 4
    alternating = [one for _ in range(6) for one in (public[0], *private[:50])]
    assert await read_in(alternating, "b") == 4


async def test_the_state_does_not_grow_with_private_messages() -> None:
    pair: list[tuple[str, list[str] | None]] = [("user", ["a"]), ("user", None)]
    sizes = [
        len(str(fold_all(SessionState.initial(RECORD), log_of(pair * times)).to_dict()))
        for times in (200, 2_000)
    ]
    assert sizes[1] < 1.2 * sizes[0]


# As models are shown it.


def two_who_answer(**fields: Any) -> tuple[Agent, Agent, Team]:
    """Return two agents: a answers the user and gives to b what is "for b"."""

    def answer(messages: Any) -> Any:
        is_for_b = heard(messages).endswith("for b") and messages[-1].type != "tool"
        return call("give") if is_for_b else "a speaks"

    def give() -> Handoff:
        """Give to b."""
        return Handoff("b", "theirs")

    one = Agent("a", "does a", model=ScriptedModel(answer), tools=[give], default_tools=False)
    other = agent("b")
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    return one, other, Team([one, other], rules, **fields)


async def test_private_talk_of_others_does_not_push_anything_out_of_a_window() -> None:
    _, other, team = two_who_answer(view=WindowedSummary(4))
    async with held(team) as session:
        await after(session, "user", "first", "second")
        for number in range(10):
            await after(session, "user", f"psst {number}", audience=["a"])
        await after(session, "user", "for b")
    told = shown(other)
    assert "psst" not in told and "second" in told
    assert "Earlier" in told


async def test_the_line_about_earlier_messages_counts_and_names_what_the_reader_may_see() -> None:
    _, other, team = two_who_answer(view=WindowedSummary(2), humans=["guest"])
    async with held(team) as session:
        await session.join("guest")
        for number in range(3):
            await after(session, "user", f"public {number}")
        await after(session, "guest", "psst", audience=["a"])
        await after(session, "user", "psst", audience=["a"])
        await after(session, "user", "for b")
    # Three by the user and three by a; the window has what is for b, and the handoff.
    assert "[Earlier in this conversation: 6 messages from user, a]" in shown(other)


@pytest.mark.parametrize("view", [FullTranscript(), WindowedSummary(30)])
async def test_no_line_tells_of_private_talk_where_all_else_is_shown(view: Any) -> None:
    _, other, team = two_who_answer(view=view)
    async with held(team) as session:
        await after(session, "user", "hello")
        await after(session, "user", "psst", audience=["a"])
        await after(session, "user", "for b")
    assert "Earlier" not in shown(other) and "psst" not in shown(other)


async def test_a_summary_leaves_out_what_is_private_and_the_window_does_not_tell_of_it() -> None:
    async def join(before: str, older: Any) -> str:
        return " ".join([before, *(one.text for one in older)]).strip()

    _, other, team = two_who_answer(view=WindowedSummary(2), summarize=join)
    async with held(team) as session:
        for number in range(6):
            await after(session, "user", f"public {number}")
            await after(session, "user", f"psst {number}", audience=["a"])
        await after(session, "user", "for b")
        told = shown(other)
        assert "psst" not in told
        assert all(f"public {number}" in told for number in range(6))
