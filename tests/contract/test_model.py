"""Random steps in sessions whose processes are killed: what was paid is what a small model says."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.contract.cells import AFTER_EFFECT, COMMITTED, INSIDE, RECORDED
from tests.contract.ledger import Ledger
from tests.postgres import new_database
from tests.sessions.kills import Pen, pen

pytestmark = pytest.mark.timeout(1_000)

SIGKILL = 9
MODULE = "tests.contract.steps"
EXAMPLES, STEPS = (int(n) for n in os.environ.get("CONTRACT_EXAMPLES", "4x8").split("x"))
kills = st.sampled_from(["", INSIDE, AFTER_EFFECT, RECORDED, COMMITTED])
decisions = st.sampled_from(["approve", "refuse"])


@dataclass
class Expected:
    """What is to be so of one session."""

    inputs: list[int] = field(default_factory=list)
    """What was sent, in the live branch."""
    open: int | None = None
    """What the agent asks about."""
    paid: Counter[int] = field(default_factory=Counter)

    def runs(self, item: int) -> None:
        """Note that an input has run: it asks, or it pays."""
        self.open = item if item % 2 else None
        if self.open is None:
            self.paid[item] += 1

    def is_decided(self, decision: str) -> None:
        if self.open is not None and decision == "approve":
            self.paid[self.open] += 1
        self.open = None


class Contract(RuleBasedStateMachine):
    """Sessions in one store, and processes that are killed."""

    one: Pen
    two: Pen
    postgres_url: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._url = f"sqlite:///{folder / 'store.db'}"
        if self.postgres_url is not None:
            self._url = self._stack.enter_context(new_database(self.postgres_url)).url
        self._ledger = Ledger(str(folder / "ledger"))
        self._sessions = {"main": Expected()}
        self._numbers = iter(range(100))

    def teardown(self) -> None:
        self._stack.close()

    @rule(kill=kills, pick=st.integers(0, 3))
    def send(self, kill: str, pick: int) -> None:
        name, expected = self._picked(pick)
        item = next(self._numbers)
        expected.inputs.append(item)
        expected.runs(item)
        self._step(name, "send", str(item), kill)

    @rule(decision=decisions, kill=kills, pick=st.integers(0, 3))
    def decide(self, decision: str, kill: str, pick: int) -> None:
        name, expected = self._picked(pick)
        expected.is_decided(decision)
        self._step(name, "decide", decision, kill)

    @rule(decision=decisions, pick=st.integers(0, 3))
    def decide_again(self, decision: str, pick: int) -> None:
        name, expected = self._picked(pick)
        if expected.open is None:
            self._step(name, "decide_late", f"{decision} again")

    @rule(pick=st.integers(0, 3))
    def decide_in_two_processes(self, pick: int) -> None:
        name, expected = self._picked(pick)
        before = len(self._ledger.entries("paid"))
        for child, decision in ((self.one, "approve"), (self.two, "refuse")):
            child.begin(**self._order(name, "decide", decision))
        for child in (self.one, self.two):
            assert child.until("ended")["ended"] == 0, child.complaints()
        is_paid = len(self._ledger.entries("paid")) > before
        expected.is_decided("approve" if is_paid else "refuse")
        self._check(name)

    @precondition(lambda self: any(one.inputs for one in self._sessions.values()))
    @rule(data=st.data(), kill=kills, pick=st.integers(0, 3))
    def rewind(self, data: st.DataObject, kill: str, pick: int) -> None:
        name, expected = self._picked(pick)
        if expected.inputs:
            item = data.draw(st.sampled_from(expected.inputs))
            expected.inputs = expected.inputs[: expected.inputs.index(item) + 1]
            expected.runs(item)
            self._step(name, "rewind", str(item), kill)

    @precondition(lambda self: len(self._sessions) < 3 and self._sessions["main"].inputs)
    @rule(pick=st.integers(0, 3))
    def fork(self, pick: int) -> None:
        name, expected = self._picked(pick)
        if expected.inputs:
            self._run("fork", name, "")
            fork = self._ledger.entries("forked")[-1].item
            self._sessions[fork] = Expected([*expected.inputs], expected.open)
            self._check(fork)

    def _picked(self, pick: int) -> tuple[str, Expected]:
        return [*self._sessions.items()][pick % len(self._sessions)]

    def _step(self, name: str, action: str, text: str, kill: str = "") -> None:
        """Take a step; where its process was killed, another one does what is left to do."""
        if self._run(action, name, text, kill) == SIGKILL:
            self._run("rest", name, "")
        self._check(name)

    def _run(self, action: str, name: str, text: str, kill: str = "") -> int:
        self.one.begin(**self._order(name, action, text), kill=kill)
        status = int(self.one.until("ended")["ended"])
        assert status == 0 or (kill and status == SIGKILL), self.one.complaints()
        return status

    def _order(self, name: str, action: str, text: str) -> dict[str, Any]:
        order = {"url": self._url, "ledger": self._ledger.path, "action": action}
        return {"run": "step", **order, "session": name, "text": text}

    def _check(self, name: str) -> None:
        """Check what was paid in all sessions, and what one of them waits for."""
        paid = self._ledger.entries("paid")
        assert len({entry.key for entry in paid}) == len(paid)
        for session, expected in self._sessions.items():
            items = Counter(int(entry.item) for entry in paid if entry.data == session)
            assert items == +expected.paid, session
        end = [entry.data for entry in self._ledger.entries("end") if entry.item == name][-1]
        assert end == (self._sessions[name].open is not None)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_sessions_keep_the_contract_whatever_is_done_and_whoever_is_killed(
    request: pytest.FixtureRequest, store: str
) -> None:
    if store == "postgres":
        Contract.postgres_url = request.getfixturevalue("postgres_url")
    bounds = settings(
        max_examples=EXAMPLES if store == "sqlite" else max(1, EXAMPLES // 2),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with pen(MODULE) as Contract.one, pen(MODULE) as Contract.two:
        try:
            run_state_machine_as_test(Contract, settings=bounds)
        finally:
            Contract.postgres_url = None
