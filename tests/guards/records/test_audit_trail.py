"""Records are numbered, survive a sink that fails, and add up to the run that they tell of."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.clock import use_clock
from agentgraph.errors import ConfigurationError, GuardStopped
from agentgraph.guards.decision import Decision
from agentgraph.guards.records.audit_trail import AuditTrail
from agentgraph.guards.records.record import Record
from agentgraph.guards.records.sinks import JSONLSink, MemorySink, SQLiteSink
from agentgraph.guards.records.trail import Spent, Trail, folded
from agentgraph.testing import FakeClock


class Broken:
    """A sink that fails from some write on."""

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.kept: list[Record] = []

    def write(self, record: Record) -> None:
        if len(self.kept) >= self.after:
            raise OSError("the secret path is full")
        self.kept.append(record)

    def read(self, run: str) -> list[Record]:
        raise ConnectionError("nobody is there")


def record(seq: int, kind: Any, agent: str = "", **data: object) -> Record:
    return Record(kind, agent, run="r", seq=seq, at=float(seq), data=data)


def test_records_are_numbered_run_by_run_and_have_the_time() -> None:
    clock = FakeClock(start=100.0)
    trail = AuditTrail()
    with use_clock(clock):
        first = trail.record("r", "input", thread="t", data={"text": "Hello."})
        clock.advance(2)
        second = trail.record("r", "model", agent="a", step=1, parent=first.seq)
        other = trail.record("s", "input")
    assert (first.seq, second.seq, other.seq) == (1, 2, 1)
    assert (first.at, second.at) == (100.0, 102.0)
    assert trail.sink.read("r") == [first, second]
    assert (second.parent, second.agent, second.step, first.thread) == (1, "a", 1, "t")


def test_a_decision_is_written_as_values() -> None:
    decision = Decision("deny", "hops", "too many", "infinite_loop", {"hops": 5})
    trail = AuditTrail()
    assert trail.record("r", "decision", decision=decision).decision == decision.to_dict()
    assert trail.record("r", "decision", decision={"action": "deny"}).decision == {"action": "deny"}


def test_a_resumed_run_goes_on_after_its_last_record(tmp_path: Path) -> None:
    sink = SQLiteSink(tmp_path / "audit.db")
    before = AuditTrail(sink)
    for _ in range(3):
        before.record("r", "tool")
    after = AuditTrail(sink)
    assert after.resume("r") == 3
    assert after.record("r", "tool").seq == 4
    assert after.resume("r") == 4
    assert after.resume("new") == 0
    assert after.record("new", "input").seq == 1


def test_a_resume_never_numbers_again_what_the_sink_has_forgotten() -> None:
    trail = AuditTrail(MemorySink(1))
    trail.record("r", "input")
    trail.record("r", "tool")
    trail.record("s", "input")
    assert trail.resume("r") == 2
    assert trail.record("r", "tool").seq == 3


def test_a_sink_that_fails_is_lamented_once_in_each_run(caplog: pytest.LogCaptureFixture) -> None:
    sink = Broken(after=1)
    trail = AuditTrail(sink)
    with caplog.at_level(logging.WARNING, "agentgraph"):
        numbers = [trail.record("r", "tool").seq for _ in range(4)]
        trail.resume("r")
        trail.record("s", "tool")
    assert numbers == [1, 2, 3, 4]
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "the audit trail of run r cannot be written: OSError"),
        ("WARNING", "the audit trail of run s cannot be written: OSError"),
    ]


def test_a_sink_that_fails_ends_the_run_where_each_step_must_be_recorded() -> None:
    trail = AuditTrail(Broken(), "stop")
    for fails in (lambda: trail.record("r", "model"), lambda: trail.resume("r")):
        with pytest.raises(GuardStopped) as raised:
            fails()
        decision = raised.value.decision
        assert isinstance(decision, Decision)
        assert (decision.action, decision.guard) == ("abort", "audit")
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is not None


def test_what_is_remembered_of_runs_is_bounded_and_no_number_comes_twice() -> None:
    trail = AuditTrail(MemorySink(100_000))
    for seq in range(1, 8):
        assert trail.record("first", "tool").seq == seq
    for number in range(3_000):
        trail.record(f"r{number}", "input")
    assert len(trail._runs) <= 1_024
    assert trail.record("first", "tool").seq > 7
    numbers = [one.seq for one in trail.sink.read("first")]
    assert len(numbers) == len(set(numbers)) == 8


def test_a_run_in_use_is_not_the_one_that_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    trail = AuditTrail(Broken())
    for number in range(1_500):
        assert trail.record("long", "tool").seq == number + 1
        trail.record(f"r{number}", "input")
    assert sum("run long cannot" in one.getMessage() for one in caplog.records) == 1


def test_what_a_sink_may_have_is_passed_on() -> None:
    class Careful(MemorySink):
        told: list[str] = []  # noqa: RUF012

        def flush(self) -> None:
            self.told.append("flush")

        def close(self) -> None:
            self.told.append("close")

    trail = AuditTrail(Careful())
    trail.flush()
    trail.close()
    assert Careful.told == ["flush", "close"]
    AuditTrail().flush()
    AuditTrail().close()


def test_a_wrong_trail_is_told_with_all_its_faults() -> None:
    wrong: Any = {"sink": 3, "on_failure": "shrug"}
    with pytest.raises(ConfigurationError) as raised:
        AuditTrail(**wrong)
    assert len(raised.value.faults) == 2


def test_a_trail_tells_the_run() -> None:
    sink = MemorySink()
    trail = AuditTrail(sink)
    began = trail.record("r", "input", agent="desk", data={"text": "Hello."}).at
    call = trail.record("r", "model", agent="desk", step=1, data={"reserved_tokens": 900})
    used = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "usd": Decimal("0.01")}
    trail.record("r", "settled", agent="desk", step=1, data=used, parent=call.seq)
    trail.record("r", "handoff", agent="desk", data={"target": "billing"})
    refused = Decision("deny", "hops", "too many <hops>")
    trail.record("r", "handoff", agent="desk", decision=refused)
    trail.record("r", "handoff", agent="desk", data={"hop": False})
    trail.record("r", "effect", agent="billing", data={"tool": "refund", "key": "k"})
    trail.record("r", "effect", agent="billing", data={"key": "k", "state": "done"})
    trail.record("r", "compensated", agent="billing", data={"key": "k"})
    ended = trail.record("r", "end", data={"reason": "answered"}).at
    told = trail.trail("r")
    assert told == Trail(
        ("desk", "billing"),
        Spent(10, 5, 15, Decimal("0.01"), 0),
        (refused.to_dict(),),
        steps=1,
        hops=1,
        effects=(("refund", "compensated"),),
        began_at=began,
        ended_at=ended,
        end="answered",
    )
    values = json.loads(json.dumps(told.to_dict()))
    assert values["spend"]["usd"] == "0.01"
    assert values["path"] == ["desk", "billing"]
    assert "too many &lt;hops&gt;" in told._repr_html_()


def test_a_call_that_was_never_settled_has_cost_its_reservation() -> None:
    spend = folded(
        [
            record(1, "model", "a", reserved_tokens=900, reserved_usd="0.5"),
            record(2, "model", "a", reserved_tokens=100, reserved_usd="0.25"),
            replace(record(3, "settled", "a", input_tokens=7, usd="0.1"), parent=2),
        ]
    ).spend
    assert spend == Spent(7, 0, 907, Decimal("0.6"), 900)


def test_calls_that_overlap_are_settled_each_for_itself() -> None:
    calls = [record(seq, "model", "a", reserved_tokens=seq * 100) for seq in (1, 2)]
    used = replace(record(3, "settled", "a", total_tokens=5), parent=1)
    assert folded([*calls, used]).spend == Spent(0, 0, 205, None, 200)
    blind = [record(seq, "settled", "a", total_tokens=5) for seq in (3, 4)]
    assert folded([*calls, *blind]).spend == Spent(0, 0, 10, None, 0)


def test_one_call_without_a_price_leaves_the_cost_unknown() -> None:
    spend = folded(
        [record(1, "model", usd="1"), record(2, "settled", usd="free"), record(3, "end")]
    )
    assert spend.spend.usd is None
    assert folded([]).spend.usd is None


def test_usage_that_was_estimated_is_told_apart() -> None:
    used = replace(record(2, "settled", total_tokens=50, estimated=True), parent=1)
    assert folded([record(1, "model"), used]).spend == Spent(0, 0, 50, None, 50)


def test_a_resume_repeats_steps_that_count_once_and_calls_that_are_paid_again() -> None:
    deny = {"action": "deny", "guard": "loop"}
    correct = {"action": "correct", "guard": "loop"}
    once = [
        record(1, "model", "a", key="1", reserved_tokens=100),
        replace(record(2, "decision", "a", key="1"), decision=deny),
        replace(record(3, "decision", "a", key="1"), decision=correct),
        record(4, "handoff", "a", key="1"),
    ]
    again = [replace(one, seq=one.seq + 4) for one in once]
    settled = record(9, "settled", "a", key="1", total_tokens=10)
    told = folded([*once, *again, settled, record(10, "model", "b", key="2")])
    assert told.steps == 2
    assert told.hops == 1
    assert told.path == ("a", "b")
    assert told.decisions == (deny, correct)
    assert told.spend.total_tokens == 110
    assert told.spend.estimated_tokens == 100


RECORDS = st.lists(
    st.builds(
        Record,
        run=st.sampled_from(["r", "s"]),
        seq=st.integers(0, 12),
        at=st.floats(0, 3),
        kind=st.sampled_from(
            ["input", "model", "settled", "tool", "handoff", "decision", "effect", "compensated"]
        ),
        agent=st.sampled_from(["", "a", "b"]),
        decision=st.none() | st.fixed_dictionaries({"action": st.sampled_from(["allow", "deny"])}),
        data=st.dictionaries(
            st.sampled_from(["key", "tool", "state", "reserved_tokens", "total_tokens", "usd"]),
            st.none() | st.integers(-3, 99) | st.sampled_from(["x", "1.5", "NaN", []]),
            max_size=4,
        ),
        parent=st.none() | st.integers(0, 12),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(RECORDS, st.randoms(use_true_random=False))
def test_a_fold_knows_no_order_and_no_repetition(records: list[Record], random: Any) -> None:
    told = folded(records)
    mixed = [*records, *records[:3]]
    random.shuffle(mixed)
    assert folded(mixed) == told
    assert json.loads(json.dumps(told.to_dict()))["steps"] == told.steps


@settings(max_examples=40)
@given(RECORDS)
def test_every_prefix_adds_up_and_never_to_more_than_the_next(records: list[Record]) -> None:
    ordered = [replace(one, seq=seq) for seq, one in enumerate(records)]
    before = Trail()
    for end in range(len(ordered) + 1):
        told = folded(ordered[:end])
        assert told.path[: len(before.path)] == before.path
        assert told.decisions[: len(before.decisions)] == before.decisions
        assert (told.steps, told.hops) >= (before.steps, before.hops)
        assert "<b>" in told._repr_html_()
        before = told


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["call", "cut off", "hand over", "refuse", "change", "undo"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 50),
    ),
    max_size=15,
)


def sinks(folder: Path) -> Iterator[MemorySink | JSONLSink | SQLiteSink]:
    yield MemorySink()
    yield JSONLSink(folder / "audit.jsonl")
    yield SQLiteSink(folder / "audit.db")


@settings(max_examples=15)
@given(ACTS)
def test_whatever_a_run_does_its_trail_tells(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, int]]
) -> None:
    for sink in sinks(tmp_path_factory.mktemp("run")):
        trail, world = AuditTrail(sink), World()
        for number, (act, agent, size) in enumerate(acts):
            trail = AuditTrail(sink) if size % 3 == 0 else trail
            trail.resume("r")
            world.do(trail, number, act, agent, size)
        told = trail.trail("r")
        assert told.path == tuple(world.path)
        assert (told.spend.total_tokens, told.spend.estimated_tokens) == (world.spent, world.open)
        assert (told.steps, told.hops) == (world.steps, world.hops)
        assert [one["cause"] for one in told.decisions] == world.refusals
        assert dict(told.effects) == world.changes
        trail.close()


class World:
    """A run as it is, beside its trail."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.spent = self.open = self.steps = self.hops = 0
        self.refusals: list[str] = []
        self.changes: dict[str, str] = {}

    def do(self, trail: AuditTrail, number: int, act: str, agent: str, size: int) -> None:
        if act in ("call", "cut off"):
            call = trail.record("r", "model", agent=agent, data={"reserved_tokens": size + 9})
            self.steps += 1
            if act == "call":
                data = {"input_tokens": size, "output_tokens": 1}
                trail.record("r", "settled", agent=agent, parent=call.seq, data=data)
                self.spent += size + 1
            else:
                self.spent += size + 9
                self.open += size + 9
        elif act in ("hand over", "refuse"):
            deny = Decision("deny", "hops", f"{size}") if act == "refuse" else None
            trail.record("r", "handoff", agent=agent, decision=deny)
            self.hops += act == "hand over"
            self.refusals += [f"{size}"] * (act == "refuse")
        else:
            named = {"tool": f"t{number}", "key": f"{number}"}
            trail.record("r", "effect", agent=agent, data=named)
            if act == "undo":
                trail.record("r", "compensated", agent="undoer", data=named)
            self.changes[f"t{number}"] = "compensated" if act == "undo" else "started"
        if self.path[-1:] != [agent]:
            self.path.append(agent)
