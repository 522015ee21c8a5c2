"""The fold: pure and total, and its snapshots come back from JSON as they were."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope, Priority
from agentgraph.sessions.state import fold as fold_module
from agentgraph.sessions.state.fold import decision_of, fold, fold_all
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

NAMES = ("a", "b", "user", "guest", "ag.hub", "stranger")
TYPES = sorted(value for name, value in vars(ev).items() if name.startswith("EV_"))

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(NAMES)
)
jsons = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def either(*likely: Any) -> st.SearchStrategy[Any]:
    """Return what is meant to be there, or anything that JSON has."""
    return st.one_of(
        *(one if isinstance(one, st.SearchStrategy) else st.just(one) for one in likely), jsons
    )


decisions = st.fixed_dictionaries(
    {
        "action": either(st.sampled_from(["speak", "wait", "close"])),
        "speakers": either(st.lists(st.sampled_from(NAMES), max_size=3)),
        "rule": either(st.integers(0, 3), "default", "handoff"),
        "phase": either(None, "handling"),
        "close_reason": either("", "done"),
    },
    optional={"trace": either(st.lists(st.text(max_size=3), max_size=1)), "more": jsons},
)
updates = st.fixed_dictionaries(
    {},
    optional={
        "set": either(st.dictionaries(st.sampled_from("xyz"), scalars)),
        "delete": either(st.lists(st.sampled_from("xyz"))),
    },
)
data = st.dictionaries(st.text(max_size=3), jsons, max_size=2) | st.fixed_dictionaries(
    {},
    optional={
        "decision": either(decisions),
        "routing": either(st.fixed_dictionaries({"kind": either("finish", "text", "handoff")})),
        "context_updates": either(updates),
        "set": either(st.dictionaries(st.sampled_from("xyz"), scalars)),
        "delete": either(st.lists(st.sampled_from("xyz"))),
        "active": either(None, "a/b"),
        "body": jsons,
        "text": jsons,
        "speaker": either(st.sampled_from(NAMES)),
        "participant": either(st.sampled_from(NAMES)),
        "agent": either(st.sampled_from(NAMES)),
        "initial_speaker": either(st.sampled_from(NAMES)),
        "final": either(True, False),
        "id": either("i1", "i2"),
        "interrupt_id": either("i1", "i2"),
        "reason": either("done"),
        "target": either("a", "human"),
        "next_phase": either("handling"),
        "to": either("handling", "intake"),
        "key": either("0:turn_within:1"),
    },
)
instants = st.text(max_size=8) | st.sampled_from(
    ["", "2026-01-01T00:00:00+00:00", "2026-01-01", "2026-01-01T00:00:00.000001+05:30"]
)


@st.composite
def logs(draw: st.DrawFn) -> list[Envelope]:
    """Return envelopes of any kind, by anybody, holding anything."""
    count = draw(st.integers(1, 6))
    return [
        Envelope(
            draw(st.text(max_size=4)),
            "s",
            draw(st.sampled_from(NAMES)),
            draw(st.none() | st.just(()) | st.just(("a",))),
            draw(st.sampled_from([*TYPES, "my.event", ""])),
            draw(data),
            created_at=draw(instants),
            sequence=number + 1,
            priority=draw(st.sampled_from(Priority)),
            metadata=draw(st.dictionaries(st.text(max_size=3), jsons, max_size=1)),
        )
        for number in range(count)
    ]


def begun() -> SessionState:
    record = SessionRecord(
        "s",
        "team",
        "user",
        ("a", "b"),
        ("guest",),
        {"version": 1},
        1.5,
        context={"x": [1, {"y": 2}]},
    )
    return SessionState.initial(record)


@settings(max_examples=300)
@given(logs())
def test_no_envelope_makes_the_fold_raise_and_each_one_moves_the_sequence(
    log: list[Envelope],
) -> None:
    state = begun()
    for envelope in log:
        state = fold(state, envelope)
        assert (state.sequence, state.updated_at) == (envelope.sequence, envelope.created_at)
        # What everything else asks of a state is answered too.
        assert isinstance(state.is_runnable, bool) and isinstance(state.is_ended, bool)
        assert all(isinstance(name, str) for name in (*state.speakers, *state.due))


@settings(max_examples=300)
@given(logs())
def test_a_snapshot_comes_back_from_json_as_it_was(log: list[Envelope]) -> None:
    state = fold_all(begun(), log)
    stored = json.dumps(state.to_dict(), allow_nan=False)
    assert SessionState.from_dict(json.loads(stored)) == state


@settings(max_examples=150)
@given(logs(), st.integers(0, 6))
def test_going_on_from_a_snapshot_is_folding_all_of_it(log: list[Envelope], at: int) -> None:
    stored = json.loads(json.dumps(fold_all(begun(), log[:at]).to_dict()))
    assert fold_all(SessionState.from_dict(stored), log[at:]) == fold_all(begun(), log)


@settings(max_examples=150)
@given(logs())
def test_the_fold_changes_neither_the_state_nor_the_envelope(log: list[Envelope]) -> None:
    state = begun()
    for envelope in log:
        before = deepcopy({one.name: getattr(state, one.name) for one in fields(state)})
        told = deepcopy(envelope.to_dict())
        after = fold(state, envelope)
        assert fold(state, envelope) == after
        assert {one.name: getattr(state, one.name) for one in fields(state)} == before
        assert envelope.to_dict() == told
        state = after


@settings(max_examples=50)
@given(logs())
def test_a_log_folds_as_a_whole_to_what_it_folds_to_step_by_step(log: list[Envelope]) -> None:
    steps = [begun()]
    for envelope in log:
        steps.append(fold(steps[-1], envelope))
    assert {type(one) for one in steps} == {SessionState}
    for start, state in enumerate(steps):
        before = {one.name: getattr(state, one.name) for one in fields(state)}
        whole = fold_all(state, log[start:])
        assert type(whole) is SessionState and whole == steps[-1]
        assert {one.name: getattr(state, one.name) for one in fields(state)} == before


def test_a_log_is_folded_on_one_private_state(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else each envelope sets all fields of a new state, which takes several times as long.
    states: list[SessionState] = []

    def recorded(state: SessionState, envelope: Envelope) -> SessionState:
        states.append(state)
        return fold(state, envelope)

    monkeypatch.setattr(fold_module, "fold", recorded)
    log = [
        Envelope(f"e{n}", "s", "a", None, ev.EV_TEXT, {"text": "hello"}, sequence=n)
        for n in range(1, 4)
    ]

    fold_all(begun(), log)

    assert len(states) == 3
    assert len({id(state) for state in states}) == 1


def test_of_an_envelope_only_what_it_has_need_be_told() -> None:
    told: dict[str, Any] = {
        "envelope_id": "1",
        "session_id": "s",
        "sender_id": "a",
        "audience": None,
        "event_type": "ag.msg.text",
        "event_data": {"text": "hello"},
    }
    assert Envelope.from_dict(told) == Envelope(**told)
    with pytest.raises(ValueError, match="fields that an envelope has not"):
        Envelope.from_dict({**told, "sent_by": "b"})
    with pytest.raises(KeyError, match="sender_id"):
        Envelope.from_dict({name: value for name, value in told.items() if name != "sender_id"})


@settings(max_examples=50)
@given(logs())
def test_an_envelope_comes_back_from_json_as_it_was(log: list[Envelope]) -> None:
    for envelope in log:
        assert Envelope.from_dict(json.loads(json.dumps(envelope.to_dict()))) == envelope


@pytest.mark.parametrize(
    "stamped",
    [
        None,
        "speak",
        {},
        {"action": "speak"},
        {"action": "speak", "speakers": "ab"},
        {"action": "speak", "speakers": [["a"]]},
        {"action": "speak", "speakers": [None]},
        {"action": "dance", "speakers": ["a"]},
        {"action": ["close"], "speakers": []},
        {"action": "close", "speakers": [], "close_reason": ["x"]},
        {"action": "speak", "speakers": ["a"], "phase": 7},
        {"action": "speak", "speakers": ["a"], "rule": {}},
        {"action": "speak", "speakers": ["a"], "stranger": 1},
    ],
)
def test_a_decision_that_is_none_decides_nothing(stamped: Any) -> None:
    said = Envelope(
        "e", "s", "user", None, ev.EV_TEXT, {"text": "x", "decision": stamped}, sequence=1
    )
    assert decision_of(said) is None
    assert fold(begun(), said).round == 0


@given(st.sampled_from(["my.event", "ag", "ag.unknown", ""]), data)
def test_what_the_fold_does_not_know_changes_nothing(event_type: str, held: dict[str, Any]) -> None:
    said = Envelope("e", "s", "user", None, event_type, held, created_at="now", sequence=7)
    before, after = begun().to_dict(), fold(begun(), said).to_dict()
    changed = {key for key in before if before[key] != after[key]}
    assert changed <= {"sequence", "updated_at"}
