from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.errors import ConfigurationError
from agentgraph.phases import KEEP, ConversationPhase, ConversationState, PhaseTransition
from agentgraph.phases.state import MAX_HISTORY

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)

agents = st.sampled_from(["a", "b", None, KEEP])
steps = st.tuples(st.sampled_from(["intake", "work"]), agents, st.none() | st.just(NOON))


def test_conversation_begins_in_intake_with_nobody() -> None:
    state = ConversationState()

    assert (state.phase, state.active_agent_id, state.handoff_count) == ("intake", None, 0)
    assert [phase.value for phase in ConversationPhase] == [
        "intake",
        "qualification",
        "handling",
        "escalation",
        "resolution",
        "followup",
    ]


def test_transition_makes_a_new_state_and_notes_the_step() -> None:
    before = ConversationState("intake", "a", context={"k": 1})

    after = before.transition(ConversationPhase.HANDLING, "b", "billing", {"m": (1,)}, at=NOON)

    assert before == ConversationState("intake", "a", context={"k": 1})
    assert (after.phase, after.active_agent_id, after.previous_agent_id) == ("handling", "b", "a")
    assert (after.handoff_count, after.phase_started_at, after.context) == (1, NOON, {"k": 1})
    assert after.phase_history == (
        PhaseTransition("intake", "handling", "a", "b", "billing", NOON, {"m": [1]}),
    )
    assert type(after.phase) is str


def test_agent_is_kept_when_left_out_and_cleared_by_none() -> None:
    state = ConversationState("intake", "a", "z")

    kept = state.transition("work")
    cleared = state.transition("work", None)

    assert (kept.active_agent_id, kept.previous_agent_id, kept.handoff_count) == ("a", "z", 0)
    assert (cleared.active_agent_id, cleared.previous_agent_id) == (None, "a")
    assert cleared.handoff_count == 1
    assert state.transition("work", "a").handoff_count == 0


def test_phase_that_goes_on_keeps_its_beginning() -> None:
    state = ConversationState().transition("work", at=NOON)

    assert state.transition("work", "b", at=LATER).phase_started_at == NOON
    assert state.transition("done", at=LATER).phase_started_at == LATER


@given(st.lists(steps, max_size=20))
def test_history_and_count_follow_the_steps(made: list[Any]) -> None:
    state = ConversationState()
    for phase, agent, at in made:
        state = state.transition(phase, agent, at=at)

    moves = [step for step in state.phase_history if step.from_agent != step.to_agent]
    assert len(state.phase_history) == len(made)
    assert state.handoff_count == len(moves)
    assert [step.to_phase for step in state.phase_history] == [phase for phase, *_ in made]
    for earlier, step in zip(state.phase_history, state.phase_history[1:], strict=False):
        assert (earlier.to_phase, earlier.to_agent) == (step.from_phase, step.from_agent)
    assert ConversationState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_history_is_bounded_and_the_count_is_not() -> None:
    state = ConversationState()
    for number in range(MAX_HISTORY + 20):
        state = state.transition(str(number), "ab"[number % 2])

    assert len(state.phase_history) == MAX_HISTORY
    assert state.phase_history[-1].to_phase == str(MAX_HISTORY + 19)
    assert state.handoff_count == MAX_HISTORY + 20


def test_metadata_that_json_lacks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the metadata of a transition"):
        ConversationState().transition("work", metadata={"m": object()})


def test_document_may_leave_out_what_has_a_default() -> None:
    assert ConversationState.from_dict({}) == ConversationState()
    assert PhaseTransition.from_dict({"from_phase": "a", "to_phase": "b"}) == PhaseTransition(
        "a", "b"
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"phases": "x"}, "a ConversationState has no 'phases'"),
        ([], r"a ConversationState is read from an object, not from \[\]"),
        ({"phase_history": [{"to_phase": "x"}]}, "a PhaseTransition needs 'from_phase'"),
        ({"phase_history": [{"colour": 1}]}, "a PhaseTransition has no 'colour'"),
        ({"phase_history": [3]}, "a PhaseTransition is read from an object"),
        ({"phase_started_at": "noon"}, "'noon' is no instant"),
        ({"phase_started_at": 3}, "3 is no instant"),
        ({"phase_started_at": 20240101}, "20240101 is no instant"),
        ({"phase": 3}, "a ConversationState has phase=3: a string is wanted"),
        ({"active_agent_id": 4}, "active_agent_id=4: a name or null is wanted"),
        ({"handoff_count": "x"}, "handoff_count='x': a whole number is wanted"),
        ({"handoff_count": True}, "handoff_count=True: a whole number is wanted"),
        ({"context": [1]}, r"context=\[1\]: an object is wanted"),
        ({"phase_history": 5}, "phase_history=5: a list is wanted"),
        ({"phase": None, "context": None}, r"(?s)phase=None.*context=None"),
        ({"phase_history": [{"from_phase": 1, "to_phase": "x"}]}, "from_phase=1: a string"),
    ],
)
def test_document_with_a_fault_is_refused(data: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        ConversationState.from_dict(data)
