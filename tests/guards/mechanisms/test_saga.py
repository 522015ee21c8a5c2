"""What was done is done once, and undone backwards, whatever fails and wherever a process dies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentgraph.clock import use_clock
from agentgraph.errors import AgentGraphError, ConfigurationError
from agentgraph.guards.mechanisms.saga import Saga
from agentgraph.guards.mechanisms.saga_entry import Entry, merge_entries
from agentgraph.testing import FakeClock


class SleeplessClock(FakeClock):
    """Sleeps by moving on."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class Killed(BaseException):
    """The process is no more."""


class GraphBubbleUp(Exception):
    """Named as LangGraph's own."""


def begun(saga: Saga, key: str, *, compensates: bool = True, **args: object) -> Entry:
    entry = saga.begin(key=key, tool=f"tool_{key}", args=args, compensates=compensates).entry
    assert entry is not None
    return entry


def after_json(saga: Saga) -> Saga:
    loaded = saga.fresh()
    loaded.load({**json.loads(json.dumps(saga.dump())), "of_a_later_version": 1})
    return loaded


def test_an_action_runs_once_and_then_gives_its_result() -> None:
    saga = Saga()
    first = saga.begin(key="k", tool="pay", args={"amount": 1}, compensates=True)
    assert (first.kind, first.decision.action, first.result) == ("run", "allow", None)
    saga.done("k", {"receipt": 7})
    for one in (saga, after_json(saga)):
        again = one.begin(key="k", tool="pay", args={"amount": 1}, compensates=True)
        assert (again.kind, again.decision.action) == ("replay", "allow")
        assert again.result == {"receipt": 7}


def test_one_that_was_started_is_never_run_again_unasked() -> None:
    saga = Saga()
    begun(saga, "k")
    for one in (saga, after_json(saga)):
        again = one.begin(key="k", tool="tool_k", args={}, compensates=True)
        assert (again.kind, again.decision.action) == ("unknown", "escalate")
        assert again.decision.evidence == {"tool": "tool_k", "key": "k", "state": "started"}
    saga.done("k", "looked up")
    assert saga.begin(key="k", tool="tool_k", args={}, compensates=True).result == "looked up"


def test_one_that_never_happened_runs_again() -> None:
    saga = Saga()
    begun(saga, "k")
    begun(saga, "l")
    saga.failed("k")
    assert [entry.key for entry in saga.plan()] == ["l"]
    again = saga.begin(key="k", tool="tool_k", args={}, compensates=True)
    assert again.kind == "run"
    assert [(entry.key, entry.number) for entry in saga.plan()] == [("k", 3), ("l", 2)]


@pytest.mark.parametrize("state", ["started", "done", "failed", "compensated"])
def test_a_key_with_other_inputs_is_an_error_and_no_hit(state: str) -> None:
    saga = Saga()
    begun(saga, "k", amount=1)
    if state != "started":
        getattr(saga, state)("k", *(["result"] if state == "done" else []))
    for tool, args in (("tool_k", {"amount": 2}), ("other", {"amount": 1}), ("tool_k", {})):
        other = saga.begin(key="k", tool=tool, args=args, compensates=True)
        assert (other.kind, other.decision.action) == ("conflict", "deny")
        assert other.decision.failure_class == "spec_malformed"
    assert saga.dump()["entries"]["k"]["state"] == state  # type: ignore[index]


@pytest.mark.parametrize("state", ["compensated", "compensation_failed"])
def test_what_was_rolled_back_is_not_done_again_and_not_done_late(state: str) -> None:
    saga = Saga()
    begun(saga, "k")
    getattr(saga, state)("k")
    again = saga.begin(key="k", tool="tool_k", args={}, compensates=True)
    assert (again.kind, again.decision.action) == ("refused", "escalate")
    assert saga.done("k", "late").state == state
    assert saga.failed("k").state == state
    assert saga.plan() == []


def test_a_human_may_undo_what_could_not_be_undone() -> None:
    saga = Saga()
    begun(saga, "k")
    saga.compensation_failed("k")
    assert saga.compensated("k").state == "compensated"


