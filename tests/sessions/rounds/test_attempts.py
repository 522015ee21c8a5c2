"""What guards count of an attempt at a round: where it runs again, it is charged for no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.types import interrupt

from agentgraph import Agent, Guards, effect
from agentgraph.guards import HopLimit
from agentgraph.routing import (
    FromSpeaker,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_AUDIT,
    EV_PACKET,
    EV_ROUND_FAILED,
    Hub,
    Session,
    Team,
    set_context,
)
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import after, agent, asked, held, of_type, settled, talk

FAILS = ValueError("down")


def look() -> str:
    """Look."""
    return "seen"


def look_at(what: str) -> str:
    """Look at something."""
    return "seen"


async def decided(session: Session) -> list[tuple[str, str]]:
    """Return what guards have decided, but that a model's failure ends its round."""
    told = [one.event_data for one in await of_type(session, EV_AUDIT)]
    made = [(one["guard"], one["action"]) for one in told if one["kind"] == "decision"]
    return [one for one in made if one != ("failure", "abort")]


async def test_calls_of_an_attempt_that_failed_are_no_part_of_a_loop() -> None:
    once: list[Any] = [call("look"), call("look")]
    one = agent("a", *once, FAILS, *once, "so", tools=[look])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert len(await of_type(session, EV_ROUND_FAILED)) == 1
        assert (await decided(session), state.pending_close_reason) == ([], "sequence_complete")


async def test_what_was_there_before_the_round_counts_in_each_attempt() -> None:
    ask = call("transfer_to_worker", reason="count")
    worker = agent("worker", "three", "three", "three")
    one = agent("a", ask, "one", ask, FAILS, ask, "two", agents=[worker], handoff="delegate")
    async with held(Team([one], sequence(["a", "a"]))) as session:
        state = await after(session, "user", "hello")
        assert await decided(session) == [("deadlock_monitor", "correct")] * 2
        assert state.pending_close_reason == "sequence_complete"


async def test_a_correction_of_an_attempt_that_failed_is_forgotten_with_it() -> None:
    thrice: list[Any] = [call("look")] * 3
    one = agent("a", *thrice, FAILS, *thrice, "so", tools=[look])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert await decided(session) == [("loop_detector", "correct")] * 2
        assert state.pending_close_reason == "sequence_complete"


async def test_the_same_reply_in_another_attempt_is_no_worker_that_is_stuck() -> None:
    ask = call("transfer_to_worker", reason="count")
    worker = agent("worker", "three", "three")
    one = agent("a", ask, FAILS, ask, "so", agents=[worker], handoff="delegate")
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert (await decided(session), state.pending_close_reason) == ([], "sequence_complete")


async def test_transfers_of_an_attempt_that_failed_are_made_again_and_counted_once() -> None:
    below = agent("below", FAILS, "so")
    one = agent("a", call("transfer_to_below"), call("transfer_to_below"), agents=[below])
    guards = Guards.interactive(hops=HopLimit(1))
    async with held(Team([one], sequence(["a"]), guards=guards)) as session:
        state = await after(session, "user", "hello")
        assert (await talk(session))[-1] == ("a", "so")
        assert (state.hops, await decided(session)) == (1, [])


async def test_an_action_that_raised_is_not_done_blindly_in_another_attempt() -> None:
    done = []

    @effect
    def pay() -> str:
        """Pay."""
        done.append("paid")
        raise ConnectionError("no answer")

    one = agent("a", call("pay"), FAILS, call("pay"), "so", tools=[pay])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert done == ["paid"]
        assert await decided(session) == [("saga", "escalate")]
        assert state.status == "waiting_decision"


async def test_a_call_that_is_worded_otherwise_is_answered_with_what_was_done() -> None:
    done = []

    @effect
    def pay(what: str) -> str:
        """Pay."""
        done.append(what)
        set_context("paid", what)
        return f"paid for {what}"

    one = agent("a", call("pay", what="tea"), FAILS, call("pay", what="a tea"), "so", tools=[pay])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert (done, dict(state.context_vars)) == (["tea"], {"paid": "tea"})
        assert await decided(session) == [("saga", "deny")]
        assert state.pending_close_reason == "sequence_complete"
    told = asked(one)[-1].messages[-1].text
    assert '{"what":"tea"}' in told and told.endswith("paid for tea")


