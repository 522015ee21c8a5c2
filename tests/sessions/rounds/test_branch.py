"""Which envelopes of a log are live after rewinds, and what speakers are shown of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.sessions import FullTranscript, Hub, Session, Team, WindowedSummary, text_envelope
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.log.protocol import DamagedSession
from agentgraph.sessions.rounds.branch import Branch, state_at
from agentgraph.sessions.rounds.round import current_round
from agentgraph.sessions.state import state as states
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.rewind import live_envelopes
from agentgraph.sessions.state.state import SessionState
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import PATIENCE_S, heard, settled

AGENTS = ("a", "b", "c", "d")
VIEWS = (None, WindowedSummary(3), FullTranscript())


@pytest.fixture(autouse=True)
def _milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short sessions have milestones, in each of their branches."""
    monkeypatch.setattr(states, "MILESTONE_EVERY", 7)


@dataclass
class Talk:
    """A session of four agents, two of them in parallel, and what their models were shown."""

    prompts: dict[str, list[tuple[str, list[tuple[str, str]]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By session, who was shown what: the types and the texts of the messages."""
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    hangs: bool = False
    teams: dict[Any, Team] = field(default_factory=dict)
    """By view: a team takes longer to build than to hear."""

    def team(self, view: Any) -> Team:
        if view not in self.teams:
            self.teams[view] = self._new_team(view)
        return self.teams[view]

    def _new_team(self, view: Any) -> Team:
        rules = [
            Transition(FromSpeaker("user"), "a"),
            Transition(FromSpeaker("a"), ParallelTarget(("b", "c"), join="d")),
        ]
        agents = [self._agent(name) for name in AGENTS]
        rule_graph = TransitionGraph("a", rules, HumanTarget())
        return Team(agents, rule_graph, name="talk", humans=["guest"], view=view, expectations=())

    def _agent(self, name: str) -> Agent:
        async def hang() -> str:
            """Hang, the first time."""
            if not self.hangs:
                return "done"
            self.hangs = False
            self.hanging.set()
            await asyncio.Event().wait()
            return "never"

        def turn(messages: Any) -> Any:
            round = current_round()
            assert round is not None
            shown = [(m.type, str(m.text)) for m in messages]
            self.prompts[round.session.id].append((name, shown))
            if f"{name} hangs" in heard(messages) and not isinstance(messages[-1], ToolMessage):
                return call("hang")
            return f"{name} {hashlib.md5(repr(shown).encode()).hexdigest()[:8]}"

        return Agent(name, model=ScriptedModel(turn), tools=[hang], default_tools=False)

    def sorted_prompts(self, session: Session, since: int = 0) -> list[Any]:
        """Return what was shown; parallel speakers begin in any order."""
        return sorted(self.prompts[session.id][since:])


TALK = Talk()
STEPS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from([None, None, ("a",), ("b", "guest"), ("a", "b")])),
    st.tuples(st.just("aside"), st.sampled_from([None, ("c",)])),
    st.tuples(st.just("cancel"), st.sampled_from("abcd")),
    st.tuples(st.just("rewind"), st.floats(0, 1)),
    st.tuples(st.just("rewind a hanging round"), st.floats(0, 1)),
)


async def play(talk: Talk, session: Session, steps: Sequence[tuple[str, Any]]) -> None:
    for number, (name, how) in enumerate(steps):
        match name:
            case "say":
                await session.send("user", text_envelope(f"text {number}.", audience=how))
            case "aside":
                await session.send("guest", text_envelope(f"aside {number}.", audience=how))
            case "cancel":
                await hang(talk, session, f"text {number}: {how} hangs")
                await session.cancel()
            case "rewind":
                await session.rewind(place_in(session, how))
            case "rewind a hanging round":
                to = place_in(session, how)
                await hang(talk, session, f"text {number}: a hangs")
                await session.rewind(to)
        await settled(session)


def place_in(session: Session, part: float) -> int:
    opened = 3  # the invitation and its answer come first
    return opened + round(part * (session.state.sequence - opened))


async def hang(talk: Talk, session: Session, text: str) -> None:
    """Say something on which an agent hangs, unless it has no turn any more."""
    talk.hanging.clear()
    talk.hangs = True
    await session.send("user", text)
    hanging = asyncio.ensure_future(talk.hanging.wait())
    resting = asyncio.ensure_future(session.settled())
    await asyncio.wait({hanging, resting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (hanging, resting):
        task.cancel()
    await asyncio.gather(hanging, resting, return_exceptions=True)
    talk.hangs = False


async def check(session: Session) -> None:
    """The live state is what the log folds to; what is live is read, range by range."""
    history = await session.history()
    state = fold_all(SessionState.initial(session.record), history)
    assert state == await session.refresh()
    log, live = session._hub.log, live_envelopes(history)
    assert await Branch(log, state).read() == live
    in_views = [envelope for envelope in live if envelope.is_in_views]
    for count in (1, 3, 99):
        assert await Branch(log, state).tail(count, state.sequence) == in_views[-count:]
    for place in range(len(history) + 1):
        expected = fold_all(SessionState.initial(session.record), history[:place])
        assert await state_at(log, session.record, place) == expected
        assert await state_at(log, session.record, place, rewound=state.rewound) == expected
    assert len(state.live) <= 16


async def compare(url: str, view: Any, steps: Sequence[tuple[str, Any]], part: float) -> None:
    """Play, fork at an envelope and rewind to it: from there on both see the same."""
    talk = TALK
    talk.hanging = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S * 2), await Hub.open(url, serve=[talk.team(view)]) as hub:
        session = await hub.session("talk")
        await session.join("guest")
        await play(talk, session, steps)
        to = place_in(session, part)
        fork = await session.fork(to)
        begin = len(talk.prompts[session.id])
        await session.rewind(to)
        for one in (session, fork):
            await settled(one)
            for text in ("once more", "and again"):
                await one.send("user", text)
                await settled(one)
        await check(session)
        history = await session.history()
        live = live_envelopes(history)
        gone = {e.text for e in history if e.text} - {e.text for e in live}
        later = [text for _, shown in talk.prompts[session.id][begin:] for _, text in shown]
        assert not [word for word in gone for text in later if word in text]
        assert talk.sorted_prompts(session, begin) == talk.sorted_prompts(fork)


@settings(max_examples=40, deadline=None)
@pytest.mark.timeout(240)  # on a busy machine
@given(
    view=st.sampled_from(VIEWS),
    steps=st.lists(STEPS, min_size=1, max_size=6),
    part=st.floats(0, 1),
)
@example(view=VIEWS[1], steps=[("say", None), ("rewind", 0.5), ("say", None)], part=0.8)
def test_after_a_rewind_speakers_see_what_they_would_in_a_fork(
    view: Any, steps: list[tuple[str, Any]], part: float
) -> None:
    asyncio.run(compare("memory", view, steps, part))


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.timeout(240)  # on a busy machine
@given(
    view=st.sampled_from(VIEWS),
    steps=st.lists(STEPS, min_size=1, max_size=5),
    part=st.floats(0, 1),
)
def test_on_every_store_they_do(
    log_url: str, view: Any, steps: list[tuple[str, Any]], part: float
) -> None:
    asyncio.run(compare(log_url, view, steps, part))


class Broken:
    """A log of which one envelope cannot be read."""

    def __init__(self, log: Any, sequence: int) -> None:
        self._log = log
        self._sequence = sequence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, session_id: str, after: int = 0, limit: int | None = None) -> Any:
        envelopes = await self._log.read(session_id, after, limit)
        return self._checked(session_id, envelopes)

    async def tail(self, session_id: str, count: int, before: int | None = None) -> Any:
        envelopes = await self._log.tail(session_id, count, before)
        return self._checked(session_id, envelopes)

    def _checked(self, session_id: str, envelopes: Any) -> Any:
        if any(envelope.sequence == self._sequence for envelope in envelopes):
            raise DamagedSession("it is torn", session_id, self._sequence)
        return envelopes


async def test_damage_of_an_abandoned_branch_does_not_matter(log_url: str) -> None:
    talk = Talk()
    async with await Hub.open(log_url, serve=[talk.team(None)]) as hub:
        session = await hub.session("talk")
        await session.join("guest")
        await play(talk, session, [("say", None)])
        first = session.state.sequence
        await play(talk, session, [("say", None), ("say", None)])
        await session.rewind(first)
        await play(talk, session, [("say", None)] * 30)
        state, log = session.state, hub.log
        live = live_envelopes(await session.history())
        in_views = [envelope for envelope in live if envelope.is_in_views]
        for damaged in range(first + 1, state.rewound):
            branch = Branch(Broken(log, damaged), state)
            assert await branch.read() == live
            for count in (3, len(in_views) - 1, 999):
                assert await branch.tail(count, state.sequence) == in_views[-count:]
            for place in (first, state.sequence - 1):
                broken: Any = Broken(log, damaged)
                then = await state_at(broken, session.record, place, rewound=state.rewound)
                assert then.sequence == place
        broken = Branch(Broken(log, first), state)
        with pytest.raises(DamagedSession):
            await broken.tail(999, state.sequence)


async def test_a_session_runs_on_whose_abandoned_branch_is_damaged() -> None:
    talk, memory, saver = Talk(), MemoryLog(), InMemorySaver()
    async with await started(Hub(memory, saver, [talk.team(None)], 30.0)) as hub:
        session = await hub.session("talk", id="s")
        await session.join("guest")
        await play(talk, session, [("say", None), ("say", None)])
        end = session.state.sequence
        await session.rewind(5)
        await settled(session)
    async with await started(Hub(Broken(memory, end), saver, [talk.team(None)], 30.0)) as hub:
        session = await hub.get("s")
        await play(talk, session, [("say", None)])
        with pytest.raises(DamagedSession):
            await session.history()
        assert session.quarantine is None
        await session.rewind(6)
        await play(talk, session, [("say", None)])
        with pytest.raises(DamagedSession):
            await session.rewind(end)
        assert (await settled(session)).status == "waiting_human"


async def started(hub: Hub) -> Hub:
    await hub.start(None)
    return hub