def test_the_action_after_the_last_is_refused_and_earlier_ones_still_replay() -> None:
    saga = Saga(limit=2)
    for key in "ab":
        begun(saga, key)
        saga.done(key, key)
    assert saga.begin(key="c", tool="t", args={}, compensates=False).kind == "refused"
    assert saga.begin(key="a", tool="tool_a", args={}, compensates=True).kind == "replay"


def test_what_json_does_not_know_is_remembered_as_json_has_it() -> None:
    saga = Saga()
    begun(saga, "k", when={1}, half="\ud83d", odd=float("nan"))
    saga.done("k", b"\xff")
    begun(saga, "l", half="\ud83d")
    assert after_json(saga).dump() == saga.dump()
    assert begun(saga, "l", half="\ud83d").args == {"half": "\ud83d"}


def test_an_end_without_a_beginning_is_an_error() -> None:
    for end in (Saga().failed, Saga().compensated, lambda key: Saga().done(key, 1)):
        with pytest.raises(AgentGraphError, match="begin it first"):
            end("nobody")


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ({"retries": -1}, 1),
        ({"retries": True, "grace_s": float("nan"), "limit": 0}, 3),
        ({"retries": 1.5, "grace_s": "60", "limit": None}, 3),
        ({"grace_s": float("inf")}, 1),
    ],
)
def test_a_wrong_saga_is_told_with_all_its_faults(options: dict[str, Any], faults: int) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Saga(**options)
    assert len(raised.value.faults) == faults


def test_a_fresh_one_has_the_configuration_and_no_memory() -> None:
    saga = Saga(1, 2, 3)
    begun(saga, "k")
    fresh = saga.fresh()
    assert (fresh.retries, fresh.grace_s, fresh.limit) == (1, 2, 3)
    assert fresh.dump() == {"entries": {}}


async def test_rolling_back_goes_backwards_over_what_started_and_asks_for_unknown_too() -> None:
    saga = Saga()
    for key in "abcde":
        begun(saga, key, compensates=key != "b")
    for key in "dba":
        saga.done(key, key)
    saga.failed("c")
    undone: list[tuple[str, object]] = []

    async def undo(entry: Entry) -> None:
        undone.append((entry.key, entry.result))

    decisions = await saga.roll_back(undo)
    assert undone == [("e", None), ("d", "d"), ("a", "a")]
    assert [one.action for one in decisions] == ["allow"] * 3
    assert await saga.roll_back(undo) == []


async def test_a_failed_compensation_is_tried_again_and_keeps_nothing_else() -> None:
    saga, clock = Saga(retries=2), SleeplessClock()
    for key in "abc":
        begun(saga, key)
    tried: list[str] = []
    stored: list[tuple[str, str]] = []

    async def undo(entry: Entry) -> None:
        tried.append(entry.key)
        if entry.key == "b" or tried.count("c") == 1:
            raise ValueError("a secret")

    async def persist(entry: Entry) -> None:
        stored.append((entry.key, entry.state))

    with use_clock(clock):
        decisions = await saga.roll_back(undo, persist)
    assert tried == ["c", "c", "b", "b", "b", "a"]
    assert stored == [("c", "compensated"), ("b", "compensation_failed"), ("a", "compensated")]
    assert [one.action for one in decisions] == ["allow", "escalate", "allow"]
    assert decisions[1].cause == "tool_b could not be undone (ValueError): undo it by hand"
    assert saga.plan() == []


async def test_after_the_grace_each_is_still_tried_once() -> None:
    saga, clock = Saga(retries=5, grace_s=10), SleeplessClock()
    for key in "ab":
        begun(saga, key)
    tried: list[str] = []

    async def undo(entry: Entry) -> None:
        tried.append(entry.key)
        clock.advance(11)
        raise TimeoutError

    with use_clock(clock):
        decisions = await saga.roll_back(undo)
    assert tried == ["b", "a"]
    assert [one.action for one in decisions] == ["escalate"] * 2


