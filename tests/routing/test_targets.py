from __future__ import annotations

from typing import Any

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    ActiveAgentTarget,
    AddressedTarget,
    AgentTarget,
    Always,
    HumanTarget,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    Transition,
    TransitionDecision,
    TransitionGraph,
    TransitionTarget,
)
from tests.routing.samples import ODD, ByPhase, Decides, Envelope, State

speak, wait, close = TransitionDecision.speak, TransitionDecision.wait, TransitionDecision.close


def led(target: Any, sender: str = "a", metadata: Any = None, **state: Any) -> TransitionDecision:
    decision: TransitionDecision = target.resolve(State(**state), Envelope(sender, {}, metadata))
    return decision


@pytest.mark.parametrize(
    ("target", "decision"),
    [
        (AgentTarget("b"), speak("b")),
        (AgentTarget("human"), wait("user")),
        (StayTarget(), speak("a")),
        (RevertToInitiatorTarget(), speak("user")),
        (HumanTarget(), wait("user")),
        (HumanTarget("bob"), wait("bob")),
        (HumanTarget("human"), wait("user")),
        (ParallelTarget(("b", "c"), "a"), speak("b", "c")),
        (TerminateTarget("done"), close("done")),
        (TerminateTarget(), close("terminated")),
        (PhaseTarget("work", "b"), TransitionDecision("speak", ("b",), "work")),
        (PhaseTarget("x", PhaseTarget("y", "b")), TransitionDecision("speak", ("b",), "x")),
        (PhaseTarget("x", TerminateTarget("r")), TransitionDecision("close", (), "x", "r")),
    ],
)
def test_target_decides(target: Any, decision: TransitionDecision) -> None:
    assert led(target) == decision


@pytest.mark.parametrize(
    ("agents", "last", "following"),
    [
        (("a", "b", "c"), "a", "b"),
        (("a", "b", "c"), "c", "a"),
        (("c", "a"), "c", "a"),
        (("b", "c"), "a", "b"),
        (("b", "c"), None, "b"),
        ((), "a", "b"),
        ((), "c", "a"),
        ((), "user", "a"),
        (("a",), "a", "a"),
    ],
)
def test_round_robin_goes_on_after_the_last_speaker(
    agents: tuple[str, ...], last: str | None, following: str
) -> None:
    assert led(RoundRobinTarget(agents), last_speaker_id=last) == speak(following)


def test_round_robin_of_nobody_closes() -> None:
    assert led(RoundRobinTarget(), participant_order=()) == close("no_participants")


@pytest.mark.parametrize("agents", ["abc", {"a": 1}, ["a", 3], ["a", "a"], None])
def test_ring_is_a_list_of_different_names(agents: Any) -> None:
    with pytest.raises(ConfigurationError, match="agents"):
        RoundRobinTarget(agents)
    with pytest.raises(ConfigurationError, match="agents"):
        ParallelTarget(agents, "a")


def test_target_of_one_s_own_that_holds_itself_is_refused() -> None:
    circle = ByPhase("x", AgentTarget("a"))
    object.__setattr__(circle, "then", circle)

    at_once = ParallelTarget(["a"], circle)

    with pytest.raises(ConfigurationError, match="nested deeper"):
        TransitionGraph("a", [Transition(Always(), at_once)])


def test_parallel_needs_somebody_and_joins_with_one() -> None:
    inner = PhaseTarget("work", ParallelTarget(["b"], "a"))

    with pytest.raises(ConfigurationError, match="agents is empty"):
        ParallelTarget([], "a")
    with pytest.raises(ConfigurationError, match="join is parallel again"):
        ParallelTarget(["a"], inner)


def test_active_agent_speaks_but_not_after_itself() -> None:
    assert led(ActiveAgentTarget(), "user", active_agent="b") == speak("b")
    assert led(ActiveAgentTarget(), "b", active_agent="b") == wait("user")
    with pytest.raises(LookupError):
        led(ActiveAgentTarget())


@pytest.mark.parametrize(
    ("addressed", "decision"),
    [
        ("b", speak("b")),
        (["nobody", "c", "a"], speak("c")),
        ("nobody", wait("user")),
        ([], wait("user")),
        ([3, None], wait("user")),
        ({"b": 1}, wait("user")),
        (3, wait("user")),
    ],
)
def test_addressed_is_a_participant_or_else_the_human(
    addressed: Any, decision: TransitionDecision
) -> None:
    assert led(AddressedTarget(), metadata={"addressed_to": addressed}) == decision


def test_string_is_an_agent_s_name_wherever_a_target_is_wanted() -> None:
    agent = AgentTarget("b")

    assert Transition(Always(), "b").then == agent
    assert TransitionGraph("a", default_target="b").default_target == agent
    assert PhaseTarget("work", "b").then == agent
    assert ParallelTarget(["a"], "b").join == agent


@pytest.mark.parametrize("wrong", [None, 3, StayTarget, Always(), ["a"]])
def test_what_is_no_target_is_refused(wrong: Any) -> None:
    for build in (
        lambda: Transition(Always(), wrong),
        lambda: TransitionGraph("a", default_target=wrong),
        lambda: PhaseTarget("work", wrong),
        lambda: ParallelTarget(["a"], wrong),
    ):
        with pytest.raises(ConfigurationError, match="is no target"):
            build()


def test_all_faults_of_a_rule_and_of_a_graph_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as rule:
        Transition("a", 3, priority=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as graph:
        TransitionGraph("", ["a", None], 3, max_turns=True)  # type: ignore[arg-type, list-item]

    assert [fault.split("=")[0] for fault in rule.value.faults] == [
        "when",
        "priority",
        "3 is no target: give one, or a participant's name",
    ]
    assert len(graph.value.faults) == 5


@pytest.mark.parametrize("transitions", ["ab", {"a": 1}, None, 3])
def test_transitions_are_a_list(transitions: Any) -> None:
    with pytest.raises(ConfigurationError, match="transitions"):
        TransitionGraph("a", transitions)


def test_protocol_tells_targets_of_one_s_own() -> None:
    assert isinstance(Decides("two"), TransitionTarget)
    assert isinstance(HumanTarget("bob"), TransitionTarget)
    assert not isinstance(Always(), TransitionTarget)


@pytest.mark.parametrize("answer", ["raises", *sorted(set(ODD) - {"two"})])
def test_rule_whose_target_does_not_decide_is_passed_over(answer: str) -> None:
    rules = [Transition(Always(), Decides(answer)), Transition(Always(), "c")]

    decision = TransitionGraph("a", rules).resolve(State(), Envelope())

    assert (decision.next_speaker, decision.rule) == ("c", 1)
    assert [told.startswith("rule 0") for told in decision.trace] == [True]


def test_default_that_does_not_decide_closes() -> None:
    graph = TransitionGraph("a", default_target="nobody")

    decision = graph.resolve(State(), Envelope())

    assert decision == TransitionDecision("close", close_reason="no_speaker", rule="default")
    assert decision.trace == ("default leads to 'nobody', who is no participant",)


def test_target_of_one_s_own_may_let_several_speak() -> None:
    decision = TransitionGraph("a", [Transition(Always(), Decides("two"))]).resolve(
        State(), Envelope()
    )

    assert decision.speakers == ("a", "b")
    assert decision.next_speaker is None