async def test_a_call_that_is_worded_otherwise_is_looked_up_as_it_was_made() -> None:
    seen = []

    def find(what: str, key: str) -> str | None:
        seen.append(what)
        return f"paid for {what}"

    @effect(lookup=find)
    def pay(what: str) -> str:
        """Pay."""
        raise ConnectionError("no answer")

    one = agent("a", call("pay", what="tea"), FAILS, call("pay", what="a tea"), "so", tools=[pay])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert (seen, state.pending_close_reason) == (["tea"], "sequence_complete")
    assert asked(one)[-1].messages[-1].text.endswith("paid for tea")


# Several who speak at once.


def at_once(*agents: Agent, guards: Guards | None = None) -> Team:
    """Return a team whose first speaks, then all others but the last at once, then the last."""
    first, *others, last = agents
    both = ParallelTarget([one.name for one in others], last.name)
    rules = [
        Transition(FromSpeaker(first.name), both),
        Transition(FromSpeaker(last.name), TerminateTarget("joined")),
    ]
    fields: dict[str, Any] = {} if guards is None else {"guards": guards}
    return Team(agents, TransitionGraph(first.name, rules), **fields)


def moving(name: str) -> Agent:
    """Return an agent that leaves the answer to one below."""
    below = agent(f"below-{name}", f"from below {name}")
    return agent(name, call(f"transfer_to_below-{name}"), agents=[below])


async def test_transfers_of_several_at_once_are_counted_once_each() -> None:
    team = at_once(agent("a"), *map(moving, "bcd"), moving("e"))
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "joined"
        assert (state.hops, await decided(session)) == (4, [])


async def test_transfers_of_several_at_once_are_limited_together() -> None:
    team = at_once(
        agent("a"), *map(moving, "bcd"), moving("e"), guards=Guards.interactive(hops=HopLimit(3))
    )
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert await decided(session) == [("hop_limit", "deny")]
        assert state.hops == 3


async def test_one_of_several_that_runs_again_forgets_nothing_of_the_others() -> None:
    thrice: list[Any] = [call("look")] * 3
    b = agent("b", call("look"), FAILS, *thrice, "from b", tools=[look])
    c = agent("c", call("look"), call("look"), "from c", tools=[look])
    d = agent("d", call("look"), "from d", tools=[look])
    async with held(at_once(agent("a"), b, c, d)) as session:
        state = await after(session, "user", "hello")
        assert await decided(session) == [("loop_detector", "correct")]
        assert state.pending_close_reason == "joined"


async def test_one_of_several_that_loops_ends_no_other() -> None:
    b = agent("b", *[call("look")] * 8, tools=[look])
    c = agent("c", *[call("look_at", what=str(n)) for n in range(6)], "from c", tools=[look_at])
    async with held(at_once(agent("a"), b, c, agent("d"))) as session:
        state = await after(session, "user", "hello")
        assert await decided(session) == [("loop_detector", "correct"), ("loop_detector", "abort")]
        assert ("c", "from c") in await talk(session)
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        data = failed.event_data
        assert (data["speaker"], data["message"]) == ("b", "loop_detector")
        assert (state.status, state.pending_close_reason) == ("closed", "loop_detector")


# Rounds that go on elsewhere.


async def test_transfers_before_a_question_count_where_its_round_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"

    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    def turn(messages: Any) -> Any:
        return "thanks" if messages[-1].text == "yes" else call("ask")

    def team() -> Team:
        below = Agent("below", model=ScriptedModel(turn), tools=[ask], default_tools=False)
        top = agent("top", call("transfer_to_below"), agents=[below])
        return Team([top], sequence(["top"]), name="team", expectations=())

    async with await Hub.open(url, serve=[team()]) as hub:
        session = await hub.session("team", id="s", ttl=None)
        assert (await after(session, "user", "go")).status == "waiting_decision"
    async with await Hub.open(url, serve=[team()]) as hub:
        session = await hub.get("s")
        (asked,) = session.state.interrupts
        await session.decide(asked, "yes")
        state = await settled(session)
        assert [one.text for one in await of_type(session, EV_PACKET)] == ["thanks"]
        assert state.hops == 1