async def test_progress_that_cannot_be_stored_is_told_and_stops_nothing() -> None:
    saga = Saga()
    for key in "ab":
        begun(saga, key)

    async def undo(entry: Entry) -> None: ...

    async def persist(entry: Entry) -> None:
        if entry.key == "b":
            raise OSError

    decisions = await saga.roll_back(undo, persist)
    assert [one.action for one in decisions] == ["escalate", "allow"]
    assert "could not be stored (OSError)" in decisions[0].cause


@pytest.mark.parametrize("error", [GraphBubbleUp, asyncio.CancelledError])
async def test_control_flow_is_no_failure(error: type[BaseException]) -> None:
    saga = Saga()
    begun(saga, "a")
    tried: list[Entry] = []

    async def stop(entry: Entry) -> None:
        tried.append(entry)
        raise error

    async def undo(entry: Entry) -> None: ...

    with pytest.raises(error):
        await saga.roll_back(stop)
    assert len(tried) == 1
    assert [entry.state for entry in saga.plan()] == ["started"]
    with pytest.raises(error):
        await saga.roll_back(undo, stop)


async def test_what_begins_while_others_are_undone_is_undone_too() -> None:
    saga = Saga()
    begun(saga, "a")
    undone = []

    async def undo(entry: Entry) -> None:
        undone.append(entry.key)
        if entry.key == "a":
            begun(saga, "late")

    await saga.roll_back(undo)
    assert undone == ["a", "late"]


@dataclass
class World:
    """What is in effect, with compensations that may fail, or kill the process, now or then."""

    effective: dict[str, int] = field(default_factory=dict)
    undone: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    deadly: dict[str, str] = field(default_factory=dict)
    stored: dict[str, object] = field(default_factory=dict)

    def act(self, key: str) -> None:
        self.effective[key] = self.effective.get(key, 0) + 1

    async def undo(self, entry: Entry) -> None:
        if self.deadly.get(entry.key) == "before":
            del self.deadly[entry.key]
            raise Killed
        if entry.key in self.broken:
            raise OSError
        if self.effective.get(entry.key):
            self.effective[entry.key] = 0
            self.undone.append(entry.key)
        if self.deadly.get(entry.key) == "after":
            del self.deadly[entry.key]
            raise Killed

    async def persist(self, entry: Entry) -> None:
        update = {"entries": {entry.key: entry.to_dict()}}
        self.stored = json.loads(json.dumps(merge_entries(self.stored, update)))


def rolled_back(saga: Saga, world: World) -> None:
    """Roll back in process after process, until one of them lives to the end."""
    while True:
        try:
            with use_clock(SleeplessClock()):
                asyncio.run(saga.roll_back(world.undo, world.persist))
            return
        except Killed:
            saga = saga.fresh()
            saga.load(world.stored)


STEPS = st.lists(st.sampled_from(["done", "started", "never", "failed"]), max_size=7)


@settings(max_examples=60)
@given(STEPS, st.data())
def test_any_steps_any_failure_and_any_deaths_come_to_nothing(
    steps: list[str], data: st.DataObject
) -> None:
    saga, world = Saga(retries=1), World()
    keys = [f"{number}" for number in range(len(steps))]
    picked = st.sets(st.sampled_from(keys)) if keys else st.just(set())
    for key, step in zip(keys, steps, strict=True):
        asyncio.run(world.persist(begun(saga, key)))
        if step in ("done", "started"):
            world.act(key)
        if step in ("done", "failed"):
            note = saga.failed(key) if step == "failed" else saga.done(key, key)
            asyncio.run(world.persist(note))
    world.broken = data.draw(picked)
    world.deadly = {
        key: data.draw(st.sampled_from(["before", "after"])) for key in data.draw(picked)
    }
    rolled_back(saga, world)
    left = [key for key, count in world.effective.items() if count]
    assert set(left) <= world.broken
    assert world.undone == sorted(world.undone, key=int, reverse=True)
    assert len(world.undone) + len(left) == sum(step in ("done", "started") for step in steps)
    entries = json.loads(json.dumps(world.stored)).get("entries", {})
    for key, step in zip(keys, steps, strict=True):
        expected = "compensation_failed" if key in world.broken else "compensated"
        assert entries[key]["state"] == ("failed" if step == "failed" else expected)


