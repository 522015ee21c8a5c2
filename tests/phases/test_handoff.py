from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.phases import (
    ConversationPipeline,
    HandoffPolicy,
    HandoffRequest,
    HandoffResult,
    PipelineStage,
    validate_handoff,
)

pipeline = ConversationPipeline(
    [
        PipelineStage("intake", "triage", "handling"),
        PipelineStage("handling", "handler", "review"),
        PipelineStage("review", "reviewer", None, {"handling"}),
    ]
)
free = HandoffPolicy(["triage", "handler", "reviewer", "helper"])
policy = replace(
    free,
    aliases={"billing": "handler", "boss": "human", "human": "helper", "reviewer": "helper"},
    phase_map=pipeline.get_phase_map(),
    allowed_transitions=pipeline.get_allowed_transitions(),
    hop_limit=3,
)


def asked(target: str, under: HandoffPolicy = policy, **options: Any) -> HandoffResult:
    where = {"caller": "triage", "phase": "intake", "hops": 0}
    given_where = {key: options.pop(key, default) for key, default in where.items()}
    return validate_handoff(HandoffRequest(target, "why", **options), under, **given_where)


def test_handoff_is_accepted_with_its_receiver_and_phase() -> None:
    assert asked("handler") == HandoffResult(True, "accepted", "why", "handler", "handling")


def test_alias_is_looked_up_but_a_name_is_not_taken_for_one() -> None:
    assert asked("billing").new_agent_id == "handler"
    assert asked("reviewer", phase="handling", caller="handler").new_agent_id == "reviewer"


@pytest.mark.parametrize("target", ["human", "boss"])
def test_human_can_be_reached_from_everywhere(target: str) -> None:
    assert asked(target, phase="review", hops=99) == HandoffResult(
        True, "accepted", "why", None, "review"
    )
    assert asked(target, HandoffPolicy([], aliases={"boss": "human"})).accepted


def test_human_is_asked_in_a_phase_that_may_be_entered() -> None:
    assert asked("human", next_phase="handling").new_phase == "handling"
    assert asked("human", next_phase="invented").new_phase == "intake"
    assert asked("human", free, next_phase="anywhere").new_phase == "anywhere"


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (
            {"target": "nobody"},
            "unknown_target",
            "'nobody' is nobody here: there are handler, reviewer, helper, human",
        ),
        ({"target": ["handler"]}, "unknown_target", "['handler'] is nobody here"),
        (
            {"target": "helper", "next_phase": ["review"]},
            "transition_not_allowed",
            "next_phase=['review'] is no phase",
        ),
        ({"target": "Billing"}, "unknown_target", "'Billing' is nobody here"),
        (
            {"target": "triage"},
            "self_handoff",
            "'triage' has the conversation already: go on",
        ),
        ({"target": "billing", "caller": "handler"}, "self_handoff", "'handler' has"),
        (
            {"target": "handler", "next_phase": "review"},
            "phase_mismatch",
            "'handler' works in phase 'handling', not in 'review'",
        ),
        (
            {"target": "reviewer"},
            "transition_not_allowed",
            "from phase 'intake' it does not go to 'review', but to handling",
        ),
        (
            {"target": "handler", "phase": "elsewhere"},
            "transition_not_allowed",
            "from phase 'elsewhere' it does not go to 'handling', but to nowhere: answer, and it "
            "ends",
        ),
        (
            {"target": "handler", "hops": 3},
            "hop_limit",
            "3 handoffs were made already: answer, or hand over to 'human'",
        ),
        (
            {"target": "human", "channel_escalation": "voice"},
            "unsupported_escalation",
            "nothing handles channel_escalation='voice': use 'same'",
        ),
    ],
)
def test_refusal_says_why(options: dict[str, Any], code: str, told: str) -> None:
    result = asked(**options)

    assert (result.accepted, result.code) == (False, code)
    assert result.reason.startswith(told)
    assert (result.new_agent_id, result.new_phase) == (None, None)


def test_human_is_asked_where_it_is_whatever_phase_a_model_wishes_for() -> None:
    assert asked(target="human", next_phase=["review"]).new_phase == "intake"


def test_one_hop_less_than_the_limit_is_accepted() -> None:
    assert asked("handler", hops=2).accepted


def test_escalation_that_something_handles_is_accepted() -> None:
    assert asked("handler", replace(policy, escalations={"voice"}), channel_escalation="voice")


def test_agent_without_a_phase_of_its_own_takes_the_wished_one_or_the_present() -> None:
    assert asked("helper", next_phase="handling").new_phase == "handling"
    assert asked("helper", free).new_phase == "intake"
    assert asked("helper").code == "transition_not_allowed"


@given(
    st.builds(
        HandoffRequest,
        st.sampled_from(["triage", "handler", "reviewer", "helper", "billing", "human", "x"]),
        next_phase=st.sampled_from([None, "intake", "handling", "review", "x"]),
    ),
    st.sampled_from(["triage", "handler", "reviewer", "helper"]),
    st.sampled_from(["intake", "handling", "review", "x"]),
    st.integers(0, 4),
    st.sampled_from([free, policy]),
)
def test_what_is_accepted_is_lawful(
    request: HandoffRequest, caller: str, phase: str, hops: int, under: HandoffPolicy
) -> None:
    result = validate_handoff(request, under, caller=caller, phase=phase, hops=hops)

    assert result.accepted == (result.code == "accepted")
    assert result.reason or result.accepted
    if result.accepted and result.new_agent_id is not None:
        assert result.new_agent_id in under.participants
        assert result.new_agent_id != caller
        assert hops < (under.hop_limit or 99)
        own = under.phase_map.get(result.new_agent_id, result.new_phase)
        assert own == result.new_phase
        allowed = under.allowed_transitions
        assert allowed is None or result.new_phase in allowed[phase]
