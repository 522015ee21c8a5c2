"""What guards write into a session's log: before it happens, whole, and in any weather."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, Guards, effect, idempotency_key
from agentgraph.errors import RoundConflict, StorageError
from agentgraph.guards import CostBudget
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_AUDIT,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_TEXT,
    Envelope,
    Hub,
    Session,
    Team,
)
from agentgraph.sessions.log import MemoryLog
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import after, agent, ample, asked, held, of_type, until

FAILS = ValueError("down")


class Bank:
    """Takes payments, each key once, and can be asked about them."""

    def __init__(self, receipt: str = "paid") -> None:
        self.receipt = receipt
        self.paid: list[str] = []

    @property
    def pay(self) -> Callable[..., str]:
        @effect(lookup=self._find)
        def pay(what: str = "tea") -> str:
            """Pay."""
            self.paid.append(idempotency_key() or "")
            return self.receipt

        return pay

    def _find(self, key: str) -> str | None:
        return self.receipt if key in self.paid else None


def effects_of(envelopes: list[Envelope]) -> list[dict[str, Any]]:
    told = [one.event_data for one in envelopes if one.event_type == EV_AUDIT]
    return [one["entry"] for one in told if one["kind"] == "effect"]


# A store that is away for a while.


class Away(MemoryLog):
    """A log that fails once, before or after it has appended a record of guards."""

    def __init__(self, error: Exception, record: str, *, after: bool) -> None:
        super().__init__()
        self.has_failed = False
        self._error, self._record, self._after = error, record, after

    async def append(
        self, session_id: str, envelopes: Any, head: int, state: Any, **given: Any
    ) -> None:
        told = [one.event_data for one in envelopes if one.event_type == EV_AUDIT]
        kinds = [one["entry"]["state"] if "entry" in one else one["kind"] for one in told]
        fails = not self.has_failed and self._record in kinds
        self.has_failed |= fails
        if not fails or self._after:
            await super().append(session_id, envelopes, head, state, **given)
        if fails:
            raise self._error


@asynccontextmanager
async def driven(log: MemoryLog, team: Team) -> AsyncIterator[tuple[Session, FakeClock]]:
    """Hold a session on a log, by a clock that is advanced."""
    clock = FakeClock()
    hub = Hub(log, InMemorySaver(), [team], 30.0)
    await hub.start(clock)
    async with hub:
        yield await hub.session(team, id="s", ttl=None), clock


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("record", ["reserved", "started", "done"])
@pytest.mark.parametrize(
    "error", [StorageError("away"), ConnectionError("away"), RoundConflict("moved")]
)
async def test_where_the_log_is_away_nothing_is_done_twice_and_no_round_has_failed(
    error: Exception, record: str, after: bool
) -> None:
    bank = Bank()

    def turn(messages: Any) -> Any:
        last = messages[-1]
        return "so" if last.type == "tool" and last.status == "success" else call("pay")

    one = Agent("a", model=ScriptedModel(turn), tools=[bank.pay], default_tools=False)
    # One call of the model takes more than a tenth of this budget, so that it is written down.
    guards = Guards.interactive(budget=CostBudget(tokens=11_000))
    log = Away(error, record, after=after)
    async with driven(log, Team([one], sequence(["a"]), name="t", guards=guards)) as (s, clock):
        await s.send("user", "hello")

        async def is_over() -> bool:
            clock.advance(0.02)  # the hub waits a little before it looks again
            return (await s.refresh()).is_ended

        await until(is_over)
        assert log.has_failed
        assert (len(bank.paid), s.state.pending_close_reason) == (1, "sequence_complete")
        history = await s.history()
        assert [one.text for one in history if one.event_type == EV_PACKET] == ["so"]
        assert EV_ROUND_FAILED not in {one.event_type for one in history}
        calls = next(one for one in history if one.event_type == EV_PACKET).event_data["steps"]
        assert [made["status"] for step in calls for made in step["calls"]] == ["success"]


# What is much.


async def test_an_action_whose_result_is_huge_is_done_and_shown_whole() -> None:
    bank = Bank("x" * 500_000)
    one = agent("a", call("pay"), "so", tools=[bank.pay])
    async with held(Team([one], sequence(["a"]), guards=ample())) as session:
        state = await after(session, "user", "hello")
        assert (len(bank.paid), state.pending_close_reason) == (1, "sequence_complete")
        assert asked(one)[-1].messages[-1].text == bank.receipt
        _, done = effects_of(await session.history())
        assert done["state"] == "done"
        assert done["result"].endswith("more]") and len(done["result"]) < 5_000


async def test_an_action_whose_result_is_huge_is_not_done_again_where_its_round_is() -> None:
    bank = Bank("x" * 500_000)
    one = agent("a", call("pay"), FAILS, call("pay"), "so", tools=[bank.pay])
    async with held(Team([one], sequence(["a"]), guards=ample())) as session:
        await after(session, "user", "hello")
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        assert (failed.event_data["code"], len(bank.paid)) == ("model", 1)
        assert [one.text for one in await of_type(session, EV_PACKET)] == ["so"]


async def test_an_action_with_arguments_that_no_log_holds_is_not_done() -> None:
    bank = Bank()
    one = agent("a", call("pay", what="x" * 300_000), "so", tools=[bank.pay])
    async with held(Team([one], sequence(["a"]), guards=ample())) as session:
        state = await after(session, "user", "hello")
        assert (bank.paid, state.pending_close_reason) == ([], "sequence_complete")
        (step,) = (await of_type(session, EV_PACKET))[0].event_data["steps"]
        assert step["calls"][0]["status"] == "error"


# What comes in between.


async def test_what_is_said_between_two_attempts_does_not_make_an_action_forgotten() -> None:
    bank, said = Bank(), asyncio.Event()

    async def turn(messages: Any) -> Any:
        if not bank.paid:
            return call("pay")
        if not said.is_set():
            await session.send("user", "hurry")
            said.set()
            raise FAILS
        return "so" if messages[-1].type == "tool" else call("pay")

    one = Agent("a", model=ScriptedModel(turn), tools=[bank.pay], default_tools=False)
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        history = await session.history()
        told = [one for one in history if one.event_type in (EV_TEXT, EV_PACKET, EV_ROUND_FAILED)]
        assert [one.event_type for one in told] == [EV_TEXT, EV_ROUND_FAILED, EV_TEXT, EV_PACKET]
        assert (len(bank.paid), state.pending_close_reason) == (1, "sequence_complete")


async def test_the_actions_for_an_input_are_kept_until_the_next_one() -> None:
    bank = Bank()
    turns: list[Any] = [call("pay"), "so"] * 3
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    async with held(Team([agent("a", *turns, tools=[bank.pay])], rules)) as session:
        for _ in range(3):
            state = await after(session, "user", "again")
            assert len(state.effects) == 1
    assert len(bank.paid) == 3