ENTRIES = st.lists(
    st.builds(
        Entry,
        number=st.integers(1, 3),
        key=st.sampled_from(["a", "b", "c"]),
        tool=st.just("t"),
        args=st.just({}),
        input_hash=st.sampled_from(["x", "y"]),
        state=st.sampled_from(["started", "done", "failed", "compensated", "compensation_failed"]),
        result=st.none() | st.integers(0, 2),
        compensates=st.booleans(),
        tries=st.integers(1, 2),
    ),
    max_size=5,
).map(lambda entries: {"entries": {entry.key: entry.to_dict() for entry in entries}})


@settings(max_examples=60)
@given(ENTRIES, ENTRIES, ENTRIES)
def test_memories_of_branches_merge_in_any_order(left: Any, right: Any, third: Any) -> None:
    both = merge_entries(left, right)
    assert merge_entries(right, left) == both
    assert merge_entries(both, both) == both == merge_entries(both, left)
    assert merge_entries(both, third) == merge_entries(left, merge_entries(right, third))
    assert merge_entries({}, both) == both
    assert set(both["entries"]) == set(left["entries"]) | set(right["entries"])  # type: ignore[call-overload]


class Sagas(RuleBasedStateMachine):
    """A saga beside a tiny model of it, and beside one that is loaded anew at each step."""

    keys = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.saga = Saga(limit=3)
        self.reborn = Saga(limit=3)
        self.stored: dict[str, object] = {}
        self.states: dict[str, str] = {}
        self.order: list[str] = []

    @rule(key=keys, amount=st.sampled_from([1, 1, 2]))
    def begin(self, key: str, amount: int) -> None:
        state = self.states.get(key)
        kinds = {None: "run", "failed": "run", "done": "replay", "started": "unknown"}
        for saga in (self.saga, self.reborn):
            kind = saga.begin(key=key, tool=key, args={"n": amount}, compensates=True).kind
            if amount == 2 and state is not None:
                assert kind == (
                    "conflict" if not self._is_two(key) else kinds.get(state, "refused")
                )
            elif amount == 1 and self._is_two(key):
                assert kind == "conflict"
            else:
                assert kind == kinds.get(state, "refused")
        if kind == "run":
            self.states[key] = "started"
            self.order = [one for one in self.order if one != key] + [key]

    @precondition(lambda self: self.states)
    @rule(data=st.data(), end=st.sampled_from(["done", "failed", "compensated"]))
    def end(self, data: st.DataObject, end: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.states)))
        for saga in (self.saga, self.reborn):
            getattr(saga, end)(key, *(["r"] if end == "done" else []))
        further = {"started": "", "failed": "done", "done": "compensated", "compensated": ""}
        if (
            self.states[key] == "started"
            or end == "compensated"
            or further[self.states[key]] == end
        ):
            self.states[key] = end

    @rule()
    def reload(self) -> None:
        self.reborn = after_json(self.reborn)

    @invariant()
    def what_is_planned_is_what_may_be_in_effect_backwards(self) -> None:
        expected = [key for key in self.order[::-1] if self.states[key] in ("started", "done")]
        for saga in (self.saga, self.reborn):
            assert [entry.key for entry in saga.plan()] == expected

    @invariant()
    def what_is_stored_step_by_step_is_what_is_remembered(self) -> None:
        self.stored = merge_entries(self.stored, self.saga.dump())
        assert self.stored == self.saga.dump() == self.reborn.dump()

    def _is_two(self, key: str) -> bool:
        entries: Any = self.saga.dump()["entries"]
        return key in entries and entries[key]["args"] == {"n": 2}


TestSagas = Sagas.TestCase
TestSagas.settings = settings(max_examples=30, stateful_step_count=20)


def test_what_was_dumped_stays_as_it_was_when_a_saga_goes_on() -> None:
    saga = Saga()
    saga.begin(key="1", tool="pay", args={"amount": 5}, compensates=True)
    before = saga.dump()
    told = json.dumps(before)
    saga.done("1", "paid")
    saga.begin(key="2", tool="pay", args={"amount": 6}, compensates=True)

    assert json.dumps(before) == told
    assert merge_entries(before, saga.dump()) == merge_entries(saga.dump(), before) == saga.dump()
