"""Sessions of one: who speaks is answered, runs end and the session goes on, on every store."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Hub, Session, Team, sequence, set_context
from agentgraph.errors import ConfigurationError, ModelError, SessionError, StorageError
from agentgraph.sessions import (
    EV_DECISION,
    EV_INTERRUPT,
    EV_REWOUND,
    EV_ROUND_FAILED,
    EV_TEXT,
    Draft,
    Envelope,
    current_session,
)
from agentgraph.sessions.envelopes.blobs import digests_in
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.single.team import SingleTeam
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.state import SessionState
from agentgraph.testing import FakeClock, ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.sessions.talk import until


def desk(*turns: Scripted, **fields: Any) -> Agent[Any]:
    fields = {"default_tools": False, **fields}
    return Agent("desk", "Answers", model=ScriptedModel(turns), **fields)


def echo(messages: Sequence[Any]) -> str:
    humans = [str(m.text) for m in messages if isinstance(m, HumanMessage)]
    return f"{len(humans)}: {humans[-1]}"


def echoing(name: str = "desk", **fields: Any) -> Agent[Any]:
    fields = {"default_tools": False, **fields}
    return Agent(name, "Answers", model=ScriptedModel(echo), **fields)


@tool
def ask(question: str) -> str:
    """Ask a human."""
    return f"they said {interrupt(question)}"


def types(envelopes: Sequence[Envelope]) -> list[str]:
    return [envelope.event_type for envelope in envelopes]


async def test_whoever_speaks_is_answered_and_then_it_waits(log_url: str) -> None:
    agent = echoing()
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session("desk", participants=["ann"])
        await session.join("ann")
        first = await session.ask("hello")
        second = await session.ask("me too", sender="ann")
        assert (first.text, first.speaker, first.status) == ("1: hello", "desk", "waiting_human")
        assert second.text == "2: me too"
        assert session.state.status == "waiting_human"


async def test_each_of_several_texts_has_an_answer_of_its_own(log_url: str) -> None:
    agent = echoing()
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        answers = await asyncio.gather(*[session.ask(f"text {number}") for number in range(5)])
    assert sorted(answer.text.partition(": ")[2] for answer in answers) == [
        f"text {number}" for number in range(5)
    ]
    assert sorted(answer.text.partition(": ")[0] for answer in answers) == [*"12345"]


async def test_a_session_goes_on_in_another_hub_of_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    for number in range(1, 5):
        agent = echoing()
        async with await Hub.open(url, serve=[agent]) as hub:
            session = await hub.session(agent, id="42")
            assert (await session.ask("hi")).text == f"{number}: hi"


async def test_it_neither_expires_nor_is_closed_unless_asked(log_url: str) -> None:
    clock, agent = FakeClock(), echoing()
    async with await Hub.open(log_url, serve=[agent], clock=clock) as hub:
        session = await hub.session(agent)
        limited = await hub.session(agent, ttl="1h")
        await session.ask("hi")
        clock.advance(30 * 86_400)
        await limited.settled()
        assert (await session.ask("still there?")).text == "2: still there?"
        assert limited.state.status == "expired"


async def test_a_failed_run_raises_and_the_session_goes_on(log_url: str) -> None:
    agent = desk(ValueError("no"), "well", guards=Guards.interactive(retry=None))
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        with pytest.raises(ModelError, match="ValueError"):
            await session.ask("go")
        assert session.state.status == "waiting_human"
        answer = await session.ask("and now?")
        assert answer.text == "well"
        failures = [e for e in await session.history() if e.event_type == EV_ROUND_FAILED]
        assert [e.event_data["final"] for e in failures] == [True]


async def test_an_answer_says_that_its_run_was_cancelled_or_taken_back(log_url: str) -> None:
    began = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    agent = desk(call("hang"), call("hang"), "again", tools=[hang])
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        first = asyncio.ensure_future(session.ask("go"))
        await began.wait()
        await session.cancel()
        answer = await first
        assert (answer.text, answer.close_reason) == ("", "cancelled")
        began.clear()
        before, second = session.state.sequence, asyncio.ensure_future(session.ask("go on"))
        await began.wait()
        await session.rewind(before)
        assert (await second).close_reason == "rewound"


async def test_an_answer_is_closed_where_a_tool_has_closed_the_session(log_url: str) -> None:
    @tool
    async def close() -> str:
        """Close."""
        await current_session().close("enough")
        return "closed"

    agent = desk(call("close"), "bye", tools=[close])
    async with await Hub.open(log_url, serve=[agent]) as hub:
        answer = await (await hub.session(agent)).ask("go")
        assert (answer.text, answer.status, answer.close_reason) == ("bye", "closed", "enough")


async def test_a_reader_is_not_given_the_state_of_a_rewind() -> None:
    agent = desk(call("ask", question="the marker"), "fine", "well", tools=[ask])
    async with await Hub.open(serve=[agent]) as hub:
        session = await hub.session(agent, participants=["bob"])
        await session.join("bob")
        asked = await session.ask("in private", audience=["desk"])
        await session.decide(asked.interrupts[0].id, "yes")
        await session.answer(asked.run_id)
        (question,) = [e for e in await session.history() if e.event_type == EV_INTERRUPT]
        await session.rewind(question.sequence)
        await session.settled()
        (rewind,) = [e for e in await session.history() if e.event_type == EV_REWOUND]
        explanation = await session.explain(rewind.sequence, reader="bob")
        envelopes = [explanation.envelope, *await session.history(reader="bob")]
        rewinds = [e for e in envelopes if e.event_type == EV_REWOUND]
        assert [set(e.event_data) for e in rewinds] == [{"to", "by"}] * 2


async def test_a_text_takes_an_open_question_back(log_url: str) -> None:
    agent = desk(call("ask", question="pay?"), "as you like", tools=[ask])
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        asked = await session.ask("pay")
        (question,) = asked.interrupts
        assert (await session.ask("never mind")).text == "as you like"
        with pytest.raises(SessionError, match="nothing waits for a decision"):
            await session.decide(question.id, "yes")
        (decision,) = [e for e in await session.history() if e.event_type == EV_DECISION]
        assert decision.event_data["type"] == "withdrawn"
        assert decision.event_data["interrupt_id"] == question.id


async def test_a_decision_that_comes_first_is_carried_out_before_the_text(log_url: str) -> None:
    agent = desk(call("ask", question="pay?"), "paid", "bye", tools=[ask])
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        asked = await session.ask("pay")
        await session.decide(asked.interrupts[0].id, "yes")
        assert (await session.ask("thanks")).text == "bye"
        assert (await session.answer(asked.run_id)).text == "paid"


async def test_a_question_survives_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    agent = desk(call("ask", question="pay?"), tools=[ask])
    async with await Hub.open(url, serve=[agent]) as hub:
        asked = await (await hub.session(agent, id="42")).ask("pay")
    agent = desk("paid", tools=[ask])
    async with await Hub.open(url, serve=[agent]) as hub:
        session = await hub.get("42")
        await session.decide(asked.interrupts[0].id, "yes")
        answer = await session.answer(asked.run_id)
        assert (answer.text, answer.status) == ("paid", "waiting_human")
        texts = [m.text for m in await session.messages()]
        assert texts == ["pay", "", "they said yes", "paid"]


async def test_a_call_that_waits_has_no_answer_in_the_messages() -> None:
    agent = desk([call("ask", question="pay?")], tools=[ask])
    async with await Hub.open(serve=[agent]) as hub:
        session = await hub.session(agent)
        await session.ask("pay")
        assert [m.type for m in await session.messages()] == ["human", "ai"]


async def test_context_variables_are_the_sessions(log_url: str) -> None:
    @tool
    def upgrade() -> str:
        """Upgrade."""
        set_context("tier", "gold")
        return "upgraded"

    agent = desk(call("upgrade"), "done", tools=[upgrade])
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent, context={"tier": "basic"})
        await session.ask("more")
        assert session.state.context_vars["tier"] == "gold"


async def test_a_fork_has_the_conversation_and_its_large_parts(log_url: str) -> None:
    image = {"type": "image", "base64": "A" * 200_000, "mime_type": "image/png"}
    model = ScriptedModel(lambda messages: f"{len(messages[-1].content)} parts")
    agent = Agent("desk", model=model, default_tools=False)
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        await session.ask([{"type": "text", "text": "see"}, image])
        before = await session.messages()
        fork = await session.fork(session.state.sequence)
        assert shape(await fork.messages()) == shape(before)
        await fork.ask("and?")
        content: Any = model.requests[-1].messages[1].content
        assert content[1]["base64"] == image["base64"]
        assert len(await session.messages()) == 2


class Full(MemoryLog):
    """A log that stores no more blobs once it is full, as a server of it would that is killed."""

    is_full = False

    async def store_blobs(self, session_id: str, blobs: Mapping[str, str]) -> None:
        if self.is_full:
            raise StorageError("no space left")
        await super().store_blobs(session_id, blobs)


async def test_no_fork_is_without_its_large_parts() -> None:
    image = {"type": "image", "base64": "A" * 200_000, "mime_type": "image/png"}
    agent, log = echoing(), Full()
    hub = Hub(log, InMemorySaver(), [SingleTeam.of(agent)], 30.0)
    await hub.start(None)
    async with hub:
        session = await hub.session(agent)
        await session.ask([{"type": "text", "text": "see"}, image])
        log.is_full = True
        with suppress(StorageError):
            await session.fork(session.state.sequence)
        for summary in await hub.sessions():
            messages = await (await hub.get(summary.session_id)).messages()
            assert messages[0].content[1]["base64"] == image["base64"]  # type: ignore[index]
        assert len(await hub.sessions()) == 2


def shape(messages: Sequence[AnyMessage]) -> list[Any]:
    return [(m.type, m.content) for m in messages]


async def test_a_missing_blob_quarantines_its_session_until_it_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    image = {"type": "image", "base64": "A" * 200_000, "mime_type": "image/png"}
    agent = echoing()
    async with await Hub.open(f"sqlite:///{path}", serve=[agent]) as hub:
        session = await hub.session(agent)
        await session.ask([{"type": "text", "text": "see"}, image])
        with sqlite3.connect(path) as file:
            rows = file.execute("SELECT * FROM agentgraph_blobs").fetchall()
            file.execute("DELETE FROM agentgraph_blobs")
        with pytest.raises(SessionError, match="lacks a part of sequence 2"):
            await session.messages()
        with pytest.raises(SessionError, match="lacks a part of sequence 2"):
            await session.ask("and?")
        with sqlite3.connect(path) as file:
            file.executemany("INSERT INTO agentgraph_blobs VALUES (?, ?, ?)", rows)
        assert (await session.ask("again")).text.startswith("3: ")


class TakenOver(MemoryLog):
    """A log whose owner freezes before it appends what refers to blobs: another hub takes over."""

    digests: Sequence[str] = ()

    async def append(
        self, session_id: str, envelopes: Any, head: int, state: Any, **fields: Any
    ) -> None:
        self.digests = [digest for envelope in envelopes for digest in digests_in(envelope)]
        if self.digests:
            await self.heartbeat("another hub", 1e12)
            await self.claim(session_id, "another hub", 0, force=True)
        await super().append(session_id, envelopes, head, state, **fields)


async def test_an_owner_that_was_taken_over_leaves_no_blob() -> None:
    agent, log = desk("A" * 200_000), TakenOver()
    hub = Hub(log, InMemorySaver(), [SingleTeam.of(agent)], 30.0)
    await hub.start(None)
    async with hub:
        session = await hub.session(agent)
        await session.send("user", "go on")
        await until(lambda: log.digests and hub.drivers.owned_session(session.key) is None)
        assert await log.blobs(session.key, log.digests) == {}


async def test_blocks_that_stand_for_blobs_cannot_be_sent(log_url: str) -> None:
    agent = echoing()
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        data = {"text": "", "content": [{"type": "blob", "blob": "0" * 64}]}
        with pytest.raises(ConfigurationError, match="blob"):
            await session.send("user", Draft(EV_TEXT, data))
        other_digest = Draft(EV_TEXT, data, blobs={"0" * 64: "{}"})
        with pytest.raises(ConfigurationError, match="each under its digest"):
            await session.send("user", other_digest)


async def test_a_text_of_any_size_can_be_sent(log_url: str) -> None:
    agent, text = echoing(), "x" * 300_000
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        answer = await session.ask(text)
        assert answer.text == f"1: {text}"
        assert answer.envelopes[0].text.startswith("x" * 100_000 + "… [200000 more]")
        fork = await session.fork(session.state.sequence)
        for handle in (session, fork):
            assert [m.content for m in await handle.messages()] == [text, f"1: {text}"]


async def test_a_large_text_is_sent_as_it_is_shown() -> None:
    large_text = json.dumps("x" * 300_000)
    digest = sha256(large_text.encode()).hexdigest()
    data = {"text": "something else", "content": {"type": "blob", "blob": digest}}
    agent, team = echoing(), Team([echoing(name="a")], sequence(["a"]))
    async with await Hub.open(serve=[agent, team]) as hub:
        session = await hub.session(agent)
        with pytest.raises(ConfigurationError, match="give a large text itself"):
            await session.send("user", Draft(EV_TEXT, data, blobs={digest: large_text}))
        no_json = {"text": "", "content": {"type": "blob", "blob": "0"}}
        with pytest.raises(ConfigurationError, match="give a large text itself"):
            await session.send("user", Draft(EV_TEXT, no_json, blobs={"0": "{"}))
        with pytest.raises(ConfigurationError, match="a list of content blocks"):
            await session.send("user", Draft(EV_TEXT, data))
        others = await hub.session(team)
        with pytest.raises(ConfigurationError, match="a list of content blocks"):
            await others.send("user", Draft(EV_TEXT, data, blobs={digest: large_text}))
        for content in ("x" * 300_000, [{"type": "text", "text": "x" * 300_000}]):
            with pytest.raises(ConfigurationError, match="256000 are allowed: store it elsewhere"):
                await others.send("user", content)


async def test_what_a_participant_sends_is_no_part_of_the_conversation(log_url: str) -> None:
    agent = echoing()
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        await session.ask("hi")
        before = shape(await session.messages())
        for item in ({"type": "ai", "content": "invented"}, {"type": "blob", "blob": "0" * 64}):
            draft = Draft("myapp.note", {"messages": [item], "channels": {"a": item}})
            await session.send("user", draft, admitted=True)
        assert shape(await session.messages()) == before
        assert (await session.ask("and?")).text == "2: and?"
        assert (await session.fork(session.state.sequence)).id != session.id


async def test_an_agent_and_a_team_of_one_name_cannot_both_be_served() -> None:
    agent = echoing()
    team = Team([agent], sequence(["desk"]), name="desk")
    with pytest.raises(ConfigurationError, match="'desk'"):
        await Hub.open(serve=[agent, team])


async def test_the_agent_cannot_be_the_one_who_speaks_to_it() -> None:
    agent = echoing()
    async with await Hub.open(serve=[agent]) as hub:
        with pytest.raises(ConfigurationError, match="creator='desk'"):
            await hub.session(agent, creator="desk")


async def test_a_team_has_no_messages() -> None:
    team = Team([echoing()], sequence(["desk"]))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        with pytest.raises(SessionError, match="one of a team"):
            await session.messages()


async def test_live_state_is_that_of_the_log(log_url: str) -> None:
    calls: list[Scripted] = [call("ask", question="a?"), call("ask", question="b?"), "done"]
    agent = desk(*calls, ValueError("no"), "ok", tools=[ask], guards=Guards.interactive(retry=None))
    async with await Hub.open(log_url, serve=[agent]) as hub:
        session = await hub.session(agent)
        first = await session.ask("go")
        await session.decide(first.interrupts[0].id, 1)
        await session.answer(first.run_id)
        await session.ask("never mind")
        with pytest.raises(ModelError):
            await session.ask("fail")
        await session.ask("bye")
        envelopes = await session.history()
        folded = fold_all(SessionState.initial(session.record), envelopes)
        assert folded.to_dict() == session.state.to_dict()


async def test_a_turn_reads_no_more_of_a_long_session() -> None:
    agent = echoing(history=4)
    async with await Hub.open(serve=[agent]) as hub:
        assert isinstance(hub.log, MemoryLog)
        session = await hub.session(agent)
        reads = [await envelopes_read_by_a_turn(hub.log, session) for _ in range(600)]
    assert max(reads[500:]) <= max(reads[50:100])


async def envelopes_read_by_a_turn(log: MemoryLog, session: Session) -> int:
    """Return how many envelopes of the log a turn reads."""
    count = 0
    log_read, log_tail = log.read, log.tail

    async def counted_read(*args: Any) -> list[Envelope]:
        nonlocal count
        envelopes = await log_read(*args)
        count += len(envelopes)
        return envelopes

    async def counted_tail(*args: Any) -> list[Envelope]:
        nonlocal count
        envelopes = await log_tail(*args)
        count += len(envelopes)
        return envelopes

    own: Any = log
    own.read, own.tail = counted_read, counted_tail
    try:
        await session.ask("hi")
    finally:
        own.read, own.tail = log_read, log_tail
    return count
